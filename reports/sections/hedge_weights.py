"""Charts of a Hedge search, with the colours that its experts have elsewhere on the page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hedgerow.platform.runs.seed_groups import SeedGroup, experiment_key
from hedgerow.platform.ui.charts import Chart
from hedgerow.reports.sections.curves import SHOWN
from hedgerow.searchspaces.results.hedge_curves import HedgeCurves
from hedgerow.searchspaces.results.search_plots import hedge_charts

if TYPE_CHECKING:
    from hedgerow.searchspaces.results.finished_search import FinishedSearch


def hedge_figures(search: "FinishedSearch", learners: Sequence[SeedGroup], places: dict[str, int]) -> list[Chart]:
    """Charts of the weights, the losses, and the regret with its bound; empty for other searches.

    learners: results of the page's Hedge searches. places: colours of experiments by key; experts without a colour are
    added.
    """
    if not search.hedge:
        return []
    own_key = experiment_key(search.as_learner())
    name = next(learner.label for learner in learners if learner.key == own_key)
    curves, keys, labels = HedgeCurves.read(search.hedge, SHOWN), _keys(search), search.labels
    colours = dict(zip(curves.named, _colours([keys[i] for i in curves.named], places), strict=True))
    learner = name, places[own_key]
    charts = hedge_charts(curves, labels, colours, search.deployed_curves, search.spec.search.metric, learner)
    return list(charts.values())


def _keys(search: "FinishedSearch") -> list[str]:
    """Key of each expert; an expert that died before its first round gets its own key."""
    keys_by_name = {run.folder.name: experiment_key(run) for run in search.runs}
    return [keys_by_name.get(trial.name, f"{search.folder.path}/{trial.name}") for trial in search.trials]


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
