"""The sections of a report, in the order of the page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hedgerow.algorithms.slots.fedex import FedEx
from hedgerow.platform.common.numbers import TARGET, TRANSMISSIONS, MeanStd, name_of, number, unit_of
from hedgerow.platform.common.table import Column, Table
from hedgerow.platform.runs.comparison import EXPLAINED, compare, default_metric, is_lower_better
from hedgerow.platform.runs.seed_groups import SeedGroup, differing_settings, group_by_seed
from hedgerow.platform.tracking.formatting import dropped_warning, scores_text, summary_columns, summary_row
from hedgerow.platform.tracking.summary import final_value
from hedgerow.platform.ui.charts import Chart
from hedgerow.platform.ui.plots import histogram_charts
from hedgerow.reports.sections.costs import ledger, timing
from hedgerow.reports.sections.curves import SHOWN, coloured, coloured_learners, curves
from hedgerow.reports.sections.environment import environment, partitions
from hedgerow.reports.sections.fairness import fairness
from hedgerow.reports.sections.hedge_weights import hedge_figures
from hedgerow.reports.sections.report_data import ReportData
from hedgerow.reports.sections.targets import targets
from hedgerow.searchspaces.results.fedex_theta import distributions
from hedgerow.searchspaces.results.search_plots import theta_chart
from hedgerow.searchspaces.results.search_table import hedge_sentences
from hedgerow.searchspaces.results.trials import WINNER, ranked, trial_table
from hedgerow.searchspaces.results.trials import Trial as Configuration
from hedgerow.searchspaces.spaces.smoothing import score_of

if TYPE_CHECKING:
    from hedgerow.searchspaces.results.finished_search import FinishedSearch

HEDGE = "Hedge, expected"
"""Label of Hedge's own results, which are expected values under its weights."""


TARGETS = (
    "Rounds and transmissions until the target is first reached. +: a seed did not reach it, and counts with all that "
    "it spent, so that the mean is a lower limit. -: the runs do not have the metric."
)
FEDEX = "Probability of each value in the draws of the clients, after each round."
CLIENTS = (
    "Accuracy of the model on each client's own samples (held-out ones if the partition has some), at the last "
    "evaluation."
)
COMMUNICATION = (
    "Bytes that the protocol sends, not the traffic of the machine's network. An exchange is a broadcast and "
    "its replies. Replies of clients that diverged are left out."
)
TIME = (
    "Mean over seeds. Time: of all rounds. Around: starting Ray, saving checkpoints and drawing figures. Trials of a "
    "search that run in one pack share the seconds of a round."
)
"""Explanations of sections."""

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
    """Sections of the page, without empty ones. The winners of searches are marked, and have lines of their own."""
    groups, learners = marked(groups, data), _learners(data)
    best = best_groups(groups, data)
    # Of a search, the winner alone has charts of its own.
    alone = [group for group in best if group.first.search is None or group.label.endswith(WINNER)]
    # An experiment has the same colour in every chart, by its key.
    places = {group.key: index for index, group in [*coloured(best), *coloured_learners(learners)]}
    folders, versions, commands = environment(data)
    environment_parts = [Table(folders), *([Folded("Commands", "\n".join(commands))] if commands else [])]
    candidates = [
        _summary(groups),
        *(_table(index, result) for index, result in enumerate(data.tables, start=1)),
        _curves(groups, best, learners),
        PageSection("targets", "Transmissions to target", [TARGETS], targets(groups)),
        _comparison(marked(group_by_seed(data.compared)[0], data)),
        *(_search(index, search, learners, places) for index, search in enumerate(data.searches, start=1)),
        PageSection("fedex", "FedEx", [FEDEX], [chart for group in best for chart in _distributions(group)]),
        PageSection("fairness", "Clients", [CLIENTS, *_left_out(best, groups)], fairness(best, alone)),
        PageSection("partition", "Partition", *partitions(data)),
        PageSection("histograms", "Histograms of the method", [], [c for g in alone for c in _histograms(g)]),
        PageSection("ledger", "Communication", [COMMUNICATION], ledger(groups, best)),
        PageSection("time", "Time", [TIME], timing(groups, best)),
        PageSection("environment", "Environment", versions, environment_parts),
        _files(groups),
    ]
    return [section for section in candidates if section.parts]


def marked(groups: list[SeedGroup], data: ReportData) -> list[SeedGroup]:
    """The experiments, with a mark on the labels of those that a search has chosen among several."""
    winners = {search.folder.path / "experts" / search.winner_name for search in data.searches}
    return [
        replace(group, label=group.label + WINNER) if any(run.folder.path in winners for run in group.runs) else group
        for group in groups
    ]


