"""Factories by dotted path, initial parameters from a file, and frozen parts."""

import numpy as np
import pytest
import torch
from helpers import identical
from image_students import parse
from safetensors.torch import save_file
from torch import nn

import hedgerow
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.models.build import build_model
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import build_data, check

SHAPE = (1, 8, 8)


def experiment(model, output="runs", rounds=1, **more):
    values = {
        "name": "weights",
        "rounds": rounds,
        "clients_per_round": "all",
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 3, "samples_per_client": 20},
            "model": model,
        },
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 10},
        "engine": {"mode": "loop"},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
        "output": str(output),
        **more,
    }
    return parse_experiment(values)


def built(**model):
    torch.manual_seed(0)
    return build_model(parse(model), SHAPE, 10)


@pytest.fixture
def state():
    torch.manual_seed(9)
    return built(name="mode_models.make").state_dict() | {"1.bias": torch.arange(8.0)}


def saved(state, folder, suffix):
    file = folder / f"weights{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    return str(file)


def test_a_function_that_returns_a_module_is_a_model():
    assert identical(built(name="mode_models.make").state_dict(), built(name="mode_models.Normed").state_dict())
    assert built(name="mode_models.make", args={"width": 3})[1].out_features == 3


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_initial_parameters_and_statistics_come_from_the_file(suffix, state, tmp_path):
    file = saved(state | {"2.running_mean": torch.full((8,), 0.25)}, tmp_path, suffix)
    model = {"name": "mode_models.make", "init": file}
    assert torch.equal(built(**model)[1].bias, torch.arange(8.0))
    wanted = experiment(model)
    coordinator = build_coordinator([wanted], *build_data(wanted, None), [None])
    server = coordinator.servers[0].state
    assert torch.equal(server["w"]["1.bias"], torch.arange(8.0))
    assert torch.equal(server["buffers"]["2.running_mean"], torch.full((8,), 0.25))
    # Every process builds the same.
    check(wanted, None)


def test_built_in_models_take_a_file_and_patterns(tmp_path):
    net = built(name="mlp", hidden=[4])
    file = saved({name: p + 1 for name, p in net.state_dict().items()}, tmp_path, ".pt")
    loaded = built(name="mlp", hidden=[4], init=file, freeze=["1.*"])
    assert torch.equal(loaded[1].weight, net[1].weight + 1)
    assert [name for name, p in loaded.named_parameters() if p.requires_grad] == ["3.weight", "3.bias"]


def test_frozen_parts_are_not_trained_and_not_transmitted(tmp_path):
    finished = run(experiment({"name": "mode_models.Dropped", "freeze": ["first.*"]}, tmp_path))
    assert finished.parameters.keys() == {"second.weight", "second.bias"}
    assert finished.records[0]["scalars_up"] == 3 * (12 * 10 + 10)


def test_a_relative_file_is_found_again_when_a_run_resumes_from_another_folder(state, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    saved(state, tmp_path / "here", ".pt")
    finished = run(experiment({"name": "mode_models.make", "init": "weights.pt"}, tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    text = finished.folder.experiment.read_text()
    finished.folder.experiment.write_text(text.replace("rounds: 1", "rounds: 2"))
    finished.folder.update(status="interrupted")
    assert len(hedgerow.resume(finished.folder.path, show=False).records) == 2
    # Another content of the file is refused.
    finished.folder.update(status="interrupted")
    saved(state | {"1.bias": torch.zeros(8)}, tmp_path / "here", ".pt")
    with pytest.raises(UserError, match="differ from those at the start of the run, or the file of `init` does"):
        hedgerow.resume(finished.folder.path, show=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: {k: v for k, v in s.items() if k != "1.bias"}, "has no '1.bias', which Normed has"),
        (lambda s: s | {"9.weight": torch.zeros(2)}, "has '9.weight', which Normed does not have"),
        (lambda s: s | {"1.bias": torch.zeros(3)}, r"has '1.bias' of shape \(3,\), not \(8,\) as in Normed"),
        (lambda s: {"state_dict": s}, "is not a dictionary of tensors"),
        (lambda s: [1, 2], "is not a dictionary of tensors"),
        (lambda s: print, "cannot be read as a dictionary of tensors; save"),
        (lambda s: nn.Linear(2, 2), "cannot be read as a dictionary of tensors; save"),
    ],
)
def test_files_that_do_not_fit_are_one_sentence(change, said, state, tmp_path):
    file = saved(change(state), tmp_path, ".pt")
    with pytest.raises(UserError, match=f"task.model.init: .*weights.pt {said}") as refused:
        built(name="mode_models.make", init=file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_damaged_and_missing_files_are_one_sentence(name, tmp_path):
    file = tmp_path / name
    with pytest.raises(UserError, match=r"task\.model\.init: there is no file"):
        built(name="mode_models.make", init=str(file))
    for content in (b"", b"nothing", b"PK\x03\x04"):
        file.write_bytes(content)
        with pytest.raises(
            UserError, match=r"task.model.init: .* cannot be read as a dictionary of tensors; save"
        ) as refused:
            built(name="mode_models.make", init=str(file))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["first.*", "frist.*"], r"task.model.freeze: 'frist.\*' matches no parameter of Dropped, which has 'first.w"),
        (["*"], "has no parameters to train, or all of them are frozen"),
    ],
)
def test_patterns_that_freeze_nothing_or_everything_are_refused(patterns, said):
    with pytest.raises(UserError, match=said):
        built(name="mode_models.Dropped", freeze=patterns)


def test_torchvisions_resnet_is_trained_unmodified(tmp_path):
    model = {"name": "torchvision.models.resnet18", "args": {"num_classes": 10, "weights": None}}
    rng = np.random.default_rng(0)
    images = tmp_path / "images"
    from PIL import Image

    for label in ("cat", "dog", *"abcdefgh"):
        (images / label).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(images / label / f"{i}.png")
    values = experiment(model, tmp_path).model_dump(mode="json")
    values["task"]["data"] = {"name": "image_folder", "path": str(images)}
    values["task"]["partition"] = {"kind": "iid", "clients": 2, "samples_per_client": 4}
    values["checkpoints"] = {"every": 0}
    finished = run(parse_experiment(values))
    assert len(finished.parameters) == 62 + 60
    assert finished.parameters["bn1.num_batches_tracked"] == 1
    assert finished.records[0]["scalars_up"] == 2 * sum(value.size for value in finished.parameters.values())
