"""Shares of different speeds: the work is dealt in proportion, and the bits follow from the recorded speeds."""

import heapq
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from several_workers import SeveralWorkers, experiment, histories, same_state

from hedgerow.platform.config.resources import Resources, SpeedChange
from hedgerow.platform.runtime.assignment import changed_speeds, longest_first, near_states, owner_of, speeds_in
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator, inline_executor
from hedgerow.platform.runtime.shards import WorkerLost
from hedgerow.platform.tracking.run_folder import RunFolder

CLIENTS = st.lists(
    st.tuples(st.integers(0, 500), st.integers(1, 60)), min_size=1, max_size=80, unique_by=lambda client: client[0]
)
SPEEDS = st.lists(st.integers(5, 100).map(lambda speed: speed / 100), min_size=1, max_size=12).map(np.array)


def graham(sizes: np.ndarray, loads: np.ndarray, owner: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """The rule for equal speeds: each client to the share with the least work."""
    heap = [(load, share) for share, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    for client in clients[np.argsort(-sizes[clients], kind="stable")].tolist():
        load, share = heap[0]
        owner[client] = share
        heapq.heapreplace(heap, (load + int(sizes[client]), share))
    return owner


@given(CLIENTS, st.integers(1, 12), st.sampled_from([1.0, 0.3, 7.0]))
def test_equal_speeds_are_dealt_by_size_alone(clients, shares, speed):
    ids, sizes = np.array(sorted(clients)).T
    speeds, every = np.full(shares, speed), np.arange(len(ids))
    by_size = graham(sizes, np.zeros(shares, int), np.zeros(len(ids), int), every)
    assert longest_first(sizes, speeds).tolist() == by_size.tolist()

    home = owner_of(ids, shares)
    most = max(int(sizes.max()), -(-int(sizes.sum()) // shares))
    before = np.zeros(shares, int)
    moved = []
    for client in np.lexsort((-sizes, home)).tolist():
        before[home[client]] += sizes[client]
        if before[home[client]] > most:
            moved.append(client)
    stay = np.setdiff1d(every, moved)
    loads = np.bincount(home[stay], sizes[stay], shares).astype(int)
    expected = graham(sizes, loads, home.copy(), np.array([c for c in np.lexsort((-sizes, home)) if c in moved], int))
    assert near_states(ids, sizes, speeds).tolist() == expected.tolist()


@given(CLIENTS, SPEEDS)
def test_work_is_in_proportion_to_speed(clients, speeds):
    ids, sizes = np.array(sorted(clients)).T
    ideal, mean = sizes.sum() / speeds.sum(), speeds.mean()
    seconds = np.bincount(longest_first(sizes, speeds), sizes, len(speeds)) / speeds
    # The largest client, at the mean speed.
    assert seconds.max() <= ideal + sizes.max() / mean + 1e-9
    seconds = np.bincount(near_states(ids, sizes, speeds), sizes, len(speeds)) / speeds
    # A share keeps clients up to its part, rounded up to a whole sample, or up to the largest client at full speed.
    kept = max(ideal + 1 / speeds.min(), sizes.max() / speeds.max())
    assert seconds.max() <= max(kept, ideal + sizes.max() / mean) + 1e-9


def test_half_the_speed_is_half_the_work():
    speeds = np.array([1.0, 0.5, 1.0])
    sizes = np.full(100, 7)
    assert np.bincount(longest_first(sizes, speeds)).tolist() == [40, 20, 40]
    assert np.bincount(near_states(np.arange(100), sizes, speeds)).tolist() == [40, 20, 40]


def test_speeds_change_when_they_differ_clearly():
    equal = np.ones(3)
    assert changed_speeds(equal, [1.0, 1.1, 1.05]) is None
    assert changed_speeds(equal, [1.0, 2.001, 1.0]).tolist() == [1.0, 0.5, 1.0]
    assert changed_speeds(np.array([1.0, 0.5, 1.0]), [1.0, 1.9, 1.0]) is None
    # One share that is fast by chance changes nothing for the others.
    assert changed_speeds(np.ones(9), [0.88] + [1.0] * 8) is None
    # A share that stands still has some speed.
    assert changed_speeds(equal, [1.0, 1e9, 1.0]).tolist() == [1.0, 0.05, 1.0]


def test_the_last_change_up_to_a_round_holds():
    changes = [SpeedChange(from_round=6, speeds=[1.0, 0.5]), SpeedChange(from_round=11, speeds=[0.8, 1.0])]
    assert [speeds_in(round, changes, 2).tolist() for round in (5, 6, 10, 11, 99)] == [
        *([1.0, 1.0], [1.0, 0.5], [1.0, 0.5], [0.8, 1.0], [0.8, 1.0]),
    ]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"speeds": [{"from_round": 1, "speeds": [1, 0.5]}]}, "needs a number of `actors`"),
        ({"actors": 3, "speeds": [{"from_round": 1, "speeds": [1, 0.5]}]}, "2 numbers for `actors: 3`"),
        ({"actors": 1, "speeds": [{"from_round": n, "speeds": [1]} for n in (4, 4)]}, "in the order of `from_round`"),
        ({"actors": 1, "speeds": [{"from_round": 1, "speeds": [0]}]}, "greater than 0"),
        ({"speeds": "fast"}, "'equal' or 'measured'"),
    ],
)
def test_a_list_of_speeds_fits_the_actors(settings, reason):
    with pytest.raises(ValidationError, match=reason):
        Resources(**settings)


