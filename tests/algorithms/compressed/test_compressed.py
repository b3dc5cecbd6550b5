"""FedAvg with compressed messages: Top-K with error feedback, and FetchSGD."""

import numpy as np
import pytest
import torch
from helpers import blobs, check_resuming, distance, partition, run_inline, small_task

from hedgerow.algorithms.core.pytree import count, flat, flatten, sub
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.transforms.sketches import CountSketch
from hedgerow.algorithms.transforms.sparse_vectors import dense
from hedgerow.platform.config.experiment import EngineConfig

DATA = blobs(samples=160)
D = 6 * 8 + 8 + 8 * 3 + 3
LOCAL = {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": None}


COMPRESSED = {"top_k": {"entries": 10}, "sketch": {"rows": 3, "columns": 20, "entries": 10}}


def run(transform=None, mode=("vmap", 3), rounds=4, folder=None, **keys):
    """FedAvg with at most one transform. keys: of the transform."""
    clients = partition(np.array([30, 25, 25, 20, 20]), seed=0)
    settings = {"rounds": rounds, "engine": EngineConfig(mode=mode[0], chunk=mode[1])}
    section = {"name": "fedavg", **LOCAL, "aggregation": {"weighting": "uniform"}}
    section["transforms"] = [{"kind": transform, **keys}] if transform else []
    return run_inline(FedAvg, small_task(DATA), DATA, clients, section, folder, **settings)


def of_transform(state):
    """The state of the only transform, which acts on the only part of FedAvg's answer."""
    return state["transforms"]["0"]["train"]["w"]


@pytest.mark.parametrize("name", COMPRESSED)
def test_loop_and_vmap_agree(name):
    loop, vmap = (run(name, mode, **COMPRESSED[name]) for mode in (("loop", 1), ("vmap", 3)))
    [list(one) for one in (loop, vmap)]
    assert distance(flatten(loop.server), flatten(vmap.server)) < 1e-5


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_resumed_run_is_undisturbed(name, tmp_path):
    check_resuming(lambda folder: run(name, folder=folder, **COMPRESSED[name]), 2, tmp_path)


def test_who_sends_everything_is_fedavg():
    whole, plain = run("top_k", entries=D), run()
    [list(one) for one in (whole, plain)]
    assert count(plain.server["w"]) == D
    assert distance(whole.server["w"], plain.server["w"]) < 1e-6


def test_what_a_client_does_not_send_it_remembers():
    """The models' moves of all rounds are what was sent and what is still remembered, on average."""
    runs = run("top_k", entries=7, rounds=1)
    start = runs.server["w"]
    next(runs)
    moved = flat(sub(runs.server["w"], start))
    left = of_transform(runs.states.read(np.arange(5)))["residual"]
    plain = run(rounds=1)
    next(plain)
    assert torch.allclose(moved + left.mean(0), flat(sub(plain.server["w"], start)), atol=1e-6)
    assert all(int((row == 0).sum()) >= 7 for row in left)
    forgetful = run("top_k", entries=7, error_feedback=False)
    list(forgetful)
    assert "transforms" not in forgetful.states.read(np.arange(5))


def test_a_round_of_fetchsgd_by_hand():
    hyper = {"rows": 3, "columns": 25, "entries": 5, "server_lr": 0.5, "server_momentum": 0.8}
    runs, plain = run("sketch", **hyper), run(rounds=1)
    start = runs.server["w"]
    next(plain)
    table = CountSketch.draw(D, 3, 25, 0).sketch(flat(sub(plain.server["w"], start)))
    next(runs)
    hashes = CountSketch.draw(D, 3, 25, 0)
    moved = flat(sub(runs.server["w"], start))
    at = moved.nonzero().flatten()
    assert len(at) == 5
    assert torch.allclose(moved[at], hashes.estimate(0.5 * table)[at], atol=1e-6)
    assert torch.allclose(of_transform(runs.server)["error"], 0.5 * table - hashes.sketch(moved), atol=1e-6)
    emptied = torch.zeros(3, 25).scatter(1, hashes.buckets[:, at], 1.0) > 0
    momentum = of_transform(runs.server)["momentum"]
    assert (momentum[emptied] == 0).all()
    assert torch.allclose(momentum[~emptied], table[~emptied], atol=1e-6)


def test_what_is_transmitted():
    topk, fetch = (next(run(name, **COMPRESSED[name])) for name in COMPRESSED)
    assert topk["scalars_up"] == 5 * 2 * 10
    assert fetch["scalars_up"] == 5 * 3 * 20
    assert topk["scalars_down"] == fetch["scalars_down"] == 5 * D


@pytest.mark.parametrize("name", COMPRESSED)
def test_they_learn(name):
    section = {"entries": 10} if name == "top_k" else {"rows": 3, "columns": 40, "entries": 10}
    records = list(run(name, rounds=40, **section))
    assert records[-1]["test_loss"] < 0.6 * records[0]["test_loss"]


def test_too_few_rows_leave_out_more_and_more():
    """Why the tables of FedSep have five rows: a fixed unit vector, sketched with 2000 numbers again and again."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(24_234, generator=generator)

    def left(rows, columns, entries):
        hashes = CountSketch.draw(len(u), rows, columns, 0)
        once = error = hashes.sketch(u / u.norm())
        for _ in range(20):
            error = error - hashes.sketch(dense(hashes.heavy(error, entries), len(u))) + once
        return float(error.norm() / once.norm())

    assert left(2, 1000, 200) > 1e6
    # No more than all that was put in.
    assert left(5, 400, 20) < 21
