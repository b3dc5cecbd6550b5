"""Bilevel methods on the platform: loop and vmap, actors, states, resuming, packs, ledger, mistakes in the file."""

import numpy as np
import pytest
from bilevel_runs import DATA, on_blobs
from bilevels import Run, problem
from families import RATES
from helpers import SingleRun, check_resuming, distance
from packs import check_pack

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.runtime.factory import build_algorithms, build_data, check_task
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.worker import Worker

BILEVEL = [
    name
    for name, kind in ((name, algorithm_class(name)) for name in ALGORITHMS)
    if issubclass(kind, Bilevel) and "single_batch" in kind.Hyper.model_fields
]


def kind_of(name):
    return "hyper_representation" if algorithm_class(name).is_personal else "cleaning"


@pytest.mark.grid
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", BILEVEL)
def test_loop_and_vmap_agree(name, share):
    settings = {"single_batch": share, "upper_lr_factor": 0.5 if kind_of(name) != "cleaning" else 5.0}
    loop, vmap = (on_blobs(name, kind_of(name), mode, **settings) for mode in (("loop", 1), ("vmap", 3)))
    one, other = list(loop), list(vmap)
    assert distance(flatten(loop.server), flatten(vmap.server)) < 1e-5
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        assert {n: v for n, v in a.items() if "spent" in n} == pytest.approx({n: b[n] for n in b if "spent" in n})
    assert one[-1]["dropped"] == 0


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("name", ["fedbio", "fedbioacc", "fedbio_local", "fednest"])
def test_the_platform_runs_what_the_analysis_is_about(name):
    """On the quadratic, in single precision, the same as without the platform."""
    settings = {**RATES, "upper_lr_factor": 0.5, "steps": 3, "ridge": 0.0}
    settings |= {"neumann_terms": 3} if "local" in name else {}
    values = {
        "name": "quadratic",
        "rounds": 4,
        "clients_per_round": "all",
        "task": {
            "data": {"name": "quadratic", "clients": 5, "samples": 2},
            "partition": {"kind": "natural", "upper_level_fraction": 0.5},
            "model": {"name": "quadratic"},
            "problem": {"kind": "quadratic"},
        },
        "algorithm": {"name": name, "batch_size": None, **settings},
        "evaluation": {"clients": 0},
    }
    if name == "fednest":
        settings["u_steps"] = values["algorithm"]["u_steps"] = 1
    wanted = parse_experiment(values)
    dataset, partition = build_data(wanted, None)
    algorithms = build_algorithms([wanted], dataset, partition)
    worker = Worker(algorithms, dataset, partition, 0, wanted.resources)
    learner = FederatedServer(wanted, build_algorithms([wanted], dataset, partition)[0], partition, 0)
    platform = SingleRun([learner], worker, [None])
    records = list(platform)
    plain = Run(algorithm_class(name), problem(clients=5), **settings).rounds(4)
    assert float((platform.server["x"]["x"] - plain.server["x"]["x"]).abs().max()) < 1e-5
    local = algorithm_class(name).is_personal
    assert records[-1]["x_error"] == pytest.approx(plain.distance(local=local), abs=1e-4)
    assert sum(record["exchanges"] for record in records) == plain.exchanges
    assert "test_accuracy" not in records[-1]


@pytest.mark.parametrize("name", ["fedbio", "fedbioacc", "fedbioacc_local", "stem"])
def test_scalars_per_client_and_round(name):
    """Section 2.6: FedBiO p + 2d each way; FedBiOAcc 2p + 4d; local: p and 2p. STEM: twice its model."""
    if name == "stem":
        from helpers import partition, run_inline, small_task

        runs = run_inline(
            algorithm_class(name), small_task(DATA), DATA, partition(np.full(4, 30)), {"steps": 3}, rounds=2
        )
        records, wanted = list(runs), 2 * sum(p.numel() for p in small_task(DATA).init().values())
        clients = 4
    else:
        runs = on_blobs(name, kind_of(name))
        start = runs.servers[0].algorithm.task.start()
        p, d = (sum(leaf.numel() for leaf in start[part].values()) for part in "xy")
        wanted = {"fedbio": p + 2 * d, "fedbioacc": 2 * p + 4 * d, "fedbioacc_local": 2 * p}[name]
        records, clients = list(runs), 5
    assert records[1]["scalars_up"] == clients * wanted
    assert records[1]["scalars_down"] == clients * wanted
    assert records[1]["exchanges"] == (1 if name == "fedbio" else 2)


@pytest.mark.parametrize("name", ["fedbio", "fedbioacc", "fedbioacc_local"])
def test_a_resumed_run_is_undisturbed(name, tmp_path):
    check_resuming(lambda folder: on_blobs(name, kind_of(name), rounds=5, folder=folder), 3, tmp_path)


@pytest.mark.parametrize("name", ["fedbioacc", "fedbio_local"])
def test_experts_in_a_pack_are_what_they_are_alone(name):
    """Rates, ridge and momentum constants differ; the factor is resolved before the step."""
    changes = [{"lr": 0.2}, {"lr": 0.1, "ridge": 0.2, "u_lr": 0.05, "upper_lr_factor": 0.7}]
    changes[1] |= {"c": 0.3} if name == "fedbioacc" else {}
    check_pack(lambda change: on_blobs(name, kind_of(name), **{"upper_lr_factor": 0.5, **change}), changes, DATA, 1e-5)


