"""Charts of a search: Hedge's weights, losses and regret, and the configurations of a sweep with their results."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hedgerow.platform.common.numbers import name_of, number, unit_of
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import short_names
from hedgerow.platform.tracking.summary import final_value
from hedgerow.platform.ui.charts import OTHERS, Chart, areas, lines
from hedgerow.platform.ui.plotting import BLACK, legend_outside, line_style, new_figure
from hedgerow.platform.ui.series import Points, Series
from hedgerow.searchspaces.results.fedex_theta import Distribution
from hedgerow.searchspaces.results.hedge_curves import HINDSIGHT, HedgeCurves, WeightCurves, score_kind
from hedgerow.searchspaces.results.trials import (
    WINNER,
    Trial,
    ranked,
    searched_keys,
    trial_labels,
)

ABSENT = -0.14
"""Height of a value that a trial does not have, in parallel coordinates."""

NAMED = 7
"""Maximum number of experts, or of values of a distribution, with a colour of their own."""


def hedge_charts(
    curves: HedgeCurves, labels: Sequence[str], places: Mapping[int, int], deployed: Mapping[str, Points], metric: str,
    learner: tuple[str, int] = ("Hedge, expected", BLACK),
) -> dict[str, Chart]:  # fmt: skip
    """Charts of the weights, the losses, the regret with its bound, and the deployed policies, by file name.

    places: place of the colour of each named expert. deployed: see `hedge_curves.deployed_curves`. learner: label of
    Hedge's expected loss, and the place of its colour.
    """

    def series(label: str, values: np.ndarray, place: int) -> Series:
        return Series(label, list(zip(curves.rounds, values.tolist(), strict=True)), index=place)

    losses = [series(labels[i], curves.losses[:, i], places[i]) for i in curves.named]
    others = len(curves.others)
    hidden = f"The {len(losses)} experts with the largest weights; {others} {'is' if others == 1 else 'are'} left out."
    size = float(np.abs(curves.regret).max())
    policies = [
        Series(label, points, index=BLACK if label == HINDSIGHT else place)
        for place, (label, points) in enumerate(deployed.items())
    ]
    charts = {
        "hedge_weights": stacked("Hedge's weights by round", curves, labels, "weight", places),
        "hedge_losses": lines(
            "Losses by round", [*losses, series(learner[0], curves.hedge_loss, learner[1])], "round", "loss",
            note=hidden if curves.others else "",
        ),
        "hedge_regret": lines(
            "Hedge's regret by round",
            [series("regret", curves.regret, 0), series("bound", curves.bound, 1)],
            "round",
            "summed loss above the best expert's",
            top=4 * size if size else math.inf,
            note="Regret: Hedge's summed loss above that of the best expert in hindsight. Bound: its upper limit.",
        ),
        "hedge_deployed": lines(
            "Deployed policies by round", policies, "round", f"{score_kind(metric)}, mean over the rounds so far",
            unit_of(score_kind(metric)),
        ),
    }  # fmt: skip
    return {name: chart for name, chart in charts.items() if chart}


def stacked(
    title: str, curves: WeightCurves, labels: Sequence[str], y_label: str, places: Mapping[int, int] | None = None
) -> Chart:
    """Stacked areas of weights over the rounds. labels: of all of them. places: of the named ones."""
    places = places or {i: place for place, i in enumerate(curves.named)}
    number = len(curves.others)
    names = [labels[i] for i in curves.named] + [f"{number} other{'s' * (number > 1)}"] * (number > 0)
    colours = [*(places[i] for i in curves.named), OTHERS]
    bands = zip(names, (band.tolist() for band in curves.bands), colours, strict=False)
    return areas(title, curves.rounds, list(bands), y_label)


def theta_chart(one: Distribution, whose: str = "") -> Chart:
    """Stacked areas of the probabilities of a distribution of FedEx over the rounds."""
    curves = WeightCurves.of(one.rounds, one.probabilities, NAMED)
    return stacked(f"Distribution of {one.name} by round{whose}", curves, one.labels, "probability")


def parallel_lines(
    trials: list[Trial],
    metric: str,
    mode: str,
    smooth: float = 0.0,
    places: Mapping[int, int] | None = None,
    winner: Trial | None = None,
) -> Any:
    """Draws every trial as a line across one axis per searched key, ending at its final metric.

    A dotted line ends at "-": failed, diverged or without the metric. places: place of the colour of each named trial,
    by its index; the others are grey. winner: has a thick line.
    An axis is logarithmic if its values span more than 1.5 decades, and categorical if they are not numbers.
    """
    keys = searched_keys(trials)
    names = short_names(keys)
    order = ranked(trials, metric, mode, smooth)[::-1]
    finals = [final_value(trial.records, metric) if trial.can_win(metric) else None for trial in order]
    figure = new_figure(figsize=(max(6.0, 2.0 * len(keys) + 2) + 2.0, 5), layout="constrained")
    axes = figure.subplots()
    heights = []
    for x, key in enumerate([*keys, metric]):
        last = x == len(keys)
        column = finals if last else [trial.settings.get(key) for trial in order]
        spots, ticks = _scale(column, (lambda value: number(value, unit_of(metric))) if last else number)
        # Lines of trials with the same value would overlap: they fan out slightly, better trials higher.
        fan = 0.05 if len(set(spots)) < len(spots) and not last else 0.0
        heights.append([spot + fan * (rank / len(order) - 0.5) for rank, spot in enumerate(spots)])
        _axis(axes, x, name_of(metric) if last else names[key], ticks)
    labels, keyed = trial_labels(trials), dict[str, int]()
    for rank, (trial, value, *path) in enumerate(zip(order, finals, *heights, strict=True)):
        place, label = (places or {}).get(trials.index(trial), OTHERS), labels[trials.index(trial)]
        style = line_style(place) | {"linewidth": 3.5 if trial is winner else 1.4}
        if value is None:
            style["linestyle"] = ":"
        if trial is winner and value is not None:
            title = f"winner: {label}, {number(value, unit_of(metric))}"
            figure.suptitle(textwrap.fill(title, 14 * len(heights) + 30), fontsize="medium")
            label += WINNER
        if place != OTHERS:
            keyed[label] = place
        axes.plot(range(len(path)), path, zorder=3 + rank / len(order), **style)
    others = len(order) - len(keyed)
    grey = {f"{others} other{'s' * (others > 1)}": OTHERS} if others else {}
    legend_outside(figure, dict(reversed(keyed.items())) | grey if places else {})
    axes.set(xlim=(-0.1, len(keys) + 0.4))
    axes.set_axis_off()
    return figure


def best_runs(
    trials: list[Trial],
    limit: int = NAMED,
    metric: str = "test_accuracy",
    mode: str = "max",
    smooth: float = 0.0,
    winner: Trial | None = None,
) -> dict[int, list[RoundRecord]]:
    """Records of the winner and of the best other trials by their index."""
    order = sorted(ranked(trials, metric, mode, smooth), key=lambda trial: trial is not winner)
    best = [trial for trial in order if trial.records][:limit]
    return {trials.index(trial): trial.records for trial in best}


def _axis(axes: Any, x: int, name: str, ticks: dict[float, str]) -> None:
    axes.plot([x, x], [0, 1], color="0.3", linewidth=0.9, zorder=2)
    axes.annotate(name, (x, 1), xytext=(0, 14), textcoords="offset points", ha="center", weight="bold")
    for height, text in ticks.items():
        axes.plot(x, height, marker="_", color="0.3", zorder=2)
        axes.annotate(
            text, (x, height), xytext=(7, 0), textcoords="offset points", va="center", fontsize="small", zorder=5,
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        )  # fmt: skip


def _scale(column: list[Any], text: Callable[[Any], str]) -> tuple[list[float], dict[float, str]]:
    """Positions of an axis's values in [0, 1], with None at ABSENT; and the texts of its ticks by position."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    present = [value for value in column if value is not None]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in present):
        texts = sorted({text(value) for value in present})
        at = {entry: i / (len(texts) - 1) if len(texts) > 1 else 0.5 for i, entry in enumerate(texts)}
        places = [ABSENT if value is None else at[text(value)] for value in column]
        ticks = {place: entry for entry, place in at.items()}
    else:
        low, high = min(present, default=0), max(present, default=0)
        logarithmic = low > 0 and math.log10(high / low) > 1.5

        def place(value: float) -> float:
            if high == low:
                return 0.5
            return math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)

        places = [ABSENT if value is None else place(value) for value in column]
        candidates = sorted(set(present))
        if len(candidates) > 6:
            locator = LogLocator(numticks=6) if logarithmic else MaxNLocator(5)
            candidates = [low, high, *(v for v in locator.tick_values(low, high) if low <= v <= high)]
        ticks = {}
        for value in candidates:
            if all(abs(place(value) - other) > 0.05 for other in ticks):
                ticks[place(value)] = text(value)
    return places, ticks | ({ABSENT: "-"} if None in column else {})
