"""Existing clients with Flower's methods learn as FedAvg does, with its slots and its records."""

import json
from dataclasses import replace

import flower_clients
import numpy as np
import pytest
import torch
from flower_clients import CLIENTS, DATA, SIZES
from helpers import check_resuming, distance, model, run_inline, small_task
from pydantic import ValidationError
from torch import nn

import hedgerow
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.numpy_client import NumPyClients
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.runner import run as start_run
from hedgerow.platform.runtime.factory import build_data, build_module, check

LOCAL = {"lr": 0.3, "steps": 2, "batch_size": None}
PLAIN = {"client_fn": "flower_clients.client_fn"}


def ended(algorithm, hyper, **settings):
    run = run_inline(algorithm, small_task(DATA), DATA, CLIENTS, hyper, **{"rounds": 3, **settings})
    return run, list(run)


@pytest.mark.parametrize("hyper", [PLAIN, {"client_fn": "flower_clients.old_client_fn"}], ids=["context", "cid"])
def test_clients_of_flower_learn_as_fedavg_weighted_by_samples(hyper):
    theirs, records = ended(NumPyClients, hyper, clients_per_round=0.5)
    ours, reference = ended(FedAvg, {**LOCAL, "aggregation": {"weighting": "samples"}}, clients_per_round=0.5)
    assert distance(model(theirs), model(ours)) < 1e-6
    for record, same in zip(records, reference, strict=True):
        assert record["test_accuracy"] == same["test_accuracy"]
        assert record["bytes_down"], record["bytes_up"] == (same["bytes_down"], same["bytes_up"])


@pytest.mark.parametrize(
    "slots",
    [
        {"aggregation": {"weighting": "uniform"}},
        {"aggregation": {"server_optimizer": {"momentum": 0.5}}},
        {"transforms": [{"kind": "clip", "norm": 0.05}]},
        {"transforms": [{"kind": "top_k", "entries": 20}]},
    ],
    ids=["uniform", "momentum", "clip", "top_k"],
)
def test_every_slot_works_with_them_as_with_fedavg(slots):
    theirs, _ = ended(NumPyClients, {**PLAIN, **slots})
    weighted = {**slots, "aggregation": {"weighting": "samples", **slots.get("aggregation", {})}}
    ours, _ = ended(FedAvg, {**LOCAL, **weighted})
    assert distance(model(theirs), model(ours)) < 1e-6


def test_values_for_the_factory_and_for_fit_reach_them():
    theirs, _ = ended(NumPyClients, {**PLAIN, "run_config": {"lr": 0.1}, "config": {"steps": 3}})
    ours, _ = ended(FedAvg, {**LOCAL, "lr": 0.1, "steps": 3, "aggregation": {"weighting": "samples"}})
    assert distance(model(theirs), model(ours)) < 1e-6


def test_the_scores_of_their_own_evaluate_are_recorded_weighted_by_their_samples():
    run, records = ended(NumPyClients, PLAIN)
    arrays = [value.numpy() for value in model(run).values()]
    clients = [flower_clients.old_client_fn(str(number)) for number in range(len(SIZES))]
    scores = np.array([(loss, own["accuracy"]) for loss, _, own in (one.evaluate(arrays, {}) for one in clients)])
    loss, accuracy = np.average(scores, axis=0, weights=SIZES)
    assert records[-1]["client_evaluate_loss"] == pytest.approx(loss, abs=1e-6)
    assert records[-1]["client_evaluate_accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert records[-1]["train_loss"] > 0


def normed(output, **changes):
    """An experiment whose clients have batch norm."""
    return parse_experiment(
        {
            "name": "normed",
            "rounds": 3,
            "clients_per_round": "all",
            "output": str(output),
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "iid", "clients": 3},
                "model": {"name": "flower_clients.NormedNet", "buffers": "average"},
            },
            "algorithm": {"name": "numpy_client", "client_fn": "flower_clients.normed_client_fn"},
            "resources": {"executor": "inline"},
            "tracking": {"enabled": False},
            **changes,
        }
    )


