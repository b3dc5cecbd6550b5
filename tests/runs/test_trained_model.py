"""The model of a run, taken out of it: module, predictions and exported files are those that the run scored."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from ray_runs import small
from safetensors.torch import load_file
from torch import nn
from toys import FrozenFirst

import hedgerow
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runtime.factory import build_data

PLAIN = {
    "rounds": 3,
    "algorithm": {"name": "fedavg", "batch_size": 8},
    "resources__executor": "inline",
    "checkpoints__every": 1,
    "checkpoints__keep": 3,
}


def run(tmp_path, **settings):
    """A finished run as read from its folder, and its data set and partition."""
    experiment = small(tmp_path / "runs", **{**PLAIN, **settings})
    finished = hedgerow.run(experiment, show=False)
    return hedgerow.load(finished.folder.path), *build_data(experiment, None)


def accuracy(probabilities, labels):
    return (probabilities.argmax(1) == labels).mean()


@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [8]}, {"name": "toys.FrozenFirst"}], ids=["mlp", "frozen"])
def test_predictions_have_the_accuracy_that_the_run_recorded(model, tmp_path):
    finished, dataset, _ = run(tmp_path, task__model=model)
    for round in (1, 2, 3, None):
        probabilities, module = finished.predict(dataset.x_test, round), finished.module(round)
        assert accuracy(probabilities, dataset.y_test) == finished.records[(round or 0) - 1]["test_accuracy"]
        np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-6)
        logits = module(finished.prepare(dataset.x_test)).detach()
        np.testing.assert_allclose(logits.softmax(-1).numpy(), probabilities, atol=1e-6)
        assert not module.training


def test_a_run_in_memory_has_the_same_module_as_its_folder(tmp_path):
    finished = hedgerow.run(small(tmp_path, **PLAIN), show=False)
    ours, loaded = (one.module().state_dict() for one in (finished, hedgerow.load(finished.folder.path)))
    assert all(torch.equal(ours[name], loaded[name]) for name in loaded)


def test_the_model_of_an_edited_file_is_refused(tmp_path):
    finished, _, _ = run(tmp_path, task__model={"name": "mlp", "hidden": [8]})
    file = finished.folder.experiment
    values = yaml.safe_load(file.read_text())
    values["task"]["model"]["hidden"] = [9]
    file.write_text(yaml.safe_dump(values))
    for use in (lambda run: run.parameters, lambda run: run.module(), lambda run: run.module(2)):
        with pytest.raises(UserError, match=r"is not the file with which the run finished .* restore it from a copy"):
            use(hedgerow.load(finished.folder.path))


def test_a_run_on_own_arrays_predicts_without_being_given_them_again(tmp_path):
    experiment = small(tmp_path, **PLAIN)
    dataset, partition = build_data(experiment, None)
    finished = hedgerow.run(experiment, data=(dataset, partition), show=False)
    assert accuracy(finished.predict(dataset.x_test), dataset.y_test) == finished.records[-1]["test_accuracy"]


def test_the_module_needs_no_run_folder_and_fits_the_class_of_the_user(tmp_path):
    finished, dataset, _ = run(tmp_path, task__model={"name": "toys.FrozenFirst"})
    module, inputs, expected = finished.module(), finished.prepare(dataset.x_test), finished.predict(dataset.x_test)
    shutil.rmtree(finished.folder.path)
    own = FrozenFirst()
    own.load_state_dict(module.state_dict())
    assert torch.equal(own(inputs), module(inputs))
    np.testing.assert_allclose(own(inputs).softmax(-1).detach().numpy(), expected, atol=1e-6)


def test_tensors_of_the_model_that_are_buffers_are_loaded_too():
    from hedgerow.platform.runs.trained_model import filled

    module = nn.BatchNorm1d(2)
    values = {"weight": [3.0, 4.0], "running_mean": [1.0, 2.0], "num_batches_tracked": np.array(7)}
    state = filled(module, {name: np.array(value) for name, value in values.items()}).state_dict()
    assert {name: state[name].tolist() for name in values} == {**values, "num_batches_tracked": 7}
    assert state["running_var"].tolist() == [1.0, 1.0]


def test_the_model_of_a_run_is_the_average_of_the_clients_models_if_that_is_scored(tmp_path):
    finished, dataset, _ = run(tmp_path, evaluation__model="clients", checkpoints__best="test_accuracy",
                               evaluation__allow_test_selection=True)  # fmt: skip
    for round in (1, 2, 3, None, "best"):
        record = finished.records[(finished.best_round if round == "best" else round or 0) - 1]
        assert accuracy(finished.predict(dataset.x_test, round), dataset.y_test) == record["test_accuracy"]
        assert record["test_accuracy"] != record["server_test_accuracy"]
    in_memory = hedgerow.run(finished.experiment, show=False)
    assert accuracy(in_memory.predict(dataset.x_test), dataset.y_test) == finished.records[-1]["test_accuracy"]


@pytest.mark.parametrize("model", ["server", "clients"])
@pytest.mark.parametrize("adapt", ["maml", "proto"])
def test_personal_models_predict_for_their_client(adapt, model, tmp_path):
    personal = {"name": "per_fedavg", "adapt": adapt, "batch_size": 4}
    finished, dataset, partition = run(
        tmp_path, algorithm=personal, task__partition__client_test_fraction=0.3, evaluation__model=model
    )
    own = partition.splits()["held_out"]
    scores = []
    for client, (start, size) in enumerate(zip(own.offsets, own.sizes, strict=True)):
        rows = partition.order[start : start + size]
        scores.append(
            (finished.predict(dataset.x_train[rows], client=client).argmax(1) == dataset.y_train[rows]).mean()
        )
    assert np.mean(scores) == pytest.approx(finished.records[-1]["client_accuracy"], abs=1e-7)

    with pytest.raises(UserError, match=r"every client has its own model; choose one by `client=`, from 0 to 11"):
        finished.predict(dataset.x_test)
    with pytest.raises(UserError, match="no client 12; choose one from 0 to 11"):
        finished.predict(dataset.x_test, client=12)
    common = finished.module().state_dict()
    assert all(torch.equal(common[name], torch.tensor(finished.parameters[name])) for name in common)
    if adapt == "proto":
        with pytest.raises(UserError, match="so it is no module; use `predict`"):
            finished.module(client=0)
    else:
        rows = dataset.x_train[:5]
        logits = finished.module(client=3)(finished.prepare(rows)).detach()
        np.testing.assert_allclose(logits.softmax(-1).numpy(), finished.predict(rows, client=3), atol=1e-6)


STORED = {
    "ditto": ({"name": "ditto"}, {"name": "mlp", "hidden": [8]}),
    "fedper": ({"name": "fedper"}, {"name": "mode_models.NormedTwice"}),
    "fedrep": ({"name": "fedrep", "head_epochs": 2}, {"name": "mlp", "hidden": [8]}),
    "fedbn": ({"name": "fedbn"}, {"name": "mode_models.Normed"}),
    "fedbn, buffers: local": ({"name": "fedbn"}, {"name": "mode_models.Normed", "buffers": "local"}),
}
"""Algorithms that keep a client's model in its state, and a model."""


