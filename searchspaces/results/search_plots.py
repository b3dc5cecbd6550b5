"""Figures of a search: Hedge's weights, losses and regret, and the configurations of a sweep with their results."""

import math
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.ui.plotting import COLOURS, new_figure, tidy
from hedgerow.platform.ui.series import Points
from hedgerow.searchspaces.results.fedex_theta import Distribution
from hedgerow.searchspaces.results.hedge_curves import HINDSIGHT, HedgeCurves, WeightCurves, score_kind
from hedgerow.searchspaces.results.trials import (
    Trial,
    final_value,
    number,
    ranked,
    searched_keys,
    short_names,
    show,
    trial_label,
    trial_labels,
)

# Black is reserved for Hedge itself.
EXPERTS = COLOURS[:6]
OTHERS = "#BDBDBD"
ABSENT = -0.14


def weight_areas(hedge_records: list[RoundRecord], labels: list[str]) -> Any:
    """Draws the experts' weights as a stacked area over the rounds (at least one)."""
    return _areas(HedgeCurves.read(hedge_records, len(EXPERTS)), labels, "weight")


def theta_areas(distribution: Distribution) -> Any:
    """Draws the probabilities of a distribution of FedEx as a stacked area over the rounds."""
    curves = WeightCurves.of(distribution.rounds, distribution.probabilities, len(EXPERTS))
    return _areas(curves, distribution.labels, "probability")


def _areas(curves: WeightCurves, labels: list[str], what: str) -> Any:
    figure, axes = _axes(grid=False)
    areas = axes.stackplot(
        curves.edges,
        [np.append(band, band[-1]) for band in curves.bands],
        labels=[_wrap(labels[i]) for i in curves.named] + ([_others(curves.others, labels)] if curves.others else []),
        colors=[*EXPERTS[: len(curves.named)], OTHERS],
        step="post",
        edgecolor="white",
        linewidth=0.4,
    )
    axes.set(xlabel="round", ylabel=what, xlim=(curves.edges[0], curves.edges[-1]), ylim=(0, 1))
    # The legend lists the areas from top to bottom.
    figure.legend(handles=areas[::-1], loc="outside right upper", frameon=False, fontsize="small")
    return figure


def loss_lines(hedge_records: list[RoundRecord], labels: list[str]) -> Any:
    """Draws every expert's loss by round, with Hedge's expected loss on top; a missing loss is a gap in the line."""
    hedge = HedgeCurves.read(hedge_records, len(EXPERTS))
    rounds, losses = hedge.rounds, hedge.losses
    figure, axes = _axes()
    marker = "o" if len(rounds) == 1 else None
    # Hedge is first in the legend, although it is drawn on top.
    axes.plot(rounds, hedge.hedge_loss, color="black", linewidth=2.4, marker=marker, label="Hedge, expected", zorder=3)
    for colour, i in zip(EXPERTS, hedge.named, strict=False):
        axes.plot(rounds, losses[:, i], color=colour, linewidth=1.0, marker=marker, label=_wrap(labels[i]), zorder=2)
    for i in hedge.others:
        label = _others(hedge.others, labels) if i == hedge.others[0] else None
        axes.plot(rounds, losses[:, i], color=OTHERS, linewidth=0.6, marker=marker, label=label, zorder=1)
    axes.set(xlabel="round", ylabel="loss")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return figure


def deployed_lines(curves: dict[str, Points], metric: str) -> Any:
    """Draws the curves of `hedge_curves.deployed_curves`: each policy's score, averaged over the rounds so far."""
    figure, axes = _axes()
    for colour, (name, points) in zip(COLOURS, curves.items(), strict=False):
        rounds, values = zip(*points, strict=True)
        style = {"color": colour, "linewidth": 1.8, "label": name, "marker": "o" if len(rounds) == 1 else None}
        if name == HINDSIGHT:
            style |= {"color": "black", "linestyle": "--"}
        axes.plot(rounds, values, **style)
    kind = score_kind(metric)
    axes.set(xlabel="round", ylabel=f"{kind}, mean over the rounds so far")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return figure


