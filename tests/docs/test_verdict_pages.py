"""Every published table has a verdict, which rests on stored results, and the page shows their numbers."""

import json
import sys
from pathlib import Path
from statistics import mean

import pytest

from hedgerow.searchspaces.extra.table_file import NOT_RUN, all_tables, verdict_on, verdicts

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
HOLDS = ("reproduced", "direction reproduced at reduced scale")
SEVERAL = sorted(RESULTS.glob("reproductions/*.json"))


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import verdict_pages

    yield verdict_pages
    for name in ("verdict_pages", "settings_pages"):
        sys.modules.pop(name, None)


def entries() -> list[tuple[str, dict]]:
    """All verdicts, on tables and on rows."""
    pairs: list[tuple[str, dict]] = []
    for name, entry in verdicts().items():
        lines = entry.get("lines", {})
        pairs += [(name, entry), *((f"{name}/{row}", line) for row, line in lines.items())]
    return pairs


def test_every_table_has_a_verdict_and_every_verdict_a_table():
    assert set(verdicts()) == {table.name for table in all_tables()}
    known = {f"{table.name}/{row.name}" for table in all_tables() for row in table.rows}
    assert [name for name, _ in entries() if name.count("/") == 2 and name not in known] == []


@pytest.mark.parametrize(("name", "entry"), entries())
def test_a_verdict_other_than_not_runnable_names_stored_results(name, entry, pages):
    assert entry.keys() <= {"claim", "verdict", "reason", "results", "lines", "command"}
    assert entry["verdict"] in pages.VERDICTS
    assert entry.get("claim") or name.count("/") == 2
    results = entry.get("results", [])
    assert [result for result in results if not (RESULTS / result).is_file()] == []
    assert results or entry["verdict"] in (NOT_RUN, "no published claim")
    assert not (results and entry["verdict"] == NOT_RUN)
    assert entry.get("reason") or entry["verdict"] not in (NOT_RUN, "not reproduced")


@pytest.mark.parametrize(("name", "entry"), entries())
def test_a_claim_that_holds_has_an_interval_that_excludes_zero_or_says_that_it_has_one_seed(name, entry, pages):
    if entry["verdict"] not in HOLDS:
        return
    several = [json.loads((RESULTS / one).read_text()) for one in entry["results"] if one.startswith("reproductions/")]
    assert all(len(result["settings"]["seeds"]) >= 3 for result in several)
    # A published number is no difference of methods: a comparison may have no claim.
    outcomes = [pages.outcome(result, *claim) for result in several for claim in result["claims"]]
    assert any(outcomes) if outcomes else "one seed" in entry.get("reason", "").lower(), name


@pytest.mark.parametrize("file", SEVERAL, ids=lambda file: file.stem)
def test_stored_comparisons_are_complete_and_on_the_page(file, pages):
    result = json.loads(file.read_text())
    methods, seeds = result["settings"]["methods"], {str(seed) for seed in result["settings"]["seeds"]}
    assert set(result["scores"]) == set(methods)
    assert all(set(scores) == seeds for scores in result["scores"].values())
    assert {method for claim in result["claims"] for method in claim} - {""} <= set(methods)
    assert f"reproductions/{file.name}" in {one for _, entry in entries() for one in entry.get("results", [])}
    scale = 100 if "%" in result["unit"] else 1
    family = result["settings"]["row"].partition("/")[0]
    first = next(iter(result["scores"].values()))
    assert f"| {scale * mean(first.values()):.1f} ±" in pages.reproductions(family)
    text = file.read_text()
    assert not any(word in text for word in ("/home", "/work", "/tmp", "/root"))


def test_the_page_has_every_table_and_names_the_rows_that_were_not_run(pages):
    page = (ROOT / "docs" / "reproductions.md").read_text()
    families = {word for line in page.splitlines() if line.startswith("::: ") for word in line.split()[2:]}
    assert families == {table.name.partition("/")[0] for table in all_tables()}
    mnist = next(table for table in all_tables() if table.name == "feddyn/T2.3")
    not_run = pages.rows(mnist).partition("Not run: ")[2]
    assert "`emnist-iid`" in not_run
    assert "`mnist-iid`" not in not_run
    overview = pages.reproductions("")
    assert all(f"#{pages.anchor(table.name)})" in overview for table in all_tables())


@pytest.mark.parametrize("family", dict.fromkeys(table.name.partition("/")[0] for table in all_tables()))
def test_the_page_has_no_empty_cell(family, pages):
    lines = [line for line in pages.reproductions(family).splitlines() if line.strip().startswith("|")]
    assert [line for line in lines if any(not cell.strip() for cell in line.strip()[1:-1].split("|"))] == []


def test_the_overview_counts_every_table_by_source_and_by_verdict(pages):
    by_source, by_verdict = (part.splitlines() for part in pages.reproductions("").split("\n\n"))
    numbers = [[int(cell) for cell in line.strip("|").split("|")[1:]] for line in by_source[2:]]
    tables = [table.name for table in all_tables()]
    held = sum(verdict_on(name) == "reproduced" for name in tables)
    assert sum(map(sum, numbers)) == len(tables)
    assert sum(row[0] for row in numbers) == held
    assert all(line.count("|") == 4 for line in by_verdict)
    assert f"| reproduced | {held} |" in by_verdict[2]


@pytest.mark.exhaustive("grid")
def test_every_line_of_the_benchmark_is_a_valid_experiment_and_compares_its_own_methods(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import reproductions

    assert len({line.name for line in reproductions.LINES}) == len(reproductions.LINES)
    for line in reproductions.LINES:
        assert {method for pair in (*line.claims, *line.compared) for method in pair} - {""} <= set(line.methods)
        for heading in line.methods:
            experiment = reproductions.experiment_of(line, heading, 3, str(tmp_path))
            assert experiment.seed == 3
    sys.modules.pop("reproductions")


def test_a_table_without_an_entry_was_not_run():
    assert verdict_on("feddyn/T9.9") == NOT_RUN
