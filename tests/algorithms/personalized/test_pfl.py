"""Personal models on the platform: what is scored, traffic, identities, and the same numbers however they are run."""

import numpy as np
import pytest
import torch
from families import DEALT
from helpers import SingleRun, blobs, check_resuming, distance, identical, model, run_inline, set_paths, small_task
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.core.pytree import count
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.algorithms.nn.features import embedded
from hedgerow.algorithms.personalized.adaptation import adapted
from hedgerow.algorithms.personalized.per_fedavg import PerFedAvg
from hedgerow.algorithms.personalized.pfl_oracle import PFLOracle
from hedgerow.algorithms.personalized.pfldyn import PFLDyn
from hedgerow.algorithms.personalized.pflscaf import PFLScaf
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig, Evaluation
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data import Partition
from hedgerow.platform.runtime.factory import build_data, check_task, task_on

DATA = blobs(features=2, classes=4)
TRAIN, OWN = np.array([1, 50, 13, 3, 30, 41]), np.array([2, 8, 7, 5, 10, 10])
OFFSETS = np.concatenate([[0], np.cumsum(TRAIN + OWN)])
RAGGED = Partition(np.random.default_rng(1).permutation(180), OFFSETS, TRAIN)
METHODS = [
    pytest.param(PFLDyn, {"adapt": "proto"}, id="pfldyn-proto"),
    pytest.param(PFLDyn, {"adapt": "maml", "clip_norm": 0.5}, id="pfldyn-maml"),
    pytest.param(PFLScaf, {"adapt": "maml", "adapt_steps": 2}, id="pflscaf-maml"),
    pytest.param(PerFedAvg, {"adapt": "proto", "proto_layer": "features"}, id="p-avg-features"),
    pytest.param(PFLScaf, {"adapt": "proto", "adapt_in": "inference"}, id="scaffold-at-inference"),
    pytest.param(PFLOracle, {"adapt": "proto"}, id="oracle"),
]
BY_CLIENTS = Evaluation(model="clients", clients=6)


def ragged(kind, hyper=None, folder=None, **settings) -> SingleRun:
    """A run over six clients of very different sizes, half of them active."""
    values = {"lr": 0.2, "batch_size": 4, "epochs": 1, **(hyper or {})}
    wanted = {"rounds": 2, "clients_per_round": 0.5, "evaluation": Evaluation(clients=6), **settings}
    return run_inline(kind, small_task(DATA), DATA, RAGGED, values, folder, **wanted)


def samples(rows: np.ndarray) -> Batch:
    return Batch(torch.from_numpy(DATA.x_train[rows]), torch.from_numpy(DATA.y_train[rows]))


# ---- what is scored -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hyper", [{"adapt": "proto"}, {"adapt": "maml", "adapt_steps": 2}, {"adapt": "none"}])
def test_each_client_is_scored_on_its_own_samples_with_what_all_its_others_make_of_the_model(hyper):
    one = ragged(PFLDyn, hyper)
    record, task, accuracies = list(one)[-1], small_task(DATA), []
    for k in range(6):
        rows = RAGGED.samples(k)
        predictor, u = adapted(task, model(one), samples(rows[: TRAIN[k]]), one.servers[0].algorithm.hyper)
        own = samples(rows[TRAIN[k] :])
        accuracies.append(float((predictor.logits(u, own.x).argmax(-1) == own.y).float().mean()))
    assert record["client_accuracy"] == pytest.approx(np.mean(accuracies))
    assert record["client_accuracy_highest"] == pytest.approx(max(accuracies))
    assert record["client_accuracy_lowest"] == pytest.approx(min(accuracies))
    assert record["test_accuracy"] == pytest.approx(np.dot(accuracies, OWN) / OWN.sum())
    assert min(accuracies) < max(accuracies)


def test_the_average_of_all_clients_models_is_what_is_adapted_where_it_is_asked_for():
    plain, followed = ragged(PFLDyn, {"adapt": "proto"}), ragged(PFLDyn, {"adapt": "proto"}, evaluation=BY_CLIENTS)
    records, others = list(plain), list(followed)
    assert identical(model(plain), model(followed))
    assert distance(followed.server["client_average"], model(followed)) > 1e-3
    assert [r["client_loss"] for r in records] != [r["client_loss"] for r in others]
    again = followed.servers[0]
    again.state = {**again.state, "w": again.state["client_average"]}
    requests = again._score(again.state, len(others), np.arange(6))
    answers = followed.executor.run(next(requests))
    with pytest.raises(StopIteration) as stop:
        requests.send(answers)
    assert stop.value.value == {name: others[-1][name] for name in stop.value.value}


