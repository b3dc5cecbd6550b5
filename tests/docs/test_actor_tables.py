"""The page about speed shows every stored result of the benchmarks with many actors."""

import json
import sys

import pytest
from paths import ROOT

PAGE = (ROOT / "docs" / "performance.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture
def tables(monkeypatch):
    """The module docs/actor_tables.py."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import actor_tables

    yield actor_tables
    sys.modules.pop("actor_tables")


@pytest.mark.parametrize(
    ("part", "name", "entry"),
    [("balance", "balance", "simulated"), ("balance_on_ray", "balance", "measured"), ("fan_in", "fan_in", "measured")],
)
def test_every_stored_result_is_a_row(tables, part, name, entry):
    assert f"\n::: {part}\n" in PAGE
    rows = getattr(tables, part)().splitlines()[2:]
    stored = json.loads((RESULTS / f"{name}.json").read_text())[entry]
    assert len(rows) == len(stored)
    for row, one in zip(rows, stored, strict=True):
        assert f"| {one['actors']} |" in row
