"""FedSep's figures 2 to 4: accuracy against how many numbers are transmitted, and against local steps. The paper prints
no numbers, nor rounds, batch sizes, server steps or the sketch's variance: those are this project's, and so are the
lines with three sizes and fewer rounds, for a laptop.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from hedgerow.searchspaces.reproductions.papers.fedsep_models import model_tables
from hedgerow.searchspaces.reproductions.published import Line, Table

Section = dict[str, Any]

SIZES = [10, 100, 500, 1000, 2000, 5000, 10000, 20000]
FEW = [100, 500, 2000]
STEPS = [2, 5, 10, 20, 50]
PARTITIONS: dict[str, Section] = {
    "iid": {"kind": "iid", "clients": 10},
    "2-classes": {"kind": "labels", "clients": 10, "labels_per_client": 2},
}
TASKS: dict[str, Section] = {
    "mnist": {"data": {"name": "mnist"}, "model": {"name": "conv4", "channels": 32}},
    "cifar10": {"data": {"name": "cifar10"}, "model": {"name": "conv4", "channels": 64}},
}
PARAMETERS = {"mnist": 24_234, "cifar10": 97_866}
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "iid": "IID", "2-classes": "two classes per client"}
LOCAL: Section = {"lr": 0.1, "epochs": None, "steps": 5, "batch_size": 32}
REMARK = (
    "all 10 clients in every round; theta is added to an initial model that all know, which is not in the source; Top-K"
    " sends p/2 entries and as many indices; the count sketch has 5 rows of p/5 columns and recovers p/100 entries, for"
    " with 2 rows of p/2 what it leaves out grows without bound;"
    " FedSep's server takes d / 3p times the mean step, once at least, since a sketch keeps p / d of a direction"
)


@cache
def fedsep_tables() -> dict[str, Table]:
    """By name: F2 to F5, T1."""
    return {
        "F2": Table("fedsep/F2", "MNIST: test accuracy by numbers sent", [*_lines("mnist"), *_small_lines()]),
        "F3": Table("fedsep/F3", "CIFAR-10: the same", _lines("cifar10")),
        "F4": Table("fedsep/F4", "MNIST: test accuracy by local steps, p 2000", [_steps(kind) for kind in PARTITIONS]),
        **model_tables(),
    }


def _lines(task: str) -> list[Line]:
    return [_sizes(task, kind, SIZES) for kind in PARTITIONS]


def _small_lines() -> list[Line]:
    lines = [_sizes("mnist", kind, FEW) for kind in PARTITIONS]
    return [replace(line, name=f"{line.name}-small", values={**line.values, "rounds": 30}) for line in lines]


def _sizes(task: str, kind: str, sizes: list[int]) -> Line:
    methods: dict[str, Section] = {"uncompressed": {**LOCAL, "name": "fedavg"}}
    for p in sizes:
        methods[f"FedSep {p}"] = _fedsep(task, p)
        methods[f"Top-K {p}"] = {**LOCAL, "name": "fedavg_topk", "entries": max(1, p // 2)}
        sketch = {"rows": 5, "columns": p // 5, "entries": max(1, p // 100)}
        methods[f"sketch {p}"] = {**LOCAL, "name": "fetchsgd", **sketch}
    return Line(f"{task}-{kind}", f"{TITLES[task]}, {TITLES[kind]}", _values(task, kind), methods, remark=REMARK)


def _fedsep(task: str, p: int) -> Section:
    step = max(1.0, round(PARAMETERS[task] / (3 * p), 1))
    return {**LOCAL, "name": "fedsep", "sketch_size": p, "server": {"lr": step}}


def _steps(kind: str) -> Line:
    methods = {f"I = {steps}": {**_fedsep("mnist", 2000), "steps": steps} for steps in STEPS}
    return Line(f"mnist-{kind}-steps", f"MNIST, {TITLES[kind]}", _values("mnist", kind), methods, remark=REMARK)


def _values(task: str, kind: str) -> Section:
    return {
        "rounds": 200,
        "participation": 1.0,
        "task": {**TASKS[task], "partition": PARTITIONS[kind]},
        "evaluation": {"every": 10, "clients": 0},
        "checkpoints": {"every": 100, "keep": 1},
    }
