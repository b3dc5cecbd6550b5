"""Results of a search: Hedge's weights, losses and regret, and every trial."""

from collections.abc import Sequence

import numpy as np

from hedgerow.platform.ui.series import Series
from hedgerow.reports.analysis.run_reader import Search
from hedgerow.reports.analysis.seed_groups import SeedGroup, experiment_key
from hedgerow.reports.charts.charts import Chart, areas, lines
from hedgerow.reports.charts.html_table import HtmlTable, table
from hedgerow.reports.sections.curves import SHOWN
from hedgerow.searchspaces.results.hedge_curves import HINDSIGHT, HedgeCurves, WeightCurves, score_kind
from hedgerow.searchspaces.results.search_table import hedge_sentences as summary_text
from hedgerow.searchspaces.results.trials import display, trial_labels


def hedge_figures(search: Search, learners: Sequence[SeedGroup], places: dict[str, int]) -> list[Chart]:
    """Charts of the weights, the losses, and the regret with its bound; empty for other searches.

    learners: results of the page's Hedge searches. places: colours of experiments by key; experts without a colour are
    added.
    """
    hedge = search.finished.hedge
    if not hedge:
        return []
    own_key = experiment_key(search.as_learner())
    name = next(learner.label for learner in learners if learner.key == own_key)
    curves, keys, labels = HedgeCurves.read(hedge, SHOWN), _keys(search), trial_labels(search.finished.trials)
    colours = _colours([keys[i] for i in curves.named], places)

    def series(label: str, values: np.ndarray, index: int, strong: bool = False) -> Series:
        return Series(label, list(zip(curves.rounds, values.tolist(), strict=True)), [], index, strong)

    losses = [series(labels[i], curves.losses[:, i], place) for place, i in zip(colours, curves.named, strict=True)] + [
        series(name, curves.hedge_loss, places[own_key], strong=True)
    ]
    regret = [series("regret", curves.regret, 0), series("bound", curves.bound, 1)]
    charts = [
        stacked("Hedge's weights by round", curves, labels, "weight", colours),
        lines("Losses by round", losses, "round", "loss"),
        lines(
            "Hedge's regret by round", regret, "round", "summed loss above the best expert's",
            note="Regret: Hedge's summed loss above that of the best expert in hindsight. Bound: its upper limit.",
        ),
    ]  # fmt: skip
    deployed = [
        Series(label, points, [], place, label == HINDSIGHT)
        for place, (label, points) in enumerate(search.finished.deployed_curves.items())
    ]
    kind = score_kind(search.finished.plan.search.metric)
    charts.append(lines("Deployed policies by round", deployed, "round", f"{kind}, mean over the rounds so far"))
    return [chart for chart in charts if chart is not None]


def stacked(
    title: str, curves: WeightCurves, labels: list[str], y_label: str, colours: Sequence[int] = range(SHOWN)
) -> Chart:
    """Stacked areas of weights over the rounds. labels: of all of them. colours: of the named ones."""
    other_count = len(curves.others)
    names = [labels[i] for i in curves.named] + [f"{other_count} other{'s' * (other_count > 1)}"] * (other_count > 0)
    bands = [(label, band.tolist()) for label, band in zip(names, curves.bands, strict=True)]
    return areas(title, curves.rounds, bands, y_label, colours)


def _keys(search: Search) -> list[str]:
    """Key of each expert; an expert that died before its first round gets its own key."""
    keys_by_name = {run.folder.name: experiment_key(run) for run in search.trials}
    return [keys_by_name.get(trial.name, f"{search.folder.path}/{trial.name}") for trial in search.finished.trials]


def _colours(keys: Sequence[str], places: dict[str, int]) -> list[int]:
    """Colours that the experts have elsewhere on the page; other experts get, and keep, free colours."""
    experts_by_colour: dict[int, int] = {}
    for i, key in enumerate(keys):
        if key in places:
            experts_by_colour.setdefault(places[key], i)
    rest = [i for i in range(len(keys)) if i not in experts_by_colour.values()]
    free = [index for index in range(SHOWN) if index not in experts_by_colour]
    for i, index in zip(rest, free, strict=False):
        experts_by_colour[index] = i
        places.setdefault(keys[i], index)
    return sorted(experts_by_colour, key=lambda index: experts_by_colour[index])


def search_tables(search: Search) -> list[HtmlTable]:
    """Tables of every trial, best first, and of the best trial by each metric."""
    rows, best = search.finished.rows, search.finished.best_rows
    return [table(display(rows), "Trials, best first")] + ([table(display(best), "Best by metric")] if best else [])


def hedge_sentences(search: Search) -> list[str]:
    """Hedge's results in words."""
    if not search.finished.hedge:
        return []
    return summary_text(search.finished.summary).splitlines()