@pytest.mark.parametrize(("algorithm", "model"), STORED.values(), ids=STORED)
def test_the_model_in_a_clients_state_is_the_one_that_was_scored(algorithm, model, tmp_path):
    """Of a client, too, that has not taken part yet."""
    finished, dataset, partition = run(
        tmp_path, algorithm={**algorithm, "lr": 0.1, "batch_size": 4}, task__model=model, clients_per_round=4,
        task__partition__client_test_fraction=0.3,
    )  # fmt: skip
    own = partition.splits()["held_out"]
    for round in (1, 3, None):
        scores = []
        for client, (start, size) in enumerate(zip(own.offsets, own.sizes, strict=True)):
            rows = partition.order[start : start + size]
            x, module = dataset.x_train[rows], finished.module(round, client)
            probabilities = module(finished.prepare(x)).softmax(-1).detach().numpy()
            np.testing.assert_allclose(finished.predict(x, round, client), probabilities, atol=1e-6)
            scores.append(accuracy(probabilities, dataset.y_train[rows]))
        record = finished.records[(round or 0) - 1]
        extremes = [record[f"client_accuracy_{end}"] for end in ("lowest", "highest")]
        assert [np.mean(scores), min(scores), max(scores)] == pytest.approx([record["client_accuracy"], *extremes])
    with pytest.raises(UserError, match="no client 12; choose one from 0 to 11"):
        finished.module(client=12)


def test_a_model_that_the_server_has_in_part_is_exported_for_a_client(tmp_path):
    finished, dataset, _ = run(
        tmp_path, algorithm={"name": "fedper", "lr": 0.1}, task__partition__client_test_fraction=0.3
    )
    assert finished.missing_parameters == ["3.weight", "3.bias"]
    file, folder = tmp_path / "model.pt", str(finished.folder)
    done = CliRunner().invoke(main, ["export", folder, str(file)])
    assert done.exit_code == 2
    assert "the server does not have '3.weight', so there is no common model" in done.output
    done = CliRunner().invoke(main, ["export", folder, str(file), "--client", "5"])
    assert done.exit_code == 0, done.output
    w, x = torch.load(file, weights_only=True), finished.prepare(dataset.x_test).flatten(1)
    hidden = (x @ w["1.weight"].T + w["1.bias"]).relu()
    probabilities = (hidden @ w["3.weight"].T + w["3.bias"]).softmax(-1).numpy()
    np.testing.assert_allclose(probabilities, finished.predict(dataset.x_test, client=5), atol=1e-6)


