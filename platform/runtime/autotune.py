"""Loop or vmap, the chunk size, compiled or not: measured once per machine and task, then remembered."""

import hashlib
import json
import logging
import os
import platform as host
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Protocol

import torch

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.data.sources.cache import cache_folder
from hedgerow.platform.runtime.shards import ExecutionPlan

FORMAT = 4
"""Of remembered answers; those of another one are not looked at."""

MEASURED_STEPS = 2
"""Mini-batches that a measurement runs: enough to tell loop from vmap, cheap on large models."""

MEASURED_SAMPLES = 64
"""Samples of a mini-batch in a measurement, where it is as large as a client's data."""

CLOSE = 1.5
"""Plans within so many times the fastest are measured again, with more mini-batches."""

BRIEF = 0.2
"""So are those of which a chunk took less than so many seconds."""

RUN_OFF_STEPS = 10
"""Mini-batches of that second measurement, at most. What a client costs once, to read its state, to copy its model and
to add up its answer, weighs too much in two; from both measurements follows what a mini-batch costs."""

TOGETHER = 512
"""Clients of all variants that are batched at most."""

NO_BETTER = 1.2
"""A chunk so many times slower than the best plan so far ends the measurement: larger ones would only cost memory."""

COMPILE_SECONDS = 60.0
"""A compiled step is tried where it could save a run so much time: to compile takes about half of it."""

COMPILE_GAIN = 0.5
"""The share of its time that a compiled step may save; measured: 0.4 to 0.8 for small models on a CPU."""

UNROLLED = 64
"""Mini-batches up to which a step is compiled: its loop is unrolled."""


LIGHT = 3e-3
"""Seconds of a chunk's mini-batch up to which a compiled step is tried. A slower one is mostly arithmetic, of which
nothing can be saved, or thousands of operators, which take many minutes to compile."""


@dataclass(frozen=True)
class Measurement:
    """What one chunk of clients takes. memory: what the process held at rest, and what more in the meantime, in MB."""

    seconds: float
    at_rest: float = 0.0
    more: float = 0.0


class Measure(Protocol):
    """Tries a plan on some mini-batches of a chunk of clients; steps None: on all of theirs."""

    def __call__(self, plan: ExecutionPlan, steps: int | None = MEASURED_STEPS) -> Measurement: ...


