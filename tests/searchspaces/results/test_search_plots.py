"""The figures of a search: Hedge's weights, losses and regret, parallel coordinates, and curves."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from made_up import deployed_records, hedge_records, records, trials

from hedgerow.platform.ui.charts import Chart, figure
from hedgerow.platform.ui.plots import curve_figures
from hedgerow.platform.ui.plotting import COLOURS, save
from hedgerow.platform.ui.plotting import OTHERS as GREY
from hedgerow.searchspaces.results.hedge_curves import HedgeCurves, deployed_curves
from hedgerow.searchspaces.results.search_plots import NAMED, best_runs, hedge_charts, parallel_lines
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


def drawn(hedge: list[dict], labels: list[str], deployed: dict | None = None) -> dict[str, Chart]:
    curves = HedgeCurves.read(hedge, NAMED)
    places = {i: place for place, i in enumerate(curves.named)}
    return hedge_charts(curves, labels, places, deployed or {}, "test_accuracy")


@pytest.mark.parametrize(
    ("experts", "rounds", "dead"), [(3, 1, None), (3, 20, 1), (8, 20, None), (24, 20, 4), (1, 3, None)]
)
def test_hedges_figures_are_drawn_for_few_and_for_many_experts(experts, rounds, dead, tmp_path):
    charts = drawn(hedge_records(experts, rounds, dead=dead), [f"lr={i}" for i in range(experts)])
    assert list(charts) == ["hedge_weights", "hedge_losses", "hedge_regret"]
    for name, chart in charts.items():
        check(save(figure([chart]), tmp_path / name), {name})
    assert ("17 others" in charts["hedge_weights"].keys) == (experts == 24)
    assert ("1 other" in charts["hedge_weights"].keys) == (experts == 8)
    assert {"lr=0", "Hedge, expected"} <= charts["hedge_losses"].keys.keys()


def test_the_deployed_policies_are_drawn_against_the_best_expert_in_hindsight():
    experts = [
        {round: {"test_accuracy": value, "test_loss": 2 * value} for round, value in one.items()}
        for one in ({1: 0.8, 2: 0.6, 3: 0.7}, {1: 0.5, 2: 0.9})
    ]
    curves = deployed_curves(deployed_records(), experts, "test_accuracy")
    assert curves == {
        "leader": [(1, 0.8), (2, pytest.approx(0.85)), (3, pytest.approx(0.8))],
        # No mixture in the second round.
        "mixture": [(1, 0.9), (3, pytest.approx(0.8))],
        "best expert in hindsight": [(1, 0.8), (2, pytest.approx(0.7)), (3, pytest.approx(0.7))],
    }
    chart = drawn(deployed_records(), ["a", "b"], curves)["hedge_deployed"]
    assert chart.legend[-1] == ("s7", "best expert in hindsight")
    assert chart.data.texts[1]["best expert in hindsight"] == "70.0 %"
    for metric in ("test_loss", "test_cost"):
        # A mixture has no cost: of another metric, the policies are compared by their losses.
        assert deployed_curves(deployed_records(), experts, metric) == {
            "leader": [(1, 1.0), (2, 1.0), (3, 1.0)],
            "mixture": [(1, 0.5), (3, 0.5)],
            "best expert in hindsight": [(1, 1.6), (2, pytest.approx(1.4)), (3, pytest.approx(1.4))],
        }
    assert deployed_curves(hedge_records(2, 3), [{}, {}], "test_accuracy") == {}


@pytest.mark.parametrize("known", ["none", "late"])
def test_a_bound_is_left_out_where_there_is_none(known):
    hedge = hedge_records(3, 10)
    for record in hedge[: 10 if known == "none" else 5]:
        record["bound"] = None
    assert ("bound" in drawn(hedge, ["a", "b", "c"])["hedge_regret"].keys) == (known == "late")


def test_parallel_coordinates_of_conditional_categorical_and_logarithmic_keys(tmp_path):
    found = [
        *trials(),
        Trial("005", {"algorithm.lr": 0.1, "algorithm.name": "fedprox", "x.on": True}, records([0.3])),
        Trial("006", {"algorithm.lr": 0.1, "algorithm.name": "a$b", "x.on": False}, records([0.4])),
    ]
    (svg,) = check(parallel(found, "test_accuracy", "max", tmp_path), {"parallel_coordinates"})
    for text in ("lr", "mu", "name", "fedprox", "true", "-", "test accuracy", "90.0 %"):
        assert f"<!-- {text} -->" in svg
    check(parallel(found, "test_loss", "min", tmp_path), {"parallel_coordinates"})


@pytest.mark.parametrize("count", [3, 24])
def test_parallel_coordinates_of_few_and_of_many_trials(count, tmp_path):
    found = [Trial(f"{i:03d}", {"a.lr": 10.0**-i, "a.mu": i, "a.one": 1}, records([i / count])) for i in range(count)]
    check(parallel(found, "test_accuracy", "max", tmp_path), {"parallel_coordinates"})


def test_parallel_coordinates_of_a_sweep_in_which_nothing_worked(tmp_path):
    check(parallel(trials()[2:4], "test_accuracy", "max", tmp_path), {"parallel_coordinates"})


def test_parallel_coordinates_have_the_colours_of_the_other_figures_and_mark_the_winner(tmp_path):
    found = trials()
    drawn = parallel_lines(found, "test_accuracy", "max", 0.0, {0: 4, 1: 9}, found[1])
    ends = {line.get_ydata()[-1]: line for line in drawn.axes[0].lines if len(line.get_xdata()) == 3}
    best, winner = ends[1.0], next(line for line in ends.values() if line.get_linewidth() == 3.5)
    assert (best.get_color(), winner.get_color(), winner.get_linestyle()) == (COLOURS[4], COLOURS[1], "--")
    assert {line.get_color() for line in ends.values()} == {COLOURS[4], COLOURS[1], GREY}
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["lr=0.1 mu=1", "lr=1 (winner)", "3 others"]
    (svg,) = check(save(drawn, tmp_path / "parallel"), {"parallel"})
    assert "<!-- winner: lr=1, 70.0 % -->" in svg


def test_the_winner_is_among_the_curves_whatever_its_rank():
    found = trials()
    assert list(best_runs(found, limit=2, winner=found[4])) == [4, 0]


def test_the_curves_of_the_best_trials_have_the_colours_of_their_other_figures(tmp_path):
    found = trials()
    best = best_runs(found, limit=2)
    assert list(best) == [0, 1]
    runs = {f"trial {i}": [records] for i, records in best.items()}
    figures = curve_figures(runs, [0.5], {"trial 0": 3, "trial 1": 9})
    assert list(figures) == ["curves_by_round", "curves_by_traffic"]
    one, other = figures["curves_by_round"]().axes[0].lines[-2:]
    assert one.get_zorder() > other.get_zorder()
    assert (one.get_color(), other.get_color(), other.get_linestyle()) == (COLOURS[3], COLOURS[1], "--")
    (svg,) = check(save(figures["curves_by_traffic"](), tmp_path / "curves"), {"curves"})
    assert "<!-- trial 1 -->" in svg
