"""What `hedgerow new` writes runs as it is, says everything that the schema says, and overwrites nothing."""

import json
import re

import pytest
import yaml
from command_line import hedgerow
from preloaded import run_python
from pydantic import BaseModel

from hedgerow.algorithms.optim.local_sgd import LocalSolver
from hedgerow.platform.config.loader import load_experiment, parse_experiment
from hedgerow.platform.config.registries import algorithms
from hedgerow.platform.ui.explained_experiment import NEEDS, commented, complete
from hedgerow.platform.ui.starter_files import SCHEMA


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def comments(text: str) -> str:
    """All that stands behind or alone in comments, on one line."""
    return " ".join(" ".join(re.findall(r"(?:^| )# (.*)$", text, re.MULTILINE)).split())


def descriptions(section: BaseModel) -> list[str]:
    found = []
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, BaseModel):
            found += descriptions(value)
        elif field.description:
            found.append(" ".join(field.description.split()))
    return found


def test_a_new_experiment_runs_as_it_is(here):
    written = hedgerow("new", "experiment", "mine", "--set", "rounds=2", "--set", "task.model.hidden=[8]")
    assert written.exit_code == 0, written.output
    assert "hedgerow run mine.yaml" in written.output
    quietly = ("--set", "resources.executor=inline", "--set", "tracking.enabled=false", "--json")
    done = hedgerow("run", "mine.yaml", *quietly)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["runs"][0]["summary"]["rounds"] == 2


def test_nothing_is_overwritten(here):
    for arguments, file in ((("experiment", "mine"), "mine.yaml"), (("algorithm", "mine"), "test_mine.py")):
        (here / file).write_text("precious")
        result = hedgerow("new", *arguments)
        assert result.exit_code == 2
        assert f"{file} exists and is not overwritten" in result.output
        assert (here / file).read_text() == "precious"
    assert not (here / "mine.py").exists()


def test_it_has_every_key_with_its_value_and_its_description(here):
    experiment = complete("mine", "feddyn")
    text = commented(experiment)
    assert yaml.safe_load(text) == experiment.model_dump(mode="json")
    told = comments(text)
    found = descriptions(experiment)
    assert len(found) > 50
    for description in found:
        assert description in told
    assert "one of auto, inline, processes, ray" in told
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("algorithm", ["fedavg", "moml", "disk", "fedbio", "fedsep_masks", "semckd"])
def test_a_short_file_is_the_same_experiment(algorithm):
    experiment = complete("mine", algorithm)
    text = commented(experiment, every=False)
    assert parse_experiment(yaml.safe_load(text)) == experiment
    assert len(text.splitlines()) <= 50
    own = type(experiment.algorithm).model_fields.keys() - LocalSolver.model_fields.keys()
    assert {key for key in own if getattr(experiment.algorithm, key) is not None} <= yaml.safe_load(text)[
        "algorithm"
    ].keys()
    assert {"name", "rounds", "clients_per_round", "task", "algorithm"} <= yaml.safe_load(text).keys()


def test_editors_find_the_schema_that_lies_beside_it(here):
    assert hedgerow("new", "experiment", "first").exit_code == 0
    assert "yaml-language-server" not in (here / "first.yaml").read_text()
    assert hedgerow("schema", "-o", SCHEMA).exit_code == 0
    assert json.loads((here / SCHEMA).read_text())["title"] == "Hedgerow experiment"
    assert hedgerow("new", "experiment", "after").exit_code == 0
    first, rest = (here / "after.yaml").read_text().split("\n", 1)
    assert first == f"# yaml-language-server: $schema={SCHEMA}"
    assert rest == (here / "first.yaml").read_text().replace("first", "after")


# One for each of NEEDS, in their order.
@pytest.mark.parametrize(
    "name", ["kd", "fitnet", "fedhen", "pfldyn", "stocbio", "preprocess", "focus", "feddf", "stem", "moml"]
)
def test_an_experiment_gets_what_its_algorithm_needs(here, name):
    experiment = complete("mine", name)
    (here / "mine.yaml").write_text(commented(experiment))
    assert load_experiment(here / "mine.yaml") == experiment
    assert experiment.algorithm == algorithms.section(name)()
    assert len(NEEDS) == 10


def test_what_would_not_run_is_not_written(here):
    for arguments, said in (
        (("--algorithm", "fedavgg"), "--algorithm: 'fedavgg' is not an algorithm; did you mean 'fedavg'"),
        (("--set", "algorithm.lrr=1"), "--set algorithm.lrr=1: algorithm.lrr is not a key here"),
        (("--set", "task.data.name=mnist", "--data-root", str(here)), "mnist is not in"),
    ):
        result = hedgerow("new", "experiment", "mine", *arguments)
        assert result.exit_code == 2
        assert said in result.output
    assert not list(here.iterdir())


@pytest.mark.exhaustive("processes")
def test_a_new_algorithm_is_fedavg_by_its_own_test_and_runs_by_its_path(here):
    written = hedgerow("new", "algorithm", "near_mean")
    assert written.exit_code == 0, written.output
    assert (here / "near_mean.py").read_text().count("\n") <= 65
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_near_mean.py", cwd=here)
    assert "2 passed" in done.stdout
    assert hedgerow("new", "experiment", "mine", "--algorithm", "near_mean.NearMean").exit_code == 0
    text = (here / "mine.yaml").read_text()
    assert "share of the way that the server moves; 1 is FedAvg" in comments(text)
    assert load_experiment(here / "mine.yaml").algorithm.name == "near_mean.NearMean"


@pytest.mark.parametrize(
    ("name", "said"),
    [("near-mean", "cannot name a module"), ("Mean", "cannot name a module"), ("torch", "the existing module 'torch'")],
)
def test_names_that_cannot_be_imported_are_refused(here, name, said):
    result = hedgerow("new", "algorithm", name)
    assert result.exit_code == 2
    assert said in result.output
    assert not list(here.iterdir())
