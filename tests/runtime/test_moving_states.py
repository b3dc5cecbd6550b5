"""Clients with states on several workers: the work is balanced, states travel, and the bits are those of one worker."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from several_workers import SeveralWorkers, experiment, histories, same_state

from hedgerow.algorithms.core.pytree import flatten, tree_map
from hedgerow.platform.runtime.assignment import near_states, owner_of
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator, inline_executor
from hedgerow.platform.storage.checkpoint import latest_checkpoint, read_states


def every(clients: np.ndarray) -> np.ndarray:
    return np.ones_like(clients, dtype=bool)


ALGORITHMS = [{"name": "feddyn"}, {"name": "scaffold"}, {"name": "pfldyn"}, {"name": "fedavg"}, {"name": "toys.Narrow"}]


@pytest.mark.parametrize("settings", ALGORITHMS, ids=lambda settings: settings["name"])
@pytest.mark.parametrize("workers", [2, 3])
def test_several_workers_have_the_bits_of_one(tmp_path, settings, workers):
    follows = workers == 3 and settings["name"] != "pfldyn"
    chosen = experiment(
        settings, **({"evaluation": {"every": 3, "clients": 24, "model": "clients"}} if follows else {})
    )
    data = check(chosen, None)
    shares = 3
    one = build_coordinator([chosen], *data, inline_executor([chosen], *data, shares), [tmp_path / "one"])
    several = SeveralWorkers([chosen], data, shares, workers)
    many = build_coordinator([chosen], *data, several, [tmp_path / "many"])
    one.advance(1e6)
    many.advance(1e6)
    assert (several.lent > 0) == (settings["name"] != "fedavg" or follows)
    assert histories(one) == histories(many)
    assert same_state(one.servers[0].state, many.servers[0].state)


def test_a_round_without_clients_loses_no_state(tmp_path):
    # Poisson cohorts of three clients on average: some are empty.
    chosen = experiment(
        {"name": "ditto"},
        **{"rounds": 25, "clients_per_round": 3, "evaluation": {"every": 4, "clients": 5}},
        privacy={"clip": 1.0, "noise_multiplier": 1.0, "delta": 0.01},
    )
    data = check(chosen, None)
    one = build_coordinator([chosen], *data, inline_executor([chosen], *data, 3), [tmp_path / "one"])
    many = build_coordinator([chosen], *data, SeveralWorkers([chosen], data, 3, 3), [tmp_path / "many"])
    one.advance(1e6)
    many.advance(1e6)
    participants = [record["participants"] for record in one.servers[0].history]
    assert 0 in participants
    assert histories(one) == histories(many)
    one.save()
    many.save()
    found = [
        {
            int(c): flatten(tree_map(lambda leaf, row=row: leaf[row], states))
            for ids, states in read_states(folder, every)
            for row, c in enumerate(ids)
        }
        for folder in (latest_checkpoint(tmp_path / name)[0] for name in ("one", "many"))
    ]
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(state[key], found[1][c][key]) for c, state in found[0].items() for key in state)


@pytest.mark.parametrize("name", ["feddyn", "toys.Narrow"])
def test_a_run_continues_from_the_states_that_travelled(tmp_path, name):
    chosen = experiment({"name": name}, checkpoints={"every": 2})
    data = check(chosen, None)
    whole = build_coordinator([chosen], *data, inline_executor([chosen], *data, 4), [tmp_path / "whole"])
    whole.advance(1e6)
    half = build_coordinator([chosen], *data, SeveralWorkers([chosen], data, 4, 4), [tmp_path / "half"])
    for _ in range(3):
        half.next_round()
    half.save()
    # Another number of workers.
    rest = build_coordinator([chosen], *data, SeveralWorkers([chosen], data, 4, 2), [tmp_path / "half"])
    rest.advance(1e6)
    assert histories(whole) == histories(rest)
    assert same_state(whole.servers[0].state, rest.servers[0].state)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60)), min_size=1, max_size=80, unique_by=lambda c: c[0]),
    st.integers(1, 12),
)
def test_work_is_balanced_and_most_clients_stay(clients, shares):
    ids, sizes = np.array(sorted(clients)).T
    owner = near_states(ids, sizes, np.ones(shares))
    loads = np.bincount(owner, sizes, shares)
    # Graham's bound for lists: the mean and the largest client.
    assert loads.max() <= sizes.sum() / shares + 2 * sizes.max()
    at_home = np.bincount(owner_of(ids, shares), sizes, shares)
    if at_home.max() <= max(sizes.max(), -(-sizes.sum() // shares)):
        assert (owner == owner_of(ids, shares)).all()


def test_equal_clients_are_dealt_evenly():
    rng = np.random.default_rng(0)
    cohort = np.sort(rng.choice(10_000, 400, replace=False))
    loads = np.bincount(near_states(cohort, np.full(400, 50), np.ones(100)), minlength=100)
    assert loads.tolist() == [4] * 100
