"""Comm-FedBiO and its baselines on the platform: forms, states, what is transmitted, identities, mistakes."""

import numpy as np
import pytest
import torch
from helpers import SingleRun, check_resuming, distance, experiment
from noisy import ALL, BASELINES, DATA, ESTIMATORS, SOLVERS, noisy
from packs import check_pack

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config import registries
from hedgerow.platform.config.experiment import Evaluation
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.slots_section import AggregationConfig
from hedgerow.platform.runtime.factory import build_algorithms, build_data, check_task
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.worker import Worker

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
    check_resuming(lambda folder: noisy(section, rounds=4, folder=folder), 2, tmp_path)


@pytest.mark.parametrize("name", ["topk", "non_iter", "preprocess"])
def test_some_clients_take_part_and_others_are_evaluated(name):
    """What participants noted for the round is none of the evaluation's; newcomers receive what they need."""
    section = (ESTIMATORS | BASELINES)[name]
    settings = {"clients_per_round": 0.5, "evaluation": Evaluation(clients=4), "rounds": 4}
    one, other = (noisy(section, mode, **settings) for mode in (("vmap", 4), ("loop", 1)))
    records = [list(one), list(other)]
    assert distance(flatten(one.server), flatten(other.server)) < 1e-4
    assert [record["participants"] for record in records[0]] == [2] * 4
    assert 0 < records[0][-1]["client_accuracy"] <= 1


def test_experts_in_a_pack_are_what_they_are_alone():
    changes = [{"lr": 0.2, "upper_lr": 0.3}, {"lr": 0.1, "upper_lr": 0.05, "ridge": 0.01, "damping": 0.1}]
    check_pack(lambda change: noisy({**SOLVERS["two_round"], **change}), changes, DATA, 1e-4)


# ---- what is transmitted (section 2.5) ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_scalars_per_client(name):
    """Next to the d numbers of the local steps, each way, and the clients' N weights, once each way, whatever their
    sizes."""
    section, steps, m = ALL[name], 3, 4
    runs = noisy(section, rounds=2)
    sizes = runs.servers[0].sizes
    assert len(set(sizes)) > 1
    n, d = sizes.mean(), sum(leaf.numel() for leaf in runs.servers[0].algorithm.inner.start()["y"].values())
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
    settings = {"epochs": None, "steps": 3, "batch_size": None, "weight_decay": 0.01}
    plain = noisy({"name": "fedavg", **settings, "aggregation": {"weighting": "samples"}}, rounds=1)
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
    fedavg = {**BASELINES["focus"], "name": "fedavg", "aggregation": {"weighting": "samples"}}
    plain, other = (noisy({**one, **whole}, noise=noise) for one in (fedavg, section))
    [list(one) for one in (plain, other)]
    assert distance(plain.server["w"], other.server["w"]) < 1e-6


def test_the_oracle_trains_as_if_wrong_samples_were_not_there():
    settings = {"batch_size": None}
    oracle = noisy({**BASELINES["fedavg_oracle"], **settings})
    list(oracle)
    config = oracle.servers[0].experiment.task.partition
    clients = config.draw(DATA.y_train, DATA.classes, None, 0)
    # The same clients without those samples.
    rows = [clients.order[o : o + n] for o, n in zip(*clients.splits()["train"], strict=True)]
    right = [some[clients.labels[some] == DATA.y_train[some]] for some in rows]
    assert sum(map(len, right)) < clients.train_sizes.sum()
    sizes = np.array([len(some) for some in right])
    clean = type(clients)(np.concatenate(right), np.concatenate([[0], np.cumsum(sizes)]), sizes)
    hyper = registries.algorithms.section("fedavg")(**{**BASELINES["focus"], "name": "fedavg", "lr": 0.2, **settings})
    weighted = AggregationConfig(weighting="samples")
    wanted = experiment(hyper, task=oracle.servers[0].experiment.task, aggregation=weighted)
    algorithms = [build_algorithms([wanted], DATA, clients) for _ in range(2)]
    worker = Worker(algorithms[0], DATA, clean, 0, wanted.resources)
    plain = SingleRun([FederatedServer(wanted, algorithms[1][0], clean, len(DATA.y_test))], worker, [None])
    list(plain)
    assert distance(plain.server["w"], oracle.server["w"]) < 1e-6


def test_focus_weighs_by_samples_and_credibilities():
    """A round by hand: E_m is the server's model on the client's samples plus the client's on the server's."""
    section = {**BASELINES["focus"], "batch_size": None, "alpha": 2.0}
    runs = noisy(section, rounds=1)
    task, samples = runs.servers[0].algorithm.task, runs.worker.samples["clients"]
    config = runs.servers[0].experiment.task.partition
    clients = config.draw(DATA.y_train, DATA.classes, None, 0)
    start, own = runs.server["w"], torch.from_numpy(clients.rows("validation"))
    models, errors, sizes = [], [], clients.train_sizes
    for offset, size in zip(*clients.splits()["train"], strict=True):
        rows = torch.from_numpy(clients.order[offset : offset + size])
        batch = Batch(samples.x[rows], samples.y[rows])
        w = {name: p.clone().requires_grad_() for name, p in start.items()}
        for _ in range(3):
            slopes = torch.autograd.grad(task.loss(w, batch), list(w.values()))
            w = {n: (p - 0.2 * s).detach().requires_grad_() for (n, p), s in zip(w.items(), slopes, strict=True)}
        w = {name: p.detach() for name, p in w.items()}
        models.append(w)
        # The server's samples have right labels: those are never made wrong.
        errors.append(float(task.loss(start, batch) + task.loss(w, Batch(samples.x[own], samples.y[own]))))
    believed = sizes * (1 - np.exp(2.0 * np.array(errors)) / np.exp(2.0 * np.array(errors)).sum())
    list(runs)
    for name, p in runs.server["w"].items():
        mean = sum(share * w[name] for share, w in zip(believed / believed.sum(), models, strict=True))
        assert torch.allclose(p, mean.float(), atol=1e-5)


# ---- mistakes in the file -------------------------------------------------------------------------------------------


def values(name, problem=None, hyper=None, **partition):
    return {
        "name": "test",
        "rounds": 2,
        "clients_per_round": "all",
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 4, "upper_level_fraction": 0.2, **partition},
            "model": {"name": "logreg"},
            "problem": problem,
        },
        "algorithm": {"name": name, **(hyper or {})},
    }


CLEANING = {"kind": "cleaning"}


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (values("preprocess"), "task.problem.kind: preprocess requires data cleaning"),
        (values("fedavg_oracle"), "task.problem.kind: fedavg_oracle requires data cleaning"),
        (values("focus", upper_level_fraction=0.0), "task.partition.upper_level_fraction"),
        (values("preprocess", CLEANING, upper_level_fraction=0.0), "task.partition.upper_level_fraction"),
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
