"""Kinds of search at equal client work, replayed on recorded curves.

    python benchmarks/tuning.py record [digits mnist ...] [--noisy] [--recordings 0 1 ...] [--data-root FOLDER]
    python benchmarks/tuning.py compare [digits mnist ...] [--seeds 5]

`record` trains every configuration of a task to its last round and keeps the curves in build/tuning. `compare` replays
all methods on them at several budgets, prints tables, and writes benchmarks/results/tuning.json and tuning-ranks.png.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from measuring import RESULTS, conditions
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from hedgerow.platform.actors.session import ray_session
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data import Dataset
from hedgerow.platform.runtime.factory import build_data, build_partition
from hedgerow.reports.analysis.statistics import holm, paired
from hedgerow.searchspaces.replay.tuner_replay import ReplayedSearch, replay
from hedgerow.searchspaces.results.recording import Recording
from hedgerow.searchspaces.spaces.search_file import parse_search
from hedgerow.searchspaces.tune.search_runner import search

FOLDER = Path(__file__).parent.parent / "build" / "tuning"
BUDGETS = (0.1, 0.25, 0.5)
"""Budgets, as shares of the client rounds of the whole recording."""
MAIN = 0.25
REFERENCE = "Hedge"
NOISE = (0.0, 0.02, 0.1)
"""Standard deviations of the noise on the validation accuracy."""
NOISY_CLIENTS = 10
"""Clients that score an evaluation in the noisy recordings."""


@dataclass(frozen=True)
class Task:
    """A task to be tuned. values: experiment file. space: its grid. test: test samples that are used (None: all)."""

    title: str
    values: dict[str, Any]
    space: dict[str, list[Any]]
    test: int | None = None
    recordings: int = 5

    @property
    def is_stream(self) -> bool:
        return self.values["task"]["partition"]["kind"] == "stream"


@dataclass(frozen=True)
class Method:
    """A kind of search. slots: trials at once; None: all. settings: by the kind's keys. on_streams: by the same."""

    kind: str
    slots: int | None
    description: str
    settings: Callable[[int], dict[str, Any]] = field(default=lambda trials: {})


DIRICHLET = {"kind": "dirichlet", "alpha": 0.3}

TASKS = {
    "digits": Task(
        "digits, Dirichlet 0.3, FedProx (mu 0 is FedAvg)",
        {
            "rounds": 60,
            "participation": 0.1,
            "task": {
                "data": {"name": "digits"},
                "partition": {**DIRICHLET, "clients": 100},
                "model": {"name": "mlp", "hidden": [50]},
                "validation": {"fraction": 0.2, "from": "clients"},
            },
            "algorithm": {"name": "fedprox", "batch_size": 8},
        },
        {
            "algorithm.lr": [0.01, 0.03, 0.1, 0.3, 1.0],
            "algorithm.mu": [0.0, 0.01, 1.0],
            "algorithm.epochs": [1, 5],
        },
    ),
    "stream": Task(
        "S-MNIST, a stream of 100 tasks, MOML",
        {
            "rounds": 100,
            "task": {
                "data": {"name": "mnist"},
                "partition": {
                    "kind": "stream",
                    "tasks": 100,
                    "train": 60,
                    "test": 100,
                    "transforms": {"rotation": 30, "flip": 0.5, "crop": 0.1, "scale": 0.1},
                },
                "model": {"name": "mlp", "hidden": [50]},
            },
            "algorithm": {"name": "moml", "batch_size": 10, "adapt": "maml", "steps": 10},
            "evaluation": {"every": 100},
        },
        {
            "algorithm.alpha": [1.0, 5.0, 10.0],
            "algorithm.adapt_steps": [1, 5],
            "algorithm.adapt_lr": [0.1, 0.01],
        },
    ),
    "mnist": Task(
        "MNIST, Dirichlet 0.3, FedDyn",
        {
            "rounds": 40,
            "participation": 0.1,
            "task": {
                "data": {"name": "mnist"},
                "partition": {**DIRICHLET, "clients": 100, "samples_per_client": 60},
                "model": {"name": "mlp", "hidden": [50]},
            },
            "algorithm": {"name": "feddyn", "batch_size": 10, "epochs": 2},
        },
        {"algorithm.lr": [0.003, 0.01, 0.03, 0.1], "algorithm.alpha": [0.01, 0.03, 0.1, 0.3]},
        test=2000,
    ),
    "cifar": Task(
        "CIFAR-10, Dirichlet 0.3, small CNN, FedAvg",
        {
            "rounds": 30,
            "clients_per_round": 5,
            "task": {
                "data": {"name": "image_folder", "path": "cifar10_imagefolder.zip"},
                "partition": {**DIRICHLET, "clients": 50, "samples_per_client": 100},
                "model": {"name": "cnn", "channels": [16, 32], "kernel": 3, "padding": 1, "fc": [64]},
            },
            "algorithm": {"name": "fedavg", "batch_size": 20},
            "evaluation": {"every": 2},
        },
        {"algorithm.lr": [0.01, 0.03, 0.1, 0.3], "algorithm.epochs": [1, 2], "algorithm.weight_decay": [0.0, 0.001]},
        test=1000,
        recordings=1,
    ),
    "text": Task(
        "tiny-Shakespeare, LSTM, FedAvg",
        {
            "rounds": 20,
            "clients_per_round": 5,
            "task": {
                "data": {"name": "text", "path": "tinyshakespeare/input.txt", "length": 20, "stride": 20},
                "partition": {"kind": "natural"},
                "model": {"name": "char_lstm", "hidden": 32, "embedding": 8, "layers": 1},
            },
            "algorithm": {"name": "fedavg", "batch_size": 10},
            "evaluation": {"every": 2},
        },
        {"algorithm.lr": [0.1, 0.3, 1.0, 3.0], "algorithm.epochs": [1, 2]},
        test=500,
        recordings=1,
    ),
}