def regret_line(hedge_records: list[RoundRecord]) -> Any:
    """Draws Hedge's regret and its bound, summed over the rounds."""
    hedge = HedgeCurves.read(hedge_records, 0)
    rounds, regret, bound = hedge.rounds, hedge.regret, hedge.bound
    figure, axes = _axes()
    marker = "o" if len(rounds) == 1 else None
    axes.plot(rounds, regret, color=COLOURS[0], linewidth=2, marker=marker, label=f"regret: {regret[-1]:.3g}")
    label = "cumulative loss above the best expert's"
    finite = bound[np.isfinite(bound)]
    if len(finite):
        style = {"color": COLOURS[1], "linewidth": 1.6, "linestyle": "--", "marker": marker}
        axes.plot(rounds, bound, label=f"bound: {finite[-1]:.3g}", **style)
        size = float(np.abs(regret).max())
        if finite.max() > 4 * size > 0:
            # A much larger bound would flatten the regret: the axis is linear up to the regret, logarithmic above.
            axes.set_yscale("symlog", linthresh=size, linscale=1.5)
            _plain_ticks(axes, size, finite.max())
            label += f"\n(logarithmic beyond {size:.2g})"
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set(xlabel="round", ylabel=label)
    axes.legend(frameon=False, fontsize="small", loc="best")
    return figure


def parallel_lines(trials: list[Trial], metric: str, mode: str) -> Any:
    """Draws every trial as a line across one axis per searched key, ending at its final metric.

    Darker lines are better, and the best line is thick; a dashed grey line ends at "-": diverged or without the metric.
    An axis is logarithmic if its values span more than 1.5 decades, and categorical if they are not numbers.
    """
    from matplotlib import colormaps

    keys = searched_keys(trials)
    names = short_names(keys)
    order = ranked(trials, metric, mode)[::-1]
    finals = [_finite(final_value(trial.records, metric)) for trial in order]
    figure = new_figure(figsize=(max(6.0, 2.0 * len(keys) + 2), 5), layout="constrained")
    axes = figure.subplots()
    heights = []
    for x, key in enumerate([*keys, metric]):
        last = x == len(keys)
        column = finals if last else [trial.settings.get(key) for trial in order]
        places, ticks = _scale(column, (lambda value: number(metric, value)) if last else show)
        # Lines of trials with the same value would overlap: they fan out slightly, better trials higher.
        fan = 0.05 if len(set(places)) < len(places) and not last else 0.0
        heights.append([place + fan * (rank / len(order) - 0.5) for rank, place in enumerate(places)])
        _axis(axes, x, metric.replace("_", " ") if last else names[key], ticks)
    finite = [value for value in finals if value is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    worst, best = (low, high) if mode == "max" else (high, low)
    for rank, (value, *path) in enumerate(zip(finals, *heights, strict=True)):
        style: dict[str, Any] = {"color": "0.6", "linewidth": 0.9, "linestyle": "--"}
        if value is not None:
            shade = (value - worst) / (best - worst) if best != worst else 1.0
            style = {"color": colormaps["viridis_r"](0.1 + 0.9 * shade), "linewidth": 1.2}
            if rank == len(order) - 1:
                style["linewidth"] = 3.5
                title = f"best: {trial_label(order[-1], names)}, {number(metric, value)}"
                figure.suptitle(textwrap.fill(title, 14 * len(heights) + 30), fontsize="medium")
        axes.plot(range(len(path)), path, zorder=3 + rank / len(order), **style)
    axes.set(xlim=(-0.1, len(keys) + 0.4))
    axes.set_axis_off()
    return figure


def best_runs(
    trials: list[Trial], limit: int = 7, metric: str = "test_accuracy", mode: str = "max"
) -> dict[str, list[RoundRecord]]:
    """Records of the best trials by their label in a legend.

    The labels are the trials' names if a configuration is too long for a legend inside the axes.
    """
    labels = trial_labels(trials)
    if max(map(len, labels), default=0) > 24:
        labels = [trial.name for trial in trials]
    by_trial = {id(trial): label for trial, label in zip(trials, labels, strict=True)}
    best = [trial for trial in ranked(trials, metric, mode) if trial.records][:limit]
    # With a second line per trial for its training loss, the lines would be indistinguishable.
    return {
        by_trial[id(trial)]: [{key: value for key, value in r.items() if key != "train_loss"} for r in trial.records]
        for trial in best
    }


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


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _others(rest: list[int], labels: list[str]) -> str:
    return f"{len(rest)} others" if len(rest) > 1 else _wrap(labels[rest[0]])


def _wrap(label: str) -> str:
    return textwrap.fill(label, 36)


def _plain_ticks(axes: Any, size: float, top: float) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    ticks = [tick for tick in MaxNLocator(4).tick_values(min(0, axes.dataLim.y0), size) if tick <= size]
    ticks += [m * 10.0**e for e in range(-9, 10) for m in (1, 2, 5) if 1.2 * size < m * 10.0**e <= top]
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def _axes(grid: bool = True) -> tuple[Any, Any]:
    # Importing matplotlib takes a second, which a search does not need to wait for at its start.
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots()
    tidy(axes, grid)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.margins(x=0.01)
    return figure, axes
