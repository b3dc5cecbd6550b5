"""Summary of the records of a run."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hedgerow.algorithms.core.messages import SPENT
from hedgerow.algorithms.slots.fedex import FedEx
from hedgerow.platform.common.numbers import name_of, number
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.measures_section import measure_name, mode_of
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.decisions import Decisions, reaches


def summarise(
    records: list[RoundRecord],
    targets: list[float],
    metric: str = "test_accuracy",
    modes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Final and best metrics, totals, and the cost of reaching each target, a value of `metric`.

    "to_target" maps the label of a target to the result of `first_to`. Transmissions are in units of one FedAvg round
    (thesis, table 2.1). "metric" is the main metric, where it is not the accuracy. modes: "min" or "max" of the task's
    own metrics.
    """
    main = main_metric(records)
    scored = f"test_{main}"
    evaluated = [record for record in records if scored in record]
    best = min if mode_of(main, modes) == "min" else max
    # Rounds after the last evaluation may have metrics of the algorithm or of a logger.
    last, final = records[-1], next((record for record in reversed(records) if measured([record])), {})
    summary = {
        "rounds": last["round"],
        "seconds": last["seconds"],
        "transmissions": last["transmissions"],
        "scalars": sum(r["scalars_down"] + r["scalars_up"] for r in records),
        "bytes": sum(r["bytes_down"] + r["bytes_up"] for r in records),
        "dropped": sum(r["dropped"] for r in records),
        **({} if main == "accuracy" else {"metric": main}),
        f"best_{scored}": best((r[scored] for r in evaluated if not math.isnan(r[scored])), default=None),
    }
    others = [key for key in final if key.startswith(("test_", "client_"))]
    for key in (scored, "test_loss", f"client_{main}", f"client_{main}_worst10", "client_loss", *others):
        # Only personal models have the highest and the lowest value of a client.
        summary[key] = final.get(key)
    for key in ("ctm", "ltm", "memory_vectors", "memory_tasks", "memory_bytes", "teacher_test_accuracy"):
        # Only algorithms on streams, and those that train a teacher, have these.
        if any(key in record for record in records):
            summary[key] = next(record[key] for record in reversed(records) if key in record)
    # Only runs with `task.validation` have these.
    summary |= {key: value for key, value in final.items() if key.startswith("validation_")}
    if "simulated_seconds" in last:
        summary["simulated_seconds"] = last["simulated_seconds"]
        summary["lost"] = {
            name: sum(r.get(name, 0) for r in records) for name in ("unavailable", "dropped_out", "late")
        }
    summary["report"] = {name: final_value(records, name) for name in reported(records)}
    summary["spent"] = {name.removeprefix(SPENT): last[name] for name in last if name.startswith(SPENT)}
    summary["exchanges"] = sum(r.get("exchanges", 0) for r in records)
    summary["to_target"] = {target_label(target, metric): first_to(records, target, metric) for target in targets}
    return summary


def kept(progress: dict[str, Any]) -> dict[str, Any]:
    """Entries of the last checkpoint for run.json: histograms, client accuracies, confusions, times, quarantine."""
    names = ("histograms", "client_accuracies", "confusion_matrix", "clock", "quarantined")
    return {"histograms": {}, "quarantined": {}} | {
        name: progress[name] for name in names if progress.get(name) is not None
    }


def left_out_warnings(quarantined: dict[str, int]) -> list[str]:
    """A sentence for each quarantined client, with the round."""
    return [
        f"client {client} was left out from round {round} on: it repeatedly killed the process that worked on it"
        for client, round in quarantined.items()
    ]


def unscored_warnings(records: list[RoundRecord]) -> list[str]:
    """Sentences about the clients that the last evaluation could not score."""
    last = next((r for r in reversed(records) if "client_loss" in r), {})
    sentences = []
    for name in (name for name in last if name.startswith("unscored_clients")):
        who = "client has" if last[name] == 1 else "clients have"
        metric = name.removeprefix("unscored_clients").removeprefix("_")
        what = f"{metric}, which is undefined on their samples" if metric else "samples to be scored on"
        means = f"client_{metric} is a mean" if metric else "client_accuracy and the like are means"
        sentences.append(f"{last[name]} {who} no {what}; {means} over the others")
    return sentences


DIVERGED = 10.0
"""Ratio of the last test loss to the first one above which a classification has diverged."""


def divergence_warnings(records: list[RoundRecord], classes: int) -> list[str]:
    """A sentence about a run that lost the answers of its last round, or whose last loss is not finite or absurdly
    large: the test loss or, if only the last evaluation has one, the validation loss.

    The answers of a client that are not finite are left out. If there are as many as clients, the model has not moved.
    In a classification, a loss is too large if it is above `DIVERGED` times the first one and above 2 ln(classes),
    twice the loss of a uniform guess. Otherwise (one class, or a stream, whose rounds are different tasks) any
    finite loss may be right.
    """
    final = records[-1] if records else {}
    if 0 < final.get("participants", 0) <= final.get("dropped", 0):
        return [
            f"the run diverged: the answers of all clients in round {final['round']} were not finite; lower lr or set "
            "clip_norm"
        ]
    name, losses = _losses(records)
    if not losses:
        return []
    (begin, first), (end, last) = losses[0], losses[-1]
    too_large = classes > 1 and "ctm" not in records[-1] and last > max(DIVERGED * first, 2 * math.log(classes))
    if math.isfinite(last) and not too_large:
        return []
    before = f", after {number(first, digits=3)} in round {begin}" if begin < end else ""
    return [
        f"the run diverged: its {name} is {number(last, digits=3)} in round {end}{before}; lower lr or set clip_norm"
    ]


SETTLED = 0.9
"""Probability of a value from which on a distribution of FedEx has settled on it."""

