"""Comm-FedBiO and its baselines on the platform: wrong labels among clients, clean samples on the server."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch
from helpers import SingleRun, blobs, dataset, distance, experiment, identical
from test_ray import numbers, same, small
from torch import nn

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.base import Batch
from hedgerow.algorithms.focus import credibilities
from hedgerow.algorithms.hypergradient import cross_product, dense_hessian, lower_slope, slopes, solve
from hedgerow.algorithms.newton import newton
from hedgerow.algorithms.problems import Cleaning
from hedgerow.algorithms.task import cross_entropies
from hedgerow.algorithms.trees import dot, flatten
from hedgerow.platform.build import build_algorithms, build_data, check_task
from hedgerow.platform.data.partition import IID, make_partition
from hedgerow.platform.errors import UserError
from hedgerow.platform.executors import InlineExecutor
from hedgerow.platform.experiment import EngineConfig, Evaluation, TaskConfig
from hedgerow.platform.experiment_file import parse_experiment
from hedgerow.platform.figures import draw_histograms
from hedgerow.platform.learner import Learner
from hedgerow.platform.runner import run
from hedgerow.platform.worker import Worker

DATA = blobs(samples=200)
ESTIMATORS = {
    "topk": {"name": "comm_fedbio_topk", "compression": 5, "u_steps": 3},
    "random_k": {"name": "comm_fedbio_topk", "compression": 5, "u_steps": 3, "compressor": "random_k"},
    "two_round": {"name": "comm_fedbio_sketch", "rows": 3, "compression": 2, "recovered": 4, "u_steps": 3},
    "server": {
        **{"name": "comm_fedbio_sketch", "rows": 3, "compression": 2, "recovered": 2, "u_steps": 3},
        "recovery": "server",
    },
    "non_iter": {"name": "comm_fedbio_non_iter", "compression": 2},
    "one_round": {"name": "comm_fedbio_non_iter", "compression": 2, "one_round": True},
}
EVERYTHING = {"name": "comm_fedbio_topk", "compressor": "random_k", "compression": 1}
SOLVERS = {name: {**section, "u_lr": 0.3} for name, section in ESTIMATORS.items() if "u_steps" in section}
ALL = ESTIMATORS | SOLVERS
BASELINES = {
    name: {"name": name, "epochs": None, "steps": 3, "batch_size": 16, "weighting": "samples"}
    for name in ("fedavg_oracle", "focus", "preprocess")
}


def noisy(
    section,
    mode=("vmap", 3),
    rounds=3,
    folder=None,
    data=DATA,
    kind=None,
    noise=0.4,
    model=None,
    problem=None,
    **settings,
):
    """Four clients with wrong labels; the server validates on a fifth of their samples, whose labels are right."""
    config = kind or IID(clients=4, unbalanced=0.3, validation=0.2, label_noise=noise)
    clients = make_partition(config, data.y_train, data.classes, None, 0)
    section = {"lr": 0.2, **({"steps": 3, "batch_size": 16} if "comm" in section["name"] else {}), **section}
    hyper = ALGORITHMS[section["name"]].Hyper(**section)
    task = {"data": {"name": "digits"}, "partition": config, "model": model or {"name": "mlp", "hidden": [4]}}
    task |= {"problem": problem or {"kind": "cleaning", "weights": "clipped"}}
    engine = EngineConfig(mode=mode[0], chunk=mode[1])
    values = {"rounds": rounds, "engine": engine, "task": TaskConfig(**task)} | settings
    wanted = experiment(hyper, **values)
    one, two = build_algorithms([wanted], data, clients), build_algorithms([wanted], data, clients)
    worker = Worker(one, data, clients, 0, wanted.resources)
    return SingleRun([Learner(wanted, two[0], clients, len(data.y_test))], InlineExecutor(worker), [folder])


# ---- the platform ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", [*ESTIMATORS.values(), *BASELINES.values()], ids=[*ESTIMATORS, *BASELINES])
def test_loop_and_vmap_agree(section):
    loop, vmap = (noisy(section, mode) for mode in (("loop", 1), ("vmap", 3)))
    one, other = list(loop), list(vmap)
    # Top-k may choose another of two entries that are all but equal: it does not here.
    assert distance(flatten(loop.server), flatten(vmap.server)) < 1e-4
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        assert {n: v for n, v in a.items() if "spent" in n} == pytest.approx({n: b[n] for n in b if "spent" in n})
    assert one[-1]["dropped"] == 0


@pytest.mark.parametrize("name", ["topk", "two_round", "preprocess"])
def test_a_resumed_run_is_undisturbed(name, tmp_path):
    section = (ESTIMATORS | BASELINES)[name]
    calm = noisy(section, rounds=4)
    calmly = list(calm)
    first = noisy(section, rounds=4, folder=tmp_path)
    [next(first) for _ in range(2)]
    first.save()
    second = noisy(section, rounds=4, folder=tmp_path)
    rest = list(second)
    assert identical(flatten(calm.server), flatten(second.server))
    clockless = [[{k: v for k, v in r.items() if k != "seconds"} for r in part] for part in (calmly[2:], rest)]
    assert clockless[0] == clockless[1]


def test_two_actors_equal_one_and_inline(ray_here, tmp_path):
    settings = {
        "participation": 1.0,
        "rounds": 2,
        "algorithm": {**ESTIMATORS["topk"], "lr": 0.1},
        "task__partition": {
            **{"kind": "iid", "clients": 6, "samples_per_client": 40},
            **{"validation": 0.3, "label_noise": 0.4},
        },
        "task__problem": {"kind": "cleaning", "weights": "clipped"},
    }
    one = run(small(tmp_path / "one", **settings))
    assert same(one, run(small(tmp_path / "inline", **settings, resources__executor="inline")))
    two = run(small(tmp_path / "two", **settings, resources__actors=2))
    assert max(np.abs(one.parameters[k] - two.parameters[k]).max() for k in one.parameters) < 1e-5
    for a, b in zip(numbers(one), numbers(two), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-5)


@pytest.mark.parametrize("name", ["topk", "non_iter", "preprocess"])
def test_some_clients_take_part_and_others_are_evaluated(name):
    """What participants noted for the round is none of the evaluation's; newcomers are told what they need."""
    section = (ESTIMATORS | BASELINES)[name]
    settings = {"participation": 0.5, "evaluation": Evaluation(clients=4), "rounds": 4}
    one, other = (noisy(section, mode, **settings) for mode in (("vmap", 4), ("loop", 1)))
    records = [list(one), list(other)]
    assert distance(flatten(one.server), flatten(other.server)) < 1e-4
    assert [record["participants"] for record in records[0]] == [2] * 4
    assert 0 < records[0][-1]["client_accuracy"] <= 1