@dataclass(frozen=True)
class Workload:
    """What is to be done under a plan. share: clients per worker in a round. rounds: how many of them are left.

    steps: mini-batches of a client, on average. alike: whether all have as many, so that all chunks have one shape.
    megabytes: memory that a worker's process may take; None: any. variants: of whom all run every client of a chunk.
    """

    share: int
    rounds: int = 1
    steps: int = 1
    alike: bool = False
    megabytes: float | None = None
    variants: int = 1

    def chunks(self, plan: ExecutionPlan) -> int:
        """Into how many a worker's share is cut."""
        return -(-self.share // plan.chunk)

    def seconds(self, plan: ExecutionPlan, cost: Measurement) -> float:
        """Of a worker's share, where a chunk of it costs so much."""
        return self.chunks(plan) * cost.seconds


def candidate_plans(config: EngineConfig, share: int, variants: int = 1) -> list[ExecutionPlan]:
    """The plans that the file leaves open, for a worker with `share` clients in a round; small chunks first."""
    chunks = chunk_sizes(share, variants) if config.chunk == "auto" else [min(config.chunk, max(1, share))]
    batched = [ExecutionPlan("vmap", chunk) for chunk in chunks]
    return [ExecutionPlan("loop"), *batched] if config.mode == "auto" else batched or [ExecutionPlan("vmap", 1)]


def chunk_sizes(share: int, variants: int) -> list[int]:
    """Chunks that cut a share evenly; of several variants, those that are not too many together."""
    chunks = {-(-share // -(-share // most)) for most in (4, 8, 16, 32, 64, 128)}
    return [
        chunk for chunk in sorted(chunks) if chunk * variants > 1 and chunk * variants <= max(TOGETHER, 4 * variants)
    ]


def shortened(batches: dict[str, BatchSpec], steps: int | None) -> dict[str, BatchSpec]:
    """The same streams, cut to some mini-batches, or, for None, whole; of whole local data sets, a part of them."""
    if steps is None:
        return batches
    shortest = min((spec.steps for spec in batches.values() if spec.steps), default=steps)
    # A stream of which every step takes several mini-batches is cut in proportion.
    share = min(1.0, steps / shortest)
    return {
        name: replace(
            spec,
            size=spec.size or MEASURED_SAMPLES,
            steps=steps if spec.steps is None else ceil(spec.steps * share),
        )
        for name, spec in batches.items()
    }


def tune_plan(
    config: EngineConfig, no_vmap: str | None, workload: Workload, key: dict, measure: Measure
) -> ExecutionPlan:
    """The plan for one step.

    What the file leaves open is measured, and the choice is remembered in the user's cache. Plans differ in the last
    bits of their sums, so the same numbers need the same plan: it is recorded in run.json.
    no_vmap: why the model cannot be batched, if so. key: what the choice depends on.
    """
    if config.mode == "loop" or no_vmap:
        return ExecutionPlan("loop")
    plans = candidate_plans(config, workload.share, workload.variants)
    compiling = config.compile is not False and workload.alike and workload.steps <= UNROLLED
    if len(plans) == 1:
        # The file decides it all, and nothing is measured.
        return replace(plans[0], compiled=compiling and config.compile is True and plans[0].mode == "vmap")
    question = key | {"plans": [asdict(plan) for plan in plans], "megabytes": workload.megabytes}
    known = _remembered(question, lambda: _fastest(plans, workload, measure))
    best = ExecutionPlan(**known["best"])
    if not compiling or known["batched"] is None:
        return best
    compiled = replace(ExecutionPlan(**known["batched"]), compiled=True)
    if config.compile is True:
        return compiled
    light = known["seconds"] <= LIGHT * workload.steps * workload.chunks(best)
    if not light or workload.rounds * known["seconds"] * COMPILE_GAIN < COMPILE_SECONDS:
        return best
    pays = _remembered(question | {"compiled": True}, lambda: _pays(compiled, best, workload, measure))
    return compiled if pays else best


def _fastest(plans: list[ExecutionPlan], workload: Workload, measure: Measure) -> dict[str, Any]:
    """The best plan, the best batched one (if any was tried), and the seconds of a round's work under the best."""
    seconds = _measured(plans, workload, measure)
    steps = min(workload.steps, MEASURED_STEPS)
    fastest = min(seconds.values())
    close = [p for p, took in seconds.items() if took <= CLOSE * fastest or took < BRIEF * workload.chunks(p)]
    again: dict[ExecutionPlan, float] = {}
    if len(close) > 1 and workload.steps > MEASURED_STEPS:
        steps = min(workload.steps, RUN_OFF_STEPS)
        for plan in close:
            took = workload.seconds(plan, measure(plan, steps))
            slope = max(0.0, took - seconds[plan]) / (steps - MEASURED_STEPS)
            again[plan] = took + slope * (workload.steps - steps)
        steps = workload.steps
    final = again or seconds
    best = min(final, key=final.__getitem__)
    # Of two that were measured alike: those of the run-off, where there are any.
    tried = next((some for some in (again, seconds) if any(plan.mode == "vmap" for plan in some)), {})
    batched = min((plan for plan in tried if plan.mode == "vmap"), key=tried.__getitem__, default=None)
    work = final[best] * workload.steps / steps
    return {"best": asdict(best), "batched": batched and asdict(batched), "seconds": work}


def _measured(plans: list[ExecutionPlan], workload: Workload, measure: Measure) -> dict[ExecutionPlan, float]:
    """Seconds that a worker's share takes under each plan, from small chunks to large ones.

    It ends where larger chunks are slower, or would take more memory than there is, or took more than a GPU has.
    """
    seconds: dict[ExecutionPlan, float] = {}
    cost, chunk = Measurement(0.0), 1
    for plan in plans:
        if workload.megabytes is not None and cost.at_rest + cost.more * plan.chunk / chunk > workload.megabytes:
            break
        try:
            cost, chunk = measure(plan), plan.chunk
        except torch.OutOfMemoryError:
            if not seconds:
                raise
            break
        seconds[plan] = workload.seconds(plan, cost)
        if plan.mode == "vmap" and seconds[plan] > NO_BETTER * min(seconds.values()):
            break
    return seconds


def _pays(compiled: ExecutionPlan, best: ExecutionPlan, workload: Workload, measure: Measure) -> bool:
    """Whether the compiled plan is faster than the best one."""
    seconds = workload.seconds(best, measure(best, None))
    try:
        return workload.seconds(compiled, measure(compiled, None)) < seconds
    except Exception as error:  # no compiler on this machine, or a step that cannot be traced
        logging.getLogger(__name__).info("not compiled: %s", error)
        return False


def _digest(key: dict) -> str:
    key = key | {"format": FORMAT, "torch": torch.__version__, "machine": [host.node(), host.machine(), os.cpu_count()]}
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _remembered(question: dict[str, Any], answer: Callable[[], Any]) -> Any:
    """The answer to a question in the user's cache; else a new one, kept there unless another process was first.

    Then that one's, so that all experts of a search agree.
    """
    file = cache_folder() / "plans" / f"{_digest(question)}.json"
    if not file.exists():
        found = answer()
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent) as aside:
            json.dump(found, aside)
            aside.flush()
            with suppress(FileExistsError):
                os.link(aside.name, file)
    return json.loads(file.read_text())
