"""Seconds per round: predicted by a model with measured constants, or by running a few rounds here.

The constants of the model are measured by benchmarks/scaling.py (docs/performance.md):

seconds = per round + per actor * A + per MB * M + per actor and MB * A * M
          + per batched step * batched steps of the busiest core
          + (per client step + per client step and million parameters * P) * client steps of the busiest core

A: number of client actors. M: size of the model in MB. P: number of parameters in millions. A batched step is one
local step of a whole chunk of clients.
"""

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.percent import percent
from hedgerow.platform.config.experiment import Checkpoints, Experiment, Tracking
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.launch import build_coordinator

CHUNK = 25
"""Largest chunk of clients in the measurements."""

ROUNDS = 4
"""Rounds of a measurement. The first one chooses between loop and vmap; the last one, an evaluation, is not run."""


@dataclass(frozen=True)
class RoundTimeModel:
    """Quantities that determine the seconds of a round. steps: mini-batches per client."""

    parameters: int
    clients: int
    actors: int
    steps: float
    cores: int

    @property
    def chunk(self) -> int:
        """Number of clients per chunk."""
        return min(CHUNK, -(-self.clients // self.actors))

    @property
    def features(self) -> list[float]:
        """Factor of each constant."""
        megabytes = 4e-6 * self.parameters
        chunks = -(-self.clients // (self.actors * self.chunk))
        busy = min(self.actors, self.cores)
        batched = self.steps * chunks * self.actors / busy
        # The last chunk is padded.
        steps = batched * self.chunk
        return [1.0, self.actors, megabytes, self.actors * megabytes, batched, steps, steps * self.parameters / 1e6]

    def seconds(self) -> float:
        """Predicted seconds of a round."""
        constants = fitted_constants()["seconds"].values()
        return sum(constant * x for constant, x in zip(constants, self.features, strict=True))

    def extrapolated(self) -> list[str]:
        """Quantities outside the measured range."""
        return [
            f"{value:,} {name}"
            for name in ("parameters", "clients", "actors")
            if not fitted_constants()[name][0] <= (value := getattr(self, name)) <= fitted_constants()[name][1]
        ]


def exchange_seconds(parameters: int, actors: int) -> float:
    """Seconds of an exchange without the clients' work."""
    constants, megabytes = fitted_constants()["seconds"], 4e-6 * parameters
    per_actor = constants["per actor"] + constants["per actor and MB"] * megabytes
    return constants["per round"] + actors * per_actor + constants["per MB"] * megabytes


@cache
def fitted_constants() -> dict[str, Any]:
    """Constants of the model, and the range of the measurements that they were fitted to."""
    return json.loads((files("hedgerow.cluster") / "round_time.json").read_text())


def predict_round_time(experiment: Experiment, parameters: int, partition: Partition, actors: int, cores: int) -> str:
    """Returns a sentence with the predicted seconds of a round and their basis, or why there is no prediction."""
    constants, engine, model = fitted_constants(), experiment.engine, experiment.task.model.name
    if experiment.algorithm.name != "fedavg" or model != "mlp":
        reason = f"{experiment.algorithm.name} on {model}"
    elif experiment.resources.gpu:
        reason = "GPUs"
    elif engine.mode == "loop" or engine.compile is True:
        reason = "a loop over clients" if engine.mode == "loop" else "compiled steps"
    else:
        reason = ""
    if reason:
        return (
            f"seconds per round: no prediction, since there are no measurements for {reason} "
            f"(only {constants['measured']}); --measure runs a few rounds here"
        )
    batches = experiment.algorithm.batches["train"]  # type: ignore[attr-defined]
    sizes = partition.shares()["train"].sizes
    steps = batches.steps or float(np.mean(batches.epochs * np.ceil(sizes / (batches.size or sizes))))
    round = RoundTimeModel(parameters, experiment.cohort_size(len(partition)), actors, steps, cores)
    extrapolated = round.extrapolated()
    if batches.size != constants["batch_size"]:
        extrapolated.append(f"mini-batches of {batches.size or 'all samples'}")
    if engine.chunk not in ("auto", round.chunk):
        extrapolated.append(f"{engine.chunk} clients at once")
    error = f"largest error in checks: {percent(constants['largest error where not fitted'], digits=0)}"
    extrapolation = f"; extrapolated to {', '.join(extrapolated)}" if extrapolated else ""
    return (
        f"seconds per round: {round.seconds():.3g} predicted for training only, on cores like the measured ones: "
        f"{constants['measured']} ({error}){extrapolation}"
    )


def measure_round_time(
    experiment: Experiment, dataset: Dataset, partition: Partition, parameters: int, actors: int
) -> str:
    """Returns a sentence with the seconds of a round, measured by running one actor's share of some rounds here.

    Raises UserError if the actors use GPUs and this machine has none.
    """
    if experiment.resources.gpu and not torch.cuda.is_available():
        raise UserError(
            "plan --measure: the client actors use GPUs, but this machine has none; submit the plan to a node with GPUs"
        )
    share = -(-experiment.cohort_size(len(partition)) // actors)
    local_run = experiment.model_copy(
        update={
            "rounds": ROUNDS,
            "participation": None,
            "clients_per_round": share,
            "resources": experiment.resources.model_copy(update={"executor": "inline", "actors": 1}),
            "evaluation": experiment.evaluation.model_copy(update={"every": ROUNDS, "stop": False}),
            "checkpoints": Checkpoints(every=0),
            "tracking": Tracking(enabled=False),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        coordinator = build_coordinator([local_run], dataset, partition, [Path(folder)])
        records = [coordinator.run_round()[0] for _ in range(ROUNDS - 1)]
    ends = [record["seconds"] for record in records]
    work = min(later - before for before, later in pairwise(ends))
    exchanges = records[-1]["exchanges"]
    communication = exchanges * exchange_seconds(parameters, actors)
    return (
        f"seconds per round: {work + communication:.3g} predicted for training only: {work:.3g} measured here for the "
        f"{share} client{'s' * (share > 1)} of one actor, and {communication:.3g} for {exchanges} "
        f"exchange{'s' * (exchanges > 1)} with {actors} actor{'s' * (actors > 1)} (docs/performance.md)"
    )
