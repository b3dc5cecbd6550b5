"""Packs of experts: a trial trains one expert, or several that differ only in floats and share the work of a round."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from hedgerow.algorithms.slots.slots import SlottedHyper
from hedgerow.platform.config.experiment import Experiment
from hedgerow.searchspaces.spaces.space import Overrides

NUMBER, PACK = "number", "pack"

COPIED = "copied"
"""Entry of a trial's run.json: rounds that its records have from copies, beyond those that it had trained itself."""

COPIES, LINEAGE = "copies", "lineage"
"""Keys of a trial that continues from copies of other trials: their number, and the origin of its current model.

The origin is a list of copies, oldest first. Each has the `donor`, the last `round` of it that was taken over, the
`donor_overrides` of the rounds up to it (from the copy before), and the `overrides` of the rounds after it.
"""

Members = list[tuple[int, Overrides]]
"""Experts of a trial: number and configuration of each."""


def members(trial_id: str, config: dict[str, Any]) -> Members:
    """Returns the experts of a trial.

    Tune's identifier of a trial contains its number; a pack lists its experts' numbers, and a searcher its trial's.
    """
    if PACK in config:
        return [(number, overrides) for number, overrides in config[PACK]]
    index = config[NUMBER] if NUMBER in config else int(trial_id.rsplit("_", 1)[-1])
    return [(index, config.get("overrides", {}))]


def pack_trials(experiments: Sequence[Experiment], room: int, size: int | None) -> list[list[int]]:
    """Divide experts into packs: lists of their numbers, in order.

    room: trials that fit on the cluster at once. size: maximum number of experts in a pack; None: fill the room.
    """
    groups: dict[str, list[int]] = {}
    for number, experiment in enumerate(experiments):
        groups.setdefault(_fusion_key(experiment), []).append(number)
    packs = []
    for numbers in groups.values():
        parts = -(-len(numbers) // size) if size else min(room, len(numbers))
        packs += [part.tolist() for part in np.array_split(numbers, parts)]
    return sorted(packs)


def _fusion_key(experiment: Experiment) -> str:
    """Key of experts that can share a pack: all settings of all rounds, except floats of the algorithm and its slots
    and the values that clients draw for the same keys.
    """
    hyper, schedule = experiment.hyper, sha256()
    blank = _without_floats(hyper)
    # A schedule of the user's own may derive other settings from a float, such as a number of steps.
    sections = (experiment.algorithm, experiment.objective)
    if any(one is not None and not type(one).at.__module__.startswith("hedgerow.") for one in sections):
        for round in range(1, experiment.rounds + 1):
            schedule.update(json.dumps(_without_floats(hyper.at(round)), sort_keys=True).encode())
    values = experiment.model_dump(mode="json", exclude={*blank, "fedex"})
    drawn = (experiment.fedex.score, sorted(experiment.fedex.keys)) if experiment.fedex else None
    return json.dumps(values | blank | {"fedex": drawn, "schedule": schedule.hexdigest()}, sort_keys=True)


def _without_floats(hyper: SlottedHyper) -> dict[str, Any]:
    return hyper.with_floats(dict.fromkeys(hyper.floats(), "a float")).model_dump(mode="json", warnings=False)
