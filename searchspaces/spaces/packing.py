"""Which experts a trial trains: one, or a pack of experts that differ in floats only and share the work of a round."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.resources import Resources
from hedgerow.searchspaces.spaces.space import Overrides

NUMBER, PACK = "number", "pack"


Members = list[tuple[int, Overrides]]
"""The experts of a trial: number and configuration of each."""


def members(trial_id: str, config: dict[str, Any]) -> Members:
    """The experts of a trial.

    Tune counts the trials in their identifiers; a pack says its experts' numbers itself, and a searcher its trial's.
    """
    if PACK in config:
        return [(number, overrides) for number, overrides in config[PACK]]
    counted = config[NUMBER] if NUMBER in config else int(trial_id.rsplit("_", 1)[-1])
    return [(counted, config.get("overrides", {}))]


def pack_trials(experiments: Sequence[Experiment], room: int, size: int | None) -> list[list[int]]:
    """Deal experts into packs: lists of their numbers, in order.

    room: trials that the cluster holds at once. size: experts in a pack at most; None: as many as leave no room empty.
    """
    alike: dict[str, list[int]] = {}
    for number, experiment in enumerate(experiments):
        alike.setdefault(_fusion_key(experiment), []).append(number)
    packs = []
    for numbers in alike.values():
        parts = -(-len(numbers) // size) if size else min(room, len(numbers))
        packs += [part.tolist() for part in np.array_split(numbers, parts)]
    return sorted(packs)


def _fusion_key(experiment: Experiment) -> str:
    """What experts of one pack have in common: everything but the floats of their algorithm and its slots."""
    hyper = experiment.hyper
    blank = hyper.with_floats(dict.fromkeys(hyper.floats(), "a float")).model_dump(mode="json", warnings=False)
    values = experiment.model_dump(mode="json", exclude={*blank})
    return json.dumps(values | blank, sort_keys=True)


def client_actors(resources: Resources) -> int:
    """Client actors of each trial: one, unless the file asks for more."""
    if resources.executor == "inline" or resources.actors == "auto":
        return 1
    return resources.actors
