"""Weights of samples whose labels may be wrong: hypergradients, Shapley values, and who is found (comm_fedbio.md)."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch
from helpers import dataset
from noisy import DATA, ESTIMATORS, EVERYTHING, noisy
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.measures import cross_entropies
from hedgerow.algorithms.core.pytree import dot
from hedgerow.algorithms.noisy_labels.focus import credibilities
from hedgerow.algorithms.optim.hypergradient import cross_product, dense_hessian, lower_slope, slopes, solve
from hedgerow.algorithms.optim.newton import newton
from hedgerow.algorithms.problems import Cleaning
from hedgerow.platform.config import registries
from hedgerow.platform.config.experiment import Evaluation
from hedgerow.platform.ui.plots import draw_histograms

# ---- sample weights -------------------------------------------------------------------------------------------------


def weighing(n, seed=0, wrong=()):
    """Softmax regression with a ridge on n samples, some with wrong labels, and 30 clean ones: a task, its two
    losses, and what minimises the lower one for given weights."""
    rng = np.random.default_rng(seed)
    centres = 2.5 * rng.normal(size=(2, 4))
    labels = torch.from_numpy(rng.integers(0, 2, n + 30))
    x = torch.from_numpy(centres[labels.numpy()] + rng.normal(size=(n + 30, 4)))
    y = labels.clone()
    y[list(wrong)] = 1 - y[list(wrong)]
    rows = torch.arange(n)
    mask = torch.zeros(n, dtype=torch.bool)
    mask[list(wrong)] = True
    module = nn.Linear(4, 2).double()
    fields = {"slots": rows, "places": rows, "blocks": rows[None], "wrong": mask}
    task = Cleaning(module, torch.zeros(4), torch.ones(4), weights="clipped", **fields)
    train, validation = Batch(x[:n], y[:n], rows=rows), Batch(x[n:], y[n:])
    start = {name: torch.zeros_like(p) for name, p in task.init().items()}

    def lower(x, w):
        return task.lower(x, w, train) + 0.05 * dot(w, w)

    def upper(x, w):
        return task.upper(x, w, validation)

    def best(weights):
        return newton(lambda w: lower({"weights": weights}, w), start, None, None, 0.0, False)[0]

    return task, lower, upper, best, train


def test_the_hypergradient_of_a_weight():
    """dh/dlambda_j = -<grad loss_j, v> / N with H v = grad F (section 1.4): as finite differences have it."""
    _, lower, upper, best, train = weighing(12, wrong=(1, 5))
    weights = torch.linspace(0.3, 1.0, 12).double()
    x, y = {"weights": weights}, best(weights)
    v = solve(dense_hessian(lower, x, y), slopes(upper, x, y).y)

    def one_loss(w, j):
        return cross_entropies(train.x[j : j + 1] @ w["weight"].T + w["bias"], train.y[j : j + 1]).sum()

    each = [dot(lower_slope(lambda _, w, j=j: one_loss(w, j), {}, y), v) for j in range(12)]
    step = 1e-5
    for j in range(12):
        moved = torch.eye(12).double()[j] * step
        ends = [float(upper({}, best(weights + sign * moved))) for sign in (1, -1)]
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(-float(each[j]) / 12, abs=1e-5)


@pytest.mark.parametrize("scale", ["paper", "per_sample", "per_client"])
def test_what_clients_send_makes_the_hypergradient(scale):
    """Uncompressed and solved: x's step is the exact hypergradient's, with clients of different sizes."""
    section = {**EVERYTHING, "u_lr": None, "u_steps": 75, "ridge": 0.3, "upper_scale": scale, "upper_lr": 1e-3}
    runs = noisy({**section, "lr": 1e-9}, rounds=1, model={"name": "logreg"})
    config = runs.servers[0].experiment.task.partition
    clients, task = config.draw(DATA.y_train, DATA.classes, None, 0), runs.servers[0].algorithm.task
    rows, own = (torch.from_numpy(clients.rows(split)) for split in ("train", "validation"))
    samples, x = torch.from_numpy(DATA.x_train), task.start()["x"]
    train = Batch(samples[rows], torch.from_numpy(clients.labels)[rows], rows=rows)
    validation = Batch(samples[own], torch.from_numpy(DATA.y_train)[own], rows=own)
    y, n = task.start()["y"], len(rows)

    def lower(x, w):
        return task.lower(x, w, train) + 0.15 * dot(w, w)

    v = solve(dense_hessian(lower, x, y), slopes(lambda x, w: task.upper(x, w, validation), x, y).y)
    wanted = -cross_product(lower, x, y, v)["weights"]
    sizes = torch.from_numpy(np.repeat(clients.train_sizes, clients.train_sizes)).float()
    wanted = wanted * {"paper": 1, "per_sample": n, "per_client": sizes}[scale]
    list(runs)
    # Of weights that are not clipped: those whose derivative is positive.
    moved = (1.0 - runs.server["x"]["weights"]) / 1e-3
    falls = wanted > 0
    assert falls.sum() > 10
    assert torch.allclose(moved[falls], wanted[falls], rtol=0.02, atol=0.02 * float(wanted.abs().max()))
    assert (moved[~falls] == 0).all()


def test_shapley_values_agree_about_who_is_wrong():
    """Section 1.2, exactly, on six samples: what wrong labels contribute is less, and ranks as hypergradients do."""
    n, wrong = 6, (1, 4)
    _, lower, upper, best, _ = weighing(n, seed=3, wrong=wrong)
    gain = {}
    for size in range(n + 1):
        for some in combinations(range(n), size):
            weights = torch.zeros(n).double()
            weights[list(some)] = 1.0
            gain[some] = -float(upper({}, best(weights)))
    values = np.zeros(n)
    for j in range(n):
        for some in gain:
            if j not in some:
                values[j] += (gain[tuple(sorted((*some, j)))] - gain[some]) / comb(n - 1, len(some)) / n
    assert values.sum() == pytest.approx(gain[tuple(range(n))] - gain[()])
    assert max(values[list(wrong)]) < min(np.delete(values, wrong))
    whole = torch.ones(n).double()
    v = solve(dense_hessian(lower, {"weights": whole}, best(whole)), slopes(upper, {"weights": whole}, best(whole)).y)
    x = {"weights": whole.clone().requires_grad_()}
    y = {name: p.detach().requires_grad_() for name, p in best(whole).items()}
    slope = torch.autograd.grad(lower(x, y), list(y.values()), create_graph=True)
    cross = torch.autograd.grad(sum((s * u).sum() for s, u in zip(slope, v.values(), strict=True)), x["weights"])[0]
    ranks = [np.argsort(np.argsort(order)) for order in (values, cross.numpy())]
    assert np.corrcoef(*ranks)[0, 1] > 0.7


# ---- end to end -----------------------------------------------------------------------------------------------------


def classes_of_gaussians():
    """Section 6.7: 16 features, 4 classes; 10 clients with 50 samples each and 10 of the server's."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 600 + 400)
    x = rng.normal(size=(4, 16))[y] + rng.normal(size=(1000, 16))
    return dataset(x.astype(np.float32), y.astype(np.int64), 400)


