"""A worker that is lost with its client states: another one has copies, and no earlier round runs again."""

import pytest
from several_workers import SeveralWorkers, experiment, histories, same_state

from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator, inline_executor, worker_arguments
from hedgerow.platform.runtime.shards import EVALUATION, WorkerLost

SHARES = 3


class MortalWorkers(SeveralWorkers):
    """Workers that die when they are called for certain times. deaths: numbers of calls of `_send`, by worker."""

    def __init__(self, experiments, data, deaths: dict[int, list[int]]):
        self.again = lambda rank: self._worker(worker_arguments(experiments, *data), rank, self.hosts)
        self.deaths, self.calls, self.rounds, self.died = deaths, 0, [], 0
        super().__init__(experiments, data, SHARES, SHARES)

    def _send(self, method, arguments, broadcasts=None, again=False):
        self.calls += 1
        lost = [worker for worker in arguments if self.calls in self.deaths.get(worker, ())]
        self.died += len(lost)
        for worker in lost:
            self.workers[worker] = self.again(worker)
        if method == "run":
            self.rounds += [mine[0][0].round for mine in arguments.values() if mine[0][0].position < EVALUATION]
        alive = {worker: mine for worker, mine in arguments.items() if worker not in lost}
        answers = dict(zip(alive, super()._send(method, alive, broadcasts), strict=True))
        self._replaced(lost)
        if lost and not (again and self.restore_states()):
            raise WorkerLost("died")
        if lost:
            repeated = self._send(method, {worker: arguments[worker] for worker in lost}, broadcasts)
            answers |= dict(zip(lost, repeated, strict=True))
        return [answers[worker] for worker in arguments]


def calm_and_disturbed(tmp_path, name: str, deaths: dict[int, list[int]], rates: tuple[float, ...] = (0.1,)):
    """Compares the runs of variants with and without deaths, and returns the workers of those with deaths."""
    variants = [experiment({"name": name, "lr": rate}, checkpoints={"every": 100}) for rate in rates]
    data = check(variants[0], None)
    mortal = MortalWorkers(variants, data, deaths)
    executors = {"calm": inline_executor(variants, *data, SHARES), "disturbed": mortal}
    coordinators = [
        build_coordinator(variants, *data, executor, [tmp_path / label / str(rate) for rate in rates])
        for label, executor in executors.items()
    ]
    for coordinator in coordinators:
        while not coordinator.done:
            coordinator.run_round()
    calm, disturbed = coordinators
    assert histories(calm) == histories(disturbed)
    for one, other in zip(calm.servers, disturbed.servers, strict=True):
        assert same_state(one.state, other.state)
    assert mortal.died == sum(map(len, deaths.values()))
    return mortal


@pytest.mark.grid("name")
@pytest.mark.parametrize("name", ["scaffold", "toys.Narrow", "pfldyn"])
@pytest.mark.parametrize("call", [8, 9, 10, 11, 12, 13, 14])
def test_no_earlier_round_runs_again(tmp_path, name, call):
    mortal = calm_and_disturbed(tmp_path, name, {1: [call]})
    assert mortal.rounds == sorted(mortal.rounds)


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("call", [9, 10, 11])
def test_variants_that_run_together_do_not_either(tmp_path, call):
    mortal = calm_and_disturbed(tmp_path, "scaffold", {1: [call]}, rates=(0.1, 0.2))
    assert mortal.rounds == sorted(mortal.rounds)


def test_a_second_loss_is_made_good_since_the_first_one_has_made_a_checkpoint(tmp_path):
    mortal = calm_and_disturbed(tmp_path, "scaffold", {1: [9], 2: [19]})
    assert mortal.rounds == sorted(mortal.rounds)


def test_if_the_copies_are_lost_too_all_rounds_since_the_checkpoint_run_again(tmp_path):
    # Worker 2 keeps the copies of worker 1.
    mortal = calm_and_disturbed(tmp_path, "scaffold", {1: [9], 2: [9]})
    assert mortal.rounds != sorted(mortal.rounds)


def test_clients_without_states_are_not_copied(tmp_path):
    mortal = calm_and_disturbed(tmp_path, "fedavg", {1: [7]})
    assert not any(states.copies.used > 1 for worker in mortal.workers for states in worker.states)
    assert [folder.name for folder in (tmp_path / "disturbed/0.1").glob("round-*")] == ["round-00000007"]
