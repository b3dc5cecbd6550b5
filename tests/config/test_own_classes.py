"""Data, partitions and problems of one's own enter by a dotted path, as algorithms and models do."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import hedgerow

from hedgerow import api
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import dump_experiment, load_experiment, parse_experiment, read_experiment
from hedgerow.platform.data.content_hash import content_hash
from hedgerow.platform.runs import runner
from hedgerow.platform.runtime.factory import build_data
from hedgerow.platform.tracking.run_folder import RunFolder

MODULE = '''
"""Three blobs; clients by the first feature; a problem of two levels."""

import numpy as np
from pydantic import Field

from hedgerow.platform.config.problem_section import HyperRepresentationProblem
from hedgerow.platform.data import Dataset
from hedgerow.platform.data.partitions.scheme import SplitScheme
from hedgerow.platform.data.sources.source import Source


class Blobs(Source):
    """Three Gaussian blobs."""

    samples: int = Field(240, ge=12, description="training and test samples")
    spread: float = Field(1.0, gt=0, description="standard deviation of a blob")

    def load(self, root):
        rng = np.random.default_rng(SEED)
        y = rng.integers(0, 3, self.samples)
        x = (2 * rng.normal(size=(3, 6))[y] + self.spread * rng.normal(size=(self.samples, 6))).astype(np.float32)
        train = 3 * self.samples // 4
        names = ("a", "b", "c")
        return Dataset("blobs", x[:train], y[:train], x[train:], y[train:], 3, x.mean(0), x.std(0), names)


class Sizes(SplitScheme):
    """Clients of sizes 1, 2, 3, ..."""

    clients: int = Field(ge=1, description="number of clients")

    def assign(self, labels, classes, natural, rng):
        share = len(labels) / (self.clients * (self.clients + 1) / 2)
        ends = (np.cumsum(np.arange(1, self.clients + 1)) * share).astype(int)
        return np.split(rng.permutation(len(labels)), ends[:-1])


class Twice(Sizes):
    """Samples that two clients have."""

    def assign(self, labels, classes, natural, rng):
        return [np.arange(10), np.arange(5, 20)]


class Named(Sizes):
    """A dictionary of clients."""

    def assign(self, labels, classes, natural, rng):
        return dict(enumerate(super().assign(labels, classes, natural, rng)))


class Owners(Sizes):
    """The client of each sample."""

    def assign(self, labels, classes, natural, rng):
        return rng.integers(0, self.clients, len(labels))


class Unseeded(Sizes):
    """Another partition in each command."""

    def assign(self, labels, classes, natural, rng):
        return np.array_split(np.random.permutation(len(labels)), self.clients)


class Letters(Blobs):
    """Labels that are no numbers."""

    def load(self, root):
        data = super().load(root)
        return Dataset(data.name, data.x_train, data.y_train.astype(float), *list(vars(data).values())[3:])


class Backbone(HyperRepresentationProblem):
    """x is the backbone, y the last layer, by another name."""
'''.replace("SEED", "0")

VALUES = {
    "name": "own",
    "rounds": 4,
    "clients_per_round": 0.5,
    "task": {
        "data": {"name": "mine.Blobs", "samples": 400},
        "partition": {"kind": "mine.Sizes", "clients": 8, "client_test_fraction": 0.25},
        "model": {"name": "mlp", "hidden": [8]},
    },
    "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 8},
    "evaluation": {"clients": 8},
    "checkpoints": {"every": 1},
    "resources": {"executor": "inline"},
    "tracking": {"enabled": False},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a module of its own, from which commands are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(VALUES))
    yield tmp_path
    sys.modules.pop("mine", None)


def refused(change: dict) -> str:
    """The sentence about an experiment whose task is changed."""
    with pytest.raises(UserError) as caught:
        build_data(parse_experiment(VALUES | {"task": VALUES["task"] | change}), None)
    return str(caught.value)


def test_a_run_on_data_and_a_partition_of_ones_own(here):
    done = hedgerow("run", "own.yaml", "--json")
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    folder = RunFolder(Path(run["folder"]))
    record = folder.record()["data"]
    dataset, partition = build_data(load_experiment(folder.experiment), None)
    assert (record["name"], record["own"]) == ("blobs", False)
    assert record["dataset"] == content_hash(dataset)
    assert record["partition"] == content_hash(partition)
    assert len(dataset.x_train) == 300
    assert partition.sizes.tolist() == [8, 17, 25, 33, 42, 50, 58, 67]
    assert partition.train_sizes.tolist() == [6, 13, 19, 25, 32, 38, 44, 50]
    # Code changes without its options: what it loads is never cached.
    assert not (here / "cache" / "data").exists()


@pytest.mark.exhaustive("processes")
def test_on_ray_every_process_finds_them(here):
    inline = run(here, "resources.executor=inline")
    actors = run(here, "resources.executor=ray", "resources.actors=2")
    assert actors == pytest.approx(inline, abs=1e-6)


def run(folder: Path, *overrides: str) -> float:
    """The last test loss of a run in a process of its own."""
    command = [sys.executable, "-m", "hedgerow", "run", "own.yaml", "--json"]
    for override in overrides:
        command += ["--set", override]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["runs"][0]["summary"]["test_loss"]


def stop(record: dict) -> None:
    if record["round"] == 2:
        raise RuntimeError("stopped")


def test_a_run_on_data_of_ones_own_is_resumed_on_the_same_data_alone(here, monkeypatch):
    # The driver hears of every round by itself.
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    calm = api.run("own.yaml", show=False, output="calm")
    with pytest.raises(RuntimeError, match="stopped"):
        api.run("own.yaml", show=stop)
    (folder,) = (here / "runs").glob("own-*")
    (here / "mine.py").write_text(MODULE.replace("default_rng(0)", "default_rng(12)"))
    sys.modules.pop("mine")
    other = hedgerow("resume", str(folder))
    assert other.exit_code == 2
    assert "the data set of its file differs from what the run started with" in other.output
    (here / "mine.py").write_text(MODULE)
    sys.modules.pop("mine")
    resumed = api.resume(folder, show=False)
    assert resumed.frame["test_loss"].tolist() == calm.frame["test_loss"].tolist()
    assert len(resumed.frame) == 4


def test_the_file_of_such_an_experiment_reads_back_as_an_equal_one(here):
    experiment = load_experiment("own.yaml", ["task.data.spread=0.5"])
    Path("again.yaml").write_text(dump_experiment(experiment))
    assert load_experiment("again.yaml") == experiment
    assert experiment.task.data.model_dump() == {"name": "mine.Blobs", "samples": 400, "spread": 0.5}
    # Where nothing is run, nothing is imported, and keys are taken as they stand.
    (here / "mine.py").write_text("raise RuntimeError('imported')")
    del sys.modules["mine"]
    read = read_experiment("again.yaml")
    assert read.model_dump()["task"] == experiment.model_dump()["task"]
    assert "mine" not in sys.modules


def test_mistakes_are_named_with_their_key(here):
    data, partition = VALUES["task"]["data"], VALUES["task"]["partition"]
    for change, sentence in (
        ({"data": data | {"sample": 3}}, "task.data.sample is not a key here; did you mean 'samples'? (allowed: name"),
        ({"data": data | {"samples": 3}}, "task.data.samples must be at least 12, not 3"),
        ({"data": {"name": "mine.Blob"}}, "task.data.name: module 'mine' has no 'Blob'; did you mean 'Blobs'?"),
        ({"data": {"name": "mine.Sizes"}}, "task.data.name: 'mine.Sizes' is not a source; name a class that derives"),
        ({"data": {"name": "yours.Blobs"}}, "task.data.name: cannot import 'yours.Blobs': no module named 'yours'"),
        ({"data": {"name": "mine.Letters"}}, "task.data.name: mine.Letters.load has 180 samples in x_train and y_t"),
        ({"partition": {"kind": "mine.Sizes"}}, "task.partition.clients is missing; add `clients: ...` under task"),
        ({"partition": partition | {"kind": "mine.Blobs"}}, "task.partition.kind: 'mine.Blobs' is not a partition"),
        ({"partition": partition | {"kind": "mine.Twice"}}, "task.partition.kind: Twice.assign deals a sample twice"),
        ({"partition": partition | {"kind": "mine.Named"}}, "task.partition.kind: Named.assign returns dict; return"),
        ({"partition": partition | {"kind": "mine.Owners"}}, "Owners.assign returns other numbers of dimensions than"),
        ({"partition": partition | {"kind": "mine.Unseeded"}}, "Unseeded.assign draws from the global generator of"),
        ({"public": {"data": {"name": "mine.Blob"}}}, "task.public.data.name: module 'mine' has no 'Blob'"),
    ):  # fmt: skip
        assert sentence in refused(change)


def test_mistakes_in_the_module_are_one_among_others(here):
    (here / "mine.py").write_text("1 / 0")
    values = VALUES | {"rounds": 0}
    with pytest.raises(UserError) as caught:
        parse_experiment(values)
    assert len(caught.value.sentences) == 3
    assert "task.data.name: cannot import 'mine.Blobs': ZeroDivisionError at " in str(caught.value)


def test_a_problem_of_ones_own(here):
    task = VALUES["task"] | {
        "partition": {"kind": "mine.Sizes", "clients": 4, "upper_level_fraction": 0.3},
        "problem": {"kind": "mine.Backbone"},
    }
    values = VALUES | {"task": task, "rounds": 2, "algorithm": {"name": "fedbio", "batch_size": 8}}
    Path("own.yaml").write_text(yaml.safe_dump(values))
    mine = hedgerow("run", "own.yaml", "--json")
    assert mine.exit_code == 0, mine.output
    ours = hedgerow("run", "own.yaml", "--json", "--set", "task.problem.kind=hyper_representation")
    assert summary(mine) == summary(ours)


def summary(result) -> float:
    return json.loads(result.stdout)["runs"][0]["summary"]["test_loss"]


def test_new_experiments_take_them(here):
    made = hedgerow("new", "experiment", "fresh", "--set", "task.data={name: mine.Blobs, samples: 800}",
                    "--set", "task.partition={kind: mine.Sizes, clients: 5}", "--all")  # fmt: skip
    assert made.exit_code == 0, made.output
    text = Path("fresh.yaml").read_text()
    assert "# Three Gaussian blobs." in text
    assert "# standard deviation of a blob" in text
    experiment = load_experiment("fresh.yaml")
    assert experiment.task.partition.draw(np.zeros(600, int), 1, None, 0).sizes.sum() == 600
    assert isinstance(experiment.algorithm, FedAvg.Hyper)


@pytest.mark.parametrize(
    "mistake",
    [
        {"transforms": [{"kind": "unseen.Own", "a": 1}], "rounds": 0},
        {"algorithm": {"name": "unseen.Own", "lr": 1}, "seed": "x"},
        {"task": {"data": {"name": "unseen.Own"}, "model": {"name": "mlp", "hiden": [3]}}},
        {"base": "base.yaml", "algorithm": {"name": "unseen.Own", "epochs": 1}},
    ],
    ids=["transform", "algorithm", "data", "base"],
)
def test_the_file_of_a_run_imports_nothing_also_if_it_has_a_mistake(mistake, tmp_path, monkeypatch):
    (tmp_path / "unseen.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    values = {
        "name": "own",
        "rounds": 2,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 4},
            "model": {"name": "mlp"},
        },
        "algorithm": {"name": "unseen.Own", "steps": 2, "epochs": None},
    }
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(values))
    file = tmp_path / "run.yaml"
    kept = {} if "base" in mistake else {**values, "task": {**values["task"], **mistake.get("task", {})}}
    file.write_text(yaml.safe_dump(kept | {key: value for key, value in mistake.items() if key != "task"}))
    if "base" in mistake:
        assert read_experiment(file).algorithm.name == "unseen.Own"
    else:
        with pytest.raises(UserError):
            read_experiment(file)
    assert "unseen" not in sys.modules
