"""The executor: any worker runs any part, and workers that are lost change no bit. All in this process, without Ray."""

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import Losing, coordinator, experiment, outcome

from hedgerow.platform.runtime import executor
from hedgerow.platform.runtime.shards import ObjectsLost
from hedgerow.platform.runtime.transport import Answer

ALGORITHMS = ["fedavg", "scaffold", "feddyn", "ditto", "toys.Narrow", "toys.Stateful"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_several_workers_have_the_bits_of_one(name, tmp_path):
    chosen = experiment(name)
    alone = outcome(coordinator(chosen, tmp_path / "one"))
    for workers in (2, 3):
        assert outcome(coordinator(chosen, tmp_path / str(workers), workers=workers)) == alone


@pytest.mark.parametrize(
    ("name", "steps"), [("fedavg", set()), ("feddyn", {"train"}), ("ditto", {"train", "evaluate_client"})]
)
def test_states_are_sent_to_steps_that_read_or_write_them(name, steps, tmp_path):
    sent = set()

    def look(number, worker, method, arguments):
        shards = arguments[0] if method == "run" else []
        sent.update(shard.step for shard in shards if shard.rows is not None)
        return False

    outcome(coordinator(experiment(name), tmp_path, loses=look))
    assert sent == steps


def test_the_latest_models_of_all_clients_are_followed_on_any_worker(tmp_path):
    chosen = experiment("fedavg", evaluation={"every": 2, "clients": 24, "model": "clients"})
    alone = outcome(coordinator(chosen, tmp_path / "one"))
    assert outcome(coordinator(chosen, tmp_path / "three", workers=3)) == alone
    assert "server_test_accuracy" in alone[0][-1]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "toys.TwoPhases"])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.grid
def test_lost_calls_change_nothing_and_each_is_reported_once(name, late, tmp_path_factory):
    chosen, folder = experiment(name), tmp_path_factory.mktemp
    calm = outcome(coordinator(chosen, folder("calm") / "run", workers=2))

    @given(lost=st.sets(st.integers(1, 60), max_size=12))
    @settings(max_examples=6)
    def check(lost):
        times = Counter()

        def part_losses(number, worker, method, arguments):
            # A part that is lost three times is searched for a client that ends its worker.
            work = method, str([shard.clients for shard in arguments[0]] if method == "run" else "")
            if number not in lost or method == "start" or times[work] == 2:
                return False
            times[work] += 1
            return True

        run = coordinator(chosen, folder("lossy") / "run", workers=2, loses=part_losses, late=late)
        assert outcome(run) == calm
        assert len(run.notices) == run.executor.transport.lost
        assert all("was lost (as the test wants) and replaced; its work runs again" in line for line in run.notices)

    check()


class Late(Losing):
    """Its worker 1 starts only when the executor has waited twice with nothing else to do; with `never`, not at all."""

    never, waits = False, 0

    def wait(self, seconds):
        if self._calls[0][:2] == (1, "start"):
            self._calls.rotate(-1)
        if self._calls[0][:2] == (1, "start") and (self.never or self.waits < 2):
            self.waits += 1
            return []
        return super().wait(seconds)


class Absent(Late):
    never = True


@pytest.mark.parametrize(("kind", "first"), [(Late, {0, 1}), (Absent, {0})])
def test_the_first_work_waits_for_workers_that_start_together_but_not_for_ever(kind, first, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "GATHER_SECONDS", 60.0 if kind is Late else 0.1)
    chosen, ran = experiment("fedavg"), []

    def note(number, worker, method, arguments):
        ran.extend([worker] * (method == "run"))
        return False

    run = coordinator(chosen, tmp_path / "two", parts=2, workers=2, loses=note, kind=kind)
    assert outcome(run) == outcome(coordinator(chosen, tmp_path / "one", parts=2))
    assert set(ran[:2]) == first


class Forgetful:
    """Wraps a store whose states are lost before some of its checkpoints are written."""

    def __init__(self, inner, loses):
        self.inner, self.loses, self.saves = inner, loses, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def save(self, folder):
        self.saves += 1
        if self.saves in self.loses:
            raise ObjectsLost("a node died")
        return self.inner.save(folder)