def best_groups(groups: list[SeedGroup], data: ReportData) -> list[SeedGroup]:
    """The winners of searches and the best other experiments, at most SHOWN, in their original order.

    Trials of searches by the same metric are ordered by it, as test scores select nothing.
    """
    metrics = {search.spec.search.metric for search in data.searches}
    are_trials = all(group.first.search for group in groups) and len(metrics) == 1
    metric = metrics.pop() if are_trials else default_metric(groups)
    mode, smooth = "min" if is_lower_better(groups, metric) else "max", 0.0
    if are_trials:
        search = data.searches[0].spec.search
        mode, smooth = search.mode, search.smooth
    named = [_over_seeds(str(i), group, metric, smooth) for i, group in enumerate(groups)]
    order = [groups[int(one.name)] for one in ranked(named, metric, mode)]
    every = sorted(order, key=lambda group: not group.label.endswith(WINNER))
    best = every[:SHOWN]
    return [group for group in groups if group in best]


def _over_seeds(name: str, group: SeedGroup, metric: str, smooth: float) -> Configuration:
    """Mean scores of an experiment over its seeds, for `ranked`: one that failed or diverged with a seed comes last."""
    windows = {"validation_loss": 0.0, f"{metric.partition('_')[0]}_loss": 0.0, metric: smooth}
    scores = {
        key: MeanStd.known([score_of(run.records, key, window) for run in group.runs])
        for key, window in windows.items()
    }
    means = {key: score.mean for key, score in scores.items() if score}
    has_failed = any(run.record.get("status") == "failed" for run in group.runs)
    diverged = [text for run in group.runs for text in run.record.get("diverged", [])]
    return Configuration(name, {}, [means], "failed" if has_failed else "", "; ".join(diverged))


def _left_out(shown: list[SeedGroup], every: list[SeedGroup], what: str = "experiments") -> list[str]:
    """Sentence about the experiments that charts leave out."""
    return [f"The best {len(shown)} of {len(every)} {what}."] if len(shown) < len(every) else []


