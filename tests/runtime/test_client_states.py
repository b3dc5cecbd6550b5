"""Client states: records in memory and in a file are what a dictionary of trees would be, bit for bit."""

import os

import numpy as np
import psutil
import pytest
import torch
from helpers import blobs, identical, model, partition, run_inline, small_task
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Stateful

from hedgerow.algorithms.core.pytree import flatten, tree_map
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runtime import client_states as states_module
from hedgerow.platform.runtime.client_states import ClientStates
from hedgerow.platform.runtime.shards import WorkerLost
from hedgerow.platform.storage.checkpoint import latest_checkpoint
from hedgerow.platform.storage.row_file import Rows, spill_folder

CLIENTS = 12
INITIAL = {
    "w": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.full((3,), 0.5, dtype=torch.bfloat16)},
    "times": torch.tensor(7),
    "none": torch.zeros(0, 4),
    "flag": torch.tensor(True),
    "precise": torch.tensor([1 / 3], dtype=torch.float64),
}
RECORD = ClientStates(INITIAL, 1).width
BUDGETS = [0, 3 * RECORD + 1, 10**6]
"""Everything in the file; three clients in memory; everything in memory."""


def some_states(seed: int, n: int, scratch: bool) -> dict:
    """Stacked random states of n clients; NaNs and all, because states are bits and not numbers."""
    rng = torch.Generator().manual_seed(seed)

    def random(like: torch.Tensor) -> torch.Tensor:
        shape = (n, *like.shape)
        return (torch.randn(shape, generator=rng) * 3).to(like.dtype)

    states = tree_map(random, INITIAL)
    states["precise"][0] = torch.nan
    return states | ({"scratch": torch.randn((n, 2), generator=rng)} if scratch else {})


def equal(a: dict, b: dict) -> bool:
    """The same leaves in the same order, bit for bit."""
    a, b = flatten(a), flatten(b)
    return list(a) == list(b) and all(
        a[key].dtype == b[key].dtype and torch.equal(a[key].view(torch.uint8), b[key].view(torch.uint8)) for key in a
    )


class Reference:
    """What ClientStates promises, as two dictionaries of trees."""

    def __init__(self):
        self.committed, self.pending = {}, {}

    def keep(self, clients: np.ndarray, states: dict) -> None:
        for row, client in enumerate(clients.tolist()):
            self.pending[client] = tree_map(lambda leaf, row=row: leaf[row].clone(), states)

    def end(self, final: bool) -> None:
        if final:
            self.committed |= {c: {key: state[key] for key in INITIAL} for c, state in self.pending.items()}
        self.pending = {}

    def read(self, clients: np.ndarray) -> dict:
        states = [self.pending.get(c) or self.committed.get(c) or INITIAL for c in clients.tolist()]
        return tree_map(lambda *leaves: torch.stack(leaves), *states)


def copied(states: ClientStates, memory: int) -> ClientStates:
    """The final states, taken to another store as checkpoints are."""
    other = ClientStates(INITIAL, CLIENTS, memory)
    for clients, tree in states.shards():
        other.load(clients, tree)
    return other


some_clients = st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=CLIENTS, unique=True)
exchange = st.tuples(some_clients, st.integers(0, 10**6))
rounds = st.lists(st.tuples(st.lists(exchange, max_size=4), st.booleans(), st.booleans()), max_size=6)


@given(rounds, st.sampled_from(BUDGETS), st.sampled_from(BUDGETS), st.booleans())
@settings(max_examples=60, deadline=None)
def test_they_equal_a_dictionary_of_trees(rounds, memory, later_memory, scratch):
    states, reference = ClientStates(INITIAL, CLIENTS, memory), Reference()
    number = committed = 0
    everybody = np.arange(CLIENTS)
    for exchanges, final, move in rounds:
        number += 1
        states.enter(number, 0, committed)
        assert equal(states.read(everybody), reference.read(everybody))
        for position, (clients, seed) in enumerate(exchanges):
            states.enter(number, position, committed)
            clients = np.array(clients)
            new = some_states(seed, len(clients), scratch)
            states.keep(clients, new)
            reference.keep(clients, new)
            # As under vmap, the last client may come more than once.
            asked = np.concatenate([clients, clients[-1:]])
            assert equal(states.read(asked), reference.read(asked))
            if not scratch:
                assert equal(states.read(everybody[::-1].copy()), reference.read(everybody[::-1]))
        if final:
            committed = number
        reference.end(final)
        if move:
            states.enter(number + 1, 0, committed)
            states = copied(states, later_memory)
    states.enter(number + 1, 0, committed)
    assert sorted(states.committed.written()) == sorted(reference.committed)
    assert equal(states.read(everybody), reference.read(everybody))
    states.clear()
    assert equal(states.read(everybody), Reference().read(everybody))


