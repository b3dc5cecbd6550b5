"""Hedgerow, called from Python with a data set in memory that no `task.data` of an experiment file names."""

import os
import pickle
from typing import Any

from hedgerow import load_experiment, run


def main(job: Any) -> None:
    executor = os.environ["HEDGEROW_BENCH_EXECUTOR"]
    experiment = load_experiment(job.folder / "experiment.yaml", [f"resources.executor={executor}"])
    run(experiment, data=pickle.loads((job.folder / "data.pickle").read_bytes()))
