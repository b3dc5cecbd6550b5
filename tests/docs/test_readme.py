"""The README is short and true: its parts are generated, its algorithm is FedAvg. test_docs.py runs its blocks."""

import json
import sys

import pytest
import yaml
from fences import blocks
from helpers import Quadratics, identical, run_inline
from paths import ROOT

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.platform.config.experiment import EngineConfig, Evaluation
from hedgerow.platform.config.loader import load_experiment
from hedgerow.searchspaces.spaces.search_file import SEARCHABLE, load_search
from hedgerow.searchspaces.spaces.search_section import FORMS, KINDS, Dimension

README = (ROOT / "README.md").read_text()
SEARCH = ROOT / "docs" / "how-to" / "own-search.md"
KEYS = SEARCH.read_text() + "".join((ROOT / f"docs/algorithms/{name}.md").read_text() for name in ("hedge", "fedex"))


@pytest.fixture
def generated(monkeypatch):
    """The module docs/readme.py."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import readme

    yield readme
    sys.modules.pop("readme")


def test_the_generated_parts_are_those_of_today(generated):
    assert {name for _, name in generated.PART.findall(README)} == set(generated.PARTS)
    assert generated.written() == README


def test_the_readme_has_at_most_150_lines():
    assert README.count("\n") <= 150


def test_every_algorithm_has_a_test_and_a_family(generated):
    assert all(generated.tests(name) for name in ALGORITHMS)
    families = {
        file.stem for file in (ROOT / "docs" / "algorithms").glob("*.md") if "::: algorithm " in file.read_text()
    }
    assert families == set(generated.FAMILIES)
    counts = [int(row.split(" | ")[1]) for row in generated.families().splitlines()[2:]]
    assert sum(counts) == len(ALGORITHMS)


def test_the_table_of_speed_has_every_measured_workload(generated):
    files = list((ROOT / "benchmarks" / "results").glob("peers-*.json"))
    assert files
    assert generated.speed().count("\n| ") == 1 + len(files)
    # What was not measured is said.
    rows = [json.loads(file.read_text())["rows"] for file in files]
    assert generated.speed().count("not measured") == sum(name not in row for row in rows for name in generated.PEERS)


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda f: f.name)
def test_every_example_is_valid(file):
    load_experiment(file)
    if "search" in yaml.safe_load(file.read_text()):
        load_search(file)


def test_every_form_of_values_is_documented():
    (block,) = (block.text for block in blocks(SEARCH) if block.title == "search.space")
    entries = [Dimension.model_validate(entry, strict=True) for entry in yaml.safe_load(block).values()]
    assert {entry.form for entry in entries} >= set(FORMS)


def test_every_kind_and_every_key_of_a_search_is_documented():
    for kind in map(KINDS.section, KINDS.names()):
        for key in kind.model_fields:
            assert f"`{key}`" in KEYS or f"{key}:" in KEYS, key
        assert f"`{kind.model_fields['kind'].default}`" in KEYS


def test_every_searchable_key_is_documented():
    for key in SEARCHABLE:
        assert f"`{key}`" in SEARCH.read_text(), key


def test_the_shown_algorithm_is_a_file_of_the_package():
    (shown,) = [block.text for block in blocks(ROOT / "README.md") if block.file == "fedavg.py"]
    assert shown == (ROOT / "algorithms" / "federated" / "fedavg.py").read_text()


@pytest.mark.parametrize("clients_per_round", [6, 2])
def test_the_shown_algorithm_is_fedavg(tmp_path, monkeypatch, clients_per_round):
    (block,) = (block.text for block in blocks(ROOT / "README.md") if "class FedAvg" in block.text)
    (tmp_path / "shown_fedavg.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    from shown_fedavg import FedAvg as Shown

    problem, runs = Quadratics(), []
    for kind in (Shown, FedAvg):
        run = run_inline(
            kind, problem.task, problem.dataset, problem.partition,
            {"lr": 0.4, "steps": 10, "batch_size": None}, rounds=20, clients_per_round=clients_per_round,
            engine=EngineConfig(mode="vmap", chunk=clients_per_round),
            evaluation=Evaluation(every=1000, clients=0, model="clients"),
        )  # fmt: skip
        list(run)
        runs.append(run)
    for key in ("w", "client_average"):
        assert identical(runs[0].server[key], runs[1].server[key])