class Uneven(SeveralWorkers):
    """Three workers whose measured times per sample are made up. Each call in `losses` loses worker 1, once.

    clients: those of each worker, for every exchange.
    """

    def __init__(self, chosen, data, seconds=(1.0, 2.0, 1.0), losses=()):
        super().__init__([chosen], data, 3, 3)
        self.arguments = chosen, data
        self.seconds, self.losses = seconds, list(losses)
        self.clients: list[list[list[int]]] = []

    def _send(self, method, arguments, broadcasts=None, again=False):
        call = (method, arguments[0][0][0].round) if method == "run" else method
        if call in self.losses:
            self.losses.remove(call)
            self.workers[1] = SeveralWorkers([self.arguments[0]], self.arguments[1], 3, 3).workers[1]
            raise WorkerLost("worker 1")
        if method == "run":
            self.clients.append(
                [[k for shard in mine[0] for k in shard.clients.tolist()] for mine in arguments.values()]
            )
        answers = super()._send(method, arguments, broadcasts, again)
        if method != "seconds_per_sample":
            return answers
        # They were measured, each by its own worker; a new one has run no round of clients without states.
        assert [list(answer) for answer in answers] in ([[0], [1], [2]], [[0], [], [2]])
        assert all(seconds > 0 for answer in answers for seconds in answer.values())
        return [{share: seconds} for share, seconds in enumerate(self.seconds)]


def dealt(name: str, **resources):
    return experiment(
        {"name": name},
        rounds=12,
        checkpoints={"every": 4},
        resources={"executor": "inline", "actors": 3, "speeds": "measured", **resources},
    )


def coordinator(folder: Path, chosen, **workers):
    data = check(chosen, None)
    folder.mkdir(exist_ok=True)
    if not (folder / "run.json").exists():
        record = {"status": "running", "created": "", "data_root": None, "versions": {}, "git_commit": None}
        RunFolder(folder).update(**record)
    return build_coordinator([chosen], *data, Uneven(chosen, data, **workers), [folder / "checkpoints"])


def speeds_of(folder: Path) -> list[dict]:
    return json.loads((folder / "run.json").read_text())["speeds"]


@pytest.mark.parametrize("name", ["feddyn", "fedavg"])
def test_the_bits_follow_from_the_recorded_speeds(tmp_path, name):
    chosen = dealt(name)
    whole = coordinator(tmp_path / "whole", chosen)
    for _ in range(5):
        whole.run_round()
    # Recorded before the round that uses them.
    expected = [{"from_round": 6, "speeds": [1.0, 0.5, 1.0]}]
    assert speeds_of(tmp_path / "whole") == expected
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    whole.advance(1e6)
    assert speeds_of(tmp_path / "whole") == expected

    # From the checkpoint of round 4, with the record of the whole run. Other times change no round that has run.
    shutil.copy(tmp_path / "whole" / "run.json", tmp_path / "resumed" / "run.json")
    resumed = coordinator(tmp_path / "resumed", chosen, seconds=(3.0, 1.0, 1.0))
    assert resumed.round == 4
    resumed.advance(1e6)
    assert speeds_of(tmp_path / "resumed") == expected

    # The checkpoint of round 8 has them as well.
    repeated = coordinator(tmp_path / "repeated", dealt(name, speeds=expected))
    repeated.advance(1e6)
    equal = coordinator(tmp_path / "equal", dealt(name, speeds="equal"))
    equal.advance(1e6)
    for other in (resumed, repeated):
        assert histories(other) == histories(whole)
        assert same_state(other.servers[0].state, whole.servers[0].state)
    # Other shares may have the same bits.
    assert equal.executor.clients != whole.executor.clients


def test_a_checkpoint_holds_the_speeds(tmp_path):
    chosen = dealt("feddyn")
    whole = coordinator(tmp_path / "whole", chosen)
    for _ in range(8):
        whole.run_round()
    RunFolder(tmp_path / "whole").update(speeds=[])
    resumed = coordinator(tmp_path / "whole", chosen)
    assert resumed.speeds() == whole.speeds() == [{"from_round": 6, "speeds": [1.0, 0.5, 1.0]}]


@pytest.mark.parametrize("name", ["feddyn", "fedavg"])
def test_a_lost_worker_changes_no_round_that_has_run(tmp_path, name):
    calm = coordinator(tmp_path / "calm", dealt(name))
    calm.advance(1e6)
    disturbed = coordinator(tmp_path / "disturbed", dealt(name), losses=["seconds_per_sample", ("run", 7)])
    for _ in range(6):
        disturbed.run_round()
    disturbed.executor.seconds = (1.0, 2.0, 1.5)
    disturbed.advance(1e6)
    assert not disturbed.executor.losses
    assert speeds_of(tmp_path / "disturbed")[:1] == speeds_of(tmp_path / "calm")
    assert [change["from_round"] for change in speeds_of(tmp_path / "disturbed")] == [6, 11]
    assert histories(disturbed)[:10] == histories(calm)[:10]


def test_one_worker_measures_nothing(tmp_path):
    chosen = dealt("fedavg")
    data = check(chosen, None)
    run = build_coordinator([chosen], *data, inline_executor([chosen], *data, 3), [tmp_path / "checkpoints"])
    run.advance(1e6)
    assert run.speeds() == []
