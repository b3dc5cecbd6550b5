"""The seconds of a round, from some rounds of one client actor's share that are run here."""

import tempfile
from itertools import pairwise
from pathlib import Path

import torch

from hedgerow.cluster.round_time import exchange_seconds
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Checkpoints, Experiment, Tracking
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.launch import build_coordinator

ROUNDS = 4
"""The first round chooses between loop and vmap, and the last one, which would score the model, is not run."""


def measured(experiment: Experiment, dataset: Dataset, partition: Partition, parameters: int, actors: int) -> str:
    """A sentence on the seconds of a round. Raises UserError where the actors have GPUs and this machine has none."""
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
