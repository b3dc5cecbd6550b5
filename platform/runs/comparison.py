"""Compares experiments, paired over seeds: differences, confidence intervals and corrected p-values."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import click

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.numbers import TRANSMISSIONS, MeanStd, difference, name_of, number, p_value, unit_of
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.common.table import Column, Table
from hedgerow.platform.config.measures_section import mode_of
from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.runs.seed_groups import SeedGroup, differing_settings, group_by_seed
from hedgerow.platform.runs.statistics import Difference, holm, paired
from hedgerow.platform.tracking.summary import final_value, first_to, target_label
from hedgerow.platform.ui.command_output import CommandOutput

SETTING_KEYS = ("task.", "rounds", "clients_per_round", "evaluation", "simulation", "schedule", "privacy")
"""Keys of the file that are not part of a method. If they differ, the comparison covers more than methods."""

LEVEL = 0.05
"""Significance level: a difference matters if p, after Holm's correction, is below it."""

MANY = 6
"""Largest number of experiments that are compared pairwise. With more, each is compared only with the best one.

The same numbers select the best one, so p is corrected as if every pair had been compared.
"""


@dataclass(frozen=True)
class Quantity:
    """A number per run that is compared; None if the run does not have it.

    values: group -> seed -> number. upward: whether larger is better; None: unknown. costs: whether it is a cost:
    smaller is better, and ratios are compared.
    """

    name: str
    metric: str
    values: list[dict[int, float | None]]
    upward: bool | None
    costs: bool = False

    @property
    def key(self) -> str:
        """Name in JSON documents."""
        return self.name.replace(" %", "%")

    def known(self, group: int) -> list[float]:
        return [value for value in self.values[group].values() if value is not None]

    def complete(self, group: int) -> bool:
        return len(self.known(group)) == len(self.values[group])

    def spread(self, group: int) -> MeanStd | None:
        """Mean and deviation over all seeds; None if a seed has no number, since the mean of the others is biased."""
        return MeanStd.of(self.known(group)) if self.complete(group) else None

    def cell(self, group: int) -> MeanStd | str:
        """Mean and deviation, or the number of seeds that have a value."""
        spread = self.spread(group)
        if spread is None and len(self.values[group]) == 1:
            return "not reached" if self.costs else "-"
        if spread is None:
            return f"{len(self.known(group))} of {len(self.values[group])} seeds{' reach it' * self.costs}"
        return spread


@dataclass(frozen=True)
class Pair:
    """Two experiments and one quantity. difference: b - a, of logarithms for costs. p: after Holm's correction."""

    quantity: Quantity
    a: int
    b: int
    seeds: list[int]
    difference: Difference | None
    p: float | None
    says: str

    @property
    def matters(self) -> bool:
        return self.p is not None and self.p < LEVEL

    def text(self) -> str:
        """The difference, with its interval if it has one: see `numbers.difference`."""
        if (d := self.difference) is None:
            return "-"
        return difference(d.mean, d.low, d.high, unit_of(self.quantity.metric), ratio=self.quantity.costs)


