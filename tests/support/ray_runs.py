"""Experiments for tests on Ray, and comparisons of their runs."""

from pathlib import Path

import numpy as np
import psutil
from helpers import set_paths, without_clock

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.runs.runner import run


def small(output: Path, **settings) -> Experiment:
    """Digits over 12 clients, with states; vmap in chunks of 2, so that no plan is measured."""
    values = {
        "name": "small",
        "rounds": 4,
        "clients_per_round": 0.5,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "dirichlet", "clients": 12, "alpha": 0.5, "samples_per_client": 20},
            "model": {"name": "mlp", "hidden": [8]},
        },
        "algorithm": {"name": "toys.Stateful", "epochs": 2, "batch_size": 8},
        "resources": {"actors": 1, "cpus_per_actor": 1},
        "engine": {"mode": "vmap", "chunk": 2},
        "checkpoints": {"every": 2},
        "tracking": {"enabled": False},
        "output": str(output),
    }
    return parse_experiment(set_paths(values, settings))


def numbers(finished: FinishedRun) -> list[dict]:
    """The records without the clock."""
    return without_clock(finished.records)


def same(a: FinishedRun, b: FinishedRun) -> bool:
    """Whether two runs have the same metrics and parameters, bit for bit."""
    equal = all(np.array_equal(a.parameters[k], b.parameters[k]) for k in a.parameters)
    return equal and numbers(a) == numbers(b)


def one_by_one(*experiments: Experiment) -> list[FinishedRun]:
    """Run experiments one after the other, as a command with several files does."""
    return [run(experiment) for experiment in experiments]


def hosts_coordinator(process: psutil.Process) -> bool:
    try:
        return any("ray::CoordinatorActor" in part for part in process.cmdline())
    except psutil.Error:  # the process has just ended
        return False
