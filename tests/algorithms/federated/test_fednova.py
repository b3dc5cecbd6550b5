"""FedNova: the paper's round computed with NumPy, its fixed point, and its identity with FedAvg."""

import numpy as np
import pytest
import torch
from helpers import Quadratics, blobs, check_resuming, dataset, distance, model, partition, run_inline, small_task
from pydantic import ValidationError

from hedgerow.algorithms.core.pytree import count
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.fednova import FedNova
from hedgerow.platform.config.experiment import EngineConfig, Evaluation

DATA = blobs()
EQUAL = partition(np.full(6, len(DATA.y_train) // 6))
RAGGED = partition(np.array([3, 60, 17, 1, 40, 59]), seed=1)
STEPS = np.array([1, 2, 3, 5, 8, 13])
"""Number of samples of each client, all of them equal: with a batch size of 1, its number of local steps."""
UNIFORM = {"aggregation": {"weighting": "uniform"}}
PROBLEM = Quadratics()
ROWS = np.concatenate([PROBLEM.A.reshape(6, -1), PROBLEM.c], axis=1).astype(np.float32).repeat(STEPS, axis=0)
ALL = {"engine": EngineConfig(mode="vmap", chunk=6), "evaluation": Evaluation(every=1000, clients=0)}


def on_quadratics(kind, rounds, hyper, **settings):
    values = {"batch_size": 1, **hyper}
    data = dataset(ROWS, np.zeros(len(ROWS), np.int64))
    done = run_inline(kind, PROBLEM.task, data, partition(STEPS), values, rounds=rounds, **{**ALL, **settings})
    list(done)
    return model(done)["x"].numpy()


def weights(weighting):
    return STEPS / STEPS.sum() if weighting == "samples" else np.full(6, 1 / 6)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_a_round_is_that_of_the_paper(mode, weighting, momentum):
    """Equations 6 to 8: w + tau_eff sum p_k d_k, with d_k = (w_k - w) / ||a_k||_1 and tau_eff = sum p_k ||a_k||_1."""
    lr, p = 0.3, weights(weighting)
    w, directions, norms = np.zeros(4), [], []
    for k, steps in enumerate(STEPS):
        x, velocity = w.copy(), np.zeros(4)
        for _ in range(steps):
            velocity = momentum * velocity + PROBLEM.A[k] @ (x - PROBLEM.c[k])
            x = x - lr * velocity
        # Entry j of a_k: the weight of gradient j in the sum of all steps.
        a = [sum(momentum**i for i in range(steps - j)) for j in range(steps)]
        directions.append((x - w) / sum(a))
        norms.append(sum(a))
    expected = w + (p @ norms) * (p @ directions)
    hyper = {"lr": lr, "momentum": momentum, "aggregation": {"weighting": weighting}}
    found = on_quadratics(FedNova, 1, hyper, engine=EngineConfig(mode=mode, chunk="auto" if mode == "loop" else 3))
    assert np.abs(found - expected).max() < 1e-5


def test_the_fixed_point_nears_the_optimum_and_fedavgs_does_not():
    # n steps map w to M^n (w - c) + c with M = I - lr A. FedAvg's fixed point solves mean((I - M^n) (w - c)) = 0, and
    # FedNova's mean((I - M^n) / n (w - c)) = 0, which is that of the mean gradient if lr is small.
    lr = 0.02
    moved = np.stack(
        [np.eye(4) - np.linalg.matrix_power(np.eye(4) - lr * a, n) for a, n in zip(PROBLEM.A, STEPS, strict=True)]
    )
    gaps = {}
    for kind, factors in ((FedNova, 1 / STEPS), (FedAvg, np.ones(6))):
        pull = moved * factors[:, None, None]
        expected = np.linalg.solve(pull.sum(0), np.einsum("kij,kj->i", pull, PROBLEM.c))
        found = on_quadratics(kind, 250, {"lr": lr, **UNIFORM})
        assert np.abs(found - expected).max() < 1e-4
        gaps[kind] = np.linalg.norm(found - PROBLEM.optimum)
    assert gaps[FedNova] < 0.1 * gaps[FedAvg]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_equally_many_steps_it_is_fedavg(momentum):
    hyper = {"lr": 0.1, "epochs": 2, "batch_size": 8, "momentum": momentum}
    runs = [run_inline(kind, small_task(DATA), DATA, EQUAL, hyper, rounds=4) for kind in (FedNova, FedAvg)]
    records = [list(one) for one in runs]
    assert distance(model(runs[0]), model(runs[1])) < 1e-6
    # One number more is sent, the number of steps.
    assert [a["scalars_up"] - b["scalars_up"] for a, b in zip(*records, strict=True)] == [6] * 4
    assert records[0][0]["scalars_down"] == records[1][0]["scalars_down"] == 6 * count(model(runs[0]))
    steps, beta = 8, momentum
    assert records[0][-1]["effective_steps"] == pytest.approx(
        sum(sum(beta**i for i in range(j)) for j in range(1, steps + 1))
    )


@pytest.mark.parametrize(
    "slots",
    [
        {},
        {"aggregation": {"server_optimizer": {"optimizer": "adam", "lr": 0.05}}},
        {"transforms": [{"kind": "clip", "norm": 0.1}, {"kind": "quantize", "bits": 8}]},
        {"objective": {"kind": "stability"}},
    ],
    ids=lambda slots: next(iter(slots), "none"),
)
def test_loop_equals_vmap_with_slots_too(slots):
    hyper = {"lr": 0.2, "epochs": 2, "batch_size": 8, "momentum": 0.5, "clip_norm": 0.5, **slots}
    runs = []
    for mode, chunk in (("loop", "auto"), ("vmap", 4)):
        engine = EngineConfig(mode=mode, chunk=chunk)
        runs.append(run_inline(FedNova, small_task(DATA), DATA, RAGGED, hyper, rounds=3, engine=engine))
        list(runs[-1])
    assert distance(model(runs[0]), model(runs[1])) < 1e-5


def test_a_clip_bounds_the_normalised_update_and_leaves_the_number_of_steps():
    hyper = {"lr": 0.5, "batch_size": 4, "transforms": [{"kind": "clip", "norm": 1e-3}], **UNIFORM}
    one = run_inline(FedNova, small_task(DATA), DATA, RAGGED, hyper, rounds=1)
    list(one)
    steps = np.mean([1, 15, 5, 1, 10, 15])
    assert float(one.server["steps"]) == pytest.approx(steps)
    start = small_task(DATA).init()
    moved = torch.stack([(p - start[name]).square().sum() for name, p in model(one).items()]).sum().sqrt()
    assert 0 < float(moved) <= steps * 1e-3 * 1.001


def test_a_resumed_run_ends_like_an_undisturbed_one(tmp_path):
    def start(folder):
        return run_inline(FedNova, small_task(DATA), DATA, RAGGED, {"batch_size": 8}, folder, rounds=4)

    check_resuming(start, 2, tmp_path)


def test_another_local_optimiser_is_refused():
    with pytest.raises(ValidationError, match="because updates are divided by the number of SGD steps; remove it"):
        FedNova.Hyper(optimizer="adam")
