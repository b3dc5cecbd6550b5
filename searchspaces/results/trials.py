"""Ranks the configurations of a search, and computes the cost of each."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.platform.common.numbers import cost_text, is_no_share, name_of, number, unit_of
from hedgerow.platform.common.table import Column, Table
from hedgerow.platform.config.measures_section import mode_of
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import flat_settings, short_label, short_names
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.summary import (
    final_value,
    first_to,
    measured,
    target_label,
)
from hedgerow.searchspaces.spaces.smoothing import score_of, tie_breaker

Row = dict[str, Any]


METRICS = (
    *("validation_accuracy", "validation_loss", "test_accuracy", "test_loss"),
    *("client_accuracy", "client_accuracy_worst10", "client_loss", "ctm", "ltm"),
)


WINNER = " (winner)"
"""End of the winner's label in figures, and of its number in tables."""


@dataclass
class Trial:
    """One configuration of a search and its run.

    overrides: the searched keys of the experiment file, dotted, and their values.
    records: the run's rounds as in its metrics.jsonl; empty if it failed before its first round. diverged: sentence
    about it, empty if the run did not diverge. copied: rounds among the records that it has from copies, beyond those
    that it trained itself; negative if it trained rounds that a copy replaced.
    """

    name: str
    overrides: dict[str, Any]
    records: list[RoundRecord]
    status: str = "finished"
    diverged: str = ""
    copied: int = 0

    @property
    def trained(self) -> int:
        """Number of rounds that it trained itself."""
        return len(self.records) - self.copied

    @property
    def is_sound(self) -> bool:
        """Whether the run neither failed nor diverged."""
        return self.status != "failed" and not self.diverged

    def can_win(self, metric: str) -> bool:
        """Whether a search by this metric may choose the trial: it is sound, and its final value is finite."""
        value = final_value(self.records, metric)
        return self.is_sound and value is not None and math.isfinite(value)

    @property
    def settings(self) -> dict[str, Any]:
        """Overrides with sections flattened: "algorithm.lr" for {"algorithm": {"lr": ...}}."""
        return flat_settings(self.overrides)


def searched_keys(trials: list[Trial]) -> list[str]:
    """Keys that any trial overrides, in order of first appearance; of whole sections, only keys that differ."""
    keys = dict.fromkeys(key for trial in trials for key in trial.settings)
    override_keys = {key for trial in trials for key in trial.overrides}
    return [key for key in keys if key in override_keys or len({repr(trial.settings.get(key)) for trial in trials}) > 1]


def trial_labels(trials: list[Trial]) -> list[str]:
    """Label of each trial, preceded by its name if two trials have the same configuration."""
    names = short_names(searched_keys(trials))
    labels = [trial_label(trial, names) for trial in trials]
    return [
        label if labels.count(label) == 1 else f"{trial.name} {label}"
        for trial, label in zip(trials, labels, strict=True)
    ]


def trial_label(trial: Trial, names: dict[str, str]) -> str:
    """`short_label` of a trial's searched keys. names: name of each key."""
    return short_label({key: value for key, value in trial.settings.items() if key in names}, names)


def ranked(trials: list[Trial], metric: str, mode: str, smooth: float = 0.0) -> list[Trial]:
    """Trials by score, best first; then those that cannot win, then those without the metric.

    Ties are broken by `tie_breaker`, then by the mean over all rounds. mode: "max" or "min". smooth: see
    `smoothing.smoothed`; 0: the score is the final value.
    """

    def place(trial: Trial) -> tuple[int, float, float, float]:
        score, mean = score_of(trial.records, metric, smooth), score_of(trial.records, metric, 1.0)
        if score is None or mean is None:
            return 2, 0.0, 0.0, 0.0
        if not trial.can_win(metric):
            return 1, 0.0, 0.0, 0.0
        return 0, _ascending(score, mode), tie_breaker(trial.records, metric), _ascending(mean, mode)

    return sorted(trials, key=place)


def _ascending(value: float, mode: str) -> float:
    """Number that is lower for better values; infinite for a value that is not finite."""
    return (-value if mode == "max" else value) if math.isfinite(value) else math.inf


def choice(
    trials: list[Trial], metric: str, mode: str, hedge_records: list[RoundRecord], smooth: float = 0.0
) -> Trial | None:
    """Expert with the largest weight after the last round, where expert i is trial i; without Hedge, the first one of
    `ranked`.

    None if no trial can win.
    """
    if hedge_records:
        weights = hedge_records[-1]["next_weights"]
        order = sorted(trials, key=lambda trial: -weights[int(trial.name)])
    else:
        order = ranked(trials, metric, mode, smooth)
    return next((trial for trial in order if trial.can_win(metric)), None)