def test_only_what_memory_has_no_room_for_is_spilled():
    states = ClientStates(INITIAL, CLIENTS, 3 * RECORD)
    states.load(np.arange(2, 7), some_states(0, 5, False))
    assert states.committed.spilled == 2
    states.load(np.arange(2, 7), some_states(1, 5, False))
    assert states.committed.spilled == 2
    states.clear()
    assert states.committed.spilled == 0


def test_a_state_that_changes_its_shape_or_type_is_refused():
    states = ClientStates({"s": torch.zeros(3)}, CLIENTS)
    for wrong in (torch.zeros(1, 4), torch.zeros(1, 3, dtype=torch.float64)):
        states.enter(1, 0, 0)
        states.keep(np.array([0]), {"s": wrong})
        with pytest.raises(ValueError, match=r"must keep the shapes and types of init_client: a leaf of \(3,\)"):
            states.commit()


def test_memory_stays_within_the_budget_and_the_file_has_no_name(tmp_path):
    rows = Rows(np.zeros(2**16, np.uint8), 4000, 100 * 2**16, str(tmp_path))
    records = np.random.default_rng(0).integers(0, 256, (100, 2**16), dtype=np.uint8)
    back = np.empty_like(records)
    before = psutil.Process().memory_info().rss
    for start in range(0, 4000, 100):
        rows.write(np.arange(start, start + 100), records)
    for start in range(0, 4000, 100):
        rows.read(np.arange(start, start + 100), back)
        assert np.array_equal(back, records)
    assert rows.spilled == 3900
    # 256 MiB are written; 6 of them may stay; the rest is what reading and writing need for themselves.
    assert psutil.Process().memory_info().rss - before < 40 * 2**20
    assert os.listdir(tmp_path) == []  # noqa: PTH208
    held = rows.file.fileno()
    assert os.fstat(held).st_size == 3900 * 2**16
    rows.clear()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held)


def test_a_folder_that_takes_no_file_is_told(tmp_path):
    rows = Rows(np.zeros(8, np.uint8), 2, 0, str(tmp_path / "absent"))
    with pytest.raises(UserError, match=r"resources.state_folder: cannot write into '.*absent' \(No such file"):
        rows.write(np.array([1]), np.ones((1, 8), np.uint8))


