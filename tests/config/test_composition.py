"""Files that build on others, environment variables, and the origin of every value."""

import pytest
import yaml
from click.testing import CliRunner
from ray_runs import same

import hedgerow
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.runs import runner
from hedgerow.searchspaces.spaces.search_file import load_search

COMMON = """\
name: common
rounds: 20
clients_per_round: 0.5
task:
  data: {name: digits}
  partition: {kind: dirichlet, clients: 20, alpha: 0.3}
  model: {name: mlp, hidden: [32, 16]}
algorithm: {name: fedavg, lr: 0.1, batch_size: 8}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "common.yaml").write_text(COMMON)
    return tmp_path


def resolved(folder, text, *overrides):
    (folder / "own.yaml").write_text(text)
    return load_experiment(folder / "own.yaml", overrides).model_dump(mode="json")


def changed(values, **changes):
    """The common file with other values: sections are given as dictionaries."""
    return {key: {**value, **changes[key]} if isinstance(changes.get(key), dict) else changes.get(key, value)
            for key, value in values.items()}  # fmt: skip


def test_sections_are_merged_lists_and_sections_of_another_kind_are_replaced(here):
    common = load_experiment(here / "common.yaml").model_dump(mode="json")
    assert resolved(here, "base: common.yaml") == common
    assert resolved(here, "base: common.yaml\nname: own\nalgorithm: {lr: 0.5}") == changed(
        common, name="own", algorithm={"lr": 0.5}
    )
    mlp = resolved(here, "base: common.yaml\ntask: {model: {hidden: [8]}, partition: {alpha: 1.0}}")["task"]
    assert mlp["model"] == {**common["task"]["model"], "hidden": [8]}
    assert mlp["partition"] == {**common["task"]["partition"], "alpha": 1.0}
    assert resolved(here, "base: common.yaml\ntask: {model: {name: logreg}}")["task"]["model"].keys() == {
        "name", "init", "freeze"
    }  # fmt: skip
    prox = resolved(here, "base: common.yaml\nalgorithm: {name: fedprox, mu: 0.1}")["algorithm"]
    assert (prox["mu"], prox["batch_size"]) == (0.1, 50)
    iid = resolved(here, "base: common.yaml\ntask: {partition: {kind: iid, clients: 20}}")["task"]["partition"]
    assert iid["kind"] == "iid"
    assert "alpha" not in iid


def test_a_key_replaces_the_keys_that_exclude_it(here):
    own = resolved(here, "base: common.yaml\nalgorithm: {steps: 3}")
    assert (own["algorithm"]["epochs"], own["algorithm"]["steps"]) == (None, 3)
    (here / "common.yaml").write_text(COMMON.replace("lr: 0.1", "epochs: 5"))
    own = resolved(here, "base: common.yaml\nalgorithm: {steps: 3}")
    assert (own["algorithm"]["epochs"], own["algorithm"]["steps"]) == (None, 3)


def test_a_base_may_have_a_base_and_paths_are_relative_to_the_file(here):
    (here / "inner").mkdir()
    (here / "inner" / "middle.yaml").write_text("base: ../common.yaml\nrounds: 7\nalgorithm: {lr: 0.2}")
    own = resolved(here, "base: inner/middle.yaml\nname: own", "algorithm.batch_size=4")
    assert (own["name"], own["rounds"]) == ("own", 7)
    assert (own["algorithm"]["lr"], own["algorithm"]["batch_size"]) == (0.2, 4)


def test_a_search_may_build_on_a_run(here):
    (here / "search.yaml").write_text("base: common.yaml\nsearch: {kind: grid, space: {algorithm.lr: [0.1, 0.2]}}")
    assert len(load_search(here / "search.yaml").configurations) == 2


def test_environment_variables_are_filled_in_with_their_type(here, monkeypatch):
    monkeypatch.setenv("OWN_LR", "0.05")
    monkeypatch.setenv("OWN_FOLDER", "results")
    text = "base: common.yaml\nalgorithm: {lr: '${env:OWN_LR}'}\noutput: ${env:OWN_FOLDER}/runs"
    own = resolved(here, text, "name=lr-${env:OWN_LR}")
    assert own["algorithm"]["lr"] == 0.05
    assert own["output"] == "results/runs"
    assert own["name"] == "lr-0.05"


def test_the_command_show_prints_where_each_value_comes_from(here, monkeypatch):
    monkeypatch.setenv("OWN_LR", "0.05")
    (here / "own.yaml").write_text("base: common.yaml\nname: own\nalgorithm: {lr: '${env:OWN_LR}'}")
    shown = CliRunner().invoke(main, ["show", "own.yaml", "--set", "rounds=3"], catch_exceptions=False).stdout
    assert yaml.safe_load(shown) == load_experiment(here / "own.yaml", ["rounds=3"]).model_dump(mode="json")
    lines = [line.strip() for line in shown.splitlines()]
    for line in (
        "name: own  # own.yaml:2",
        "rounds: 3  # --set rounds=3",
        "lr: 0.05  # own.yaml:3, ${env:OWN_LR}",
        "batch_size: 8  # common.yaml:8",
        "- 32  # common.yaml:7",
        "momentum: 0.0",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: missing.yaml", r"own.yaml:1: base: there is no file .*missing.yaml"),
        ("base: [1]", "own.yaml:1: base: expected the path of an experiment file"),
        ("base: own.yaml", r"own.yaml:1: base: .*own.yaml builds on this file"),
        ("base: common.yaml\nalgorithm: {lr: 0.1, mo: 1}", "own.yaml:2: algorithm.mo is not a key"),
        ("base: common.yaml\nname: ${env:NO_SUCH_NAME}", "own.yaml:2: name: the environment variable 'NO_SUCH_NAME'"),
        ("base: common.yaml\ntask: {model: {hiden: [3]}}", "own.yaml:2: task.model.hiden"),
    ],
)
def test_mistakes_are_one_sentence_with_their_place(here, text, said):
    with pytest.raises(UserError, match=said):
        resolved(here, text)


def test_a_mistake_in_the_base_names_the_line_of_the_base(here):
    (here / "common.yaml").write_text(COMMON.replace("lr: 0.1", "lr: -1"))
    with pytest.raises(UserError, match=r"common.yaml:8: algorithm.lr"):
        resolved(here, "base: common.yaml\nname: own")


def test_files_are_in_the_folder_of_the_experiment_file_then_in_the_working_directory(tmp_path, monkeypatch):
    apart, work = tmp_path / "apart", tmp_path / "work"
    for folder in (apart, work, work / "data"):
        folder.mkdir()
        (folder / "x.csv").write_text(folder.name)
    (work / "only.csv").touch()
    (work / "data" / "other.csv").touch()
    monkeypatch.chdir(work)

    def path(name, *overrides):
        (apart / "own.yaml").write_text(COMMON.replace("name: digits", f"name: csv, label: y, path: {name}"))
        return load_experiment(apart / "own.yaml", overrides).task.data.path

    assert path("x.csv") == path("./x.csv") == str(apart / "x.csv")
    assert path("only.csv") == str(work / "only.csv")
    # In the folder of the data sets, which is known later.
    assert path("other.csv") == "other.csv"
    assert path("x.csv", "task.data.path=x.csv") == str(work / "x.csv")
    (work / "built.yaml").write_text("base: ../apart/own.yaml\nname: built")
    assert load_experiment("built.yaml").task.data.path == str(apart / "x.csv")


def test_a_run_from_another_folder_reads_the_files_next_to_its_own_and_so_does_its_resumption(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    apart, work, later = (tmp_path / name for name in ("apart", "work", "later"))
    for folder in (apart, work, later):
        folder.mkdir()
    rows = "".join(f"{k % 3 + 0.25},{k},{'ab'[k % 3 == 0]}\n" for k in range(60))
    (apart / "x.csv").write_text(f"p,q,y\n{rows}")
    (apart / "nets_apart.py").write_text("from torch import nn\n\n\ndef build():\n    return nn.Linear(2, 2)\n")
    values = {
        "name": "apart",
        "rounds": 3,
        "task": {
            "data": {"name": "csv", "label": "y", "path": "x.csv"},
            "partition": {"kind": "iid", "clients": 4},
            "model": {"name": "nets_apart.build"},
        },
        "clients_per_round": "all",
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 5},
        "resources": {"executor": "inline"},
        "checkpoints": {"every": 1},
        "tracking": {"enabled": False},
    }
    (apart / "own.yaml").write_text(yaml.safe_dump(values))

    def stop(record):
        if record["round"] == 2:
            raise RuntimeError("stopped")

    monkeypatch.chdir(work)
    calm = hedgerow.run("../apart/own.yaml", show=False)
    with pytest.raises(RuntimeError, match="stopped"):
        hedgerow.run("../apart/own.yaml", show=stop, output=str(later))
    (folder,) = later.glob("apart-*")
    monkeypatch.chdir(later)
    assert same(hedgerow.resume(folder, show=False), calm)