def sweep_rows(
    trials: list[Trial],
    metric: str,
    mode: str,
    targets: list[float],
    hedge_records: list[RoundRecord] | None = None,
    target_metric: str = "test_accuracy",
    smooth: float = 0.0,
) -> list[Row]:
    """One row per trial, sorted by `ranked`: by the last rounds, because choosing the best round would be biased.

    Columns: trial; each searched key (None if the trial does not have it); weight (Hedge's, after the last round, with
    `hedge_records`, where expert i is trial i); with `smooth`, the score that ranks; final and best value of the
    metric; transmissions, in units of one FedAvg round; for each target, the rounds and transmissions to reach it and
    the ratio to the transmissions of the cheapest trial, None if it was not reached; and status.
    """
    keys = searched_keys(trials)
    order = ranked(trials, metric, mode, smooth)
    weights = hedge_records[-1]["next_weights"] if hedge_records else []
    rows = []
    for trial, costs in zip(order, _costs(order, targets, target_metric), strict=True):
        values = [r[metric] for r in trial.records if r.get(metric) is not None and math.isfinite(r[metric])]
        row = {"trial": trial.name, **{key: trial.settings.get(key) for key in keys}}
        if weights:
            row["weight"] = weights[int(trial.name)]
        if smooth:
            row[f"smoothed_{metric}"] = score_of(trial.records, metric, smooth)
        row[metric] = final_value(trial.records, metric)
        row[f"best_{metric}"] = (max if mode == "max" else min)(values, default=None)
        rows.append(row | costs | {"status": "diverged" if trial.diverged else trial.status})
    return rows


def best_per_metric(
    trials: list[Trial],
    targets: list[float],
    target_metric: str = "test_accuracy",
    decides: Callable[[str], bool] = lambda metric: True,
    smooth: float = 0.0,
    modes: Mapping[str, str] | None = None,
) -> list[Row]:
    """Best trial for each metric and for the transmissions to each target: name, configuration and value.

    With `smooth`, the smoothed value of a metric decides, and is shown under its name.

    decides: whether a trial may be the best one by a metric. A trial that failed or diverged never is. modes: "min" or
    "max" of the task's own metrics.

    Each row also has the costs of the trial as in `sweep_rows`, since the most accurate trial is rarely the cheapest. A
    metric that no trial has is omitted; a target that no trial reached has a row of None.
    """
    costs, labels = _costs(trials, targets, target_metric), [target_label(target, target_metric) for target in targets]
    names_of_metrics = dict.fromkeys([*METRICS, *measured(record for trial in trials for record in trial.records)])
    known = [metric for metric in names_of_metrics if metric in METRICS or mode_of(metric, modes)]
    columns = {metric: [final_value(trial.records, metric) for trial in trials] for metric in known if decides(metric)}
    if decides(target_metric):
        columns |= {key: [cost[key] for cost in costs] for key in (f"transmissions_to_{label}" for label in labels)}
    scores = columns | {
        metric: [score_of(trial.records, metric, smooth) for trial in trials] for metric in columns if metric in known
    }
    names = short_names(searched_keys(trials))
    rows: list[Row] = []
    for metric in columns:
        sign = -1 if metric not in known or mode_of(metric, modes) == "min" else 1
        finite = {
            i: sign * value
            for i, value in enumerate(scores[metric])
            if value is not None and math.isfinite(value) and trials[i].is_sound
        }
        if finite:
            best = max(finite, key=lambda i: (finite[i], -tie_breaker(trials[i].records, metric)))
            label = trial_label(trials[best], names)
            shown = f"smoothed_{metric}" if smooth and metric in known else metric
            row = {"metric": shown, "trial": trials[best].name, "configuration": label, "value": scores[metric][best]}
            rows.append(row | costs[best])
        elif metric not in known:
            rows.append({"metric": metric, "trial": None, "configuration": None, "value": None})
    return rows


