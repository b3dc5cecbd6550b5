"""Default weights of clients: one round of each method, computed with NumPy from the clients' numbers of samples."""

import numpy as np
import pytest
from helpers import Quadratics, dataset, model, partition, run_inline

from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.federated.fednova import FedNova
from hedgerow.algorithms.federated.fedprox import FedProx
from hedgerow.algorithms.federated.fedsgd import FedSGD
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.platform.config.experiment import EngineConfig, Evaluation

SIZES = np.array([1, 2, 3, 5, 8, 13])
BY_SAMPLES, EQUAL = SIZES / SIZES.sum(), np.full(6, 1 / 6)
PROBLEM = Quadratics()
# All samples of a client are equal.
ROWS = np.concatenate([PROBLEM.A.reshape(6, -1), PROBLEM.c], axis=1).astype(np.float32).repeat(SIZES, axis=0)
LR, MU = 0.3, 0.5


def after_a_round(kind, hyper, mode="vmap", sizes=SIZES):
    data = dataset(ROWS, np.zeros(len(ROWS), np.int64))
    settings = {"engine": EngineConfig(mode=mode, chunk=4), "evaluation": Evaluation(every=1000, clients=0)}
    done = run_inline(kind, PROBLEM.task, data, partition(sizes), {"lr": LR, **hyper}, rounds=1, **settings)
    list(done)
    return model(done)["x"].numpy()


def trained(mu=0.0):
    """Model of each client after two steps with its whole data from w = 0."""
    models = np.zeros((6, 4))
    for _ in range(2):
        slopes = np.einsum("kij,kj->ki", PROBLEM.A, models - PROBLEM.c) + mu * models
        models = models - LR * slopes
    return models


TWO_STEPS = {"epochs": None, "steps": 2, "batch_size": None}
SLOPES = -np.einsum("kij,kj->ki", PROBLEM.A, PROBLEM.c)
MEDIAN, NOISE = (
    {"rule": {"kind": "median"}},
    [{"kind": "clip", "norm": 1e6}, {"kind": "gaussian_noise", "multiplier": 0}],
)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("kind", "hyper", "expected"),
    [
        (FedAvg, TWO_STEPS, BY_SAMPLES @ trained()),
        (FedProx, TWO_STEPS | {"mu": MU}, BY_SAMPLES @ trained(MU)),
        (FedSGD, {}, -LR * BY_SAMPLES @ SLOPES),
        (FedNova, TWO_STEPS, BY_SAMPLES @ trained()),
        (FedAvg, TWO_STEPS | {"aggregation": {"weighting": "uniform"}}, EQUAL @ trained()),
        (FedAvg, TWO_STEPS | {"aggregation": {"server_optimizer": {"lr": 0.5}}}, 0.5 * BY_SAMPLES @ trained()),
        (FedAvg, TWO_STEPS | {"aggregation": MEDIAN}, np.sort(trained(), axis=0)[2:4].mean(0)),
        (FedAvg, TWO_STEPS | {"transforms": NOISE}, EQUAL @ trained()),
        (Scaffold, TWO_STEPS, EQUAL @ trained()),
    ],
    ids=["fedavg", "fedprox", "fedsgd", "fednova", "uniform", "server lr", "median", "noise", "scaffold"],
)
def test_a_round_weights_clients_as_its_source_does(kind, hyper, expected, mode):
    assert np.abs(after_a_round(kind, hyper, mode) - expected).max() < 1e-5


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_server_optimisers_receive_the_mean_by_samples(name):
    """First step of Reddi et al., 2021, Algorithm 2, from v = tau^2, with beta_2 = 0.99."""
    optimizer = {"optimizer": name, "lr": 0.1, "momentum": 0.9, "tau": 0.01}
    change = BY_SAMPLES @ trained()
    found = after_a_round(FedAvg, TWO_STEPS | {"aggregation": {"server_optimizer": optimizer}})
    v = {
        "adam": 0.99 * 1e-4 + 0.01 * change**2,
        "yogi": 1e-4 - 0.01 * change**2 * np.sign(1e-4 - change**2),
        "adagrad": 1e-4 + change**2,
    }[name]
    assert np.abs(found - 0.1 * 0.1 * change / (np.sqrt(v) + 0.01)).max() < 1e-5


def test_feddyn_averages_equally():
    alpha = 0.5
    models = trained(alpha)
    h = -alpha * EQUAL @ models
    assert np.abs(after_a_round(FedDyn, TWO_STEPS | {"alpha": alpha}) - (EQUAL @ models - h / alpha)).max() < 1e-5


def test_a_cohort_without_samples_keeps_the_model():
    assert np.abs(after_a_round(FedAvg, {"batch_size": 1}, sizes=np.zeros(6, int))).max() == 0