def test_a_target_may_be_of_the_lowest_client_and_of_all_samples_of_the_highest():
    for metric, target in (("client_accuracy_lowest", 0.3), ("client_accuracy_highest", 1.0)):
        wanted = Evaluation(clients=6, targets=[target], target_metric=metric, stop=True)
        records = list(ragged(PerFedAvg, {"adapt": "maml"}, rounds=12, evaluation=wanted))
        assert records[-1][metric] >= target
        assert all(record[metric] < target for record in records[:-1])


# ---- identities and traffic -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mine", "plain"), [(PFLDyn, FedDyn), (PFLScaf, Scaffold), (PerFedAvg, FedAvg)])
def test_without_personalisation_the_models_are_those_of_the_plain_methods(mine, plain):
    uniform = {"aggregation": {"weighting": "uniform"}}
    settings = ({"adapt": "none"}, {"adapt": "proto", "adapt_in": "inference"})
    runs = [ragged(plain, uniform), *(ragged(mine, one) for one in settings)]
    records = [list(one) for one in runs]
    assert identical(model(runs[0]), model(runs[1]))
    assert identical(model(runs[0]), model(runs[2]))
    assert [r["train_loss"] for r in records[0]] == [r["train_loss"] for r in records[1]]
    assert records[1][-1]["client_loss"] != records[2][-1]["client_loss"]
    trained = ragged(mine, {"adapt": "proto"})
    list(trained)
    assert distance(model(trained), model(runs[0])) > 1e-2


@pytest.mark.parametrize(("kind", "units"), [(PerFedAvg, 1), (PFLDyn, 1), (PFLScaf, 2)])
def test_traffic_is_two_models_per_client_and_pflscafs_is_twice_that(kind, units):
    one = ragged(kind, rounds=3)
    records = list(one)
    assert [r["scalars_down"] + r["scalars_up"] for r in records] == [2 * units * 3 * count(model(one))] * 3
    assert records[-1]["transmissions"] == 3 * units


def test_each_mini_batch_of_the_oracle_is_of_one_client_and_nothing_is_transmitted():
    one = ragged(PFLOracle, {"adapt": "proto", "epochs": None, "steps": 60})
    assert list(one)[-1]["transmissions"] == 0
    worker, algorithm = one.worker, one.servers[0].algorithm.inner
    wanted = algorithm.batches(Cohort(1, np.arange(3), TRAIN[:3], 6))
    rows, mask = worker.samples["pool"].streams(wanted, (0, 1, 0), np.zeros(1, int))["train"]
    owner = np.zeros(180, int) - 1
    for k in range(6):
        owner[RAGGED.samples(k)[: TRAIN[k]]] = k
    owners = [set(owner[some[real].numpy()]) for some, real in zip(rows[0], mask[0], strict=True)]
    assert all(len(of) == 1 for of in owners)
    assert set.union(*owners) == set(range(6))


def test_the_oracle_of_one_client_is_per_fedavg_with_that_client():
    alone = Partition(np.arange(180), np.array([0, 180]), np.array([150]))
    hyper = {"lr": 0.2, "batch_size": None, "epochs": None, "steps": 5, "adapt": "maml"}
    runs = [
        run_inline(kind, small_task(DATA), DATA, alone, hyper, engine=EngineConfig(mode="loop"), rounds=3)
        for kind in (PFLOracle, PerFedAvg)
    ]
    [list(one) for one in runs]
    # The whole local data in one batch, in another order: other halves.
    assert distance(model(runs[0]), model(runs[1])) < 0.1
    assert distance(model(runs[0]), small_task(DATA).init()) > 0.2


# ---- the same numbers however they are run --------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "hyper"), METHODS)
def test_loop_equals_vmap(kind, hyper):
    evaluation = Evaluation(clients=6) if kind is PFLOracle else BY_CLIENTS
    runs = [
        ragged(kind, hyper, engine=EngineConfig(mode=mode, chunk=chunk), evaluation=evaluation)
        for mode, chunk in (("loop", "auto"), ("vmap", 2), ("vmap", 6))
    ]
    records = [list(one) for one in runs]
    for other, theirs in zip(runs[1:], records[1:], strict=True):
        assert distance(model(runs[0]), model(other)) < 2e-5
        for name in ("train_loss", "client_loss", "client_accuracy", "client_accuracy_lowest"):
            assert [r[name] for r in theirs] == pytest.approx([r[name] for r in records[0]], abs=1e-4)


