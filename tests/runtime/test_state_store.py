"""Client states in rows of bytes are what a dictionary of trees would be, bit for bit."""

import errno
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import read_states
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.algorithms.core.pytree import flatten, tree_map
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runtime import state_store
from hedgerow.platform.runtime.state_store import StateLayout, StateStore
from hedgerow.platform.storage.checkpoint import write_checkpoint

CLIENTS = 12
INITIAL = {
    "w": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.full((3,), 0.5, dtype=torch.bfloat16)},
    "times": torch.tensor(7),
    "none": torch.zeros(0, 4),
    "flag": torch.tensor(True),
    "precise": torch.tensor([1 / 3], dtype=torch.float64),
}
EVERYONE = np.arange(CLIENTS)


def some_states(seed: int, n: int) -> dict:
    """Stacked random states of n clients; NaNs and all, because states are bits and not numbers."""
    rng = torch.Generator().manual_seed(seed)
    states = tree_map(lambda like: (torch.randn((n, *like.shape), generator=rng) * 3).to(like.dtype), INITIAL)
    states["precise"][0] = torch.nan
    return states


def equal(a: dict, b: dict) -> bool:
    """The same leaves in the same order, bit for bit."""
    a, b = flatten(a), flatten(b)
    return list(a) == list(b) and all(
        a[key].dtype == b[key].dtype and torch.equal(a[key].view(torch.uint8), b[key].view(torch.uint8)) for key in a
    )


class Reference:
    """What a store promises, as two dictionaries of trees."""

    def __init__(self):
        self.final, self.pending = {}, {}

    def keep(self, clients: np.ndarray, states: dict) -> None:
        for row, client in enumerate(clients.tolist()):
            self.pending[client] = tree_map(lambda leaf, row=row: leaf[row].clone(), states)

    def read(self, clients: np.ndarray = EVERYONE) -> dict:
        states = [self.pending.get(c) or self.final.get(c) or INITIAL for c in clients.tolist()]
        return tree_map(lambda *leaves: torch.stack(leaves), *states)


def on_disk(initial, clients):
    """A store whose file is not in shared memory."""
    return StateStore(initial, clients, most=10**15)


def in_objects(initial, clients):
    """A store of objects of Ray, whose actors are this process."""
    import ray

    from hedgerow.platform.actors.object_states import ObjectMemory

    class Here(StateStore):
        def rows(self, clients, keeps):
            rows = super().rows(clients, keeps)
            rows.blocks = ray.get(rows.blocks)
            return rows

        def keep(self, clients, rows, kept, objects):
            super().keep(clients, rows, kept, [ray.put(block) for block in rows.new_blocks()])

    return Here(initial, clients, memory=ObjectMemory)


def step(store, reference, seed: int, clients: np.ndarray) -> None:
    """A step that reads the states of some clients and writes new ones, except for clients that diverge."""
    rows = store.rows(clients, keeps=True)
    assert equal(store.layout.unpack(rows.read(np.arange(len(clients)))), reference.read(clients))
    kept = np.random.default_rng(seed).random(len(clients)) < 0.8
    states = some_states(seed, max(1, int(kept.sum())))
    if kept.any():
        rows.write(np.flatnonzero(kept), states, store.layout)
        reference.keep(clients[kept], states)
    # A part that is repeated reads what it read before.
    store.keep(clients, rows, kept, [])


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["step", "step", "commit", "begin", "save"]), st.integers(0, 10**6)), max_size=25
)


def check_against_reference(make, actions, folder: Path) -> None:
    store, reference = make(INITIAL, CLIENTS), Reference()
    for number, (action, seed) in enumerate(actions):
        if action == "step":
            clients = np.sort(np.random.default_rng(seed).choice(CLIENTS, 1 + seed % 6, replace=False))
            step(store, reference, seed, clients)
        elif action == "begin":
            reference.pending = {}
            store.begin()
        elif action == "commit":
            reference.final |= reference.pending
            reference.pending = {}
            store.commit()
        elif action == "save":
            # The round that failed before runs again after it.
            reference.pending = {}
            checkpoint = write_checkpoint(folder / f"round-{number:08d}", {}, {}, store.save)
            store.saved(checkpoint)
            store.begin()
            other = make(INITIAL, CLIENTS)
            other.load(checkpoint)
            assert equal(read_states(other, EVERYONE), reference.read())
            other.close()
        assert equal(read_states(store, EVERYONE), reference.read())
    store.load(None)
    assert equal(read_states(store, EVERYONE), Reference().read())
    store.close()


@pytest.mark.parametrize("make", [StateStore, on_disk])
@given(actions=ACTIONS)
@settings(max_examples=25)
def test_a_mapped_file_equals_a_dictionary_of_trees(make, tmp_path_factory, actions):
    check_against_reference(make, actions, tmp_path_factory.mktemp("checkpoints"))


@pytest.mark.parametrize("large", [100_000, 1])
def test_objects_of_ray_equal_a_dictionary_of_trees(large, ray_here, tmp_path_factory, monkeypatch):
    from hedgerow.platform.actors import object_states

    monkeypatch.setattr(object_states, "LARGE", large)

    @given(actions=ACTIONS)
    @settings(max_examples=10)
    def check(actions):
        check_against_reference(in_objects, actions, tmp_path_factory.mktemp("checkpoints"))

    check()


