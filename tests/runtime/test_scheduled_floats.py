"""Floats that a schedule changes, as a graph reads them: tensors, with the numbers of the loop. Here on the CPU, where
nothing is captured: calls run at once.
"""

import numpy as np
import pytest
import torch
from helpers import blobs, partition, run_inline, small_task
from torch import Tensor

from hedgerow.algorithms.core.pytree import flatten
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.fedprox import FedProx
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.runtime import engine
from hedgerow.platform.runtime.shards import WorkShard

DATA = blobs()
LOOP = EngineConfig(mode="loop")


class AtOnce:
    """Same as CapturedCalls, without a graph."""

    def __init__(self):
        self.plain, self.floats = set(), []

    def of(self, name, settings, shared, further):
        self.floats.append({path: float(value) for path, value in further["floats"].items()})
        return lambda function, own, kind: function({**shared, **further}, own)

    def clear(self):
        """There are no graphs."""


def started(algorithm, **hyper):
    settings = {"batch_size": 8, "lr": 0.1, "lr_decay": 0.5, **hyper}
    return run_inline(algorithm, small_task(DATA), DATA, partition(np.full(4, 20), seed=0), settings, engine=LOOP)


@pytest.fixture
def at_once(monkeypatch):
    """Has every step run as under a graph, with all floats that have changed since round 1 as tensors."""
    calls, run_one = AtOnce(), engine._run_one

    def as_graph(step, hypers, broadcasts, samples, captured, scheduled):
        if not step.__name__.startswith("train"):
            return run_one(step, hypers, broadcasts, samples, captured, scheduled)
        changed = [{"lr": hp.lr} if hp.lr != 0.1 else {} for hp in hypers]
        return run_one(step, hypers, broadcasts, samples, calls, changed)

    monkeypatch.setattr(engine, "_run_one", as_graph)
    return calls


class Numeric(FedAvg):
    """Its step needs the rate as a number."""

    def train(self, hp, down, state, data):
        if isinstance(hp.lr, Tensor):
            raise TypeError("a number, please")
        return super().train(hp, down, state, data)


@pytest.mark.parametrize("algorithm", [FedAvg, FedProx, Scaffold, Numeric])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_rate_as_a_tensor_gives_the_numbers_of_the_loop(algorithm, clip_norm, at_once, monkeypatch):
    graph = started(algorithm, clip_norm=clip_norm)
    records = [next(graph) for _ in range(3)]
    monkeypatch.undo()
    loop = started(algorithm, clip_norm=clip_norm)
    for record in records:
        assert record["train_loss"] == pytest.approx(next(loop)["train_loss"], rel=1e-6)
    for path, leaf in flatten(loop.server).items():
        found = flatten(graph.server)[path]
        assert found.dtype == leaf.dtype
        torch.testing.assert_close(found, leaf, rtol=1e-5, atol=1e-7)
    if algorithm is Numeric:
        assert len(at_once.plain) == 1
        assert at_once.floats[0] == at_once.floats[-1] == {}
    else:
        assert at_once.plain == set()
        assert at_once.floats == [{}, {"lr": 0.05}, {"lr": 0.025}]


def test_the_worker_names_the_floats_that_a_schedule_has_changed():
    run = started(FedAvg, lr_decay_every=2, momentum=0.9)
    next(run)
    worker = run.executor.transport.built[0]
    shards = [WorkShard(step="train", clients=np.arange(1), round=number) for number in (1, 2, 3, 5)]
    assert [worker._scheduled(shard) for shard in shards] == [{}, {}, {"lr": 0.05}, {"lr": 0.025}]


def test_a_number_that_has_been_widened_is_narrow_again():
    wide = torch.tensor(2.0, dtype=torch.float64)
    assert engine._single(wide).dtype == torch.float32
    assert engine._single(torch.ones(2, dtype=torch.float64)).dtype == torch.float64
    assert engine._single(torch.tensor(3)).dtype == torch.int64