def record(name: str, seed: int, data_root: Path | None, noisy: bool) -> None:
    """Record a task with one seed of data, partition and training. noisy: few clients score each evaluation."""
    task, file = TASKS[name], recording_file(name, seed, noisy)
    if file.exists():
        return
    section = {
        "kind": "grid",
        "space": task.space,
        "metric": "ctm" if task.is_stream else "validation_accuracy",
        "record": "all",
        **({"noise": {"clients": NOISY_CLIENTS}} if noisy else {}),
    }
    with TemporaryDirectory() as folder:
        values = {**task.values, "name": name, "seed": seed, "tracking": {"enabled": False}, "output": folder}
        plan = parse_search({**values, "checkpoints": {"every": 1000}, "search": section})
        start = time.perf_counter()
        dataset, _ = build_data(plan.experiment, data_root)
        few = fewer_tests(dataset, task.test)
        finished = search(plan, data_root, data=(few, build_partition(plan.experiment, few)), own=few is not dataset)
        recording = Recording.read(finished.folder.path)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace(recording, name=file.stem).write(file)
    seconds = time.perf_counter() - start
    print(f"{file.stem}: {len(recording.configurations)} configurations, {seconds:.0f} s", flush=True)


def fewer_tests(dataset: Dataset, test: int | None) -> Dataset:
    """Data set with a random part of its test samples, since evaluation would take most of the time."""
    if test is None or test >= len(dataset.y_test):
        return dataset
    rows = np.sort(np.random.default_rng(0).choice(len(dataset.y_test), test, replace=False))
    return replace(dataset, x_test=dataset.x_test[rows], y_test=dataset.y_test[rows])


def recording_file(name: str, seed: int, noisy: bool = False) -> Path:
    """File of a recording."""
    return FOLDER / f"{name}-{'noisy-' if noisy else ''}{seed}.json"


# ---- comparison ------------------------------------------------------------------------------------------------------

Row = dict[str, Any]

METHODS = {
    "random": Method("random", 1, "configurations in random order, each to its last round"),
    "grid": Method("grid", None, "all configurations, each with the same number of rounds"),
    "Hedge": Method("hedge", None, "all configurations; the leader is chosen"),
    "Hedge, pruned": Method(
        "hedge", None, "the same, without those below a tenth of the uniform weight", lambda n: {"prune": 0.1 / n}
    ),
    "ASHA": Method("asha", 2, "rungs at 4, 12, 36 rounds, one in 3 continues", lambda n: {"grace": 4, "reduction": 3}),
    "HyperBand": Method("hyperband", 2, "one in 3 continues", lambda n: {"reduction": 3}),
    "BOHB": Method("bohb", 2, "HyperBand with configurations from a density model", lambda n: {"samples": 10 * n}),
    "TPE": Method("optuna", 1, "Optuna's TPE, each proposal to its last round", lambda n: {"samples": 10 * n}),
}