@dataclass(frozen=True)
class Comparison:
    """Experiments, the compared quantities, and every compared pair."""

    groups: list[SeedGroup]
    metric: str
    quantities: list[Quantity]
    pairs: list[Pair]
    notes: list[str]

    @property
    def table(self) -> Table:
        """One row per experiment: mean ± standard deviation over its seeds."""
        rows = [
            {"experiment": group.label, "seeds": len(group.runs)}
            | {quantity.name: quantity.cell(i) for quantity in self.quantities}
            for i, group in enumerate(self.groups)
        ]
        return Table(rows, "Experiments", [Column(one.name, unit=unit_of(one.metric)) for one in self.quantities])

    def pair_table(self, conclusive: bool = False) -> Table:
        """One row per pair and quantity; differences that matter are marked. conclusive: without other pairs."""
        pairs = [pair for pair in self.pairs if pair.difference or not conclusive]
        rows = [
            {
                "quantity": pair.quantity.name,
                "A": self.groups[pair.a].label,
                "B": self.groups[pair.b].label,
                "seeds": len(pair.seeds),
                "B against A": pair.text(),
                "p": None if pair.p is None else p_value(pair.p),
                "p (signs)": pair.difference and p_value(pair.difference.flips),
                "outcome": pair.says,
            }
            for pair in pairs
        ]
        marked = [i for i, pair in enumerate(pairs) if pair.matters]
        return Table(rows, "Differences, paired over seeds", marked=marked)

    def as_dict(self) -> dict[str, Any]:
        """The JSON document of `hedgerow compare --json`."""
        return {
            "metric": self.metric,
            "groups": [
                {
                    "label": group.label,
                    "seeds": group.seeds,
                    "runs": [str(run.folder.path) for run in group.runs],
                    "quantities": {
                        quantity.key: {
                            "values": [quantity.values[i][seed] for seed in group.seeds],
                            **(asdict(spread) if (spread := quantity.spread(i)) else {"mean": None, "std": None}),
                        }
                        for quantity in self.quantities
                    },
                }
                for i, group in enumerate(self.groups)
            ],
            "pairs": [
                {
                    "quantity": pair.quantity.key,
                    "a": self.groups[pair.a].label,
                    "b": self.groups[pair.b].label,
                    "seeds": pair.seeds,
                    "scale": "log" if pair.quantity.costs else "linear",
                    "difference": pair.difference and {**asdict(pair.difference), "least_flips": pair.difference.least},
                    "p_holm": pair.p,
                    "matters": pair.matters,
                    "says": pair.says,
                }
                for pair in self.pairs
            ],
            "notes": self.notes,
        }


def compare(groups: list[SeedGroup], metric: str | None = None, targets: Sequence[float] | None = None) -> Comparison:
    """Compare at least two experiments.

    metric: None: the metric of their targets. targets: values of the metric; None: the targets in their files. Raises
    UserError if no run has the metric, or if it has targets and is neither to be minimised nor to be maximised.
    """
    metric = metric or default_metric(groups)
    metrics = list(dict.fromkeys(key for group in groups for run in group.runs for r in run.records for key in r))
    if metric not in metrics:
        raise UserError(f"--metric: none of these runs has {metric!r}{nearest(metric, metrics)}")
    if targets and _mode(groups, metric) is None:
        raise UserError(
            f"--target: whether more or less of {metric} is better is not known; compare it without targets, or choose "
            "an accuracy, a loss or a metric of the task with --metric"
        )
    if targets is None:
        file_targets = [t for group in groups if group.first.target_metric == metric for t in group.first.targets]
        targets = sorted(dict.fromkeys(file_targets), reverse=is_lower_better(groups, metric))
    quantities = _quantities(groups, metric, targets)
    pairs = [pair for quantity in quantities for pair in _pairs(quantity, groups)]
    return Comparison(groups, metric, quantities, pairs, _notes(groups, quantities[0]))


def default_metric(groups: list[SeedGroup]) -> str:
    """The metric of the targets; for streams, the accuracy on new tasks."""
    if all(group.first.is_stream for group in groups):
        return "ctm"
    metrics = {group.first.target_metric for group in groups}
    return metrics.pop() if len(metrics) == 1 else "test_accuracy"


def is_lower_better(groups: list[SeedGroup], metric: str) -> bool:
    """Whether less of a metric is better."""
    return _mode(groups, metric) == "min"


def _mode(groups: list[SeedGroup], metric: str) -> str | None:
    """Whether a metric is to be minimised ("min") or maximised ("max"); None if that is unknown, as of seconds."""
    # Accuracies on a stream.
    return "max" if metric in ("ctm", "ltm") else mode_of(metric, _modes(groups))


def _modes(groups: list[SeedGroup]) -> dict[str, str]:
    """Modes of the metrics that the files name, see `Run.modes`."""
    return {name: mode for group in groups for name, mode in group.first.modes.items()}