def test_experts_in_a_pack_are_what_they_are_alone():
    changes = [{"lr": 0.2, "upper_lr": 0.3}, {"lr": 0.1, "upper_lr": 0.05, "ridge": 0.01, "damping": 0.1}]
    alone = [noisy({**SOLVERS["two_round"], **change}) for change in changes]
    for one in alone:
        list(one)
    learners = [noisy({**SOLVERS["two_round"], **change}).learners[0] for change in changes]
    config = learners[0].experiment.task.partition
    clients = make_partition(config, DATA.y_train, DATA.classes, None, 0)
    algorithms = build_algorithms([learner.experiment for learner in learners], DATA, clients)
    pack = SingleRun(learners, InlineExecutor(Worker(algorithms, DATA, clients, 0)), [None, None])
    while not pack.done:
        next(pack)
    for learner, one in zip(pack.learners, alone, strict=True):
        assert distance(flatten(learner.server), flatten(one.server)) < 1e-4


# ---- what is transmitted (section 2.5) ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_scalars_per_client(name):
    """Beside the d numbers of the local steps, each way, and the clients' N weights, once each way, whatever their
    sizes."""
    section, steps, m = ALL[name], 3, 4
    runs = noisy(section, rounds=2)
    sizes = runs.learners[0].sizes
    assert len(set(sizes)) > 1
    n, d = sizes.mean(), sum(leaf.numel() for leaf in runs.learners[0].algorithm.start()["y"].values())
    assert d == 6 * 4 + 4 + 4 * 3 + 3
    record = list(runs)[-1]
    up, down = record["scalars_up"] / m - d - n, record["scalars_down"] / m - d - n
    assert record["bytes_up"] == 4 * record["scalars_up"]
    rate = 0 if section.get("u_lr") else 1
    k = d // 5
    r1 = int((d / 4) ** 0.5)
    if name == "topk":
        assert up == steps * 2 * k + rate
        # y and b; then at most 2 m k numbers per step, fewer where clients send the same entries.
        assert 2 * d + steps * 2 * k + rate <= down <= 2 * d + steps * 2 * m * k + rate
    else:
        wanted = {
            "random_k": (steps * k + rate, 2 * d + steps * k + rate),
            "two_round": (steps * (3 * (d // 6) + 4) + rate, 2 * d + steps * 2 * 4 + rate),
            "server": (steps * 3 * (d // 6) + rate, d + steps * 2 * 2 + rate),
            "non_iter": (2 * r1 * r1, d + r1),
            "one_round": (2 * r1 * r1 + n * (r1 - 1), d),
        }
        assert (up, down) == wanted[name]
    exchanges = {"two_round": 3 + 2 * steps, "non_iter": 3, "one_round": 2}
    assert record["exchanges"] == exchanges.get(name, 3 + steps)


# ---- identities -----------------------------------------------------------------------------------------------------


def test_the_first_round_is_fedavgs():
    """All weights are 1: local steps with weight decay, averaged by numbers of samples."""
    settings = {"epochs": None, "steps": 3, "batch_size": None, "weighting": "samples", "weight_decay": 0.01}
    plain = noisy({"name": "fedavg", **settings}, rounds=1)
    robust = noisy({**ESTIMATORS["topk"], "batch_size": None, "ridge": 0.01}, rounds=1)
    [list(one) for one in (plain, robust)]
    assert distance(plain.server["w"], robust.server["y"]) < 1e-6


def test_top_k_and_random_k_of_everything_are_the_same():
    every = [
        noisy({**SOLVERS["topk"], "compression": 1, "compressor": compressor}) for compressor in ("top_k", "random_k")
    ]
    records = [list(one)[-1] for one in every]
    assert distance(flatten(every[0].server), flatten(every[1].server)) < 1e-5
    # But Top-k sends indices, too.
    assert records[0]["scalars_up"] > records[1]["scalars_up"]


@pytest.mark.parametrize(
    ("section", "noise"),
    [
        (BASELINES["fedavg_oracle"], 0.0),
        ({**BASELINES["focus"], "alpha": 0.0}, 0.4),
        ({**BASELINES["preprocess"], "threshold": 100.0}, 0.4),
    ],
    ids=["oracle without noise", "focus with alpha 0", "preprocess that keeps all"],
)
def test_they_become_fedavg(section, noise):
    # The exchange at which FedAvg trains is Preprocess's third at first.
    whole = {"batch_size": None}
    plain, other = (noisy({**one, **whole}, noise=noise) for one in ({**BASELINES["focus"], "name": "fedavg"}, section))
    [list(one) for one in (plain, other)]
    assert distance(plain.server["w"], other.server["w"]) < 1e-6


def test_the_oracle_trains_as_if_wrong_samples_were_not_there():
    settings = {"batch_size": None}
    oracle = noisy({**BASELINES["fedavg_oracle"], **settings})
    list(oracle)
    config = oracle.learners[0].experiment.task.partition
    clients = make_partition(config, DATA.y_train, DATA.classes, None, 0)
    # The same clients without those samples.
    rows = [clients.order[o : o + n] for o, n in zip(*clients.shares()["train"], strict=True)]
    right = [some[clients.labels[some] == DATA.y_train[some]] for some in rows]
    assert sum(map(len, right)) < clients.train_sizes.sum()
    sizes = np.array([len(some) for some in right])
    clean = type(clients)(np.concatenate(right), np.concatenate([[0], np.cumsum(sizes)]), sizes)
    hyper = ALGORITHMS["fedavg"].Hyper(**{**BASELINES["focus"], "name": "fedavg", "lr": 0.2, **settings})
    wanted = experiment(hyper, task=oracle.learners[0].experiment.task)
    algorithms = [build_algorithms([wanted], DATA, clients) for _ in range(2)]
    worker = Worker(algorithms[0], DATA, clean, 0, wanted.resources)
    plain = SingleRun([Learner(wanted, algorithms[1][0], clean, len(DATA.y_test))], InlineExecutor(worker), [None])
    list(plain)
    assert distance(plain.server["w"], oracle.server["w"]) < 1e-6


def test_focus_weighs_by_samples_and_credibilities():
    """A round by hand: E_m is the server's model on the client's samples plus the client's on the server's."""
    section = {**BASELINES["focus"], "batch_size": None, "alpha": 2.0}
    runs = noisy(section, rounds=1)
    task, samples = runs.learners[0].algorithm.task, runs.executor.worker.samples["clients"]
    config = runs.learners[0].experiment.task.partition
    clients = make_partition(config, DATA.y_train, DATA.classes, None, 0)
    start, own = runs.server["w"], torch.from_numpy(clients.rows("validation"))
    models, errors, sizes = [], [], clients.train_sizes
    for offset, size in zip(*clients.shares()["train"], strict=True):
        rows = torch.from_numpy(clients.order[offset : offset + size])
        batch = Batch(samples.x[rows], samples.y[rows])
        w = {name: p.clone().requires_grad_() for name, p in start.items()}
        for _ in range(3):
            slopes = torch.autograd.grad(task.loss(w, batch), list(w.values()))
            w = {n: (p - 0.2 * s).detach().requires_grad_() for (n, p), s in zip(w.items(), slopes, strict=True)}
        w = {name: p.detach() for name, p in w.items()}
        models.append(w)
        # The server's samples have right labels: nobody made those wrong.
        errors.append(float(task.loss(start, batch) + task.loss(w, Batch(samples.x[own], samples.y[own]))))
    believed = sizes * (1 - np.exp(2.0 * np.array(errors)) / np.exp(2.0 * np.array(errors)).sum())
    list(runs)
    for name, p in runs.server["w"].items():
        mean = sum(share * w[name] for share, w in zip(believed / believed.sum(), models, strict=True))
        assert torch.allclose(p, mean.float(), atol=1e-5)


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
    section = {**EVERYTHING, "u_lr": None, "u_steps": 150, "ridge": 0.3, "upper_scale": scale, "upper_lr": 1e-3}
    runs = noisy({**section, "lr": 1e-9}, rounds=1, model={"name": "logreg"})
    config = runs.learners[0].experiment.task.partition
    clients, task = make_partition(config, DATA.y_train, DATA.classes, None, 0), runs.learners[0].algorithm.task
    rows, own = (torch.from_numpy(clients.rows(share)) for share in ("train", "validation"))
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
    """name, noise -> the last record of 60 rounds."""
    known = {}

    def last(noise, **section):
        key = (str(noise), str(section))
        if key not in known:
            config = IID(clients=10, validation=1 / 6, label_noise=noise)
            settings = {"kind": config, "model": {"name": "logreg"}, "evaluation": Evaluation(every=60, clients=0)}
            section = {"lr": 0.1, "steps": 5, "batch_size": None, **section}
            known[key] = list(noisy(section, ("vmap", 10), 60, data=GAUSSIANS, **settings))[-1]
        return known[key]

    return last


FED = {"epochs": None, "weight_decay": 0.01, "weighting": "samples"}
ROBUST = {"ridge": 0.01, "curvature": "hessian"}


SOLVER = {"u_steps": 10, "u_lr": 0.3, "upper_lr": 0.3}


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
def test_wrong_labels_are_found(section, least, noise, on_gaussians):
    """Section 6.7: far more than by taking all labels for wrong, whose F1 is .57 and .71; and FedAvg is bettered."""
    plain, robust = on_gaussians(noise, name="fedavg", **FED), on_gaussians(noise, **ROBUST, **section)
    assert robust["cleaning_f1"] >= least
    assert robust["test_accuracy"] >= plain["test_accuracy"] + 0.02


def test_an_estimate_that_failed_moves_no_weight():
    section = {**EVERYTHING, "u_lr": 1e4, "u_steps": 20, "batch_size": None}
    runs = noisy(section)
    records = list(runs)
    assert records[-1]["failed_estimates"] == 3
    assert (runs.server["x"]["weights"] == 1).all()
    # The model learns all the same.
    assert records[-1]["test_loss"] < records[0]["test_loss"]


def test_other_problems_keep_their_hypergradient_as_it_is():
    """x of hyper-representation learning is shared: no 1/N is to be made up for."""
    section = {"name": "comm_fedbio_topk", "compression": 2, "u_steps": 5, "upper_lr": 0.1, "ridge": 0.05}
    records = list(noisy(section, rounds=30, noise=0.0, problem={"kind": "hyper_representation"}))
    assert records[-1]["dropped"] == 0
    assert records[-1]["test_loss"] < 0.7 * records[0]["test_loss"]


def test_the_histogram_of_the_weights_is_kept_and_drawn(tmp_path):
    runs = noisy({**ESTIMATORS["topk"], "upper_lr": 1.0}, rounds=5)
    list(runs)
    shown = runs.learners[0].state_dict()["progress"]["histograms"]["sample weight"]
    weights, wrong = runs.server["x"]["weights"], runs.learners[0].algorithm.task.wrong
    assert sum(shown["right label"]) == int((~wrong).sum())
    assert sum(shown["wrong label"]) == int(wrong.sum())
    assert shown["right label"][0] + shown["wrong label"][0] == int((weights < 0.05).sum()) > 0
    written = draw_histograms({"a": {"sample weight": shown}, "b": {"sample weight": shown}}, tmp_path)
    assert [file.name for file in written] == ["histograms.png", "histograms.svg"]
    assert all(file.stat().st_size > 5000 for file in written)
    assert draw_histograms({"a": {}}, tmp_path) == []


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
    # With equal errors nobody is believed less: FedAvg.
    assert credibilities(torch.ones(10), 5.0).tolist() == pytest.approx([0.9] * 10)


# ---- mistakes in the file -------------------------------------------------------------------------------------------


def values(name, problem=None, hyper=None, **partition):
    return {
        "name": "test",
        "rounds": 2,
        "participation": 1.0,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 4, "validation": 0.2, **partition},
            "model": {"name": "logreg"},
            "problem": problem,
        },
        "algorithm": {"name": name, **(hyper or {})},
    }


CLEANING = {"kind": "cleaning"}


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (values("preprocess"), "task.problem.kind: preprocess is about training labels that may be wrong"),
        (values("fedavg_oracle"), "task.problem.kind: fedavg_oracle is about training labels"),
        (values("focus", validation=0.0), "task.partition.validation"),
        (values("preprocess", CLEANING, validation=0.0), "task.partition.validation"),
        (
            values("comm_fedbio_topk", CLEANING, {"compression": 10**6}),
            "algorithm.compression: 1000000 is more than",
        ),
        (values("comm_fedbio_sketch", CLEANING, {"compression": 200}), "algorithm.compression: tables of 5 rows"),
        (values("comm_fedbio_sketch", CLEANING, {"recovered": 700}), "algorithm.recovered: 700 entries are more than"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(wanted, sentence):
    parsed = parse_experiment(wanted)
    data = build_data(parsed, None)
    with pytest.raises(UserError) as caught:
        check_task(parsed, *data)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
