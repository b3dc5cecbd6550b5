"""The sections of a report, in the order of the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hedgerow.platform.tracking.formatting import dropped_text, size_text
from hedgerow.reports.analysis.comparison import EXPLAINED, compare, default_metric, is_lower_better, spread_text
from hedgerow.reports.analysis.run_reader import ReportData, Run, Search
from hedgerow.reports.analysis.seed_groups import SeedGroup, differing_settings, group_by_seed
from hedgerow.reports.analysis.statistics import MeanStd
from hedgerow.reports.charts.charts import histogram
from hedgerow.reports.charts.html_table import seconds_text, table
from hedgerow.reports.sections.costs import ledger, timing
from hedgerow.reports.sections.curves import SHOWN, coloured, curves
from hedgerow.reports.sections.environment import environment, partitions
from hedgerow.reports.sections.fairness import fairness
from hedgerow.reports.sections.fedex_distributions import distribution_figures
from hedgerow.reports.sections.hedge_weights import hedge_figures, hedge_sentences, search_tables
from hedgerow.reports.sections.targets import targets
from hedgerow.searchspaces.results.trials import Trial as Configuration
from hedgerow.searchspaces.results.trials import final_value, number, ranked, show

HEDGE = "Hedge, expected"
"""Label of Hedge's own results, which are expected values under its weights."""


MOST_TILES = 3
"""Largest number of searches with a tile: a published table has a search for each line."""


@dataclass(frozen=True)
class PageSection:
    """A section of the page. name: its anchor. parts: charts, tables and collapsible texts, in order. alerts: warnings,
    in red.
    """

    name: str
    title: str
    texts: list[str]
    parts: list[Any]
    alerts: Sequence[str] = ()


@dataclass(frozen=True)
class Folded:
    """A collapsible text."""

    title: str
    text: str
    kind: str = "folded"


def sections(data: ReportData, groups: list[SeedGroup]) -> list[PageSection]:
    """Sections of the page, without empty ones."""
    best, learners = best_groups(groups), _learners(data)
    # An experiment has the same colour in every chart, by its key.
    places = {group.key: index for index, group in [*coloured(best), *enumerate(learners, SHOWN)]}
    candidates = [
        _summary(groups),
        *(_table(index, result) for index, result in enumerate(data.tables, start=1)),
        _curves(groups, best, learners),
        _targets(groups),
        _comparison(group_by_seed(data.compared)[0]),
        *(_search(index, search, learners, places) for index, search in enumerate(data.searches, start=1)),
        _fedex(best),
        _fairness(best),
        _partition(data),
        _shown_by_the_method(best),
        _ledger(groups, best),
        _time(groups, best),
        _environment(data),
        _files(groups),
    ]
    return [section for section in candidates if section is not None]


def best_groups(groups: list[SeedGroup]) -> list[SeedGroup]:
    """The best experiments, at most SHOWN, in their original order."""
    metric = default_metric(groups)
    by = {id(group.first.records): group for group in groups}
    order = ranked(
        [Configuration("", {}, g.first.records) for g in groups],
        metric,
        "min" if is_lower_better(groups, metric) else "max",
    )
    best = [by[id(trial.records)] for trial in order[:SHOWN]]
    return [group for group in groups if group in best]