LIVE: dict[str, Callable[[Task, int, float, Path | None], tuple[float, float | None]]] = {}
"""Methods that recorded curves cannot show, because they change configurations inside one training run, such as FedEx.

Each is run live: (task, seed of the recording, budget in client rounds, data root) -> test and online score.
"""


def available() -> dict[str, Method]:
    """Methods whose packages are installed."""
    has_bohb = all(find_spec(package) for package in ("ConfigSpace", "hpbandster"))
    return {name: method for name, method in METHODS.items() if has_bohb or method.kind != "bohb"}


def run(
    recording: Recording, method: Method, is_stream: bool, budget: float, seed: int, noise: float
) -> ReplayedSearch:
    """Replay one method. seed: order of the configurations, noise and draws."""
    settings = {"report_every": 1, **method.settings(len(recording.configurations))}
    if is_stream:
        # Every task is scored; `every` only says how often all past tasks were, which no method uses here.
        evaluation = {**recording.file["evaluation"], "every": 1}
        recording = replace(recording, file={**recording.file, "evaluation": evaluation})
    if is_stream and method.kind == "hedge":
        # Hedge weighs the accuracy on each task; the other kinds compare the mean over the tasks so far.
        settings["metric"] = "test_accuracy"
    if noise:
        settings["noise.scale"] = noise
    texts = [f"search.{key}={value}" for key, value in settings.items()]
    return replay(recording, method.kind, texts, budget, method.slots, seed)


def rows_of(
    name: str, methods: dict[str, Method], seeds: int, noisy: bool, noise: float, budgets: tuple[float, ...]
) -> Iterator[Row]:
    """One row per recording, budget, method and seed of the replay."""
    is_stream = TASKS[name].is_stream
    for file in recordings_of(name, noisy):
        recording = Recording.read(file)
        whole = float(recording.cost("client_rounds").sum())
        for share in budgets:
            for title, method in methods.items():
                for seed in range(seeds):
                    found = run(recording, method, is_stream, share * whole, seed, noise)
                    yield {
                        "recording": int(file.stem.rpartition("-")[2]),
                        "budget": share,
                        "method": title,
                        "seed": seed,
                        "test": score(found, is_stream),
                        "online": None if is_stream else found.online,
                        "spent": found.costs["client_rounds"] / whole,
                    }


def score(found: ReplayedSearch, is_stream: bool) -> float:
    """Test accuracy of the chosen configuration as trained; on a stream its mean over all tasks, from the first on.

    Methods that train one trial after the other would see the tasks of a stream again, so only their choice counts.
    """
    if not is_stream:
        return found.test_score["test_accuracy"]
    return float(found.recording.curves[found.numbers[found.chosen]][-1]["ctm"])


def recordings_of(name: str, noisy: bool = False) -> list[Path]:
    """Recordings of a task, by their seeds."""
    prefix = f"{name}-{'noisy-' if noisy else ''}"
    return sorted(file for file in FOLDER.glob(f"{prefix}*.json") if file.stem.removeprefix(prefix).isdecimal())


def by_recording(rows: list[Row], budget: float, method: str, value: str) -> list[float]:
    """Mean over the seeds of the replay for each recording, in the order of recordings; empty if there is no value."""
    numbers = sorted({row["recording"] for row in rows})
    chosen = [row for row in rows if row["budget"] == budget and row["method"] == method and row[value] is not None]
    if not chosen:
        return []
    return [mean(row[value] for row in chosen if row["recording"] == number) for number in numbers]


def summary(rows: list[Row], methods: list[str], budgets: tuple[float, ...]) -> dict[str, Any]:
    """Means by budget and method, and the differences from Hedge, paired over recordings."""
    result: dict[str, Any] = {}
    for budget in budgets:
        entry: dict[str, Any] = {}
        for method in methods:
            entry[method] = {value: by_recording(rows, budget, method, value) for value in ("test", "online", "spent")}
        others = [method for method in methods if method != REFERENCE]
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
        result[str(budget)] = entry
    return result