def tiles(data: ReportData, groups: list[SeedGroup]) -> list[tuple[str, str, str]]:
    """Key figures of the page: name, value and remark.

    First the configuration that each search has selected, with its scores. Runs that are no trials have their best
    result: of trials, the best test result would be another selection, by test samples.
    """
    figures = [_selected(search) for search in data.searches[:MOST_TILES]]
    compared = [group for group in groups if group.first.search is None]
    metric = default_metric(compared)
    values = [(g, MeanStd.known([final_value(run.records, metric) for run in g.runs])) for g in compared]
    scores = [(group, spread) for group, spread in values if spread is not None]
    runs = [run for group in groups for run in group.runs]
    if scores:
        sign = -1 if is_lower_better(compared, metric) else 1
        group, spread = max(scores, key=lambda pair: sign * pair[1].mean)
        seeds = f"{len(group.runs)} seeds" if len(group.runs) > 1 else f"seed {group.first.seed}"
        remark = group.label if len(groups) > 1 else seeds
        figures.append(
            (
                f"{'best ' if len(compared) > 1 else ''}{name_of(metric)}",
                number(spread, unit_of(metric)),
                remark,
            )
        )
    figures.append(
        (
            "experiments" if len(groups) > 1 else "experiment",
            str(len(groups)),
            f"{len(runs)} run{'s' * (len(runs) > 1)}",
        )
    )
    rounds = sorted({run.summary["rounds"] for run in runs})
    figures.append(("rounds", number(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}–{rounds[-1]}", "each"))
    if size := sum(run.summary["bytes"] for run in runs):
        figures.append(("sent", number(size, "B"), "down and up, in total"))
    figures.append(("time", number(sum(run.summary["seconds"] for run in runs), "s"), "of all rounds, in total"))
    if len(data.searches) == 1 and (hedge := data.searches[0].hedge):
        figures.append(("regret", number(float(hedge[-1]["regret"]), "loss"), f"of Hedge, over {len(hedge)} rounds"))
    return figures


def _selected(search: "FinishedSearch") -> tuple[str, str, str]:
    """Tile of a search: the configuration that it has selected, with its validation and test scores."""
    text = scores_text(search.winner_scores)
    if search.spec.search.is_one_run:
        return "final model", search.spec.experiment.algorithm.name, text
    return "selected configuration", search.winner_label or "none", text or search.obstacle


COSTS = ("memory_vectors", "memory_tasks", "transmissions", "bytes", "rounds", "seconds", "simulated_seconds")
"""Entries of a summary whose mean over seeds is shown without a deviation."""


def _summary(groups: list[SeedGroup]) -> PageSection:
    rows = []
    known = {
        name
        for group in groups
        for run in group.runs
        for name, value in summary_row(run.summary).items()
        if value is not None
    }
    all_finished = all(run.is_finished for group in groups for run in group.runs)
    for group in groups:
        results = [summary_row(run.summary) for run in group.runs]
        row: dict[str, Any] = {"experiment": group.label}
        for name in results[0]:
            unused = name in ("transmissions", "bytes") and not results[0]["transmissions"]
            # The best of one evaluation is the last.
            unused |= name.startswith("best_") and group.first.values["evaluation"].get("test") == "end"
            if name in known and not (unused or TARGET.fullmatch(name)):
                row[name] = group.mean(name) if name in COSTS else MeanStd.known([one.get(name) for one in results])
        row["seeds"] = len(group.seeds)
        if not all_finished:
            row["status"] = ", ".join(dict.fromkeys(str(run.record.get("status", "-")) for run in group.runs))
        rows.append(row)
    columns = [column for group in groups for column in summary_columns(group.first.summary)]
    if any(group.first.search for group in groups):
        # The best of many trials by a test score would be a selection by test samples.
        columns = [replace(column, better="") for column in columns]
    texts = []
    if any("transmissions" in row for row in rows):
        texts.append(f"{TRANSMISSIONS[0].upper()}{TRANSMISSIONS[1:]}.")
    if any(len(group.runs) > 1 for group in groups):
        texts.append("Means over seeds; results with ± one standard deviation.")
    for group in groups:
        if dropped := sum(run.summary["dropped"] for run in group.runs):
            texts.append(f"{group.label}: {dropped_warning(dropped)}.")
        texts += [
            f"{group.label}, seed {run.seed}: {text}." for run in group.runs for text in run.record.get("diverged", [])
        ]
    winners = [i for i, group in enumerate(groups) if group.label.endswith(WINNER)]
    return PageSection("summary", "Summary", texts, [Table(rows, columns=columns, marked=winners)])


def _table(index: int, result: Any) -> PageSection:
    remarks = Folded("Remarks", "\n".join(f"- {remark}" for remark in result.remarks))
    return PageSection(f"table-{index}", result.title, [f"{result.explained}."], [Table(result.rows), remarks])


def _learners(data: ReportData) -> list[SeedGroup]:
    """Results of Hedge searches, grouped over seeds, best first."""
    groups = group_by_seed(data.learners)[0]
    if len(groups) == 1:
        return [replace(groups[0], label=HEDGE)]
    best = best_groups(groups, ReportData())
    ordered = [*best, *(group for group in groups if group not in best)]
    return [replace(group, label=f"{HEDGE}: {group.label}") for group in ordered]


def _curves(groups: list[SeedGroup], shown: list[SeedGroup], learners: list[SeedGroup]) -> PageSection:
    texts = _left_out(shown, groups) + _left_out(learners[:SHOWN], learners, "Hedge searches")
    if any(len(group.runs) > 1 for group in [*shown, *learners]):
        texts.append("Lines are means over seeds, bands ± one standard deviation.")
    return PageSection("curves", "Curves", texts, list(curves(shown, learners[:SHOWN])))


def _comparison(groups: list[SeedGroup]) -> PageSection:
    """Output of `hedgerow compare`, if any run has been evaluated, and the keys in which the files differ."""
    section = PageSection("comparison", "Which differences matter", [], [])
    metric = default_metric(groups)
    if len(groups) < 2:
        return section
    if any(metric in record for group in groups for run in group.runs for record in run.records):
        comparison = compare(groups, metric)
        pairs = comparison.pair_table(conclusive=True)
        section.texts.extend([EXPLAINED, *comparison.notes] if pairs.rows else comparison.notes)
        section.parts.extend([comparison.table, pairs] if pairs.rows else [])
    if keys := differing_settings(groups):
        columns = [Column(group.label, group.label, "setting") for group in groups]
        section.parts.append(Table(keys, "Differences between the files", columns))
    return section


def _search(index: int, search: "FinishedSearch", learners: list[SeedGroup], places: dict[str, int]) -> PageSection:
    """Section of a search. Its trials also appear in the other sections."""
    tables = [(search.rows, "Trials, best first"), (search.best_rows, "Best by metric")]
    trials = [trial_table(rows, title, winner=search.winner_name) for rows, title in tables if rows]
    parts: list[Any] = [*hedge_figures(search, learners, places), *trials]
    lines = [*search.deployed_sentences, *search.work_sentences, *search.selection_lines] if search.trials else []
    texts = [*(hedge_sentences(search.summary).splitlines() if search.hedge else []), *lines]
    title = f"Search {search.folder.name} ({search.spec.search.kind})"
    alerts = [search.test_selection_warning] if search.test_selection_warning else []
    return PageSection(f"search-{index}", title, texts, parts, alerts)


def _distributions(group: SeedGroup) -> list[Chart]:
    """Stacked areas of each distribution of FedEx over the rounds, of the first seed."""
    if not (section := group.first.values.get("fedex")):
        return []
    found = distributions(FedEx.model_validate(section), group.first.records)
    return [theta_chart(one, f": {group.label}, seed {group.first.seed}") for one in found]


def _histograms(group: SeedGroup) -> list[Chart]:
    """Histograms that an algorithm records, such as the weights of samples."""
    return histogram_charts(group.label, group.first.record.get("histograms", {}))


def _files(groups: list[SeedGroup]) -> PageSection:
    """Resolved file of each experiment."""
    head: Sequence[SeedGroup] = groups[:20]
    texts = ["Resolved files, with every default filled in. Each can be run again as it is."]
    if len(groups) > len(head):
        texts.append(f"The first {len(head)} of {len(groups)}.")
    parts = [Folded(f"{g.label} (seed {g.first.seed})", g.first.folder.experiment.read_text()) for g in head]
    return PageSection("files", "Experiment files", texts, list(parts))
