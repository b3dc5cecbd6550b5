"""The figures of a search: Hedge's weights, losses and regret, parallel coordinates, and curves."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from made_up import deployed_records, hedge_records, records, trials

from hedgerow.platform.ui.plots import draw_curves
from hedgerow.platform.ui.plotting import save
from hedgerow.searchspaces.results.hedge_curves import deployed_curves
from hedgerow.searchspaces.results.search_plots import (
    best_runs,
    deployed_lines,
    loss_lines,
    parallel_lines,
    regret_line,
    weight_areas,
)
from hedgerow.searchspaces.results.trials import Trial


def check(written: list, names: set[str]) -> list[str]:
    """All are there, as PNG and well-formed SVG; returns the texts of the SVG files."""
    assert {path.name for path in written} == {f"{name}.{ending}" for name in names for ending in ("png", "svg")}
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    return [path.read_text() for path in written if path.suffix == ".svg"]


def parallel(found: list[Trial], metric: str, mode: str, folder: Path) -> list[Path]:
    return save(parallel_lines(found, metric, mode), folder / "parallel_coordinates")


@pytest.mark.parametrize(
    ("experts", "rounds", "dead"), [(3, 1, None), (3, 20, 1), (7, 20, None), (24, 20, 4), (1, 3, None)]
)
def test_hedges_figures_are_drawn_for_few_and_for_many_experts(experts, rounds, dead, tmp_path):
    hedge = hedge_records(experts, rounds, dead=dead)
    labels = [f"lr={i}" for i in range(experts)]
    for draw, name in ((weight_areas, "hedge_weights"), (loss_lines, "hedge_losses")):
        (svg,) = check(save(draw(hedge, labels), tmp_path / "figures" / name), {name})
        # matplotlib writes a text as a comment next to its outlines.
        assert "<!-- lr=0 -->" in svg
        assert ("<!-- 18 others -->" in svg) == (experts == 24)
        assert ("<!-- lr=6 -->" in svg) == (experts == 7)
    check(save(regret_line(hedge), tmp_path / "figures" / "hedge_regret"), {"hedge_regret"})


def test_the_deployed_policies_are_drawn_against_the_best_expert_in_hindsight(tmp_path):
    curves = deployed_curves(deployed_records(), [{1: 0.8, 2: 0.6, 3: 0.7}, {1: 0.5, 2: 0.9}], "test_accuracy")
    assert curves == {
        "leader": [(1, 0.8), (2, pytest.approx(0.85)), (3, pytest.approx(0.8))],
        # No mixture in the second round.
        "mixture": [(1, 0.9), (3, pytest.approx(0.8))],
        "best expert in hindsight": [(1, 0.8), (2, pytest.approx(0.7)), (3, pytest.approx(0.7))],
    }
    (svg,) = check(save(deployed_lines(curves, "test_accuracy"), tmp_path / "hedge_deployed"), {"hedge_deployed"})
    assert "<!-- best expert in hindsight -->" in svg
    losses = deployed_curves(deployed_records(), [{}, {}], "test_loss")
    assert losses == {"leader": [(1, 1.0), (2, 1.0), (3, 1.0)], "mixture": [(1, 0.5), (3, 0.5)]}
    assert deployed_curves(hedge_records(2, 3), [{}, {}], "test_accuracy") == {}


@pytest.mark.parametrize("known", ["none", "late"])
def test_a_bound_is_left_out_where_there_is_none(known, tmp_path):
    hedge = hedge_records(3, 10)
    for record in hedge[: 10 if known == "none" else 5]:
        record["bound"] = None
    (svg,) = check(save(regret_line(hedge), tmp_path / "hedge_regret"), {"hedge_regret"})
    assert ("<!-- bound: " in svg) == (known == "late")


def test_parallel_coordinates_of_conditional_categorical_and_logarithmic_keys(tmp_path):
    found = [
        *trials(),
        Trial("005", {"algorithm.lr": 0.1, "algorithm.name": "fedprox", "x.on": True}, records([0.3])),
        Trial("006", {"algorithm.lr": 0.1, "algorithm.name": "a$b", "x.on": False}, records([0.4])),
    ]
    (svg,) = check(parallel(found, "test_accuracy", "max", tmp_path), {"parallel_coordinates"})
    for text in ("lr", "mu", "name", "fedprox", "true", "-", "test accuracy", "90.0 %", "best: lr=0.1 mu=1, 90.0 %"):
        assert f"<!-- {text} -->" in svg
    check(parallel(found, "test_loss", "min", tmp_path), {"parallel_coordinates"})


@pytest.mark.parametrize("count", [3, 24])
def test_parallel_coordinates_of_few_and_of_many_trials(count, tmp_path):
    found = [Trial(f"{i:03d}", {"a.lr": 10.0**-i, "a.mu": i, "a.one": 1}, records([i / count])) for i in range(count)]
    check(parallel(found, "test_accuracy", "max", tmp_path), {"parallel_coordinates"})


def test_parallel_coordinates_of_a_sweep_in_which_nothing_worked(tmp_path):
    check(parallel(trials()[2:4], "test_accuracy", "max", tmp_path), {"parallel_coordinates"})


def test_the_curves_of_the_best_trials(tmp_path):
    both = {"curves_by_round", "curves_by_traffic"}
    by_round, _ = check(draw_curves(best_runs(trials(), limit=2), tmp_path, [0.5]), both)
    assert "<!-- lr=0.1 mu=1 -->" in by_round
    assert "<!-- lr=1 -->" in by_round
    assert "lr=0.01" not in by_round
    long = [Trial("007", {"algorithm.a_long_name_of_a_key": 0.123}, records([0.5]))]
    by_round, _ = check(draw_curves(best_runs(long), tmp_path, []), both)
    assert "<!-- 007 -->" in by_round
