"""Tasks of the benchmark of searches, and the recordings of their configurations."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from hedgerow.algorithms.slots.fedex_rounds import incompatibility
from hedgerow.algorithms.slots.support import without_task
from hedgerow.platform.config.registries import algorithm_class, algorithms
from hedgerow.platform.data import Dataset
from hedgerow.platform.runtime.factory import build_data, build_partition
from hedgerow.searchspaces.results.recording import Recording
from hedgerow.searchspaces.spaces.search_file import SearchSpec, parse_search
from hedgerow.searchspaces.tune.search_runner import search

RECORDINGS = Path(__file__).parent / "recordings"
QUICK = Path(__file__).parent.parent / "build" / "tuning-quick"
NOISY_CLIENTS = 10
"""Clients that score an evaluation in the noisy recordings."""
PLAIN, NOISY, FEDEX, SERVER = PARTS = ("plain", "noisy", "fedex", "server")
"""Recordings of a task: its configurations; the same with noisy validation; runs of FedEx over all values that clients
can draw; and the same with the server's model scored.
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
    folder: Path = RECORDINGS

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
        return [key for key in keys if incompatibility(algorithm, [key], "client") is None]

    @property
    def parts(self) -> list[str]:
        """Recordings that the benchmark uses."""
        return [PLAIN, *([NOISY] if self.noise else []), *([FEDEX, SERVER] if self.drawable else [])]

    @property
    def quick(self) -> "Task":
        """A small version, to try the benchmark: two values of each key, 12 rounds, two recordings."""
        space = {key: values[:2] for key, values in self.space.items()}
        return replace(self, values={**self.values, "rounds": 12}, space=space, recordings=2, folder=QUICK)

    def file(self, name: str, seed: int, part: str = PLAIN) -> Path:
        """File of a recording."""
        return self.folder / f"{name if part == PLAIN else f'{name}-{part}'}-{seed}.json.gz"


FILE = Path(__file__).with_suffix(".yaml")
TASKS = {name: Task(**entry) for name, entry in yaml.safe_load(FILE.read_text()).items()}


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
        values = {**recording.file, "output": "runs"}
        replace(recording, name=file.name.removesuffix(".json.gz"), file=values).write(file)
    seconds = time.perf_counter() - start
    print(f"{file.name}: {len(recording.configurations)} configurations, {seconds:.0f} s", flush=True)


def plan_of(name: str, task: Task, seed: int, part: str, output: str) -> SearchSpec:
    """Search that records a part of a task."""
    section = {
        "kind": "grid",
        "space": task.space if part in (PLAIN, NOISY) else fedex_space(task, part),
        "metric": "ctm" if task.is_stream else "validation_accuracy",
        "record": "all",
        **({"noise": {"clients": NOISY_CLIENTS}} if part == NOISY else {}),
    }
    run = {"name": name, "seed": seed, "tracking": {"enabled": False}, "output": output, "checkpoints": {"every": 1000}}
    return parse_search({**task.values, **run, "search": section})


def fedex_space(task: Task, part: str) -> dict[str, list[Any]]:
    """Space whose configurations are runs of FedEx, one for each combination of values that clients cannot draw."""
    fixed = {key: values for key, values in task.space.items() if key not in task.drawable}
    factors = [[{key: float(x)} for x in task.space[key]] for key in task.drawable]
    score = {"fedex.score": ["server"]} if part == SERVER else {}
    return {**fixed, "fedex.factors": [factors], **score}


def fewer_tests(dataset: Dataset, test: int | None) -> Dataset:
    """Data set with a random part of its test samples, since evaluation would take most of the time."""
    if test is None or test >= len(dataset.y_test):
        return dataset
    rows = np.sort(np.random.default_rng(0).choice(len(dataset.y_test), test, replace=False))
    return replace(dataset, x_test=dataset.x_test[rows], y_test=dataset.y_test[rows])


def seeds_of(name: str, task: Task, part: str = PLAIN) -> list[int]:
    """Seeds of the recordings that exist."""
    prefix, _, ending = task.file(name, 0, part).name.rpartition("0")
    files = task.folder.glob(f"{prefix}*{ending}")
    numbers = (file.name.removeprefix(prefix).removesuffix(ending) for file in files)
    return sorted(int(number) for number in numbers if number.isdecimal())
