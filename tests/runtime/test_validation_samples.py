"""Training samples that are held back to choose hyperparameters, `task.validation`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import blobs, without_clock

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.platform.actors.session import ray_session
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data import Partition
from hedgerow.platform.data.content_hash import content_hash
from hedgerow.platform.data.partitions.natural_clients import Natural
from hedgerow.platform.data.partitions.random_splits import IID, Dirichlet
from hedgerow.platform.data.public_pool import hold_back
from hedgerow.platform.data.validation_samples import hold_back_pool, hold_back_shares
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check

DATA = replace(blobs(samples=400, classes=4), train_clients=np.arange(300) % 7)


def values(validation=None, algorithm=None, partition=None, **settings):
    task = {
        "data": {"name": "digits", "test_fraction": 0.5},
        "partition": {"kind": "dirichlet", "clients": 10, "alpha": 0.5, **(partition or {})},
        "model": {"name": "mlp", "hidden": [8]},
        **({} if validation is None else {"validation": validation}),
        **settings.pop("task", {}),
    }
    own = {"name": "fedavg", "steps": 2, "epochs": None, **(algorithm or {})}
    base = {"name": "held-back", "rounds": 3, "clients_per_round": 0.4, "resources": {"executor": "inline"}}
    return {**base, "task": task, "algorithm": own, "tracking": {"enabled": False}, **settings}


def records(spec, **more):
    experiment = parse_experiment({**spec, **more})
    coordinator = build_coordinator([experiment], *check(experiment, None), [None])
    while not coordinator.done:
        coordinator.next_round()
    return without_clock(coordinator.servers[0].history), coordinator


def drawn(scheme, seed=0):
    return scheme.draw(DATA.y_train, 4, DATA.train_clients, seed)


@pytest.mark.parametrize(
    "scheme",
    [IID(clients=5, client_test_fraction=0.2, upper_level_fraction=0.2), Dirichlet(clients=9, alpha=0.3), Natural()],
)
def test_shares_of_clients_are_no_longer_for_training(scheme):
    before, after = drawn(scheme), hold_back_shares(drawn(scheme), 0.3, 5)
    total = before.train_sizes.sum()
    held_back = after.rows("selection")
    assert len(held_back) == round(0.3 * total)
    assert after.train_sizes.sum() == total - len(held_back)
    assert (abs(after.selection_sizes - 0.3 * before.train_sizes) <= 1).all()
    assert sorted([*after.rows("train"), *held_back]) == sorted(before.rows("train"))
    for split in ("validation", "held_out"):
        if not set(before.rows(split)) <= set(before.rows("train")):
            assert np.array_equal(after.rows(split), before.rows(split))
    for client in range(len(before)):
        assert sorted(after.samples(client)) == sorted(before.samples(client))
    assert after.holds_out == before.holds_out
    assert not set(after.pool().order) & set(held_back)
    assert np.array_equal(hold_back_shares(drawn(scheme), 0.3, 5).order, after.order)
    assert not np.array_equal(hold_back_shares(drawn(scheme), 0.3, 6).order, after.order)


def test_a_client_keeps_a_sample_for_training():
    lonely = Partition(np.arange(9), np.array([0, 1, 1, 2, 9]), np.array([1, 0, 1, 7]))
    assert hold_back_shares(lonely, 0.9, 0).train_sizes.tolist() == [1, 0, 1, 1]
    with pytest.raises(UserError, match=r"0\.01 of the clients' 9 training samples is no sample; raise it"):
        hold_back_shares(lonely, 0.01, 0)


@pytest.mark.parametrize("public", [None, 40])
def test_the_servers_pool_is_held_back_before_the_partition_is_drawn(public):
    scheme = IID(clients=5, label_noise=0.5)

    def split(data):
        return scheme.draw(data.y_train, 4, data.train_clients, 0)

    def draw(data):
        return split(data) if public is None else hold_back(data, public, 0, split)

    partition = hold_back_pool(DATA, 0.2, 0, draw)
    pool = partition.server_validation
    others = [*partition.order, *partition.rows("public")]
    assert len(pool) == 60
    assert sorted([*pool, *others]) == list(range(300))
    # Wrong labels are those of training samples.
    wrong = np.flatnonzero(partition.labels != DATA.y_train)
    assert 0 < len(wrong) == len(set(wrong) & set(partition.rows("train")))
    assert content_hash(replace(partition, server_validation=None)) != content_hash(partition)


def test_samples_of_the_test_set_and_public_ones_of_another_set_stay_out_of_the_pool():
    seen = []

    def draw(data):
        seen.append(data)
        return IID(clients=5).draw(data.y_train, 4, None, 0, data.lent)

    for data in (replace(DATA, lent=100), replace(DATA, public=100)):
        assert hold_back_pool(data, 0.5, 0, draw).server_validation.max() < 200
        assert len(seen[-1].y_train) == 200


def test_without_the_section_nothing_changes():
    partition = drawn(IID(clients=5))
    assert not partition.splits()["selection"].sizes.any()
    assert (partition.selection_sizes, partition.server_validation) == (None, None)
    plain, _ = records(values())
    assert not any("validation" in name for name in plain[-1])


@pytest.mark.parametrize("where", ["server", "clients"])
def test_scores_are_those_of_the_model_on_the_samples(where):
    history, run = records(values({"fraction": 0.2, "from": where}, evaluation={"every": 2, "clients": 3}))
    assert ["validation_accuracy" in record for record in history] == [False, True, True]
    data, partition = check(run.servers[0].experiment, None)
    rows = partition.server_validation if where == "server" else partition.rows("selection")
    assert len(rows) == round(0.2 * len(data.y_train))
    task = run.servers[0].algorithm.task
    x, y = torch.from_numpy(data.x_train[rows]), torch.from_numpy(data.y_train[rows])
    loss, correct, samples = task.score(run.servers[0].state["w"], Batch(task.prepare(x), y))
    assert history[-1]["validation_accuracy"] == pytest.approx(float(correct / samples), abs=1e-6)
    assert history[-1]["validation_loss"] == pytest.approx(float(loss / samples), rel=1e-5)


EXITS = {"channels": [4, 8], "blocks": [1, 1], "exit_after": 1}
METHODS = {
    "static": {"task": {"model": {"name": "mlp_static", "hidden": [8]}}},
    "pooled": {"algorithm": {"name": "central"}},
    "slots": {"algorithm": {"name": "fedavg"}, "transforms": [{"kind": "top_k", "entries": 20}]},
    "stateful": {"algorithm": {"name": "feddyn"}, "clients_per_round": "all"},
    "average": {"algorithm": {"name": "feddyn"}, "evaluation": {"model": "clients"}},
    "personal": {"algorithm": {"name": "pfldyn"}, "partition": {"client_test_fraction": 0.2}},
    "bilevel": {
        "algorithm": {"name": "fedbio", "batch_size": 8},
        "partition": {"upper_level_fraction": 0.3},
        "task": {"problem": {"kind": "cleaning"}, "model": {"name": "logreg"}},
        "clients_per_round": "all",
    },
    "distillation": {"algorithm": {"name": "feddf"}, "task": {"public": {"samples": 50}}},
    "early exit": {"algorithm": {"name": "fedhen"}, "task": {"model": {"name": "resnet_exit", **EXITS}}},
}


def method(key, where, **more):
    section = {k: dict(v) if isinstance(v, dict) else v for k, v in METHODS[key].items()}
    spec = values({"fraction": 0.2, "from": where}, **{**section, **more})
    if key not in ("slots", "average", "stateful", "pooled", "static"):
        spec["algorithm"] = section["algorithm"]
    return spec


@pytest.mark.parametrize("key", METHODS)
def test_every_method_is_scored_alike_in_a_loop_and_in_batches(key):
    wheres = ["clients"] if key == "personal" else ["clients", "server"]
    for where in wheres:
        loop, _ = records(method(key, where, engine={"mode": "loop"}), rounds=1)
        vmap, _ = records(method(key, where, engine={"mode": "vmap", "chunk": 4}), rounds=1)
        for a, b in zip(loop, vmap, strict=True):
            assert 0 < a["validation_loss"] == pytest.approx(b["validation_loss"], rel=1e-3)
            assert a["validation_accuracy"] == pytest.approx(b["validation_accuracy"], abs=0.02)
    if key == "early exit":
        assert "simple_validation_accuracy" in loop[-1]


@pytest.mark.exhaustive("processes")
def test_runs_on_one_or_two_actors_and_resumed_runs_agree(tmp_path):
    spec = values({"fraction": 0.2, "from": "clients"}, engine={"mode": "loop"}, checkpoints={"every": 1})
    alone, _ = records(spec)
    with ray_session(None):
        for actors in (1, 2):
            resources = {"executor": "ray", "actors": actors}
            finished = run(parse_experiment({**spec, "resources": resources, "output": str(tmp_path / str(actors))}))
            for mine, reference in zip(finished.records, alone, strict=True):
                assert mine["validation_loss"] == pytest.approx(reference["validation_loss"], abs=1e-6)
    experiment = parse_experiment(spec)
    folder = Path(tmp_path) / "resumed"
    for rounds in (1, 3):
        coordinator = build_coordinator([experiment], *check(experiment, None), [folder / "checkpoints"])
        while coordinator.round < rounds:
            coordinator.run_round()
    history = without_clock(coordinator.servers[0].history)
    assert history == alone


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            method("personal", "server"),
            r"task\.validation\.from: with pfldyn every client has its own model, which the server's samples cannot "
            "score; set it to clients",
        ),
        (values({"fraction": 1e-5}), r"task\.validation\.fraction: 1e-05 of the clients' 899 training samples is no"),
        (values({"fraction": 1e-5, "from": "server"}), r"task\.validation\.fraction: 1e-05 of 899 training samples"),
        (
            values(partition={"upper_level_fraction": 0.2}),
            r"task\.partition\.upper_level_fraction: fedavg does not use it; remove it, or set",
        ),
        (values(evaluation={"target_metric": "validation_loss"}), r"needs validation samples; set `task\.validation: "),
        (values({"fraction": 0.2, "from": "somewhere"}), "from.*server"),
        (
            {
                **values({}),
                "algorithm": {"name": "fs"},
                "task": {
                    **values({})["task"],
                    "partition": {"kind": "stream", "tasks": 3, "ways": 4, "train": 26, "test": 20},
                },
            },
            r"`task\.validation` is not supported for a stream, whose tasks are scored on their test samples before",
        ),
    ],
)
def test_refusals(spec, sentence):
    with pytest.raises(UserError, match=sentence):
        check(parse_experiment(spec), None)


def test_targets_may_be_validation_scores():
    history, run = records(
        values({}, evaluation={"target_metric": "validation_loss", "targets": [100.0], "stop": True})
    )
    assert len(history) == 1
    assert run.done
