"""A search: Hedge's weights, losses and regret, and the results of every trial."""

from collections.abc import Sequence

import numpy as np

from hedgerow.platform.ui.series import Series
from hedgerow.reports.analysis.run_reader import Search
from hedgerow.reports.analysis.seed_groups import SeedGroup, experiment_key
from hedgerow.reports.charts.charts import Chart, areas, lines
from hedgerow.reports.charts.html_table import HtmlTable, table
from hedgerow.reports.sections.curves import SHOWN
from hedgerow.searchspaces.results.hedge_curves import HedgeCurves
from hedgerow.searchspaces.results.search_table import hedge_sentences as summary_text
from hedgerow.searchspaces.results.trials import display, trial_labels


def hedge_figures(search: Search, learners: Sequence[SeedGroup], places: dict[str, int]) -> list[Chart]:
    """Weights, losses, and the regret with its bound; none for other searches.

    learners: the results of the page's Hedge searches. places: the colours of experiments by key; experts without a
    colour are added.
    """
    hedge = search.finished.hedge
    if not hedge:
        return []
    itself = experiment_key(search.as_learner())
    name = next(learner.label for learner in learners if learner.key == itself)
    curves, keys, labels = HedgeCurves.read(hedge, SHOWN), _keys(search), trial_labels(search.finished.trials)
    rest, colours = len(curves.others), _colours([keys[i] for i in curves.named], places)
    names = [labels[i] for i in curves.named] + [f"{rest} other{'s' * (rest > 1)}"] * (rest > 0)
    bands = [(label, band.tolist()) for label, band in zip(names, curves.bands, strict=True)]

    def series(label: str, values: np.ndarray, index: int, strong: bool = False) -> Series:
        return Series(label, list(zip(curves.rounds, values.tolist(), strict=True)), [], index, strong)

    losses = [series(labels[i], curves.losses[:, i], place) for place, i in zip(colours, curves.named, strict=True)] + [
        series(name, curves.hedge_loss, places[itself], strong=True)
    ]
    regret = [series("regret", curves.regret, 0), series("bound", curves.bound, 1)]
    charts = [
        areas("Hedge's weights by round", curves.rounds, bands, "weight", colours),
        lines("Losses by round", losses, "round", "loss"),
        lines(
            "Hedge's regret by round", regret, "round", "summed loss above the best expert's",
            note="Regret: Hedge's summed loss above that of the best expert in hindsight. Bound: its upper limit.",
        ),
    ]  # fmt: skip
    return [chart for chart in charts if chart is not None]


def _keys(search: Search) -> list[str]:
    """The key of each expert; an expert that died before its first round gets a key of its own."""
    begun = {run.folder.name: experiment_key(run) for run in search.trials}
    return [begun.get(trial.name, f"{search.folder.path}/{trial.name}") for trial in search.finished.trials]


def _colours(keys: Sequence[str], places: dict[str, int]) -> list[int]:
    """The colours that experts have elsewhere on the page; the others get, and keep, colours that are free."""
    found: dict[int, int] = {}
    for i, key in enumerate(keys):
        if key in places:
            found.setdefault(places[key], i)
    rest = [i for i in range(len(keys)) if i not in found.values()]
    free = [index for index in range(SHOWN) if index not in found]
    for i, index in zip(rest, free, strict=False):
        found[index] = i
        places.setdefault(keys[i], index)
    return sorted(found, key=lambda index: found[index])


def search_tables(search: Search) -> list[HtmlTable]:
    """Every trial, the best first, and the best trial by each metric."""
    rows, best = search.finished.rows, search.finished.best_rows
    return [table(display(rows), "Trials, best first")] + ([table(display(best), "Best by metric")] if best else [])


def hedge_sentences(search: Search) -> list[str]:
    """The results of Hedge in words."""
    if not search.finished.hedge:
        return []
    return summary_text(search.finished.summary).splitlines()