@pytest.mark.parametrize(("kind", "hyper"), [METHODS[0], METHODS[2]])
def test_a_resumed_run_is_undisturbed(kind, hyper, tmp_path):
    check_resuming(lambda folder: ragged(kind, hyper, folder, rounds=5, evaluation=BY_CLIENTS), 3, tmp_path)


# ---- names of classes -----------------------------------------------------------------------------------------------


def test_prototypes_learn_as_well_where_every_client_has_its_own_names_of_classes():
    runs, last = {}, {}
    for kind in ("acid", "alid"):
        for adapt in ("proto", "maml", "none"):
            dataset, partition = build_data(parsed(task__partition={"kind": kind, **DEALT}), None)
            task = task_on(dataset, nn.Sequential(nn.Flatten(), *small_task(blobs(features=64, classes=10)).module))
            hyper = {"adapt": adapt, "alpha": 1.0, "epochs": 3, "batch_size": 4, "lr": 0.1}
            one = run_inline(
                PFLDyn, task, dataset, partition, hyper, rounds=1 if adapt == "maml" else 12, clients_per_round=0.5,
                engine=EngineConfig(mode="vmap", chunk=6), evaluation=Evaluation(every=12, clients=12),
            )  # fmt: skip
            last[kind, adapt] = list(one)[-1].get("client_accuracy")
            runs[kind, adapt] = model(one)
    assert distance(runs["acid", "proto"], runs["alid", "proto"]) < 1e-5
    assert distance(runs["acid", "maml"], runs["alid", "maml"]) > 1e-2
    assert last["alid", "proto"] == pytest.approx(last["acid", "proto"])
    # One classifier for all is lost where classes have other names everywhere: chance is a tenth, or a third where a
    # client's classes are known.
    assert last["alid", "none"] < 0.4
    assert last["acid", "none"] > last["alid", "none"] + 0.1
    assert last["alid", "proto"] > last["alid", "none"] + 0.3


# ---- what does not fit ----------------------------------------------------------------------------------------------


def parsed(**changes):
    values = {
        "name": "p", "rounds": 1,
        "task": {"data": {"name": "digits"}, "partition": {"kind": "acid", **DEALT}, "model": {"name": "mlp"}},
        "algorithm": {"name": "pfldyn"},
    }  # fmt: skip
    return parse_experiment(set_paths(values, changes))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"task__partition": {"kind": "iid", "clients": 10}},
            "task.partition.client_test_fraction: with pfldyn every client has",
        ),
        ({"evaluation__clients": 0}, "evaluation.clients: with pfldyn"),
        ({"algorithm__solver": "newton"}, "works only for convex losses, without adaptation; set `adapt: none`"),
        ({"algorithm": {"name": "fedavg"}, "evaluation__target_metric": "client_accuracy_lowest"},
         "client_accuracy_lowest needs personal models, and fedavg has none; set it to client_accuracy"),
        ({"evaluation__targets": [1.0]}, "target 1 is not a test accuracy between 0 and 1"),
        ({"evaluation": {"clients": 0, "target_metric": "client_accuracy"}},
         "`target_metric: client_accuracy` needs `clients` above 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes, sentence):
    def attempt() -> None:
        experiment = parsed(**changes)
        check_task(experiment, *build_data(experiment, None))

    with pytest.raises(UserError) as refused:
        attempt()
    assert sentence in str(refused.value)


def test_features_go_through_a_layer_that_is_used_twice():
    relu = nn.ReLU()
    module = nn.Sequential(nn.Linear(2, 3), relu, nn.Linear(3, 3), relu, nn.Linear(3, 4))
    x, w = torch.randn(5, 2), dict(module.named_parameters())
    assert torch.equal(embedded(module, w, x, "features"), module[:-1](x))


def test_prototypes_of_features_need_to_know_the_last_layer():
    hyper = PerFedAvg.Hyper(adapt="proto", proto_layer="features")
    assert PerFedAvg(hyper, small_task(DATA)).incompatibility() is None
    sentence = PerFedAvg(hyper, Task(nn.Bilinear(1, 1, 1))).incompatibility()
    assert sentence.startswith("algorithm.proto_layer: features needs a model that is a torch.nn.Sequential")