def test_running_statistics_are_averaged_as_flower_averages_them(tmp_path):
    """Three rounds in plain NumPy: every array of `state_dict` is a mean weighted by num_examples."""
    clients = [flower_clients.normed_client_fn(str(number)) for number in range(3)]
    experiment = normed(tmp_path)
    data, _ = build_data(experiment, None)
    net = flower_clients.NormedNet()
    net.load_state_dict(build_module(experiment, data).state_dict())
    arrays = [value.numpy() for value in net.state_dict().values()]
    for _ in range(3):
        answers = [client.fit(arrays, {}) for client in clients]
        samples = [answer[1] for answer in answers]
        columns = zip(*(answer[0] for answer in answers), strict=True)
        arrays = [np.average(np.stack(column), axis=0, weights=samples) for column in columns]
        # A mean of whole numbers becomes one again.
        arrays = [a.round().astype(int) if a.ndim == 0 else a.astype(np.float32) for a in arrays]
    finished = start_run(experiment)
    trained = hedgerow.load(finished.folder.path).module().state_dict()
    assert list(trained) == list(net.state_dict())
    for (name, value), array in zip(trained.items(), arrays, strict=True):
        np.testing.assert_allclose(value.numpy(), array, rtol=1e-5, atol=1e-6, err_msg=name)
    loss = np.average([client.evaluate(arrays, {})[0] for client in clients], weights=samples)
    assert finished.frame["client_evaluate_loss"].iloc[-1] == pytest.approx(loss, abs=1e-5)
    net.load_state_dict(trained)
    with torch.no_grad():
        logits = net.eval()(torch.from_numpy((data.x_test - data.mean) / data.std).float())
    accuracy = float((logits.argmax(1).numpy() == data.y_test).mean())
    assert finished.frame["test_accuracy"].iloc[-1] == pytest.approx(accuracy)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": {"model": {"buffers": "local"}}}, "task.model.buffers: the server averages all arrays that clients"),
        ({"aggregation": {"rule": {"kind": "median"}}}, "aggregation.rule: numpy_client sends values that only a mean"),
    ],
)
def test_running_statistics_that_are_not_averaged_are_refused(tmp_path, changes, said):
    values = normed(tmp_path).model_dump(mode="json")
    values["task"]["model"] |= changes.pop("task", {}).get("model", {})
    with pytest.raises(UserError, match=said):
        check(parse_experiment(values | changes), None)


def test_a_parameter_that_layers_share_is_one_parameter_under_its_names(monkeypatch):
    task, layer, seen = small_task(DATA), nn.Linear(6, 6), []
    shared = replace(task, module=nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, DATA.classes)))
    fit = flower_clients.Answering.fit
    monkeypatch.setattr(flower_clients.Answering, "fit", lambda *words: seen.append(words[1]) or fit(*words))
    run = run_inline(NumPyClients, shared, DATA, CLIENTS, {"client_fn": "flower_clients.echo_client_fn"}, rounds=1)
    list(run)
    assert model(run).keys() == {"0.weight", "0.bias", "3.weight", "3.bias"}
    state = shared.module.state_dict().values()
    for array, value in zip(seen[-1], state, strict=True):
        np.testing.assert_allclose(array, value.detach().numpy(), rtol=1e-6)
    assert distance(model(run), shared.init()) < 1e-6


@pytest.mark.parametrize("mode", ["auto", "loop"])
def test_their_random_numbers_follow_from_the_seed_and_a_resumed_run_is_undisturbed(mode, tmp_path):
    def start(folder):
        return run_inline(
            NumPyClients, small_task(DATA), DATA, CLIENTS, {"client_fn": "flower_clients.random_client_fn"}, folder,
            rounds=4, engine=EngineConfig(mode=mode),
        )  # fmt: skip

    check_resuming(start, 2, tmp_path)


