"""The README tells the truth: its files parse, its algorithm is FedDyn. Its blocks are run by test_docs.py."""

import pytest
import yaml
from fences import blocks
from helpers import Quadratics, identical, run_inline
from paths import ROOT

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.cli import main
from hedgerow.platform.config.experiment import EngineConfig, Evaluation
from hedgerow.platform.config.loader import load_experiment, parse_experiment
from hedgerow.platform.models import MODELS
from hedgerow.searchspaces.spaces.search_file import SEARCHABLE, load_search
from hedgerow.searchspaces.spaces.search_section import FORMS, KINDS, Dimension

README = (ROOT / "README.md").read_text()
BLOCKS = [(block.language, block.text) for block in blocks(ROOT / "README.md")]


def test_the_table_of_algorithms_is_the_registry(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from readme import tests, written

    assert written() == README
    assert all(tests(name) for name in ALGORITHMS)


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda f: f.name)
def test_every_example_is_valid(file):
    load_experiment(file)
    if "search" in yaml.safe_load(file.read_text()):
        load_search(file)


def test_the_search_of_the_readme_is_the_example():
    (block,) = (text for kind, text in BLOCKS if kind == "yaml" and "examples/digits_hedge.yaml" in text)
    example = yaml.safe_load((ROOT / "examples" / "digits_hedge.yaml").read_text())
    assert yaml.safe_load(block)["search"] == example["search"]


def test_every_form_of_the_readme_is_a_form_of_the_space():
    (block,) = (text for kind, text in BLOCKS if kind == "yaml" and "loguniform" in text)
    entries = [Dimension.model_validate(entry, strict=True) for entry in yaml.safe_load(block).values()]
    assert {entry.form for entry in entries} == set(FORMS)


def test_every_kind_and_every_key_of_a_search_is_told():
    text = README[README.index("## Searching") : README.index("## Your own algorithm")]
    for kind in map(KINDS.section, KINDS.names()):
        for key in kind.model_fields:
            assert f"`{key}`" in text or f"{key}:" in text, key
        assert f"`{kind.model_fields['kind'].default}`" in text


def test_what_may_be_searched_is_told():
    told = README[README.index("A key of the space is") :].split("```")[0]
    page = (ROOT / "docs" / "how-to" / "own-search.md").read_text()
    for key in SEARCHABLE:
        assert f"`{key}`" in told, key
        assert f"`{key}`" in page, key


def test_the_experiment_of_the_readme_is_the_example():
    (block,) = (text for kind, text in BLOCKS if kind == "yaml" and "examples/digits_fedavg.yaml" in text)
    assert parse_experiment(yaml.safe_load(block)) == load_experiment(ROOT / "examples" / "digits_fedavg.yaml")


def test_every_command_algorithm_and_model_is_told():
    for name in [*main.commands, *ALGORITHMS, *MODELS]:
        assert f"`{name}" in README or f"hedgerow {name}" in README, name


@pytest.mark.parametrize("clients_per_round", [6, 2])
def test_the_algorithm_of_the_readme_is_feddyn(tmp_path, monkeypatch, clients_per_round):
    (block,) = (text for kind, text in BLOCKS if kind == "python" and "class FedDyn" in text)
    (tmp_path / "shown_feddyn.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    from shown_feddyn import FedDyn as Shown

    problem, runs = Quadratics(), []
    for kind in (Shown, FedDyn):
        run = run_inline(
            kind, problem.task, problem.dataset, problem.partition,
            {"lr": 0.4, "steps": 10, "batch_size": None, "alpha": 0.5}, rounds=20, participation=None,
            clients_per_round=clients_per_round, engine=EngineConfig(mode="vmap", chunk=clients_per_round),
            evaluation=Evaluation(every=1000, clients=0, model="clients"),
        )  # fmt: skip
        list(run)
        runs.append(run)
    for key in ("w", "h", "client_average"):
        assert identical(runs[0].server[key], runs[1].server[key])


def test_the_algorithm_that_it_shows_is_a_file_of_the_package():
    (shown,) = [block.text for block in blocks(ROOT / "README.md") if block.file == "feddyn.py"]
    assert shown == (ROOT / "algorithms" / "federated" / "feddyn.py").read_text()
