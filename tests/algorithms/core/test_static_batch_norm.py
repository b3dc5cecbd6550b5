"""Static batch norm: batches' own statistics in training, at evaluation those of the clients' samples."""

import numpy as np
import pytest
import torch
from helpers import dataset, partition, run_inline
from torch import nn
from torch.func import functional_call

from hedgerow.algorithms.core.algorithm import Aggregate
from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d, statistics
from hedgerow.algorithms.core.task import Task
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class

RNG = np.random.default_rng(0)
DATA = dataset(RNG.normal(size=(80, 2, 6, 6)).astype(np.float32), RNG.integers(0, 3, 80), test=20)
LAYERS = ((nn.Conv2d, (2, 4, 3)), (nn.BatchNorm2d, (4,)), (nn.ReLU, ()), (nn.Conv2d, (4, 3, 3)), (nn.BatchNorm2d, (3,)))


def network(norm):
    torch.manual_seed(0)
    layers = [(norm if kind is nn.BatchNorm2d else kind)(*arguments) for kind, arguments in LAYERS]
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


def task():
    return Task(network(StaticBatchNorm2d), torch.zeros(()), torch.ones(()), sample_shape=(2, 6, 6))


def run(clients, **settings):
    hyper = {"lr": 0.05, "batch_size": 20, "capacities": [1.0]}
    engine = EngineConfig(mode="loop", chunk=1)
    return run_inline(algorithm_class("heterofl"), task(), DATA, clients, hyper, engine=engine, **settings)


def test_in_training_it_is_batch_norm():
    x = torch.randn(8, 2, 6, 6)
    assert torch.allclose(task().logits(task().init(), x), network(nn.BatchNorm2d).train()(x), atol=1e-6)


def test_scored_is_what_torch_scores_with_cumulative_statistics():
    """One client, one batch: batch norm with momentum None has then the same statistics."""
    one = run(partition(np.array([60])), rounds=2)
    record = list(one)[-1]
    reference = network(nn.BatchNorm2d).train()
    for layer in reference:
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
    with torch.no_grad():
        functional_call(reference, one.server["w"], (torch.from_numpy(DATA.x_train),))
        logits = functional_call(reference.eval(), one.server["w"], (torch.from_numpy(DATA.x_test),))
    wanted = nn.functional.cross_entropy(logits, torch.from_numpy(DATA.y_test))
    assert abs(record["test_loss"] - float(wanted)) < 1e-5
    batch = functional_call(reference.train(), one.server["w"], (torch.from_numpy(DATA.x_test),))
    assert abs(float(nn.functional.cross_entropy(batch, torch.from_numpy(DATA.y_test)) - wanted)) > 1e-3


def test_statistics_are_averages_over_clients_by_their_samples():
    clients = partition(np.array([40, 20]))
    both = run(clients, rounds=1)
    algorithm, w = both.servers[0].algorithm, both.server["w"]
    exchange = next(algorithm.calibrate_batch_norm(w, both.servers[0]._cohort(1, np.arange(2))))
    assert exchange.weights.tolist() == [40, 20]
    record = next(both)
    scored = {**both.server["w"]}
    each = [algorithm.task.statistics(scored, batch_of(rows)) for rows in (slice(0, 40), slice(40, 60))]
    scored |= {name: (40 * each[0][name] + 20 * each[1][name]) / 60 for name in each[0]}
    logits = algorithm.task.logits(scored, torch.from_numpy(DATA.x_test))
    wanted = nn.functional.cross_entropy(logits, torch.from_numpy(DATA.y_test))
    assert abs(record["test_loss"] - float(wanted)) < 1e-5


def batch_of(rows):
    return Batch(torch.from_numpy(DATA.x_train[rows]), torch.from_numpy(DATA.y_train[rows]))


def test_a_single_value_is_its_own_mean():
    layer = StaticBatchNorm2d(3)
    layer.bias.data = torch.tensor([1.0, 2.0, 3.0])
    assert layer(torch.randn(1, 3, 1, 1)).flatten().tolist() == [1, 2, 3]
    found = statistics(nn.Sequential(layer), {}, torch.full((1, 3, 1, 1), 5.0))
    assert found["0.mean"].tolist() == [5, 5, 5]
    assert found["0.variance"].tolist() == [0, 0, 0]


def test_a_model_whose_statistics_are_not_finite_is_recorded_and_not_the_end():
    far = run(partition(np.array([60])), rounds=1)
    far.server["w"]["0.weight"] = torch.full_like(far.server["w"]["0.weight"], 1e30)
    generator = far.servers[0]._score(far.server, 1, np.arange(1))
    request = next(generator)[0]
    gone = Aggregate({}, np.zeros(len(request.clients), bool), {})
    with pytest.raises(StopIteration) as stop:
        generator.send([gone])
    assert np.isnan(stop.value.value["test_accuracy"])