def test_a_repeated_step_reads_what_it_read_before():
    store = StateStore(INITIAL, CLIENTS)
    rows = store.rows(EVERYONE, keeps=True)
    before = rows.read(EVERYONE).clone()
    rows.write(EVERYONE, some_states(1, CLIENTS), store.layout)
    assert torch.equal(rows.read(EVERYONE), before)
    store.close()


def test_rows_are_used_again():
    store, reference, clients = StateStore(INITIAL, CLIENTS), Reference(), np.arange(4)
    for round in range(50):
        store.begin()
        step(store, reference, round, clients)
        reference.final |= reference.pending
        reference.pending = {}
        store.commit()
    # The initial one, one for each client that took part, and one for each that a step writes.
    assert store.memory.used <= 1 + 2 * len(clients)
    store.close()


def test_a_client_that_never_took_part_takes_no_space():
    store = StateStore({"w": torch.zeros(250_000)}, 10**6, most=100)
    rows = store.rows(np.array([999_999]), keeps=True)
    rows.write(np.zeros(1, int), {"w": torch.ones(1, 250_000)}, store.layout)
    store.keep(np.array([999_999]), rows, np.ones(1, bool), [])
    store.commit()
    assert float(read_states(store, np.array([999_999]))["w"].sum()) == 250_000
    assert Path(store.memory.path).stat().st_blocks * 512 < 4 * store.layout.width
    store.close()


def _serve(calls) -> None:
    """Double the states of the rows that arrive, until the other end is closed."""
    while (call := calls.recv()) is not None:
        rows, layout = call
        states = layout.unpack(rows.read(np.arange(3)))
        rows.write(np.arange(3), {"x": 2 * states["x"]}, layout)
        calls.send(None)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_another_process_reads_and_writes_the_same_file():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    # Made after the fork, and larger from round to round.
    store = StateStore({"x": torch.ones(5)}, 100)
    for round in range(3):
        clients = np.array([1, 3, 6])
        store.begin()
        rows = store.rows(clients, keeps=True)
        here.send((rows, store.layout))
        here.recv()
        store.keep(clients, rows, np.ones(3, bool), [])
        store.commit()
        assert read_states(store, clients)["x"].tolist() == [[2.0 ** (round + 1)] * 5] * 3
        store.rows(np.arange(20 * (round + 1)), keeps=True)
    assert read_states(store, np.array([0]))["x"].tolist() == [[1.0] * 5]
    here.send(None)
    process.join()
    assert process.exitcode == 0
    store.close()


def test_files_that_have_not_changed_are_linked(tmp_path, monkeypatch):
    monkeypatch.setattr(state_store, "FILE", 3 * StateLayout(INITIAL).width)
    store, reference = StateStore(INITIAL, CLIENTS), Reference()

    def save(number: int) -> Path:
        store.commit()
        checkpoint = write_checkpoint(tmp_path / f"round-{number:08d}", {}, {}, store.save)
        store.saved(checkpoint)
        return checkpoint

    step(store, reference, 3, EVERYONE)
    first = save(1)
    step(store, reference, 1, np.array([4]))
    second = save(2)
    names = sorted(file.name for file in second.glob("states-*"))
    assert len(names) == 4
    same = [(first / name).stat().st_ino == (second / name).stat().st_ino for name in names]
    assert same == [True, False, True, True]
    # Also where the earlier checkpoint is gone.
    shutil.rmtree(first)
    other = StateStore(INITIAL, CLIENTS)
    other.load(second)
    assert equal(read_states(other, EVERYONE), reference.read())
    for one in (store, other):
        one.close()


def test_a_full_disk_is_one_sentence(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = StateStore(INITIAL, CLIENTS)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"the clients' states do not fit into .*No space left on device.* TMPDIR"):
        store.rows(EVERYONE, keeps=True)
    monkeypatch.undo()
    store.close()


def test_a_state_without_numbers_is_kept():
    store = StateStore({"own": {}, "none": torch.zeros(0)}, 2)
    rows = store.rows(np.arange(2), keeps=True)
    rows.write(np.arange(2), {"own": {}, "none": torch.zeros(2, 0)}, store.layout)
    assert store.layout.unpack(rows.read(np.arange(2)))["none"].shape == (2, 0)
    store.close()


def test_a_state_of_another_shape_is_refused():
    store = StateStore({"x": torch.zeros(3)}, 2)
    rows = store.rows(np.arange(2), keeps=True)
    with pytest.raises(ValueError, match=r"a leaf of \(3,\) torch.float32 cannot become \(4,\) torch.float32"):
        rows.write(np.arange(2), {"x": torch.zeros(2, 4)}, store.layout)
    store.close()


def test_a_process_that_serves_several_runs_maps_the_file_of_the_run():
    """Where one run ends and the next begins, its file may have the same descriptor and the same size."""
    paths = []
    for seed in range(2):
        store, reference = StateStore(INITIAL, CLIENTS), Reference()
        rows = store.rows(EVERYONE, keeps=True)
        there = pickle.loads(pickle.dumps(rows))
        states = some_states(seed, CLIENTS)
        there.write(EVERYONE, states, store.layout)
        store.keep(EVERYONE, rows, np.ones(CLIENTS, bool), [])
        reference.keep(EVERYONE, states)
        assert equal(read_states(store, EVERYONE), reference.read())
        paths.append(store.memory.path)
        store.close()
    if Path("/proc/self/fd").exists():
        assert paths[0] == paths[1]
