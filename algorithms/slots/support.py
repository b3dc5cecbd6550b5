"""Which slots an algorithm supports, as derived from its declarations."""

from collections.abc import Callable
from typing import Any

from hedgerow.algorithms.core.algorithm import Algorithm


def _averages(algorithm: Algorithm) -> bool:
    return bool(algorithm.parts)


SLOTS: dict[str, Callable[[Algorithm], bool]] = {
    "aggregation.rule": lambda algorithm: (
        _averages(algorithm) and not (algorithm.has_opaque_parts or algorithm.accumulates)
    ),
    "aggregation.weighting": lambda algorithm: (
        algorithm.weighting != "own" and bool(algorithm.parts or algorithm.weighting)
    ),
    "aggregation.server_optimizer": lambda algorithm: algorithm.optimizes is not None,
    "transforms": _averages,
    "objective": lambda algorithm: bool(algorithm.training_steps),
    "simulation.attack": lambda algorithm: _averages(algorithm) and "all_clients" not in algorithm.needs,
    "privacy": lambda algorithm: algorithm.supports_privacy,
    "schedule": lambda algorithm: algorithm.supports_async and type(algorithm).init_client is Algorithm.init_client,
}
"""Slot, by its key in the experiment file -> whether the declarations of an algorithm allow it."""


def supported_slots(kind: type[Algorithm]) -> dict[str, bool]:
    """Slot -> whether an algorithm with its default hyperparameters supports it.

    A supported slot may still refuse single values of it, such as server momentum, error feedback, or weights by
    samples where the server state accumulates.
    """
    algorithm = without_task(kind, kind.Hyper.model_construct())
    return {slot: supports(algorithm) for slot, supports in SLOTS.items()}


def without_task(kind: type[Algorithm], hyper: Any) -> Algorithm:
    """Returns an algorithm for its declarations, which may depend on hyperparameters, and never on the task."""
    algorithm = kind.__new__(kind)
    algorithm.hyper = hyper
    return algorithm
