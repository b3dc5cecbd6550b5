"""Kinds of search at equal client work, replayed on recorded curves.

    python benchmarks/tuning.py record [digits mnist ...] [--parts plain noisy ...] [--recordings 0 1 ...]
                                       [--data-root FOLDER] [--quick]
    python benchmarks/tuning.py compare [digits mnist ...] [--methods ASHA ...] [--seeds 5] [--results NAME] [--quick]

`record` trains every configuration of a task to its last round and keeps the curves in benchmarks/recordings; for
FedEx, it trains runs whose clients draw configurations (parts fedex and server). `compare` replays all methods on them
at several budgets, and writes NAME.json and NAME-ranks.png (tuning) in benchmarks/results. --quick: small tasks,
all in build.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from measuring import RESULTS, conditions
from tuning_ranks import draw_ranks, rankings
from tuning_tasks import FEDEX, NOISY, NOISY_CLIENTS, PARTS, PLAIN, SERVER, TASKS, Task, record, seeds_of

from hedgerow.platform.actors.session import ray_session
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs.statistics import holm, paired
from hedgerow.platform.tracking.summary import final_value
from hedgerow.searchspaces.extra.replay import ReplayedSearch, replay
from hedgerow.searchspaces.results.recording import Recording

BUDGETS = (0.1, 0.25, 0.5)
"""Budgets, as shares of the client rounds of the whole recording."""
MAIN = 0.25
REFERENCE = "Hedge"
NOISE = (0.0, 0.02, 0.1)
"""Standard deviations of the noise on the validation accuracy."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A kind of search.

    slots: trials at once; None: all. settings: values by the kind's keys, from the number of configurations. part:
    recording that it is replayed on. streams: whether it is for streams, or for fixed data sets; None: for both.
    """

    kind: str
    slots: int | None
    description: str
    settings: Callable[[int], dict[str, Any]] = field(default=lambda trials: {})
    part: str = PLAIN
    streams: bool | None = None


def steps(grace: int = 4, **others: Any) -> Callable[[int], dict[str, Any]]:
    return lambda trials: {"grace": grace, "reduction": 3, **others}


def promotion(grace: int) -> Callable[[int], dict[str, Any]]:
    return steps(grace, allocate="promote", smooth=0.5)


METHODS = {
    "random": Method("random", 1, "configurations in random order, each to its last round"),
    "grid": Method("grid", None, "all configurations, each with the same number of rounds"),
    "Hedge": Method("hedge", None, "all configurations; the leader is chosen", lambda n: {"comeback": "off"}),
    "Hedge, comeback": Method(
        "hedge", None, "without those that can hardly win any more", lambda n: {"comeback": 0.05}, streams=True
    ),
    "Hedge, pruned": Method(
        "hedge", None, "without those below a tenth of the uniform weight", lambda n: {"prune": 0.1 / n}
    ),
    "ASHA": Method("asha", 2, "rungs at 4, 12, 36 rounds, one in 3 continues", steps()),
    "ASHA from 1": Method("asha", 2, "rungs at 1, 3, 9, 27 rounds", steps(1)),
    "ASHA, smoothed": Method("asha", 2, "rungs at 2, 6, 18; smoothed metrics", steps(2, smooth=0.5)),
    "ASHA from 1, smoothed": Method("asha", 2, "rungs at 1, 3, 9; smoothed metrics", steps(1, smooth=0.5)),
    "promotion": Method("hedge", 1, "rungs at 2, 6, 18; smoothed", promotion(2), streams=False),
    "promotion from 1": Method("hedge", 1, "rungs at 1, 3, 9; smoothed", promotion(1), streams=False),
    "HyperBand": Method("hyperband", 2, "one in 3 continues", lambda n: {"reduction": 3}),
    "TPE": Method("optuna", 1, "Optuna's TPE, each proposal to its last round", lambda n: {"samples": 10 * n}),
    "FedEx": Method(
        "random", 1, "a run whose clients draw from whole lists, for each value that they cannot draw, one after the "
        "other", part=FEDEX,
    ),
    "FedEx, server": Method(
        "random", 1, "the same, credited with the validation accuracy of the averaged model", part=SERVER
    ),
}  # fmt: skip


def available(name: str, task: Task) -> dict[str, Method]:
    """Methods that can be replayed on all recordings of a task."""
    seeds = set(seeds_of(name, task))
    suited = {title: method for title, method in METHODS.items() if method.streams in (None, task.is_stream)}
    return {title: method for title, method in suited.items() if seeds <= {*seeds_of(name, task, method.part)}}


def run(
    recording: Recording, method: Method, is_stream: bool, budget: float, seed: int, noise: float
) -> ReplayedSearch:
    """Replay one method. seed: order of the configurations, noise and draws."""
    settings = {"report_every": 1, "smooth": 0.0, **method.settings(len(recording.configurations))}
    if is_stream:
        # Every task is scored; `every` only says how often all past tasks were, which no method uses here.
        evaluation = {**recording.file["evaluation"], "every": 1}
        recording = replace(recording, file={**recording.file, "evaluation": evaluation})
    if noise:
        settings["noise.scale"] = noise
    texts = [f"search.{key}={value}" for key, value in settings.items()]
    return replay(recording, method.kind, texts, budget, method.slots, seed)


def rows_of(
    name: str,
    task: Task,
    methods: dict[str, Method],
    repeats: int,
    budgets: tuple[float, ...],
    noise: float = 0.0,
    part: str = PLAIN,
) -> Iterator[Row]:
    """One row per recording, budget, method and seed of the replay. part: in place of the plain recordings."""
    for number in seeds_of(name, task, part):
        recordings = {PLAIN: Recording.read(task.file(name, number, part))}
        recordings |= {
            m.part: Recording.read(task.file(name, number, m.part)) for m in methods.values() if m.part != PLAIN
        }
        whole = float(recordings[PLAIN].cost("client_rounds").sum())
        for share in budgets:
            for title, method in methods.items():
                for seed in range(repeats):
                    found = run(recordings[method.part], method, task.is_stream, share * whole, seed, noise)
                    yield {
                        "recording": number,
                        "budget": share,
                        "method": title,
                        "seed": seed,
                        "test": score(found, task.is_stream),
                        "online": None if task.is_stream else found.online,
                        "spent": found.costs["client_rounds"] / whole,
                    }


def score(found: ReplayedSearch, is_stream: bool) -> float:
    """Test accuracy of the chosen configuration as trained; on a stream its mean over all tasks, from the first on.

    Methods that train one trial after the other would see the tasks of a stream again, so only their choice counts.
    """
    if not is_stream:
        return found.test_score["test_accuracy"]
    return float(found.recording.curves[found.numbers[found.chosen]][-1]["ctm"])


def by_recording(rows: list[Row], budget: float, method: str, value: str) -> list[float]:
    """Mean over the seeds of the replay for each recording, in the order of recordings; empty if there is no value."""
    numbers = sorted({row["recording"] for row in rows})
    chosen = [row for row in rows if row["budget"] == budget and row["method"] == method and row[value] is not None]
    if not chosen:
        return []
    return [mean(row[value] for row in chosen if row["recording"] == number) for number in numbers]


Scores = dict[str, dict[str, dict[str, list[float]]]]
"""Test score, online score and cost for each recording, by budget and method."""


def scores_of(rows: list[Row], methods: Iterable[str], budgets: tuple[float, ...]) -> Scores:
    """Means over the seeds of the replays."""
    values = ("test", "online", "spent")
    return {
        str(budget): {
            method: {value: by_recording(rows, budget, method, value) for value in values} for method in methods
        }
        for budget in budgets
    }


def summary(scores: Scores) -> dict[str, Any]:
    """Scores with the differences from Hedge, paired over recordings."""
    result: dict[str, Any] = {
        budget: {method: dict(one) for method, one in of.items()} for budget, of in scores.items()
    }
    for entry in result.values():
        others = [method for method in entry if method != REFERENCE]
        for value in ("test", "online"):
            if len(entry[REFERENCE][value]) < 2:
                continue
            found = {
                method: paired(np.subtract(entry[method][value], entry[REFERENCE][value]).tolist()) for method in others
            }
            corrected = holm([found[method].p for method in others])
            for method, p in zip(others, corrected, strict=True):
                one = found[method]
                entry[method][f"{value} minus {REFERENCE}"] = [one.mean, one.low, one.high, p]
    return result


def best_of(name: str, task: Task) -> list[float]:
    """Test score of the configuration that is best on validation in the last round, for each recording."""
    recordings = (Recording.read(task.file(name, seed)) for seed in seeds_of(name, task))
    found = (run(one, METHODS["grid"], task.is_stream, math.inf, 0, 0.0) for one in recordings)
    return [score(one, task.is_stream) for one in found]


def compare(tasks: dict[str, Task], chosen: list[str], repeats: int, folder: Path, results: str) -> None:
    """Replay methods on the recordings of some tasks, and write the results to a file of this name in a folder.

    Results of other tasks and methods stay in the file. Raises UserError when those are of other recordings.
    """
    file = folder / f"{results}.json"
    known = json.loads(file.read_text())["tasks"] if file.exists() else {}
    for name, task in tasks.items():
        start = time.perf_counter()
        if not seeds_of(name, task):
            print(f"{name}: no recording in {task.folder}, left out")
            continue
        before = known.get(name, {}) if set(METHODS) - set(chosen) else {}
        known[name] = rounded(results_of(name, task, chosen, repeats, before))
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    known = {name: known[name] for name in TASKS if name in known}
    ranks = rankings(known, MAIN)
    content = {
        "methods": {
            title: {"slots": method.slots, "description": method.description}
            for title, method in METHODS.items()
            if any(title in task["budgets"][str(MAIN)] for task in known.values())
        },
        "main": MAIN,
        "tasks": known,
        "ranks": rounded(ranks),
    }
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")
    if ranks:
        draw_ranks(ranks, folder / f"{results}-ranks.png")
    print(f"Results are in {folder}.")


def results_of(name: str, task: Task, chosen: list[str], repeats: int, before: dict[str, Any]) -> dict[str, Any]:
    """Results of a task: its size, scores by budget and method, and its further studies.

    before: results of other methods on the same recordings. Raises UserError when the recordings are others.
    """
    methods = {title: method for title, method in available(name, task).items() if title in chosen}
    best = best_of(name, task)
    if before and (rounded(best), repeats) != (before["best"], before["seeds"]):
        raise UserError(f"{name}: the results in the file are of other recordings or seeds; compare all methods again")
    first = Recording.read(task.file(name, seeds_of(name, task)[0]))
    scores = scores_of(list(rows_of(name, task, methods, repeats, BUDGETS)), methods, BUDGETS)
    for budget, entry in scores.items():
        all_methods = before["budgets"][budget] | entry if before else entry
        scores[budget] = {title: all_methods[title] for title in METHODS if title in all_methods}
    return {
        "title": task.title,
        "rounds": first.file["rounds"],
        "configurations": len(first.configurations),
        "client_rounds": float(first.cost("client_rounds").sum()),
        "sample_gradients": float(first.cost("sample_gradients").sum()),
        "recordings": len(seeds_of(name, task)),
        "seeds": repeats,
        "conditions": conditions(),
        "best": best,
        "budgets": summary(scores),
        "one run": one_run(name, task) if "FedEx" in methods else before.get("one run"),
        "noise": noise_study(name, task, methods, repeats, before.get("noise") or {}) if task.noise else None,
        "deployed": before["deployed"] if before else stream_study(name, task) if task.is_stream else None,
    }


def one_run(name: str, task: Task) -> dict[str, Any]:
    """Test score after the last round of one run, by recording: of FedEx, and of a plain run; each the mean over its
    configurations, which is what a random one has. cost: of such a run, as a share of the whole recording.
    """
    result: dict[str, Any] = {}
    for title, part in (("FedEx", FEDEX), ("random configuration", PLAIN)):
        recordings = [Recording.read(task.file(name, seed, part)) for seed in seeds_of(name, task)]
        result[title] = [mean(final_value(curve, "test_accuracy") or 0.0 for curve in one.curves) for one in recordings]
        result["cost"] = 1 / len(recordings[0].configurations)
    if len(result["FedEx"]) > 1:
        found = paired(np.subtract(result["FedEx"], result["random configuration"]).tolist())
        result["difference"] = [found.mean, found.low, found.high, found.p]
    return result


def stream_study(name: str, task: Task) -> dict[str, Any]:
    """Accuracy on each task of the stream before it is learnt, by the rule that deploys an expert; mean over the tasks.

    All experts learn every task. cost: client rounds, as a share of those of all experts.
    """
    study: dict[str, dict[str, list[float]]] = {}

    def note(rule: str, accuracy: float, cost: float) -> None:
        entry = study.setdefault(rule, {"accuracy": [], "cost": []})
        entry["accuracy"].append(accuracy)
        entry["cost"].append(cost)

    for seed in seeds_of(name, task):
        recording = Recording.read(task.file(name, seed))
        whole = float(recording.cost("client_rounds").sum())
        accuracy = np.array([[record["test_accuracy"] for record in curve] for curve in recording.curves])
        rounds = np.arange(accuracy.shape[1])
        for title in ("Hedge", "Hedge, comeback", "Hedge, pruned"):
            found = run(recording, METHODS[title], True, math.inf, 0, 0.0)
            leaders = np.array([found.numbers[record["leader"]] for record in found.hedge])
            note(f"{title}: leader", float(accuracy[leaders, rounds].mean()), found.costs["client_rounds"] / whole)
            if title == "Hedge":
                expected = float(np.mean([record["expected"]["test_accuracy"] for record in found.hedge]))
                note("Hedge: drawn from the weights (expected)", expected, 1.0)
        means = np.cumsum(accuracy, axis=1) / (rounds + 1)
        best_so_far = np.concatenate([[0], means.argmax(0)[:-1]])
        note("best mean so far", float(accuracy[best_so_far, rounds].mean()), 1.0)
        note("an expert at random", float(accuracy.mean()), 1.0)
        note("best expert in hindsight", float(accuracy.mean(1).max()), 1.0)
    return study


def noise_study(name: str, task: Task, methods: dict[str, Method], repeats: int, before: dict[str, Any]) -> Any:
    """Test score and online score at the main budget, by the noise of the validation. before: of other methods."""
    methods = {title: method for title, method in methods.items() if method.part == PLAIN}
    kinds = {f"scale {scale:g}": (scale, PLAIN) for scale in NOISE}
    if seeds_of(name, task, NOISY):
        kinds[f"{NOISY_CLIENTS} clients per evaluation"] = (0.0, NOISY)
    study = {}
    for title, (scale, part) in kinds.items():
        rows = list(rows_of(name, task, methods, repeats, (MAIN,), scale, part))
        scores = before.get(title, {}) | scores_of(rows, methods, (MAIN,))[str(MAIN)]
        study[title] = summary({str(MAIN): scores})[str(MAIN)]
    return study


def rounded(value: Any) -> Any:
    """Numbers with five significant digits, for a small file."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder, comparer = commands.add_parser("record"), commands.add_parser("compare")
    for command in (recorder, comparer):
        command.add_argument("tasks", nargs="*", default=list(TASKS), help=f"(default: {', '.join(TASKS)})")
        command.add_argument("--quick", action="store_true", help="small versions of the tasks, to try the benchmark")
    recorder.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="recordings (default: all)")
    recorder.add_argument("--recordings", type=int, nargs="+", default=None, help="seeds (default: those of the task)")
    recorder.add_argument("--data-root", type=Path, default=None)
    comparer.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="(default: all)")
    comparer.add_argument("--seeds", type=int, default=5, help="seeds of the replays")
    comparer.add_argument("--results", default="tuning", help="name of the results (default: tuning)")
    given = parser.parse_args()
    tasks = {name: TASKS[name].quick if given.quick else TASKS[name] for name in given.tasks}
    if given.command == "compare":
        folder = next(iter(tasks.values())).folder if given.quick else RESULTS
        try:
            compare(tasks, given.methods, given.seeds, folder, given.results)
        except UserError as error:
            parser.exit(2, f"{error}\n")
        return
    with ray_session(None):
        for name, task in tasks.items():
            try:
                for seed in given.recordings or range(task.recordings):
                    for part in (part for part in task.parts if part in given.parts):
                        record(name, task, seed, given.data_root, part)
            except UserError as error:
                print(f"{name}: {error}")


if __name__ == "__main__":
    main()
