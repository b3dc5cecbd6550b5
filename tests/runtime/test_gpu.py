"""On a GPU: nothing waits for it within a round, and a graph has the numbers of the loop."""

import numpy as np
import pytest
import torch
from helpers import blobs, partition, run_inline, small_task

from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runtime.aggregation import PartialAggregate
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.shards import ExecutionPlan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DATA = blobs()
GPU = Resources(executor="inline", device="cuda")
SIZES = [np.full(6, 20), np.array([3, 60, 17, 1, 40, 59])]
"""Clients with equal and with different numbers of samples."""


def started(algorithm, sizes, mode, **hyper):
    engine = EngineConfig(mode=mode, chunk=3 if mode == "vmap" else "auto")
    return run_inline(
        algorithm, small_task(DATA), DATA, partition(sizes, seed=0), {"batch_size": 8, "momentum": 0.9, **hyper},
        resources=GPU, engine=engine, rounds=4,
    )  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mode", ["loop", "graph", "vmap"])
def test_no_client_waits_for_the_gpu(mode, sizes, monkeypatch):
    run = started(FedAvg, sizes, mode)
    worker = run.executor.transport.built[0]
    carried_out, calls = worker._carry_out, []

    def without_waiting(*arguments):
        # Of the round that follows, the graphs are captured.
        torch.cuda.set_sync_debug_mode("error")
        try:
            carried_out(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        calls.append(arguments)

    next(run), next(run)
    monkeypatch.setattr(worker, "_carry_out", without_waiting)
    next(run)
    assert calls


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold])
def test_a_graph_has_the_bits_of_the_loop(algorithm, sizes):
    loop, graph = (started(algorithm, sizes, mode) for mode in ("loop", "graph"))
    for _ in range(4):
        one, other = next(loop), next(graph)
        assert [one[key] for key in ("train_loss", "test_loss")] == [other[key] for key in ("train_loss", "test_loss")]
    assert all(torch.equal(leaf, loop.server["w"][name]) for name, leaf in graph.server["w"].items())
    assert len(graph.executor.transport.built[0].captured)


@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold])
def test_a_rate_that_decays_is_an_input_of_the_graph(algorithm):
    loop, graph = (started(algorithm, SIZES[0], mode, lr_decay=0.7, clip_norm=1.0) for mode in ("loop", "graph"))
    captured, graphs = graph.executor.transport.built[0].captured, []
    for _ in range(4):
        assert next(loop)["train_loss"] == next(graph)["train_loss"]
        graphs.append([one for _, one in captured._graphs.values()])
    assert all(torch.equal(leaf, loop.server["w"][name]) for name, leaf in graph.server["w"].items())
    # Captured in round 1 with its rate, and in round 2 for all further rates.
    assert graphs[1] != graphs[0]
    assert graphs[1] == graphs[2] == graphs[3]
    assert len(captured)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_that_draws_from_torchs_generator_runs_as_a_loop(device):
    class Drawing(FedAvg):
        def train(self, hp, down, state, data):
            w = {name: p + 0.01 * torch.randn(p.shape, device=device).to(p.device) for name, p in down["w"].items()}
            return super().train(hp, {**down, "w": w}, state, data)

    run = started(Drawing, SIZES[0], "graph")
    next(run)
    assert run.executor.plans.values(0)["train/clients"]["mode"] == "loop"


def test_a_client_that_diverged_is_left_out_of_a_sum_on_the_gpu():
    rows = torch.tensor([[1.0, 2.0], [float("inf"), 1.0], [5.0, 6.0]], device="cuda")
    weights = torch.tensor([1.0, 100.0, 3.0], dtype=torch.float64, device="cuda")
    partial = PartialAggregate("mean")
    for some in (slice(0, 1), slice(1, 3)):
        up = {"w": {"a": rows[some, :1], "b": rows[some, 1:, None], "none": rows[some, :0]}}
        partial.add(up, weights[some], {"loss": rows[some, 0]})
    sent = partial.to_wire()
    assert sent.total["w"]["a"].tolist() == [1.0 + 3 * 5.0]
    assert sent.total["w"]["b"].tolist() == [[2.0 + 3 * 6.0]]
    assert sent.weight == 4.0
    assert sent.contributed.tolist() == [True, False, True]
    assert sent.metrics["loss"].tolist() == [1.0, float("inf"), 5.0]


def test_chunks_that_do_not_fit_on_the_gpu_are_halved(tmp_path):
    before = torch.cuda.get_device_properties(0).total_memory
    experiment = parse_experiment(
        {
            "name": "large",
            "rounds": 2,
            "clients_per_round": "all",
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "iid", "clients": 64, "samples_per_client": 8},
                "model": {"name": "mlp", "hidden": [int(before * 0.02 / 64 / 4 / 80)]},
            },
            "algorithm": {"name": "fedavg", "batch_size": 8},
            "evaluation": {"clients": 0},
            "engine": {"mode": "vmap", "chunk": 64},
            "resources": {"executor": "inline", "device": "cuda", "gpus_per_actor": 0.05},
        }
    )
    run = build_coordinator([experiment], *check(experiment, None), [tmp_path / "checkpoints"])
    notices = []
    run.on_notice = notices.append
    try:
        run.next_round()
        plan = run.plans()["train/clients"]
        assert 1 <= plan["chunk"] < 64
        assert len(notices) == {1: 6, 2: 5, 4: 4, 8: 3, 16: 2, 32: 1}[plan["chunk"]]
        assert notices[0].startswith("round 1 is repeated: the step train/clients does not fit into memory with 64")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_step_that_reads_a_value_back_runs_as_a_loop():
    class Reading(FedAvg):
        def train(self, hp, down, state, data):
            result = super().train(hp, down, state, data)
            float(next(iter(result[0]["w"].values())).sum())
            return result

    reads, loop = (started(Reading, SIZES[0], mode) for mode in ("graph", "loop"))
    notices = []
    reads.on_notice = notices.append
    for _ in range(2):
        assert next(reads)["train_loss"] == next(loop)["train_loss"]
    assert reads.executor.plans.values(0)["train/clients"] == {**ExecutionPlan("loop").__dict__}
    (sentence,) = notices
    assert "the step train/clients cannot run as a CUDA graph" in sentence
    assert sentence.endswith("and runs as a loop from now on")
