"""Tasks of the benchmark of searches, and the recordings of their configurations."""

import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hedgerow.algorithms.slots.fedex_rounds import incompatibility
from hedgerow.algorithms.slots.support import without_task
from hedgerow.platform.config.registries import algorithm_class, algorithms
from hedgerow.platform.data import Dataset
from hedgerow.platform.runtime.factory import build_data, build_partition
from hedgerow.searchspaces.results.recording import Recording
from hedgerow.searchspaces.spaces.search_file import SearchSpec, parse_search
from hedgerow.searchspaces.tune.search_runner import search

BUILD = Path(__file__).parent.parent / "build"
NOISY_CLIENTS = 10
"""Clients that score an evaluation in the noisy recordings."""
PLAIN, NOISY, FEDEX, ARMS = PARTS = ("plain", "noisy", "fedex", "arms")
"""Recordings of a task: its configurations; the same with noisy validation; runs of FedEx over all values that clients
can draw; and runs of FedEx over the neighbourhood of each configuration, as the arms of another search.
"""


@dataclass(frozen=True)
class Task:
    """A task to be tuned.

    values: experiment file. space: its grid. test: test samples that are used (None: all). noise: whether it is
    recorded with noisy validation, too.
    """

    title: str
    values: dict[str, Any]
    space: dict[str, list[Any]]
    test: int | None = None
    recordings: int = 5
    noise: bool = False
    folder: Path = BUILD / "tuning"

    @property
    def is_stream(self) -> bool:
        return self.values["task"]["partition"]["kind"] == "stream"

    @property
    def drawable(self) -> list[str]:
        """Keys whose values clients can draw by FedEx."""
        section = self.values["algorithm"]
        hyper = algorithms.section(section["name"]).model_validate(section)
        algorithm = without_task(algorithm_class(section["name"]), hyper)
        keys = [] if self.is_stream else self.space
        return [key for key in keys if incompatibility(algorithm, [key]) is None]

    @property
    def parts(self) -> list[str]:
        """Recordings that the benchmark uses."""
        return [PLAIN, *([NOISY] if self.noise else []), *([FEDEX, ARMS] if self.drawable else [])]

    @property
    def quick(self) -> "Task":
        """A small version, to try the benchmark: two values of each key, 12 rounds, two recordings."""
        space = {key: values[:2] for key, values in self.space.items()}
        return replace(
            self, values={**self.values, "rounds": 12}, space=space, recordings=2, folder=BUILD / "tuning-quick"
        )

    def file(self, name: str, seed: int, part: str = PLAIN) -> Path:
        """File of a recording."""
        return self.folder / f"{name}-{seed}.json" if part == PLAIN else self.folder / f"{name}-{part}-{seed}.json"


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
            "aggregation": {"weighting": "uniform"},
        },
        {
            "algorithm.lr": [0.01, 0.03, 0.1, 0.3, 1.0],
            "algorithm.mu": [0.0, 0.01, 1.0],
            "algorithm.epochs": [1, 5],
        },
        noise=True,
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
            "aggregation": {"weighting": "uniform"},
            "evaluation": {"every": 2},
        },
        {"algorithm.lr": [0.01, 0.03, 0.1, 0.3], "algorithm.epochs": [1, 2], "algorithm.weight_decay": [0.0, 0.001]},
        test=1000,
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
            "aggregation": {"weighting": "uniform"},
            "evaluation": {"every": 2},
        },
        {"algorithm.lr": [0.1, 0.3, 1.0, 3.0], "algorithm.epochs": [1, 2]},
        test=500,
    ),
}


def record(name: str, task: Task, seed: int, data_root: Path | None, part: str = PLAIN) -> None:
    """Record a part of a task with one seed of data, partition and training."""
    file = task.file(name, seed, part)
    if file.exists():
        return
    with TemporaryDirectory() as folder:
        plan = plan_of(name, task, seed, part, folder)
        start = time.perf_counter()
        dataset, _ = build_data(plan.experiment, data_root)
        few = fewer_tests(dataset, task.test)
        finished = search(plan, data_root, data=(few, build_partition(plan.experiment, few)), own=few is not dataset)
        recording = Recording.read(finished.folder.path)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace(recording, name=file.stem).write(file)
    seconds = time.perf_counter() - start
    print(f"{file.stem}: {len(recording.configurations)} configurations, {seconds:.0f} s", flush=True)


def plan_of(name: str, task: Task, seed: int, part: str, output: str) -> SearchSpec:
    """Search that records a part of a task."""
    section = {
        "kind": "grid",
        "space": fedex_space(task, local=part == ARMS) if part in (FEDEX, ARMS) else task.space,
        "metric": "ctm" if task.is_stream else "validation_accuracy",
        "record": "all",
        **({"noise": {"clients": NOISY_CLIENTS}} if part == NOISY else {}),
    }
    run = {"name": name, "seed": seed, "tracking": {"enabled": False}, "output": output, "checkpoints": {"every": 1000}}
    return parse_search({**task.values, **run, "search": section})


def fedex_space(task: Task, local: bool) -> dict[str, list[Any]]:
    """Space whose configurations are runs of FedEx, one for each combination of values that clients cannot draw.

    local: one run also for each combination of the others; its clients draw these values and their neighbours in the
    lists, as Khodak et al. (2021) let successive halving choose among runs of FedEx over the surroundings of random
    configurations. Otherwise, they draw from the whole lists. Runs that would be equal are one.
    """
    fixed = {key: values for key, values in task.space.items() if key not in task.drawable}
    ranges = [
        [(key, values[max(0, i - 1) : i + 2]) for i in range(len(values))] if local else [(key, values)]
        for key, values in task.space.items()
        if key in task.drawable
    ]
    factors = [[[{key: float(x)} for x in values] for key, values in chosen] for chosen in product(*ranges)]
    return {**fixed, "fedex.factors": factors}


def fewer_tests(dataset: Dataset, test: int | None) -> Dataset:
    """Data set with a random part of its test samples, since evaluation would take most of the time."""
    if test is None or test >= len(dataset.y_test):
        return dataset
    rows = np.sort(np.random.default_rng(0).choice(len(dataset.y_test), test, replace=False))
    return replace(dataset, x_test=dataset.x_test[rows], y_test=dataset.y_test[rows])


def seeds_of(name: str, task: Task, part: str = PLAIN) -> list[int]:
    """Seeds of the recordings that exist."""
    prefix = task.file(name, 0, part).name.removesuffix("0.json")
    numbers = (file.stem.removeprefix(prefix) for file in task.folder.glob(f"{prefix}*.json"))
    return sorted(int(number) for number in numbers if number.isdecimal())