def test_models_that_cannot_predict_say_why(tmp_path):
    finished, dataset, _ = run(tmp_path)
    for call, message in {
        lambda: finished.module(9): r"has no checkpoint of round 9 \(available: 1, 2, 3\); checkpoints.every, ",
        lambda: finished.module("best"): r"has no best round: set `checkpoints.best` in the experiment",
        lambda: finished.predict(
            dataset.x_test, client=0
        ): "with fedavg all clients have the same model; omit `client`",
    }.items():
        with pytest.raises(UserError, match=message):
            call()
    static, dataset, _ = run(tmp_path, rounds=1, task__model={"name": "mlp_static", "hidden": [8]})
    with pytest.raises(UserError, match="normalises by statistics of the clients' samples"):
        static.predict(dataset.x_test)


def test_exported_files_predict_the_same_without_hedgerow(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    finished, dataset, _ = run(tmp_path, task__model={"name": "toys.FrozenFirst"})
    files = {ending: tmp_path / "models" / f"model.{ending}" for ending in ("pt", "safetensors", "onnx")}
    for file in files.values():
        done = CliRunner().invoke(main, ["export", str(finished.folder), str(file), "--round", "2"])
        assert done.exit_code == 0, done.output
    expected = finished.predict(dataset.x_test, 2)
    for state in (torch.load(files["pt"], weights_only=True), load_file(files["safetensors"])):
        own = FrozenFirst()
        own.load_state_dict(state)
        logits = own(finished.prepare(dataset.x_test)).detach()
        np.testing.assert_allclose(logits.softmax(-1).numpy(), expected, atol=1e-6)
    session = onnxruntime.InferenceSession(files["onnx"])
    for samples in (dataset.x_test, dataset.x_test[:1]):
        (probabilities,) = session.run(["probabilities"], {"samples": samples})
        np.testing.assert_allclose(probabilities, expected[: len(samples)], atol=1e-6)


def test_exports_that_cannot_be_written_are_refused_in_one_sentence(tmp_path):
    finished, *_ = run(tmp_path, rounds=1)
    folder = str(finished.folder)
    for arguments, message in {
        (folder, "model.h5"): "model.h5: the ending names the format; choose one of .pt, .safetensors, .onnx",
        (folder, "model.pt", "--best"): "has no best round: set `checkpoints.best`",
        (folder, "model.pt", "--round", "7"): "has no checkpoint of round 7 (available: 1)",
        (folder, "model.pt", "--round", "1", "--best"): "give either --round or --best",
        (str(tmp_path), "model.pt"): "is not a run",
        (folder, "/proc/self/model.pt"): "export: cannot write /proc/self/model.pt (",
        (folder, "/proc/self/model.safetensors"): "export: cannot write /proc/self/model.safetensors (",
        (folder, f"{folder}/run.json/model.pt"): f"cannot write {folder}/run.json/model.pt (File exists)",
    }.items():
        done = CliRunner().invoke(main, ["export", *arguments])
        assert done.exit_code == 2
        assert message in done.output


@pytest.mark.parametrize("policy", ["local", "ignore"])
def test_a_model_without_statistics_at_the_server_normalises_as_in_evaluation(policy, tmp_path):
    model = {"name": "mode_models.Normed", "buffers": policy}
    finished, dataset, _ = run(tmp_path, task__data={"name": "digits"}, task__model=model)
    module = finished.module()
    assert not any("running" in name for name in module.state_dict())
    samples = dataset.x_test[:100]
    probabilities = module(finished.prepare(samples)).softmax(-1).detach()
    np.testing.assert_allclose(probabilities.numpy(), finished.predict(samples), atol=1e-6)


def test_a_regression_predicts_numbers_and_several_labels_their_own_probabilities(tmp_path):
    """Not a softmax, which is 1 for a single number."""
    partition = {"kind": "iid", "clients": 2}
    finished, dataset, _ = run(
        tmp_path, task__data={"name": "diabetes"}, task__loss="mse", task__partition=partition,
        task__model={"name": "mlp", "hidden": [8]},
    )  # fmt: skip
    errors = finished.predict(dataset.x_test)[:, 0] - dataset.y_test
    assert np.square(errors).mean() == pytest.approx(finished.records[-1]["test_mse"], rel=1e-5)
    task, outputs = finished.task, torch.tensor([[0.0, 2.0]])
    assert torch.equal(task.predictions(outputs), outputs)
    assert torch.equal(replace(task, targets="labels").predictions(outputs), outputs.sigmoid())
    assert torch.equal(replace(task, targets="tokens").predictions(outputs), outputs.softmax(-1))
