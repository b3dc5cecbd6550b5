"""Ditto: identity with FedAvg and with local training, closed forms of personal models, and what is scored."""

import numpy as np
import pytest
import torch
from helpers import Quadratics, blobs, check_resuming, distance, identical, model, run_inline, small_task

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.personalized.ditto import Ditto
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig, Evaluation
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data import Partition
from hedgerow.platform.runtime.factory import build_data, check_task

DATA = blobs(features=2, classes=4)
TRAIN, OWN = np.array([1, 50, 13, 3, 30, 41]), np.array([2, 8, 7, 5, 10, 10])
OFFSETS = np.concatenate([[0], np.cumsum(TRAIN + OWN)])
RAGGED = Partition(np.random.default_rng(1).permutation(180), OFFSETS, TRAIN)
PROBLEM = Quadratics()
ALL = np.arange(6)


def ragged(kind=Ditto, hyper=None, folder=None, **settings):
    values = {"lr": 0.2, "batch_size": 4, "epochs": 2, "momentum": 0.5, **(hyper or {})}
    wanted = {"rounds": 3, "clients_per_round": 0.5, "evaluation": Evaluation(clients=6), **settings}
    return run_inline(kind, small_task(DATA), DATA, RAGGED, values, folder, **wanted)


def on_quadratics(hyper, rounds):
    done = run_inline(
        Ditto, PROBLEM.task, PROBLEM.dataset, PROBLEM.partition, hyper, rounds=rounds,
        engine=EngineConfig(mode="vmap", chunk=6), evaluation=Evaluation(every=1000, clients=0),
    )  # fmt: skip
    list(done)
    return model(done)["x"].numpy(), done.states.read(ALL)["v"]["x"].numpy()


@pytest.mark.parametrize("engine", [("loop", "auto"), ("vmap", 2)])
@pytest.mark.parametrize("slots", [{}, {"transforms": [{"kind": "quantize", "bits": 4}]}], ids=["none", "quantize"])
def test_the_servers_model_is_that_of_fedavg_bit_for_bit_and_nothing_else_is_sent(engine, slots):
    settings = {"engine": EngineConfig(mode=engine[0], chunk=engine[1])}
    mine, plain = ragged(hyper={"lam": 0.7, **slots}, **settings), ragged(FedAvg, slots, **settings)
    records = list(mine), list(plain)
    assert identical(model(mine), model(plain))
    for ours, theirs in zip(*records, strict=True):
        assert ours["train_loss"] == theirs["train_loss"]
        assert (ours["bytes_up"], ours["bytes_down"]) == (theirs["bytes_up"], theirs["bytes_down"])
        # The personal model is scored in place of the server's, which has its own entries.
        assert ours["client_loss"] != theirs["client_loss"]


def test_each_client_is_scored_with_its_personal_model():
    one = ragged()
    record, task = list(one)[-1], small_task(DATA)
    states, scores = one.states.read(ALL)["v"], {"personal": [], "global": []}
    for k in range(6):
        rows = RAGGED.samples(k)[TRAIN[k] :]
        batch = Batch(torch.from_numpy(DATA.x_train[rows]), torch.from_numpy(DATA.y_train[rows]))
        for name, w in (("personal", {n: leaf[k] for n, leaf in states.items()}), ("global", model(one))):
            scores[name].append(float((task.logits(w, batch.x).argmax(-1) == batch.y).float().mean()))
    assert record["client_accuracy"] == pytest.approx(np.mean(scores["personal"]))
    assert record["test_accuracy"] == pytest.approx(np.dot(scores["personal"], OWN) / OWN.sum())
    assert record["global_test_accuracy"] == pytest.approx(np.dot(scores["global"], OWN) / OWN.sum())


def test_without_the_proximal_term_it_is_local_training():
    local = {"lr": 0.2, "epochs": 3, "batch_size": None, "momentum": 0.5}
    mine = ragged(hyper={**local, "lam": 0.0}, clients_per_round="all")
    list(mine)
    states = mine.states.read(ALL)["v"]
    for k in (1, 2, 5):
        alone = Partition(RAGGED.samples(k), np.array([0, TRAIN[k] + OWN[k]]), TRAIN[[k]])
        trained = run_inline(FedAvg, small_task(DATA), DATA, alone, local, rounds=3, engine=EngineConfig(mode="loop"))
        list(trained)
        assert distance({name: leaf[k] for name, leaf in states.items()}, model(trained)) < 1e-5


@pytest.mark.parametrize("lam", [0.0, 0.3, 5.0, 1e4])
@pytest.mark.parametrize("local", [{"solver": "newton"}, {"steps": 200, "batch_size": None, "lr": 0.15}])
def test_personal_models_have_their_closed_form(lam, local):
    """v_k = (A_k + lambda I)^-1 (A_k c_k + lambda w), with the server's model before the round; w itself for large
    lambda.
    """
    if lam > 5 and "steps" in local:
        local = {**local, "lr": 0.9 / lam}
    before, _ = on_quadratics({**local, "lam": lam}, 1)
    _, found = on_quadratics({**local, "lam": lam}, 2)
    inverse = np.linalg.inv(PROBLEM.A + lam * np.eye(4))
    expected = np.einsum("kij,kj->ki", inverse, np.einsum("kij,kj->ki", PROBLEM.A, PROBLEM.c) + lam * before)
    assert np.abs(found - expected).max() < 1e-4
    if lam == 1e4:
        assert np.abs(found - before).max() < 1e-3


def test_loop_equals_vmap():
    engines = [EngineConfig(mode="loop"), EngineConfig(mode="vmap", chunk=3)]
    runs = [ragged(hyper={"lam": 0.7, "clip_norm": 0.5}, engine=engine) for engine in engines]
    records = [list(one) for one in runs]
    first, second = (flatten({"w": one.server["w"], **one.states.read(ALL)}) for one in runs)
    assert distance(first, second) < 1e-5
    assert records[0][-1]["client_loss"] == pytest.approx(records[1][-1]["client_loss"], rel=1e-4)


def test_a_resumed_run_ends_like_an_undisturbed_one(tmp_path):
    check_resuming(lambda folder: ragged(folder=folder, rounds=5), 2, tmp_path)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"name": "mode_models.Normed"}, "task.model.buffers: ditto trains two models on each client, and there is"),
        ({"name": "mode_models.Normed", "buffers": "ignore"}, None),
        ({"name": "mode_models.Dropped"}, None),
        ({"name": "mlp_static"}, "task.model: mlp_static normalises by statistics of all clients' samples"),
    ],
)
def test_one_set_of_running_statistics_is_not_enough(model, sentence):
    values = {
        "name": "ditto",
        "rounds": 1,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 10, "samples_per_client": 20, "client_test_fraction": 0.3},
            "model": model,
        },
        "algorithm": {"name": "ditto", "batch_size": 8},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
    }
    experiment = parse_experiment(values)
    if sentence is None:
        check_task(experiment, *build_data(experiment, None))
        return
    with pytest.raises(UserError) as refused:
        check_task(experiment, *build_data(experiment, None))
    assert str(refused.value).startswith(sentence)
