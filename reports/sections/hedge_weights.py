"""What a report says of a search: Hedge's weights, losses and regret, and what each trial came to."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hedgerow.reports.analysis.run_reader import Search
from hedgerow.reports.analysis.seed_groups import Group, experiment_key
from hedgerow.reports.charts.charts import Figure, areas, lines
from hedgerow.reports.charts.html_table import Table, table
from hedgerow.reports.charts.series import Series
from hedgerow.reports.sections.curves import SHOWN


def hedge_figures(search: Search, learners: Sequence[Group], places: dict[str, int]) -> list[Figure]:
    """Of a Hedge search: weights, losses, regret against its bound.

    learners: what the page's Hedge searches achieved. places: the colours of its experiments, by their keys; those of
    experts that have none yet are added.
    """
    hedge = search.finished.hedge
    if not hedge:
        return []
    itself = experiment_key(search.as_learner())
    name = next(learner.label for learner in learners if learner.key == itself)
    labels, rounds = _labels(search), [record["round"] for record in hedge]
    weights = np.array([record["weights"] for record in hedge], dtype=float)
    order = np.argsort(-(weights.mean(0) + weights[-1]), kind="stable").tolist()
    own, rest = order[:SHOWN], order[SHOWN:]
    keys = _keys(search)
    colours = _colours([keys[i] for i in own], places)
    bands = [(labels[i], weights[:, i].tolist()) for i in own]
    if rest:
        bands.append((f"{len(rest)} other{'s' * (len(rest) > 1)}", weights[:, rest].sum(1).tolist()))
    hedge_loss = Series(name, _line(rounds, [r["hedge_loss"] for r in hedge]), [], places[itself], strong=True)
    losses = [
        Series(labels[i], _line(rounds, [record["losses"][i] for record in hedge]), [], place)
        for place, i in zip(colours, own, strict=True)
    ]
    regret = [
        Series("regret", _line(rounds, [record["regret"] for record in hedge]), [], 0),
        Series("bound", _line(rounds, [record["bound"] for record in hedge]), [], 1),
    ]
    drawn = [
        areas("Hedge's weights by round", rounds, bands, "weight", colours),
        lines("Losses by round", [*losses, hedge_loss], "round", "loss"),
        lines(
            "Hedge's regret by round", regret, "round", "summed loss above the best expert's",
            note="Regret: what Hedge paid above the best expert in hindsight. Bound: what it cannot exceed.",
        ),
    ]  # fmt: skip
    return [figure for figure in drawn if figure is not None]


def _keys(search: Search) -> list[str]:
    """Of each expert; one that has died before its first round is an experiment of its own."""
    begun = {run.folder.name: experiment_key(run) for run in search.trials}
    return [begun.get(trial.name, f"{search.folder.path}/{trial.name}") for trial in search.finished.trials]


def _colours(keys: Sequence[str], places: dict[str, int]) -> list[int]:
    """The colours that experts have elsewhere in the page; others take, and keep, what is free among these."""
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


def search_tables(search: Search) -> list[Table]:
    """Every trial, best first; and the best by each metric."""
    from hedgerow.searchspaces.results.trials import display

    rows, best = search.finished.rows, search.finished.best_rows
    return [table(display(rows), "Trials, best first")] + ([table(display(best), "Best by metric")] if best else [])


def hedge_sentences(search: Search) -> list[str]:
    """What Hedge achieved, in words."""
    if not search.finished.hedge:
        return []
    from hedgerow.searchspaces.results.search_table import hedge_sentences as told

    return told(search.finished.summary).splitlines()


def _labels(search: Search) -> list[str]:
    from hedgerow.searchspaces.results.trials import trial_labels

    return trial_labels(search.finished.trials)


def _line(rounds: Sequence[int], values: Sequence[Any]) -> list[tuple[float, float]]:
    return [(float(n), float(v)) for n, v in zip(rounds, values, strict=True) if v is not None]