def best_of(name: str) -> list[float]:
    """Test score of the configuration that is best on validation in the last round, for each recording."""
    method, is_stream = Method("grid", None, ""), TASKS[name].is_stream
    found = (run(Recording.read(file), method, is_stream, math.inf, 0, 0.0) for file in recordings_of(name))
    return [score(one, is_stream) for one in found]


def ranking(tasks: dict[str, Any], methods: list[str], value: str) -> dict[str, Any]:
    """Mean ranks over all recordings of all tasks at the main budget, Friedman's test, and Nemenyi's distance."""
    scores = [
        [task["budgets"][str(MAIN)][method][value][i] for method in methods]
        for task in tasks.values()
        for i in range(len(task["budgets"][str(MAIN)][REFERENCE][value]))
    ]
    ranks = np.array([rankdata([-one for one in line]) for line in scores])
    n, k = ranks.shape
    critical = float(studentized_range.ppf(0.95, k, math.inf)) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n))
    p = float(friedmanchisquare(*np.transpose(scores)).pvalue) if n > 2 else None
    return {"blocks": n, "friedman_p": p, "distance": critical, "ranks": dict(zip(methods, ranks.mean(0), strict=True))}


def draw_ranks(rankings: dict[str, dict[str, Any]], file: Path) -> None:
    """Critical-difference diagrams (Demsar 2006): methods that a bar connects do not differ significantly."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.7 * len(rankings)), layout="constrained")
    for axes, (title, found) in zip(figure.subplots(len(rankings), squeeze=False)[:, 0], rankings.items(), strict=True):
        order = sorted(found["ranks"].items(), key=lambda pair: pair[1])
        count, rows = len(order), -(-len(order) // 2)
        axes.set_title(f"{title}: mean rank over {found['blocks']} recordings", fontsize=10, loc="left")
        axes.set_xlim(0.4, count + 0.6)
        axes.set_ylim(-rows - 1.6, 1.2)
        axes.axis("off")
        axes.plot([1, count], [0, 0], color="black", linewidth=1)
        for tick in range(1, count + 1):
            axes.plot([tick, tick], [0, 0.15], color="black", linewidth=1)
            axes.text(tick, 0.3, str(tick), ha="center", fontsize=8)
        for i, (method, rank) in enumerate(order):
            left = i < rows
            level = -1.6 - (i if left else count - 1 - i)
            edge = 0.9 if left else count + 0.1
            axes.plot([rank, rank, edge], [0, level, level], color="0.5", linewidth=0.8)
            axes.text(edge, level, f"{method} {rank:.2f}", ha="right" if left else "left", va="center", fontsize=8)
        bar, end = 0, -1
        for i, (_, rank) in enumerate(order):
            j = max(j for j, (_, other) in enumerate(order) if other - rank <= found["distance"])
            if j > max(i, end):
                axes.plot([rank - 0.04, order[j][1] + 0.04], [-0.35 - 0.3 * bar] * 2, color="C2", linewidth=3)
                bar, end = bar + 1, j
    figure.savefig(file, dpi=110)


def compare(names: list[str], seeds: int, data_root: Path | None) -> None:
    """Replay all methods on the recordings of some tasks, and write the results."""
    methods = available()
    titles = [*methods, *LIVE]
    tasks: dict[str, Any] = {}
    for name in names:
        files = recordings_of(name)
        if not files:
            print(f"{name}: no recording in {FOLDER}, left out")
            continue
        start = time.perf_counter()
        rows = list(rows_of(name, methods, seeds, False, 0.0, BUDGETS))
        first = Recording.read(files[0])
        for title, live in LIVE.items():
            for file in files:
                number = int(file.stem.rpartition("-")[2])
                for share in BUDGETS:
                    budget = share * float(first.cost("client_rounds").sum())
                    test, online = live(TASKS[name], number, budget, data_root)
                    rows.append({"recording": number, "budget": share, "method": title, "test": test, "online": online,
                                 "spent": share})  # fmt: skip
        tasks[name] = {
            "title": TASKS[name].title,
            "rounds": first.file["rounds"],
            "configurations": len(first.configurations),
            "client_rounds": float(first.cost("client_rounds").sum()),
            "sample_gradients": float(first.cost("sample_gradients").sum()),
            "recordings": len(files),
            "seeds": seeds,
            "best": best_of(name),
            "budgets": summary(rows, titles, BUDGETS),
        }
        print(f"{name}: {len(rows)} replays in {time.perf_counter() - start:.0f} s", flush=True)
    rankings = {value: ranking(tasks, titles, value) for value in ("test", "online")}
    results = {
        "conditions": conditions(),
        "methods": {
            name: {"slots": method.slots, "description": method.description} for name, method in methods.items()
        },
        "main": MAIN,
        "tasks": tasks,
        "ranks": rankings,
        "noise": noise_study(methods, seeds) if recordings_of("digits") else {},
        "stream": stream_study(),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "tuning.json").write_text(json.dumps(rounded(results), indent=1) + "\n")
    names_of = {"test": "Test score of the choice", "online": "Online score"}
    draw_ranks({names_of[value]: found for value, found in rankings.items()}, RESULTS / "tuning-ranks.png")


def stream_study() -> dict[str, Any]:
    """Accuracy on each task of the stream before it is learnt, by the rule that deploys an expert; mean over the tasks.

    All experts learn every task. cost: client rounds, as a share of those of all experts.
    """
    study: dict[str, dict[str, list[float]]] = {}

    def note(rule: str, accuracy: float, cost: float) -> None:
        entry = study.setdefault(rule, {"accuracy": [], "cost": []})
        entry["accuracy"].append(accuracy)
        entry["cost"].append(cost)

    for file in recordings_of("stream"):
        recording = Recording.read(file)
        whole = float(recording.cost("client_rounds").sum())
        accuracy = np.array([[record["test_accuracy"] for record in curve] for curve in recording.curves])
        rounds = np.arange(accuracy.shape[1])
        for name in ("Hedge", "Hedge, pruned"):
            found = run(recording, METHODS[name], True, math.inf, 0, 0.0)
            leaders = np.array([found.numbers[record["leader"]] for record in found.hedge])
            note(f"{name}: leader", float(accuracy[leaders, rounds].mean()), found.costs["client_rounds"] / whole)
            if name == "Hedge":
                expected = float(np.mean([record["expected"]["test_accuracy"] for record in found.hedge]))
                note("Hedge: drawn from the weights (expected)", expected, 1.0)
        means = np.cumsum(accuracy, axis=1) / (rounds + 1)
        best_so_far = np.concatenate([[0], means.argmax(0)[:-1]])
        note("best mean so far", float(accuracy[best_so_far, rounds].mean()), 1.0)
        note("an expert at random", float(accuracy.mean()), 1.0)
        note("best expert in hindsight", float(accuracy.mean(1).max()), 1.0)
    return study


def noise_study(methods: dict[str, Method], seeds: int) -> dict[str, Any]:
    """Test score and online score on digits at the main budget, by the noise of the validation."""
    study: dict[str, Any] = {}
    for noisy in (False, True) if recordings_of("digits", True) else (False,):
        for scale in NOISE if not noisy else NOISE[:1]:
            title = f"{NOISY_CLIENTS} clients per evaluation" if noisy else f"scale {scale:g}"
            rows = list(rows_of("digits", methods, seeds, noisy, scale, (MAIN,)))
            study[title] = summary(rows, list(methods), (MAIN,))[str(MAIN)]
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("tasks", nargs="*", default=list(TASKS))
    recorder.add_argument("--recordings", type=int, nargs="+", default=None, help="seeds (default: those of the task)")
    recorder.add_argument("--noisy", action="store_true", help=f"{NOISY_CLIENTS} random clients score each evaluation")
    recorder.add_argument("--data-root", type=Path, default=None)
    comparer = commands.add_parser("compare")
    comparer.add_argument("tasks", nargs="*", default=list(TASKS))
    comparer.add_argument("--seeds", type=int, default=5, help="seeds of the replays")
    comparer.add_argument("--data-root", type=Path, default=None)
    given = parser.parse_args()
    if given.command == "record":
        with ray_session(None):
            for name in given.tasks:
                try:
                    for seed in given.recordings or range(TASKS[name].recordings):
                        record(name, seed, given.data_root, given.noisy)
                except UserError as error:
                    print(f"{name}: {error}")
    else:
        compare(given.tasks, given.seeds, given.data_root)