@pytest.mark.parametrize(
    ("client_fn", "said"),
    [
        ("flower_clients", "'flower_clients' is not a function; write a dotted path such as my_client.client_fn"),
        ("no_such.client_fn", "cannot import 'no_such.client_fn'"),
        ("flower_clients.SIZES", "is not a function"),
        ("flower_clients.app", r"is a ClientApp of Flower's Message API \(@app.train, @app.evaluate\), which is not"),
        (
            "broken_clients.client_fn",
            "cannot import .*: RuntimeError at .*broken_clients.py:3: no credentials; fix it there",
        ),
    ],
)
def test_a_wrong_factory_is_a_sentence(client_fn, said):
    with pytest.raises(ValidationError, match=said):
        NumPyClients.Hyper(client_fn=client_fn)


def test_arrays_of_another_model_are_a_sentence():
    with pytest.raises(UserError, match=r"returns arrays of shapes .* return the values of `state_dict\(\)`"):
        ended(NumPyClients, {"client_fn": "flower_clients.truncated_client_fn"})


def test_metrics_of_some_clients_only_are_a_sentence():
    with pytest.raises(UserError, match="only some clients return the metric loss of step train"):
        ended(NumPyClients, {"client_fn": "flower_clients.uneven_client_fn"})


def test_scores_of_no_samples_are_nan():
    _, records = ended(NumPyClients, {"client_fn": "flower_clients.unscored_client_fn"}, rounds=1)
    assert np.isnan(records[-1]["client_evaluate_loss"])


@pytest.mark.parametrize(
    ("client_fn", "said"),
    [
        ("truncated_client_fn", "`fit` of flower_clients.truncated_client_fn returns arrays of shapes"),
        ("bare_client_fn", "flower_clients.bare_client_fn returns an object of type object, which has no method `fit`"),
        ("pair_client_fn", "`fit` of flower_clients.pair_client_fn returns tuple of 2; return"),
        ("mute_client_fn", "with a dictionary of metrics"),
        ("negative_client_fn", "`fit` of flower_clients.negative_client_fn returns num_examples -1; return the number"),
        ("failing_client_fn", "a client of flower_clients.failing_client_fn fails: KeyError at "),
        ("weightless_client_fn", "the clients' weights of an exchange are all 0, so that they have no mean"),
    ],
)
def test_the_check_before_a_run_names_the_factory(client_fn, said):
    file = {
        "name": "flower",
        "rounds": 1,
        "clients_per_round": "all",
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 6},
            "model": {"name": "logreg"},
        },
        "algorithm": {"name": "numpy_client", "client_fn": f"flower_clients.{client_fn}"},
    }
    with pytest.raises(UserError) as found:
        check(parse_experiment(file), None)
    (sentence,) = found.value.sentences
    assert said in sentence
    assert sentence.startswith("algorithm.name: " if client_fn == "weightless_client_fn" else "algorithm.client_fn: ")


def test_a_client_that_fails_in_a_later_round_is_a_sentence_with_its_place():
    run = run_inline(
        NumPyClients, small_task(DATA), DATA, CLIENTS, {"client_fn": "flower_clients.later_failing_client_fn"}, rounds=4
    )
    with pytest.raises(
        UserError, match=r"^algorithm.client_fn: .*RuntimeError at .*flower_clients.py:\d+: no memory.*"
    ):
        list(run)


def test_rounds_before_a_failure_are_recorded_and_the_run_is_resumable(tmp_path):
    experiment = parse_experiment(
        {
            "name": "failing",
            "rounds": 4,
            "clients_per_round": "all",
            "output": str(tmp_path),
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "iid", "clients": 2, "samples_per_client": 10},
                "model": {"name": "mlp", "hidden": [4]},
            },
            "algorithm": {"name": "numpy_client", "client_fn": "flower_clients.later_failing_client_fn"},
            "checkpoints": {"every": 1},
            "resources": {"executor": "inline"},
            "tracking": {"enabled": False},
        }
    )
    with pytest.raises(UserError, match="no memory"):
        start_run(experiment)
    (folder,) = tmp_path.glob("failing-*")
    rounds = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rounds == [1, 2]
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