@pytest.mark.parametrize("loses", [{1}, {2}, {3}, {2, 3}])
def test_states_that_are_lost_before_they_are_saved_change_nothing(loses, tmp_path):
    chosen = experiment("scaffold")
    calm = outcome(coordinator(chosen, tmp_path / "calm"))
    run = coordinator(chosen, tmp_path / "run")
    run.executor.stores[0] = Forgetful(run.executor.stores[0], loses)
    assert outcome(run) == calm
    assert len(run.notices) == len(loses)
    assert all("results were lost with their node (a node died)" in notice for notice in run.notices)
    resumed = coordinator(chosen, tmp_path / "run")
    assert resumed.done


def _runs(arguments, client: int) -> bool:
    """Whether a call trains a client."""
    shards = arguments[0] if arguments and isinstance(arguments[0], list) else []
    return any(client in shard.clients and shard.site == "clients" and shard.keeps_states for shard in shards)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_client_that_ends_its_worker_is_found_and_left_out(name, tmp_path):
    chosen = experiment(name)
    first = coordinator(chosen, tmp_path / "calm")
    first.run_round()
    culprit = int(first.servers[0]._sampled(2)[4])
    run = coordinator(
        chosen, tmp_path / "run", workers=2, loses=lambda number, worker, method, arguments: _runs(arguments, culprit)
    )
    records, parameters = outcome(run)
    rounds = [number for number in range(1, 6) if culprit in run.servers[0]._sampled(number)]
    assert run.servers[0].quarantined == {culprit: rounds[0]}
    assert [record["participants"] for record in records] == [9 - (number in rounds) for number in range(1, 6)]
    # A run that knows it from the start has the same bits.
    other = coordinator(chosen, tmp_path / "other")
    other.servers[0].quarantined = {culprit: rounds[0]}
    assert outcome(other) == (records, parameters)
    # Also one that continues from the checkpoint of the round before.
    resumed = coordinator(chosen, tmp_path / "run")
    assert resumed.servers[0].quarantined == {culprit: rounds[0]}


def test_losses_in_a_row_that_no_client_explains_change_nothing(tmp_path):
    chosen = experiment("scaffold")
    calm = outcome(coordinator(chosen, tmp_path / "calm"))
    lost = {5, 6, 7, 8, 9}
    run = coordinator(
        chosen,
        tmp_path / "run",
        loses=lambda number, worker, method, arguments: method == "run" and bool(lost) and (lost.pop() or True),
    )
    assert outcome(run) == calm
    assert run.servers[0].quarantined == {}


def test_a_worker_that_never_works_ends_the_run(tmp_path):
    chosen = experiment("fedavg")
    run = coordinator(chosen, tmp_path / "start", loses=lambda number, worker, method, arguments: method == "start")
    with pytest.raises(RuntimeError, match="worker 0 could not be started 5 times in a row: as the test wants"):
        run.run_round()
    run = coordinator(chosen, tmp_path / "test", loses=lambda number, *call: "site='test'" in str(call))
    with pytest.raises(RuntimeError, match="a worker was lost 3 times in a row while it ran `run`"):
        run.advance(1e6)


class Silent:
    """Wraps a transport whose worker 1 does not answer its second call until it is killed."""

    def __init__(self, inner):
        self.inner, self.silent, self.killed = inner, None, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def wait(self, seconds):
        answers = [] if not self.inner._calls else self.inner.wait(seconds)
        if self.silent is None and any(answer.worker == 1 and answer.value for answer in answers):
            self.silent = 1
            return [answer for answer in answers if answer.worker != 1]
        if self.killed:
            return [*answers, Answer(self.killed.pop(), lost="killed")]
        if not answers:
            time.sleep(0.01)
        return answers

    def kill(self, worker):
        self.killed.append(worker)


def test_a_worker_that_does_not_answer_is_replaced_and_reported(tmp_path):
    chosen = experiment("scaffold", resources={"executor": "inline", "timeout": 0.3})
    calm = outcome(coordinator(chosen, tmp_path / "calm", workers=2))
    run = coordinator(chosen, tmp_path / "run", workers=2)
    run.executor.transport = Silent(run.executor.transport)
    assert outcome(run) == calm
    assert run.notices == ["worker 1 did not answer for 0.3 s (resources.timeout) and was replaced"]