SETTLED_BELOW = 0.05
"""Difference of validation accuracies from which on a settled distribution of FedEx is suspicious."""


def fedex_warnings(fedex: FedEx | None, records: list[RoundRecord]) -> list[str]:
    """A sentence if the clients of a run settled on values with which the server's model is worse than before.

    A distribution has settled in the first round from which its largest probability is at least `SETTLED` up to the
    last round. The sentence is about the first distribution, if any, since whose round all validation accuracies are
    more than `SETTLED_BELOW` below the best one before it.
    """
    if fedex is None:
        return []
    name = "validation_accuracy"
    for i, factor in enumerate(fedex.factors):
        largest = [max(record[f"theta_{i}_{j}"] for j in range(len(factor))) for record in records]
        settled = 1 + max((at for at, p in enumerate(largest) if p < SETTLED), default=-1)
        accuracies = [
            [(record[name], record["round"]) for record in part if math.isfinite(record.get(name, math.nan))]
            for part in (records[:settled], records[settled:])
        ]
        if not all(accuracies):
            continue
        (best, round), last = max(accuracies[0], key=lambda one: one[0]), accuracies[1][-1][0]
        if best - max(accuracies[1])[0] > SETTLED_BELOW:
            j = max(range(len(factor)), key=lambda j: records[-1][f"theta_{i}_{j}"])
            values = ", ".join(f"{key} {number(value)}" for key, value in factor[j].items())
            fix = ", or set `score: server`" if fedex.score == "client" else ""
            return [
                f"FedEx settled on {values} in round {records[settled]['round']}, and since then the server's model "
                f"has a lower validation accuracy than in round {round} ({number(last, '%')} at the end, "
                f"{number(best, '%')} then); remove these values{fix}"
            ]
    return []


def _losses(records: list[RoundRecord]) -> tuple[str, list[tuple[int, float]]]:
    """Name, and values by round, of the loss that the most evaluations have."""
    found = {
        name_of(name): [(record["round"], record[name]) for record in records if record.get(name) is not None]
        for name in ("test_loss", "validation_loss")
    }
    return max(found.items(), key=lambda pair: len(pair[1]))


STANDARD = {
    *("round", "participants", "dropped", "quarantined", "seconds", "transmissions", "exchanges"),
    *("scalars_down", "scalars_up", "bytes_down", "bytes_up", "gpu_peak_mb"),
    *("unavailable", "dropped_out", "late", "simulated_round_seconds", "simulated_seconds"),
    *("ctm", "ltm", "ltm_loss", "memory_vectors", "memory_tasks", "memory_bytes"),
    *("efficiency_points", "efficiency_reached"),
}
"""Standard metrics; any other metric that is not an accuracy, loss or count is reported by the algorithm itself."""


MEASURED = ("test_", "validation_", "client_")
"""Prefixes of the metrics of evaluations."""


def main_metric(records: Iterable[RoundRecord]) -> str:
    """Name of the metric that stands for the result: the first one of an evaluation on test or validation samples."""
    names = (name for record in records for name in record if name.startswith(("test_", "validation_")))
    return next(names, "test_accuracy").partition("_")[2]


def measured(records: Iterable[RoundRecord]) -> list[str]:
    """Names of the metrics of evaluations."""
    return list(dict.fromkeys(name for record in records for name in record if name.startswith(MEASURED)))


def reported(records: list[RoundRecord]) -> list[str]:
    """Names of the metrics that the algorithm itself reports."""
    standard = (SPENT, *MEASURED, "unscored_clients", "train_", "server_", "teacher_", "staleness_count_")
    names = dict.fromkeys(name for record in records for name in record)
    return [name for name in names if name not in STANDARD and not name.startswith(standard)]


def meta_regret(records: list[RoundRecord], competitor: list[RoundRecord]) -> float:
    """Total loss of an algorithm on a stream in excess of a competitor's final model (thesis, Eq. 5.1).

    competitor: records of the `offline` algorithm on the same stream; its last `ltm_loss` covers as many tasks.
    """
    return float(sum(record["test_loss"] - competitor[-1]["ltm_loss"] for record in records))


def final_value(records: list[RoundRecord], metric: str) -> float | None:
    """Value of the metric in the last round that has it; None if no round has it."""
    return next((record[metric] for record in reversed(records) if record.get(metric) is not None), None)


def first_to(
    records: list[RoundRecord],
    target: float,
    metric: str = "test_accuracy",
    modes: Mapping[str, str] | None = None,
) -> dict[str, Any] | None:
    """Rounds, transmissions and simulated seconds until a metric first reaches its target; None if it never does.

    A metric that is to be maximised, such as an accuracy, reaches it from below, one that is to be minimised from
    above. modes: of the task's own metrics, by name.
    """
    mode = mode_of(metric, modes)
    for record in records:
        if reaches(record, target, metric, mode):
            cost = {"rounds": record["round"], "transmissions": record["transmissions"]}
            simulated = {"simulated_seconds": record["simulated_seconds"]} if "simulated_seconds" in record else {}
            return cost | simulated
    return None


def target_label(target: float, metric: str = "test_accuracy") -> str:
    """Label of a target in summaries and columns: "0.8" of an accuracy, "loss 0.05", or "mae 0.4"."""
    name = measure_name(metric)
    return f"{target:g}" if "accuracy" in name else f"{'loss' if 'loss' in name else name} {target:g}"


def is_done(experiment: Experiment, records: list[RoundRecord]) -> bool:
    """Whether the records are a complete run: all rounds, or up to where targets or loggers end it."""
    has_all = bool(records) and records[-1]["round"] >= experiment.rounds
    return has_all or Decisions(experiment, records).is_over