def test_where_records_are_spilled(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/somewhere")
    assert spill_folder() == "/somewhere"
    monkeypatch.delenv("TMPDIR")
    assert spill_folder() != "/tmp" or not os.path.isdir("/var/tmp")  # noqa: PTH112


# ---- whole runs -------------------------------------------------------------------------------------------------

DATA = blobs()
TINY = Resources(executor="inline", state_memory_mb=0.0011)
"""Room for the states of two clients, 512 bytes each."""


def stateful(folder=None, mode="vmap", resources=TINY, rounds=8):
    """A run of 10 clients with states, half of them per round."""
    engine = EngineConfig(mode=mode, chunk="auto" if mode == "loop" else 2)
    clients, hyper = partition(np.full(10, 18), seed=0), {"lr": 0.1, "batch_size": 8, "pull": 0.3}
    return run_inline(
        Stateful, small_task(DATA), DATA, clients, hyper, folder,
        participation=0.5, rounds=rounds, engine=engine, resources=resources,
    )  # fmt: skip


def numbers(run) -> list[dict]:
    """The records without the clock."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in run.servers[0].history]


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_run_with_little_memory_has_the_same_bits(mode):
    roomy, tiny = stateful(mode=mode, resources=Resources(executor="inline")), stateful(mode=mode)
    list(roomy)
    list(tiny)
    assert roomy.states.committed.spilled == 0
    assert tiny.states.committed.spilled > 3
    assert identical(model(roomy), model(tiny))
    assert numbers(roomy) == numbers(tiny)


def test_a_worker_that_is_lost_with_its_spilled_states_changes_nothing(tmp_path):
    calm, disturbed = stateful(), stateful(tmp_path)
    list(calm)
    worker = disturbed.executor.worker
    run_shards, answered = worker.run, []

    def dies_once(shards, broadcasts):
        answers = run_shards(shards, broadcasts=broadcasts)
        answered.append(shards)
        if len(answered) == 12:
            # In the middle of a round, with a new process's empty states.
            disturbed.states.clear()
            raise WorkerLost("killed")
        return answers

    worker.run = dies_once
    for record in disturbed:
        if record["round"] == 3:
            disturbed.save()
    assert len(answered) > 16
    assert disturbed.states.committed.spilled > 3
    assert identical(model(disturbed), model(calm))
    assert numbers(disturbed) == numbers(calm)


def test_a_checkpoint_in_many_files_resumes_with_any_budget_and_any_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(states_module, "SHARD", 1500)
    calm, first = stateful(), stateful(tmp_path)
    list(calm)
    for _ in range(5):
        next(first)
    first.save()
    (checkpoint, _) = latest_checkpoint(tmp_path)
    files = sorted(checkpoint.glob("states*.safetensors"))
    assert len(files) > 3
    for resources in (TINY, Resources(executor="inline"), Resources(executor="inline", state_memory_mb=0)):
        second = stateful(tmp_path, resources=resources)
        list(second)
        assert identical(model(second), model(calm))
        assert numbers(second) == numbers(calm)

    everybody, shared = np.arange(10), []
    worker = stateful().executor.worker
    (states,) = worker.states
    worker.load_states(0, checkpoint)
    whole = states.read(everybody)
    for rank in range(3):
        worker.owns = lambda clients, rank=rank: clients % 3 == rank
        worker.load_states(0, checkpoint)
        assert (states.committed.written() % 3 == rank).all()
        mine = everybody[everybody % 3 == rank]
        assert equal(states.read(mine), tree_map(lambda leaf, mine=mine: leaf[mine], whole))
        shared += states.committed.written().tolist()
    written = {client for clients, _ in first.states.shards() for client in clients.tolist()}
    assert sorted(shared) == sorted(written)


def test_workers_without_the_folder_of_a_checkpoint_write_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setattr(states_module, "SHARD", 1500)
    runs = [stateful(tmp_path / "near"), stateful(tmp_path / "far")]
    worker = runs[1].executor.worker
    runs[1].executor.worker = Elsewhere(worker)
    for run in runs:
        list(run)
        run.save()
    files = [sorted(latest_checkpoint(tmp_path / name)[0].glob("states*")) for name in ("near", "far")]
    assert len(files[0]) > 3
    assert [file.name for file in files[0]] == [file.name for file in files[1]]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
    everybody, (states,) = np.arange(10), worker.states
    whole = tree_map(torch.clone, states.read(everybody))
    states.clear()
    runs[1].executor.load_states(0, files[1][0].parent)
    assert equal(states.read(everybody), whole)


class Elsewhere:
    """A worker on a node that does not have the folders of this one."""

    def __init__(self, worker):
        self.worker = worker

    def __getattr__(self, name):
        return getattr(self.worker, name)

    def save_states(self, variant, folder, *rest):
        return self.worker.save_states(variant, folder / "absent", *rest)

    def load_states(self, variant, folder, seal):
        return self.worker.load_states(variant, folder and folder / "absent", seal)


def test_a_chunk_gets_states_that_are_its_own():
    # A step that writes into its state (as the batched form may) must not write into what is kept.
    run = stateful(rounds=1)
    list(run)
    states = run.states
    for _ in range(2):
        before = tree_map(torch.clone, states.read(np.arange(10)))
        tree_map(lambda leaf: leaf.add_(1), states.read(np.arange(10)))
        assert equal(states.read(np.arange(10)), before)
        states.enter(2, 0, 1)
