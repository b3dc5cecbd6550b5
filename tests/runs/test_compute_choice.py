"""The device of the clients: chosen once, recorded, kept by a resume, and refused where it is missing."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner

import hedgerow
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runs import compute_choice, runner
from hedgerow.platform.runs.same_settings import decisive_settings
from hedgerow.platform.tracking.run_folder import RunFolder, new_run
from hedgerow.searchspaces.spaces.search_file import parse_search

FILE = {
    "name": "chosen",
    "rounds": 3,
    "clients_per_round": 0.5,
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "dirichlet", "clients": 8, "alpha": 0.5, "samples_per_client": 20},
        "model": {"name": "mlp", "hidden": [8]},
    },
    "algorithm": {"name": "scaffold", "lr": 0.1, "batch_size": 8},
    "engine": {"mode": "loop"},
    "evaluation": {"clients": 0},
    "checkpoints": {"every": 1},
    "tracking": {"enabled": False},
}
GRID = {"kind": "grid", "space": {"algorithm.lr": [0.1, 0.2]}}
INLINE = FILE | {"resources": {"executor": "inline"}}
CASES = [
    ({}, 0, "cpu", "processes"),
    ({}, 1, "cuda", "inline"),
    ({}, 4, "cuda", "ray"),
    ({"gpus_per_actor": 1.0}, 1, "cuda", "inline"),
    ({"gpus_per_actor": 0.25}, 1, "cuda", "ray"),
    ({"device": "cuda"}, 1, "cuda", "inline"),
    ({"device": "cpu"}, 4, "cpu", "processes"),
    ({"executor": "processes"}, 4, "cpu", "processes"),
    ({"executor": "inline"}, 4, "cuda", "inline"),
    ({"executor": "ray"}, 1, "cuda", "ray"),
]


def impatient(record):
    if record["round"] == 2:
        raise KeyboardInterrupt


def without_clock(run):
    return [{**record, "seconds": 0} for record in run.records]


def device_of(folder):
    return json.loads((folder / "run.json").read_text())["settings"]["resources.device"]


@pytest.fixture
def gpus(monkeypatch):
    """Sets the number of GPUs of this machine for the choice alone; nothing is computed on them."""
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)

    def count(number):
        monkeypatch.setattr(compute_choice, "local_gpus", lambda: number)

    return count


def stopped(tmp_path, **values):
    with pytest.raises(KeyboardInterrupt):
        hedgerow.run({**INLINE, **values}, output=str(tmp_path), show=impatient)
    return min(tmp_path.glob("chosen-*"))


def test_gpus_are_used_where_there_are_any():
    """In a process that no test has connected to Ray."""
    code = (
        "import json, sys\n"
        "from hedgerow.platform.actors.forked import prepare\n"
        "from hedgerow.platform.config.resources import Resources\n"
        "from hedgerow.platform.runs import compute_choice as choice\n"
        "prepare()\n"
        "for settings, gpus, *_ in json.loads(sys.argv[1]):\n"
        "    choice.local_gpus = lambda: gpus\n"
        "    resources = Resources(**settings)\n"
        "    print(choice.choose_device(resources, None), choice.executor_of(resources, None))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, json.dumps(CASES)], capture_output=True, text=True)
    assert ended.stdout.splitlines() == [f"{device} {executor}" for *_, device, executor in CASES], ended.stderr


@pytest.mark.parametrize(
    ("settings", "gpu", "reserved"),
    [
        ({"device": "cpu"}, 0.0, 0.0),
        ({"device": "cuda"}, 1.0, 1.0),
        ({"device": "cuda", "gpus_per_actor": 0.25}, 0.25, 0.25),
        ({"device": "cpu", "gpus_per_actor": 0.5}, 0.0, 0.5),
    ],
)
def test_an_actor_computes_on_the_gpu_that_it_reserves_unless_the_device_is_the_cpu(settings, gpu, reserved):
    resources = Resources(**settings)
    assert (resources.gpu, resources.reserved_gpus) == (gpu, reserved)


def test_only_the_device_determines_numbers_and_not_the_share_of_a_gpu():
    def settings(resources, device):
        experiment = hedgerow.parse_experiment(FILE | {"resources": resources})
        return decisive_settings(experiment, device)

    assert settings({"gpus_per_actor": 0.25}, "cuda") == settings({}, "cuda") == settings({"device": "cuda"}, "cuda")
    assert settings({}, "cuda") == settings({}, "cpu") | {"resources.device": "cuda"}


def test_all_trials_of_a_search_compute_on_the_device_of_the_search():
    spec = parse_search({**FILE, "search": GRID, "resources": {"cpus_per_actor": 2}})
    trials = [spec.with_device("cuda").trial(overrides) for overrides in spec.configurations]
    assert [(one.resources.device, one.resources.cpus_per_actor) for one in trials] == [("cuda", 2)] * 2
    assert "device: auto" in spec.dump()


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        ({"device": "cuda"}, "resources.device: cuda needs a GPU, but PyTorch finds none on this machine; set"),
        ({"gpus_per_actor": 0.5}, "resources.gpus_per_actor needs a GPU, but PyTorch finds none on this machine; set"),
    ],
)
def test_a_missing_gpu_is_refused_before_any_work(resources, sentence, gpus, tmp_path):
    gpus(0)
    values = {**FILE, "resources": {**resources, "executor": "inline"}, "output": str(tmp_path / "runs")}
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(main, ["run", str(tmp_path / "file.yaml")])
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_search_on_missing_gpus_neither_begins_nor_continues(gpus, tmp_path):
    gpus(0)
    values = {**FILE, "search": GRID, "output": str(tmp_path)}
    with pytest.raises(UserError, match=r"set resources\.device to cpu"):
        hedgerow.search(values, resources__device="cuda", show=False)
    assert not list(tmp_path.iterdir())
    spec = parse_search(values)
    with new_run(spec.experiment, None, spec.dump()) as (folder, _):
        settings = decisive_settings(spec.experiment, "cuda", spec.search.model_dump(mode="json"))
        folder.update(kind="search", status="interrupted", settings=settings)
    with pytest.raises(UserError, match=r"set resources\.device to cpu"):
        hedgerow.resume(folder.path, show=False)
    assert folder.record()["status"] == "interrupted"


def test_a_run_that_began_on_the_cpu_stays_there(gpus, tmp_path):
    gpus(0)
    calm = hedgerow.run(INLINE, output=str(tmp_path / "calm"), show=False)
    folder = stopped(tmp_path / "stopped")
    gpus(1)
    finished = hedgerow.resume(folder, show=False)
    assert device_of(folder) == "cpu"
    assert without_clock(finished) == without_clock(calm)


def test_all_seeds_of_a_series_compute_on_one_device(gpus, tmp_path):
    gpus(0)
    folder = stopped(tmp_path, seeds=[0, 1])
    gpus(1)
    series = hedgerow.resume(folder, show=False)
    assert [device_of(run.folder.path) for run in series.runs] == ["cpu", "cpu"]


def test_a_run_that_began_on_a_gpu_is_continued_elsewhere_only_on_demand(gpus, tmp_path):
    """Only the record says that the run began on a GPU."""
    gpus(0)
    folder = RunFolder(stopped(tmp_path))
    folder.update(settings=folder.record()["settings"] | {"resources.device": "cuda"})
    before = folder.record()
    with pytest.raises(UserError) as refused:
        hedgerow.resume(folder.path, show=False)
    assert str(refused.value) == (
        f"{folder} computes on a GPU, but PyTorch finds none on this machine; set resources.device to cpu in "
        f"{folder.experiment}, and `hedgerow resume {folder} --changed` continues on the CPU"
    )
    assert folder.record() == before
    values = yaml.safe_load(folder.experiment.read_text())
    folder.experiment.write_text(yaml.safe_dump(values | {"resources": values["resources"] | {"device": "cpu"}}))
    result = CliRunner().invoke(main, ["resume", str(folder)])
    assert "resources.device (cuda -> cpu) differs from what it started with" in result.stderr
    result = CliRunner().invoke(main, ["resume", str(folder), "--changed"])
    assert result.exit_code == 0, result.output
    assert [note["settings"] for note in folder.record()["changes"]] == [{"resources.device": ["cuda", "cpu"]}]
    assert device_of(folder.path) == "cpu"


@pytest.mark.parametrize(
    ("engine", "what"),
    [
        ({"mode": "graph"}, "mode: graph"),
        ({"plans": {"train/clients": {"mode": "graph"}}}, "plans: mode graph"),
        ({"precision": "tf32"}, "precision: tf32"),
    ],
)
def test_a_setting_of_gpus_is_refused_on_the_cpu(engine, what, tmp_path):
    with pytest.raises(UserError) as caught:
        hedgerow.run(FILE | {"engine": engine, "resources": {"device": "cpu"}}, output=str(tmp_path))
    assert str(caught.value) == f"engine.{what} needs a GPU, and clients compute on the CPU; remove it"
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_by_default_a_run_computes_on_the_gpu_and_its_resume_ends_with_the_same_bits(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    calm = hedgerow.run(FILE, output=str(tmp_path / "calm"), show=False)
    assert f"clients compute on cuda ({torch.cuda.get_device_name(0)})" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        hedgerow.run(FILE, output=str(tmp_path), show=impatient)
    (folder,) = tmp_path.glob("chosen-*")
    finished = hedgerow.resume(folder, show=False)
    assert device_of(folder) == "cuda"
    assert all(record["gpu_peak_mb"] > 0 for record in finished.records)
    records, expected = ([{**one, "gpu_peak_mb": 0} for one in without_clock(run)] for run in (finished, calm))
    assert records == expected
    assert all(np.array_equal(leaf, calm.parameters[name]) for name, leaf in finished.parameters.items())