def tiles(data: ReportData, groups: list[SeedGroup]) -> list[tuple[str, str, str]]:
    """Key figures of the page: name, value and remark.

    First the configuration that each search has selected, with its scores. Runs that are no trials have their best
    result: of trials, the best test result would be another selection, by test samples.
    """
    figures = [_selected(search) for search in data.searches[:MOST_TILES]]
    compared = [group for group in groups if group.first.search is None]
    metric = default_metric(compared)
    values = [(g, seed_mean(g, lambda run: final_value(run.records, metric))) for g in compared]
    scores = [(group, spread) for group, spread in values if spread is not None]
    runs = [run for group in groups for run in group.runs]
    if scores:
        sign = -1 if is_lower_better(compared, metric) else 1
        group, spread = max(scores, key=lambda pair: sign * pair[1].mean)
        seeds = f"{len(group.runs)} seeds" if len(group.runs) > 1 else f"seed {group.first.seed}"
        remark = group.label if len(groups) > 1 else seeds
        figures.append(
            (f"{'best ' if len(compared) > 1 else ''}{metric.replace('_', ' ')}", spread_text(spread, metric), remark)
        )
    figures.append(
        (
            "experiments" if len(groups) > 1 else "experiment",
            str(len(groups)),
            f"{len(runs)} run{'s' * (len(runs) > 1)}",
        )
    )
    rounds = sorted({run.summary["rounds"] for run in runs})
    figures.append(("rounds", show(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}–{rounds[-1]}", "each"))
    if size := sum(run.summary["bytes"] for run in runs):
        figures.append(("sent", size_text(size), "down and up, in total"))
    figures.append(("time", seconds_text(sum(run.summary["seconds"] for run in runs)), "of all rounds, in total"))
    if data.searches and (hedge := data.searches[0].finished.hedge):
        figures.append(("regret", show(float(hedge[-1]["regret"])), f"of Hedge, over {len(hedge)} rounds"))
    return figures


def _selected(search: Search) -> tuple[str, str, str]:
    """Tile of a search: the configuration that it has selected, with its validation and test scores."""
    finished = search.finished
    scores = {name: number(name, value) for name, value in finished.winner_scores.items()}
    text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in scores.items())
    if finished.plan.search.is_one_run:
        return "final model", finished.plan.experiment.algorithm.name, text
    return "selected configuration", finished.winner_label or "none", text or finished.obstacle


def seed_mean(group: SeedGroup, number_of: Callable[[Run], float | None]) -> MeanStd | None:
    """Mean and standard deviation over the seeds; None if a run has no finite value."""
    values = [number_of(run) for run in group.runs]
    numbers = [float(value) for value in values if value is not None and np.isfinite(value)]
    return MeanStd.of(numbers) if len(numbers) == len(values) else None


def _cell(group: SeedGroup, number_of: Callable[[Run], float | None], metric: str) -> str:
    spread = seed_mean(group, number_of)
    return "-" if spread is None else spread_text(spread, metric)


SUMMARY = {
    "test_accuracy": "test accuracy",
    "best_test_accuracy": "best",
    "test_loss": "test loss",
    "ctm": "CTM",
    "ltm": "LTM",
    "client_accuracy": "clients",
    "client_accuracy_worst10": "worst 10 %",
    "client_accuracy_highest": "highest",
    "client_accuracy_lowest": "lowest",
}


def _measures(summary: dict[str, Any]) -> dict[str, str]:
    """Columns of metrics other than the accuracy, with their headings."""
    if (main := summary.get("metric")) is None:
        return {}
    tests = {key: key.replace("_", " ") for key in summary if key.startswith("test_")}
    ends = {"": "clients", "_worst10": "worst 10 %", "_highest": "highest", "_lowest": "lowest"}
    return {f"best_test_{main}": "best"} | tests | {f"client_{main}{end}": heading for end, heading in ends.items()}


def _summary(groups: list[SeedGroup]) -> PageSection:
    rows = []
    stream = all(group.first.is_stream for group in groups)
    all_finished = all(run.is_finished for group in groups for run in group.runs)
    for group in groups:
        first = group.first.summary
        row = {"experiment": group.label}
        row |= {
            heading: _cell(group, lambda run, key=key: run.summary.get(key), key)  # type: ignore[misc]
            for key, heading in (SUMMARY | _measures(first)).items()
            if first.get(key) is not None and not (stream and key.endswith(("accuracy", "loss")))
        }
        row |= {
            name.replace("_", " "): _cell(group, lambda run, name=name: run.summary["report"].get(name), name)  # type: ignore[misc]
            for name in first["report"]
        }
        if "memory_vectors" in first:
            columns = {"models kept": "memory_vectors", "tasks kept": "memory_tasks"}
            row |= {heading: f"{group.mean(key):g}" for heading, key in columns.items()}
        if first["transmissions"]:
            row |= {"transmissions": f"{group.mean('transmissions'):g}", "sent": size_text(group.mean("bytes"))}
        row |= {"rounds": f"{group.mean('rounds'):g}", "seeds": ", ".join(map(str, group.seeds))}
        row["time"] = seconds_text(group.mean("seconds"))
        if not all_finished:
            row["status"] = ", ".join(dict.fromkeys(str(run.record.get("status", "-")) for run in group.runs))
        rows.append(row)
    texts = []
    if any(len(group.runs) > 1 for group in groups):
        texts.append("Means over seeds; results with ± one standard deviation.")
    for group in groups:
        if dropped := sum(run.summary["dropped"] for run in group.runs):
            texts.append(f"{group.label}: {dropped_text(dropped)}.")
        texts += [
            f"{group.label}, seed {run.seed}: {text}." for run in group.runs for text in run.record.get("diverged", [])
        ]
    return PageSection("summary", "Summary", texts, [table(rows)])


def _table(index: int, result: Any) -> PageSection:
    remarks = Folded("Remarks", "\n".join(f"- {remark}" for remark in result.remarks))
    return PageSection(f"table-{index}", result.title, [f"{result.explained}."], [table(result.rows), remarks])


def _learners(data: ReportData) -> list[SeedGroup]:
    """Results of Hedge searches, grouped over seeds, best first."""
    groups = group_by_seed(data.learners)[0]
    if len(groups) == 1:
        return [replace(groups[0], label=HEDGE)]
    best = best_groups(groups)
    ordered = [*best, *(group for group in groups if group not in best)]
    return [replace(group, label=f"{HEDGE}: {group.label}") for group in ordered]


def _curves(groups: list[SeedGroup], shown: list[SeedGroup], learners: list[SeedGroup]) -> PageSection:
    texts = [
        f"The best {len(some)} of {len(every)} {what}."
        for some, every, what in ((shown, groups, "experiments"), (learners[:SHOWN], learners, "Hedge searches"))
        if len(some) < len(every)
    ]
    if any(len(group.runs) > 1 for group in [*shown, *learners]):
        texts.append("Lines are means over seeds, bands ± one standard deviation.")
    return PageSection("curves", "Curves", texts, list(curves(shown, learners[:SHOWN])))


def _targets(groups: list[SeedGroup]) -> PageSection | None:
    parts = targets(groups)
    texts = [
        "Rounds, and transmissions in units of one FedAvg round, until the target is first reached; + if a seed did "
        "not reach it. Gain: transmissions relative to the cheapest experiment."
    ]
    return PageSection("targets", "Transmissions to target", texts, list(parts)) if parts else None


def _comparison(groups: list[SeedGroup]) -> PageSection | None:
    if len(groups) < 2:
        return None
    texts, parts = _differences(groups)
    keys = [
        {"key": str(row["key"])} | {g.label: show(row[g.label]) for g in groups} for row in differing_settings(groups)
    ]
    if keys:
        parts.append(table(keys, "Differences between the files"))
    return PageSection("comparison", "Which differences matter", texts, parts) if texts or parts else None


def _differences(groups: list[SeedGroup]) -> tuple[list[str], list[Any]]:
    """Output of `hedgerow compare`; empty if no run has been evaluated yet."""
    metric = default_metric(groups)
    if not any(metric in record for group in groups for run in group.runs for record in run.records):
        return [], []
    comparison = compare(groups, metric)
    # Pairs without a conclusion are left out.
    indices = [i for i, pair in enumerate(comparison.pairs) if pair.difference]
    if not indices:
        return comparison.notes, []
    rows, highlights = comparison.pair_rows(), [place for place, i in enumerate(indices) if comparison.pairs[i].matters]
    return [EXPLAINED, *comparison.notes], [
        table(comparison.rows(), "Experiments"),
        table([rows[i] for i in indices], "Differences, paired over seeds", highlights),
    ]


def _search(index: int, search: Any, learners: list[SeedGroup], places: dict[str, int]) -> PageSection:
    """Section of a search. Its trials also appear in the other sections."""
    parts: list[Any] = [*hedge_figures(search, learners, places), *search_tables(search)]
    finished = search.finished
    lines = [*finished.deployed_sentences, *finished.selection_lines] if finished.trials else []
    texts = [*hedge_sentences(search), *lines]
    title = f"Search {search.folder.name} ({finished.plan.search.kind})"
    alerts = [finished.test_note] if finished.test_note else []
    return PageSection(f"search-{index}", title, texts, parts, alerts)


def _fedex(shown: list[SeedGroup]) -> PageSection | None:
    parts = distribution_figures(shown)
    texts = ["Probability of each value in the draws of the clients, after each round."]
    return PageSection("fedex", "FedEx", texts, list(parts)) if parts else None


def _partition(data: ReportData) -> PageSection | None:
    texts, parts = partitions(data)
    return PageSection("partition", "Partition", texts, parts) if parts else None


def _ledger(groups: list[SeedGroup], shown: list[SeedGroup]) -> PageSection | None:
    parts = ledger(groups, shown)
    texts = [
        "Bytes that the protocol sends, not the traffic of the machine's network. Transmissions are in units of one "
        "FedAvg round. An exchange is a broadcast and its replies. Replies of clients that diverged are left out."
    ]
    return PageSection("ledger", "Communication", texts, parts) if parts else None


def _time(groups: list[SeedGroup], shown: list[SeedGroup]) -> PageSection:
    texts = [
        "Mean over seeds. Around: starting Ray, saving checkpoints and drawing figures. Trials of a search that run "
        "in one pack share the seconds of a round."
    ]
    return PageSection("time", "Time", texts, timing(groups, shown))


def _environment(data: ReportData) -> PageSection:
    texts, rows, commands = environment(data)
    folded = [Folded("Commands", "\n".join(commands))] if commands else []
    return PageSection("environment", "Environment", texts, [table(rows), *folded])


def _fairness(shown: list[SeedGroup]) -> PageSection | None:
    parts = fairness(shown)
    texts = [
        "Accuracy of the model on each client's own samples (held-out ones if the partition has some), at the last "
        "evaluation."
    ]
    return PageSection("fairness", "Clients", texts, parts) if parts else None


def _shown_by_the_method(shown: list[SeedGroup]) -> PageSection | None:
    """Histograms that an algorithm records, such as the weights of samples."""
    parts = [
        histogram(f"{title}: {group.label}", np.linspace(0, 1, len(next(iter(of.values()))) + 1).tolist(),
                  [(who, counts) for who, counts in of.items()], title, "samples")
        for group in shown
        for title, of in group.first.record.get("histograms", {}).items()
    ]  # fmt: skip
    return PageSection("histograms", "Histograms of the method", [], parts) if parts else None


def _files(groups: list[SeedGroup]) -> PageSection:
    """Resolved file of each experiment."""
    head: Sequence[SeedGroup] = groups[:20]
    texts = ["Resolved files, with every default filled in. Each can be run again as it is."]
    if len(groups) > len(head):
        texts.append(f"The first {len(head)} of {len(groups)}.")
    parts = [Folded(f"{g.label} (seed {g.first.seed})", g.first.folder.experiment.read_text()) for g in head]
    return PageSection("files", "Experiment files", texts, list(parts))