def test_wrong_labels_are_found():
    """And a run that learns no weights finds none."""
    records = list(on_blobs("fedbio", mode=("vmap", 5), rounds=60, upper_lr_factor=100.0, lr=0.3, u_lr=0.3))
    assert records[0]["cleaning_auc"] < records[-1]["cleaning_auc"]
    assert records[-1]["cleaning_auc"] > 0.9
    assert records[-1]["cleaning_f1"] > 0.8


def test_personal_heads_are_scored_on_what_clients_hold_out():
    runs = on_blobs("fedbio_local", "hyper_representation", rounds=40, upper_lr_factor=0.5)
    records = list(runs)
    assert records[-1]["test_accuracy"] > 0.7
    assert records[-1]["test_accuracy"] == pytest.approx(records[-1]["client_accuracy"], abs=0.1)
    # Of heads that differ from client to client.
    heads = runs.states.read(np.arange(5))["y"]
    assert all(float((leaf - leaf[:1]).abs().max()) > 1e-3 for leaf in heads.values())


def values(name="fedbio", kind="cleaning", **change):
    return {
        "name": "test",
        "rounds": 2,
        "clients_per_round": "all",
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 5, "upper_level_fraction": 0.2},
            "model": {"name": "logreg"},
            "problem": {"kind": kind} if kind else None,
        },
        "algorithm": {"name": name, "upper_lr": 1.0} if name != "fedavg" else {"name": name},
    } | change


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (values(kind=None), "is a bilevel algorithm; set `task.problem`"),
        (
            values(algorithm={"name": "fedbio", "upper_lr": 1.0, "upper_lr_factor": 10.0}),
            "give either `upper_lr` or `upper_lr_factor`, and set the other to null",
        ),
        (values(kind="quadratic"), "go together; set all three"),
        (values("fedbioacc", algorithm={"name": "fedbioacc", "upper_lr": 1.0, "c": 2.0}), "more than 1; lower c"),
    ],
)
def test_mistakes_in_the_file(wrong, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_experiment(wrong)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"partition": {"kind": "iid", "clients": 5}},
            "task.partition.upper_level_fraction: .* needs samples of every client",
        ),
        ({"problem": {"kind": "hyper_representation"}}, "a single layer, so choose mlp or cnn"),
    ],
)
def test_tasks_that_do_not_fit(change, sentence):
    wanted = values()
    wanted["task"] = wanted["task"] | change
    experiment = parse_experiment(wanted)
    dataset, partition = build_data(experiment, None)
    with pytest.raises(UserError, match=sentence):
        check_task(experiment, dataset, partition)


def test_methods_that_need_everybody_refuse_fewer():
    experiment = parse_experiment(values("fedbioacc", clients_per_round=0.5))
    with pytest.raises(UserError, match="clients_per_round: fedbioacc needs all clients in every round"):
        check_task(experiment, *build_data(experiment, None))
    # All of them by their number is as good.
    experiment = parse_experiment(values("fedbioacc", clients_per_round=5))
    check_task(experiment, *build_data(experiment, None))


def test_large_hessians_are_refused():
    wanted = values(algorithm={"name": "full_hypergradient", "dense": True})
    wanted["task"]["model"] = {"name": "mlp"}
    experiment = parse_experiment(wanted)
    with pytest.raises(UserError, match=r"algorithm.dense: a Hessian of 15010 parameters is too large"):
        check_task(experiment, *build_data(experiment, None))


@pytest.mark.parametrize("name", ["fedbioacc", "fednest", "fedbio"])
def test_a_client_that_diverges_is_left_out_of_the_round(name):
    """Of its later exchanges, too; the others go on."""
    change = {"u_at": "t+1"} if name == "fedbio" else {}
    runs = on_blobs(name, rounds=3, mode=("loop", 1), **change)
    data = runs.worker.samples["clients"]
    # A copy, in which a sample of the last client is no number.
    poisoned = data.x.clone()
    poisoned[data.order[data.splits["train"].offsets[4]]] = float("nan")
    runs.worker.samples["clients"] = type(data)(poisoned, data.y, data.prepare, data.order, data.splits)
    records = list(runs)
    assert all(np.isfinite(leaf.numpy()).all() for leaf in flatten(runs.server).values())
    assert sum(record["dropped"] for record in records) > 0


def test_one_local_step_is_measured_and_run(tmp_path, monkeypatch):
    """FedBiOAcc's second exchange then draws nothing."""
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    runs = on_blobs("fedbioacc", mode=("auto", "auto"), rounds=2, steps=1)
    records = list(runs)
    assert records[-1]["exchanges"] == 2
    assert records[-1]["dropped"] == 0


def test_counts_go_on_where_a_round_has_none():
    """FedNest's series may have no Hessian product in a round."""
    records = list(on_blobs("fednest", rounds=6, u_steps=2))
    counts = [record.get("spent_hessian_products", 0.0) for record in records]
    assert counts == sorted(counts)
    # Each of six rounds has a product with chance 1/2; in these some have, and some have none.
    assert 0 < len(set(counts) - {0.0}) < 6


def test_a_personal_model_needs_samples_to_be_scored_on():
    wanted = values("fedbio_local", "hyper_representation")
    wanted["task"]["model"] = {"name": "mlp"}
    experiment = parse_experiment(wanted)
    with pytest.raises(UserError, match=r"task.partition.client_test_fraction: with fedbio_local every client has"):
        check_task(experiment, *build_data(experiment, None))


def test_the_head_is_the_last_layer():
    runs = on_blobs("fedbio", "hyper_representation")
    start = runs.servers[0].algorithm.task.start()
    assert [tuple(leaf.shape) for leaf in start["y"].values()] == [(3, 6), (3,)]
    assert [tuple(leaf.shape) for leaf in start["x"].values()] == [(6, 6), (6,)]
