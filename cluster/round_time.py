"""How long a round takes: by a model with measured constants, or by running a few rounds here.

The model, of which benchmarks/scaling.py measures the constants (docs/performance.md):

seconds = per round + per actor * A + per MB * M + per actor and MB * A * M
          + per batched step * batched steps of the busiest core
          + (per client step + per client step and million parameters * P) * client steps of the busiest core

A: client actors. M: megabytes of the model. P: its parameters in millions. A batched step is one local step of a whole
chunk of clients.
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
from hedgerow.platform.config.experiment import Checkpoints, Experiment, Tracking
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.launch import build_coordinator

CHUNK = 25
"""Largest number of clients at once in the measurements."""

ROUNDS = 4
"""The first round chooses between loop and vmap, and the last one, which would evaluate the model, is not run."""


@dataclass(frozen=True)
class RoundTimeModel:
    """The quantities that determine the seconds of a round. steps: mini-batches of a client."""

    parameters: int
    clients: int
    actors: int
    steps: float
    cores: int

    @property
    def chunk(self) -> int:
        """Clients at once."""
        return min(CHUNK, -(-self.clients // self.actors))

    @property
    def features(self) -> list[float]:
        """The factor of each constant."""
        megabytes = 4e-6 * self.parameters
        chunks = -(-self.clients // (self.actors * self.chunk))
        busy = min(self.actors, self.cores)
        batched = self.steps * chunks * self.actors / busy
        # The last chunk is padded.
        steps = batched * self.chunk
        return [1.0, self.actors, megabytes, self.actors * megabytes, batched, steps, steps * self.parameters / 1e6]

    def seconds(self) -> float:
        """The predicted seconds of a round."""
        constants = fitted_constants()["seconds"].values()
        return sum(constant * x for constant, x in zip(constants, self.features, strict=True))

    def extrapolated(self) -> list[str]:
        """The quantities that are outside the measured range."""
        return [
            f"{value:,} {name}"
            for name in ("parameters", "clients", "actors")
            if not fitted_constants()[name][0] <= (value := getattr(self, name)) <= fitted_constants()[name][1]
        ]


def exchange_seconds(parameters: int, actors: int) -> float:
    """The seconds of an exchange without the clients' work."""
    constants, megabytes = fitted_constants()["seconds"], 4e-6 * parameters
    each = constants["per actor"] + constants["per actor and MB"] * megabytes
    return constants["per round"] + actors * each + constants["per MB"] * megabytes


@cache
def fitted_constants() -> dict[str, Any]:
    """The constants of the model, and the range of the measurements that they were fitted to."""
    return json.loads((files("hedgerow.cluster") / "round_time.json").read_text())


def predict_round_time(experiment: Experiment, parameters: int, partition: Partition, actors: int, cores: int) -> str:
    """A sentence with the predicted seconds of a round and their basis, or with the reason why there are none."""
    known, engine, model = fitted_constants(), experiment.engine, experiment.task.model.name
    if experiment.algorithm.name != "fedavg" or model != "mlp":
        why = f"{experiment.algorithm.name} on {model}"
    elif experiment.resources.gpu:
        why = "GPUs"
    elif engine.mode == "loop" or engine.compile is True:
        why = "a loop over clients" if engine.mode == "loop" else "compiled steps"
    else:
        why = ""
    if why:
        return (
            f"seconds per round: no prediction, since {why} were not measured (only {known['measured']}); --measure "
            "runs some rounds here"
        )
    batches = experiment.algorithm.batches["train"]  # type: ignore[attr-defined]
    sizes = partition.shares()["train"].sizes
    steps = batches.steps or float(np.mean(batches.epochs * np.ceil(sizes / (batches.size or sizes))))
    round = RoundTimeModel(parameters, experiment.cohort_size(len(partition)), actors, steps, cores)
    extrapolated = round.extrapolated()
    if batches.size != known["batch_size"]:
        extrapolated.append(f"mini-batches of {batches.size or 'all samples'}")
    if engine.chunk not in ("auto", round.chunk):
        extrapolated.append(f"{engine.chunk} clients at once")
    error = f"{known['largest error where not fitted']:.0%} off at most where it was checked"
    reach = f"; extrapolated to {', '.join(extrapolated)}" if extrapolated else ""
    return (
        f"seconds per round: {round.seconds():.3g} predicted for training alone on cores like those measured: "
        f"{known['measured']} ({error}){reach}"
    )


def measure_round_time(
    experiment: Experiment, dataset: Dataset, partition: Partition, parameters: int, actors: int
) -> str:
    """A sentence with the seconds of a round, from rounds of one actor's share that are run here.

    Raises UserError if the actors have GPUs and this machine has none.
    """
    if experiment.resources.gpu and not torch.cuda.is_available():
        raise UserError(
            "plan --measure: the client actors have GPUs, and this machine has none; submit the plan to a node that has"
        )
    share = -(-experiment.cohort_size(len(partition)) // actors)
    alone = experiment.model_copy(
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
        coordinator = build_coordinator([alone], dataset, partition, None, [Path(folder)])
        records = [coordinator.run_round()[0] for _ in range(ROUNDS - 1)]
    clock = [record["seconds"] for record in records]
    work = min(later - before for before, later in pairwise(clock))
    exchanges = records[-1]["exchanges"]
    travel = exchanges * exchange_seconds(parameters, actors)
    return (
        f"seconds per round: {work + travel:.3g} predicted for training alone: {work:.3g} measured here for the "
        f"{share} client{'s' * (share > 1)} of one actor, and {travel:.3g} for {exchanges} "
        f"exchange{'s' * (exchanges > 1)} with {actors} actor{'s' * (actors > 1)} by docs/performance.md"
    )
