"""Loop or vmap, and the chunk size: measured once per machine and task, then remembered."""

import hashlib
import json
import os
import platform as host
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import torch

from hedgerow.algorithms.base import Batches
from hedgerow.platform.data import cache_folder
from hedgerow.platform.engine import Plan
from hedgerow.platform.experiment import EngineConfig

MEASURED_STEPS = 2
"""Mini-batches that a measurement runs: enough to tell loop from vmap, cheap on large models."""

NO_BETTER = 1.2
"""A chunk so many times slower than the best plan so far ends the measurement: larger ones would only cost memory."""

Measure = Callable[[Plan], float]
"""Seconds that one chunk of clients takes under a plan."""


def candidates(share: int) -> list[Plan]:
    """The plans worth measuring for a worker with `share` clients in a round."""
    chunks = {-(-share // parts) for parts in (1, 2, 4, 8)}
    return [Plan("loop"), *(Plan("vmap", chunk) for chunk in sorted(chunks) if 2 <= chunk <= 128)]


def shortened(batches: dict[str, Batches]) -> dict[str, Batches]:
    """The same streams, cut to a few mini-batches."""
    return {
        name: replace(spec, steps=min(spec.steps or MEASURED_STEPS, MEASURED_STEPS)) for name, spec in batches.items()
    }


def choose(config: EngineConfig, no_vmap: str | None, share: int, key: dict, measure: Measure) -> Plan:
    """The plan for one step.

    What the file leaves open is measured. The choice is remembered in the user's cache, so that a run which is
    repeated on the same machine repeats its numbers bit for bit; the run's record holds it too.
    no_vmap: why the model cannot be batched, if so. share: clients per worker in a round. key: what the choice
    depends on. measure: seconds per chunk under a plan.
    """
    if config.mode == "loop" or no_vmap:
        return Plan("loop")
    if config.mode == "vmap" and config.chunk != "auto":
        return Plan("vmap", config.chunk)
    plans = [plan for plan in candidates(share) if config.mode == "auto" or plan.mode == "vmap"]
    if config.chunk != "auto":
        plans = [Plan("loop"), Plan("vmap", config.chunk)]
    plans = plans or [Plan("vmap", max(share, 1))]
    if len(plans) == 1:
        return plans[0]
    file = cache_folder() / "plans" / f"{_digest(key | {'plans': [asdict(p) for p in plans]})}.json"
    if file.exists():
        return Plan(**json.loads(file.read_text()))
    return _remember(file, _fastest(plans, share, measure))


def _fastest(plans: list[Plan], share: int, measure: Measure) -> Plan:
    """The plan that works through `share` clients soonest; plans are tried from small chunks to large ones."""
    best, shortest = plans[0], float("inf")
    for plan in plans:
        seconds = -(-share // plan.chunk) * measure(plan)
        if seconds < shortest:
            best, shortest = plan, seconds
        elif seconds > NO_BETTER * shortest:
            break
    return best


def _digest(key: dict) -> str:
    key = key | {"torch": torch.__version__, "machine": [host.node(), host.machine(), os.cpu_count()]}
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _remember(file: Path, plan: Plan) -> Plan:
    """Keep the plan, unless another process was first: then that one's, so that all experts of a search agree."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent) as aside:
        json.dump(asdict(plan), aside)
        aside.flush()
        with suppress(FileExistsError):
            os.link(aside.name, file)
    return Plan(**json.loads(file.read_text()))