GAUSSIANS = classes_of_gaussians()


@pytest.fixture(scope="module")
def on_gaussians():
    """name, noise -> the last record of so many rounds."""
    known = {}

    def last(noise, rounds=60, **section):
        key = (str(noise), rounds, str(section))
        if key not in known:
            config = registries.partitions.section("iid")(clients=10, upper_level_fraction=1 / 6, label_noise=noise)
            settings = {"kind": config, "model": {"name": "logreg"}, "evaluation": Evaluation(every=rounds, clients=0)}
            section = {"lr": 0.1, "steps": 5, "batch_size": None, **section}
            known[key] = list(noisy(section, ("vmap", 10), rounds, data=GAUSSIANS, **settings))[-1]
        return known[key]

    return last


FED = {"epochs": None, "weight_decay": 0.01, "aggregation": {"weighting": "samples"}}
ROBUST = {"ridge": 0.01, "curvature": "hessian"}


SOLVER = {"u_steps": 10, "u_lr": 0.3, "upper_lr": 0.3}


@pytest.mark.grid
@pytest.mark.parametrize("noise", [0.4, [0.2, 0.9]], ids=["alike", "different"])
@pytest.mark.parametrize(
    ("section", "least"),
    [
        ({"name": "comm_fedbio_topk", "compression": 17, **SOLVER}, 0.85),
        ({"name": "comm_fedbio_sketch", "compression": 2, "rows": 3, "recovered": 4, **SOLVER}, 0.85),
        # In a space of five dimensions, which is another one in every round: a noisier estimate.
        ({"name": "comm_fedbio_non_iter", "compression": 1, "upper_lr": 0.1}, 0.75),
    ],
    ids=["topk", "sketch", "non_iter"],
)
@pytest.mark.grid(keep=1)
def test_wrong_labels_are_found(section, least, noise, on_gaussians):
    """Section 6.7: far more than by taking all labels for wrong, whose F1 is .57 and .71; and FedAvg is bettered."""
    plain, robust = on_gaussians(noise, name="fedavg", **FED), on_gaussians(noise, **ROBUST, **section)
    assert robust["cleaning_f1"] >= least
    assert robust["test_accuracy"] >= plain["test_accuracy"] + 0.02