def _quantities(groups: list[SeedGroup], metric: str, targets: Sequence[float]) -> list[Quantity]:
    name, mode, modes = name_of(metric), _mode(groups, metric), _modes(groups)
    upward = None if mode is None else mode == "max"
    best = max if upward else min

    def finals(records: list[dict[str, Any]]) -> float | None:
        return _finite(final_value(records, metric))

    def bests(records: list[dict[str, Any]]) -> float | None:
        return best((r[metric] for r in records if _finite(r.get(metric)) is not None), default=None)

    def values(of: Any) -> list[dict[int, float | None]]:
        return [{run.seed: of(run.records) for run in group.runs} for group in groups]

    quantities = [Quantity(name, metric, values(finals), upward)]
    if mode and metric != "ctm":
        quantities.append(Quantity(f"best {name}", metric, values(bests), upward))
    # Centralised methods, and Hedge as a whole, do not count transmissions.
    has_transmissions = all(run.records[-1].get("transmissions") for group in groups for run in group.runs)
    unit = "transmissions" if has_transmissions else "rounds"
    for target in targets:

        def cost(records: list[dict[str, Any]], target: float = target) -> float | None:
            entry = first_to([{"transmissions": 0.0, **r} for r in records], target, metric, modes)
            return float(entry[unit]) if entry else None

        heading = name_of(f"{unit}_to_{target_label(target, metric)}")
        quantities.append(Quantity(heading, unit, values(cost), False, costs=True))
    return quantities


def _pairs(quantity: Quantity, groups: list[SeedGroup]) -> list[Pair]:
    """Pairs of one quantity, which form one family for Holm's correction."""
    index_pairs = list(combinations(range(len(groups)), 2))
    if len(groups) > MANY:
        finished_groups = [i for i, group in enumerate(groups) if all(run.is_finished for run in group.runs)]
        means = {i: spread.mean for i in finished_groups if (spread := quantity.spread(i))}
        if not means:
            return []
        best = (min if quantity.upward is False else max)(means, key=lambda i: means[i])
        index_pairs = [(best, i) for i in range(len(groups)) if i != best]
    pairs = [_pair(quantity, groups, a, b) for a, b in index_pairs]
    test_indices = [i for i, pair in enumerate(pairs) if pair.difference is not None]
    # The best experiment is not fixed in advance: any one could have been the best, with its pairs compared.
    family_size = math.comb(len(groups), 2) if len(groups) > MANY else len(test_indices)
    p_values = holm([pairs[i].difference.p for i in test_indices], family_size)  # type: ignore[union-attr]
    for i, p in zip(test_indices, p_values, strict=True):
        pair = pairs[i]
        pairs[i] = Pair(quantity, pair.a, pair.b, pair.seeds, pair.difference, p, _verdict(pair, groups, p))
    return pairs


def _pair(quantity: Quantity, groups: list[SeedGroup], a: int, b: int) -> Pair:
    seeds = [seed for seed in groups[a].seeds if seed in groups[b].seeds]
    if not seeds:
        return Pair(quantity, a, b, [], None, None, "no seed in common: no conclusion possible")
    if not all(run.is_finished for i in (a, b) for run in groups[i].runs if run.seed in seeds):
        return Pair(quantity, a, b, seeds, None, None, "not finished: no conclusion possible")
    pairs = [(quantity.values[a][seed], quantity.values[b][seed]) for seed in seeds]
    if any(None in pair for pair in pairs):
        why = "not reached with every seed" if quantity.costs else "not every seed has a value"
        return Pair(quantity, a, b, seeds, None, None, f"{why}: no conclusion possible")
    if len(seeds) == 1:
        return Pair(quantity, a, b, seeds, None, None, "one seed: no conclusion possible")
    if quantity.costs and any(0 in pair for pair in pairs):
        why = "reached before the first transmission with some seed"
        return Pair(quantity, a, b, seeds, None, None, f"{why}: no conclusion possible")
    change = (lambda x: math.log(x)) if quantity.costs else (lambda x: x)
    return Pair(quantity, a, b, seeds, paired([change(y) - change(x) for x, y in pairs]), None, "")