def _costs(trials: list[Trial], targets: list[float], target_metric: str) -> list[Row]:
    rows: list[Row] = [{"transmissions": t.records[-1]["transmissions"] if t.records else None} for t in trials]
    for target in targets:
        firsts = [first_to(trial.records, target, target_metric) or {} for trial in trials]
        label = target_label(target, target_metric)
        fewest = min((first["transmissions"] for first in firsts if first), default=None)
        for row, first in zip(rows, firsts, strict=True):
            row[f"rounds_to_{label}"] = first.get("rounds")
            row[f"transmissions_to_{label}"] = first.get("transmissions")
            # An algorithm that transmits nothing has no ratio to another.
            row[f"ratio_to_{label}"] = first["transmissions"] / fewest if first and fewest else None
    return rows


def trial_table(rows: list[Row], title: str = "", brief: bool = False, winner: str = "") -> Table:
    """Table of rows of `sweep_rows` or `best_per_metric` with short headings.

    Transmissions to a target include the ratio, see `numbers.cost_text`. brief: without the rounds to each target.
    winner: name of the trial whose rows are marked.
    """
    names = [key for row in rows for key in row if not key.startswith(("ratio_to_", *["rounds_to_"] * brief))]
    # A learner of a stream sends nothing.
    sends = any(row.get("transmissions") for row in rows)
    names = [key for key in dict.fromkeys(names) if sends or key != "transmissions"]
    short = short_names(names)
    fewest = {
        key: min((row[key] for row in rows if row.get(key) is not None), default=None)
        for key in names
        if key.startswith("transmissions_to_")
    }
    labels = [key.removeprefix("transmissions_to_") for key in fewest]
    targets = [float(label) for label in labels if not is_no_share(label)]

    def heading(key: str) -> str:
        return short[key] if unit_of(key) == "setting" else name_of(key)

    def cell(row: Row, key: str) -> Any:
        value, spent = row.get(key), row.get("transmissions")
        if key == "trial" and winner and value == winner:
            return f"{value}{WINNER}"
        if key == "metric":
            return name_of(row[key])
        if key == "value":
            return "not reached" if value is None else number(value, unit_of(row["metric"]), targets)
        return cost_text(value, spent, fewest[key]) if key in fewest and spent is not None else value

    columns = [Column(key, heading(key)) for key in names]
    marked = [i for i, row in enumerate(rows) if winner and row.get("trial") == winner]
    return Table([{key: cell(row, key) for key in names} for row in rows], title, columns, targets, marked)


def hedge_summary(
    hedge_records: list[RoundRecord], labels: list[str], metric: str, trials: list[Trial] | None = None
) -> RoundRecord:
    """Summary of Hedge over its rounds (at least one), compared with the best expert in hindsight.

    Losses are means over the rounds; regret and bound are sums. "price" is added to the bound for the regret against
    one of the "stopped" experts. "certain" is the first round in which a weight exceeds 0.9, or None. "expected",
    "leader_metric" and "best_metric" are means over the rounds that have the metric: of the weighted metric, of the
    metric of each round's leader, and of the metric of the best expert in hindsight. The last two need the experts' own
    records (`trials`, where expert i is trial i) and are None without them. "leader" can win, see `choice`.
    """
    last, winner = hedge_records[-1], choice(trials or [], metric, "", hedge_records)
    leader = int(winner.name) if winner else last["leader"]
    numbers = [record["round"] for record in hedge_records]
    by_round = [{record["round"]: record.get(metric) for record in trial.records} for trial in trials or []]

    def along(experts: list[int]) -> float | None:
        return _mean([by_round[i].get(n) for i, n in zip(experts, numbers, strict=True)]) if by_round else None

    return {
        "metric": metric,
        "rounds": len(hedge_records),
        "experts": len(labels),
        "hedge_loss": _mean([record["hedge_loss"] for record in hedge_records]),
        "best": labels[last["best"]],
        "best_loss": last["best_loss"] / len(hedge_records),
        "regret": last["regret"],
        "bound": last["bound"],
        "price": last.get("price"),
        "stopped": len(labels) - (last.get("awake") or len(labels)),
        "leader": labels[leader],
        "leader_weight": last["next_weights"][leader],
        "certain": next((record["round"] for record in hedge_records if max(record["weights"]) > 0.9), None),
        "expected": _mean([record["expected"].get(metric) for record in hedge_records]),
        "leader_metric": along([record["leader"] for record in hedge_records]),
        "best_metric": along([last["best"]] * len(hedge_records)),
    }


def _mean(values: list[float | None]) -> float | None:
    """Mean of the finite values: a single diverged expert would otherwise turn the mean of the search into NaN."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def expert_folder(search_folder: Path, index: int) -> RunFolder:
    """Run folder of an expert."""
    return RunFolder(search_folder / "experts" / f"{index:03d}")
