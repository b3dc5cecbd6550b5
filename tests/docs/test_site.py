"""The documentation is whole: it is built without a warning, needs no network, and has every algorithm and setting."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from paths import ROOT
from pydantic import create_model

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.searchspaces.extra.table_file import all_tables
from hedgerow.searchspaces.listing import KINDS

PAGES = sorted((ROOT / "docs" / "algorithms").glob("*.md"))
SECTIONS = {
    name: section
    for page in PAGES
    for section in re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE)[1:]
    for name in re.findall(r"^::: algorithm (\w+)$", section, re.MULTILINE)
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr == ""
    return folder


def test_no_page_loads_anything_from_elsewhere(site):
    for page in site.rglob("*.html"):
        html = page.read_text()
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", html):
            found = re.search(r'(?:src|href)="((?:https?:)?//[^"]*)"', tag)
            assert not found, f"{page.name}: {found[1]}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\((?:[\"']?https?:)?//", sheet.read_text()), sheet


def test_every_equation_is_drawn_by_the_browser(site):
    wanted = sum(page.read_text().count("$$") // 2 for page in PAGES)
    drawn = "".join((site / "algorithms" / f"{page.stem}.html").read_text() for page in PAGES)
    assert drawn.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') == wanted > 60
    assert "arithmatex" not in drawn
    assert "$$" not in drawn


def test_every_algorithm_has_equations_and_a_measured_result_or_none():
    assert set(SECTIONS) == set(ALGORITHMS)
    measured = " ".join((ROOT / "benchmarks" / "README.md").read_text().split())
    for name, section in SECTIONS.items():
        assert "$$" in section, name
        told = re.findall(r"^(?:\*\*Measured\.\*\* (.*?)|Not measured here\.)$\n\n", section, re.MULTILINE | re.DOTALL)
        assert len(told) == 1, name
        # What is said to be measured stands in the results.
        for number in re.findall(r"\d*\.\d+|\d[\d,]*\d|\d+(?= %)", told[0].partition("See [")[0]):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", measured), (
                name,
                number,
            )


def test_every_page_of_an_algorithm_has_its_hyperparameters_its_source_and_its_tests(site):
    for page in PAGES:
        html = (site / "algorithms" / f"{page.stem}.html").read_text()
        parts = re.split(r"<strong><code>algorithm: \{name: (\w+)\}</code></strong>", html)[1:]
        for name, part in zip(parts[::2], parts[1::2], strict=True):
            for key in set(algorithm_class(name).Hyper.model_fields) - {
                "name",
                "server",
                "side",
                "distillation",
                "open_set",
            }:
                assert f"<code>{key}</code>" in part, (name, key)
            (code,) = re.findall(r"The code: <code>([\w/.]+)</code>", part)
            assert (ROOT / code).is_file()
            tests = re.findall(r"<code>(tests/[\w/]+\.py)</code>", part)
            assert tests
            assert all((ROOT / test).is_file() for test in tests), tests


def test_the_reference_has_every_key_of_an_experiment_file(site):
    told = (site / "reference" / "experiment-file.html").read_text()

    def keys(schema: object) -> set[str]:
        if isinstance(schema, list):
            return {key for one in schema for key in keys(one)}
        if not isinstance(schema, dict):
            return set()
        own = set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
        return own | {key for name, one in schema.items() if name != "default" for key in keys(one)}

    # Hyperparameters are on the pages of the algorithms.
    file = create_model("File", __base__=Experiment, algorithm=(HyperParameters, ...))
    schema = json.loads(json.dumps(file.model_json_schema()))
    assert len(keys(schema)) > 100
    for key in keys(schema):
        assert re.search(rf"<code>(?:[\w.]+\.)?{key}</code>", told), key


def test_every_command_is_in_the_reference_with_its_options(site):
    import click

    from hedgerow.cli import main

    told = (site / "reference" / "commands.html").read_text()
    commands = {}
    for name, command in main.commands.items():
        within = command.commands if isinstance(command, click.Group) else {}
        commands |= {f"{name} {inner}": each for inner, each in within.items()} or {name: command}
    for name, command in commands.items():
        assert f"hedgerow {name}</code>" in told
        for option in (p for p in command.params if isinstance(p, click.Option)):
            assert all(word in told for word in option.opts), option.opts


def test_every_choice_of_an_experiment_file_is_in_the_reference(site):
    choices = (site / "reference" / "choices.html").read_text()
    for kind in ("datasets", "partitions", "models"):
        assert all(f"<code>{choice.name}</code>" in choices for choice in KINDS[kind]())
    tables = (site / "how-to" / "published-tables.html").read_text()
    assert all(f"<code>{table.name}</code>" in tables for table in all_tables())


def test_the_search_works_from_the_disk(site, browser):
    from playwright.sync_api import TimeoutError

    page, link = browser.new_page(), None
    # What is typed before the page's program listens is lost.
    for _ in range(6):
        page.goto((site / "algorithms" / "federated.html").as_uri())
        page.fill("input.md-search__input", "peaceman rachford splitting")
        with suppress(TimeoutError):
            page.wait_for_selector(".md-search-result__link", state="attached", timeout=20_000)
            link = page.locator(".md-search-result__link").first.get_attribute("href")
            break
    assert link is not None
    assert link.startswith("file:")
    assert "algorithms/federated.html" in link
    page.close()