def _verdict(pair: Pair, groups: list[SeedGroup], p: float) -> str:
    d = pair.difference
    assert d is not None
    if d.low is None and d.mean == 0:
        return "identical numbers"
    if p >= LEVEL:
        return "no difference shown"
    larger, smaller = (groups[i].label for i in ((pair.b, pair.a) if d.mean > 0 else (pair.a, pair.b)))
    if pair.quantity.upward is None:
        return f"{larger} has more"
    winner = larger if pair.quantity.upward else smaller
    return f"{winner} needs fewer" if pair.quantity.costs else f"{winner} is better"


def _notes(groups: list[SeedGroup], quantity: Quantity) -> list[str]:
    notes = []
    keys = [str(row["key"]) for row in differing_settings(groups)]
    if other := [key for key in keys if key.startswith(SETTING_KEYS)]:
        notes.append(f"The experiments differ in more than the method: {', '.join(other)}.")
    for run in (run for group in groups for run in group.runs if not run.is_finished):
        notes.append(f"{run.folder.path} has {run.records[-1]['round']} of {run.values['rounds']} rounds.")
    ends = [run.records[-1]["round"] for group in groups for run in group.runs if run.is_finished]
    if ends and min(ends) < max(ends):
        notes.append(f"Runs ended after {min(ends)} to {max(ends)} rounds: their last scores are of different rounds.")
    if any(len(group.runs) == 1 for group in groups):
        notes.append("One seed gives no deviation and no conclusion about differences; run more seeds: --seeds 0,1,2.")
    if any(not quantity.complete(i) for i in range(len(groups))):
        notes.append(f"Some runs have no finite {quantity.name}: they diverged or were not evaluated.")
    if len(groups) > MANY:
        which = "one with the largest mean" if quantity.upward is None else "best one"
        notes.append(f"More than {MANY} experiments: each is compared only with the {which}.")
    return notes


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


DIFFERENCES = (
    "B against A: mean difference over the same seeds [95 % confidence "
    "interval by Student's t]; for transmissions and rounds, the mean ratio. p: p-value of the t-test, after Holm's "
    f"correction for all pairs of a quantity; with more than {MANY} experiments also for pairs that are not shown, "
    f"since the same numbers select the best one; a difference matters if p is below {number(LEVEL)}. p (signs): "
    "p-value of the sign-flip test, which makes no normality assumption and cannot be below 2/2ⁿ with n seeds. Equal "
    "differences have no interval, and their p is p (signs)."
)
EXPLAINED = f"Mean ± standard deviation over seeds. {DIFFERENCES} {TRANSMISSIONS[0].upper()}{TRANSMISSIONS[1:]}."
"""Explanations of the table of differences, and of both tables."""


def comparison_output(
    names: Sequence[str],
    runs: Sequence[Run],
    metric: str | None = None,
    targets: Sequence[float] = (),
    notes: Sequence[str] = (),
    means: bool = True,
) -> CommandOutput:
    """Output of the comparison of runs. names: of their folders. notes: more sentences. means: with the table of the
    experiments. Raises UserError."""
    groups, repeats = group_by_seed(runs)
    if len(groups) < 2:
        raise UserError(
            f"{', '.join(names)}: only one experiment, {groups[0].label}, with seed"
            f"{'s' * (len(groups[0].seeds) > 1)} {', '.join(map(str, groups[0].seeds))}; also name runs of another one"
        )
    result = compare(groups, metric, list(targets) or None)
    sentences = [*notes, *repeats, *result.notes]

    def render() -> None:
        if means:
            result.table.print()
        result.pair_table().print()
        click.echo(EXPLAINED if means else DIFFERENCES)
        for sentence in sentences:
            click.echo(f"- {sentence}")

    return CommandOutput(result.as_dict() | {"notes": sentences}, render)