@pytest.mark.exhaustive("convergence")
@pytest.mark.parametrize("noise", [0.4, [0.2, 0.9]], ids=["alike", "different"])
def test_a_space_of_few_dimensions_does_as_well_in_smaller_steps(noise, on_gaussians):
    smaller = {"name": "comm_fedbio_non_iter", "compression": 1, "sketch": "gaussian", "upper_lr": 0.05}
    plain, robust = on_gaussians(noise, 100, name="fedavg", **FED), on_gaussians(noise, 100, **ROBUST, **smaller)
    assert robust["cleaning_f1"] >= 0.85
    assert robust["test_accuracy"] >= plain["test_accuracy"] + 0.03


def test_an_estimate_that_failed_moves_no_weight():
    section = {**EVERYTHING, "u_lr": 1e4, "u_steps": 20, "batch_size": None}
    runs = noisy(section)
    records = list(runs)
    assert records[-1]["failed_estimates"] == 3
    assert (runs.server["x"]["weights"] == 1).all()
    # The model learns all the same.
    assert records[-1]["test_loss"] < records[0]["test_loss"]


@pytest.mark.exhaustive("convergence")
def test_other_problems_keep_their_hypergradient_as_it_is():
    """x of hyper-representation learning is shared: no 1/N is to be made up for."""
    section = {"name": "comm_fedbio_topk", "compression": 2, "u_steps": 5, "upper_lr": 0.1, "ridge": 0.05}
    records = list(noisy(section, rounds=30, noise=0.0, problem={"kind": "hyper_representation"}))
    assert records[-1]["dropped"] == 0
    assert records[-1]["test_loss"] < 0.7 * records[0]["test_loss"]


def test_the_histogram_of_the_weights_is_kept_and_drawn(tmp_path):
    runs = noisy({**ESTIMATORS["topk"], "upper_lr": 1.0}, rounds=5)
    list(runs)
    shown = runs.servers[0].state_dict()["progress"]["histograms"]["sample weight"]
    weights, wrong = runs.server["x"]["weights"], runs.servers[0].algorithm.task.wrong
    assert sum(shown["right label"]) == int((~wrong).sum())
    assert sum(shown["wrong label"]) == int(wrong.sum())
    assert shown["right label"][0] + shown["wrong label"][0] == int((weights < 0.05).sum()) > 0
    written = draw_histograms({"a": {"sample weight": shown}, "b": {"sample weight": shown}}, tmp_path)
    assert [file.name for file in written] == ["histograms.png", "histograms.svg"]
    assert all(file.stat().st_size > 5000 for file in written)
    assert draw_histograms({"a": {}}, tmp_path) == []


@pytest.mark.exhaustive("convergence")
def test_the_literal_scale_moves_no_weight_below_a_half(on_gaussians):
    section = {"name": "comm_fedbio_topk", "compression": 17, **SOLVER, "upper_scale": "paper"}
    assert on_gaussians(0.4, **ROBUST, **section)["cleaning_f1"] == 0


def test_the_oracle_is_not_bettered_by_much(on_gaussians):
    best = on_gaussians(0.4, name="fedavg_oracle", **FED)["test_accuracy"]
    assert best > on_gaussians(0.4, name="fedavg", **FED)["test_accuracy"]
    sifted = on_gaussians(0.4, name="preprocess", threshold=1.0, **FED)
    assert sifted["cleaning_f1"] > 2 * 0.4 / 1.4
    assert best + 0.02 >= sifted["test_accuracy"]


def test_focus_believes_clients_with_right_labels():
    errors = torch.tensor([0.5, 3.0, 0.6]).double()
    believed = credibilities(errors, 2.0)
    expected = [1 - np.exp(2 * e) / np.exp(2 * errors.numpy()).sum() for e in errors.numpy()]
    assert believed.tolist() == pytest.approx(expected)
    assert believed.argmin() == 1
    assert credibilities(torch.tensor([3.0]), 2.0).tolist() == [1.0]
    # With equal errors all weights are equal: FedAvg.
    assert credibilities(torch.ones(10), 5.0).tolist() == pytest.approx([0.9] * 10)
