"""Loop, graph or vmap, chunk size, compiled or not: measured once per kind of machine and task, then cached."""

import hashlib
import json
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.user_cache import cache_folder, read_entry, write_entry
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.runtime.shards import ClientCrashed, ExecutionPlan, ObjectsLost, PlanFailed

FORMAT = 8
"""Version of cached answers; answers of another version are ignored."""

MEASURED_STEPS = 2
"""Number of mini-batches in a measurement: enough to distinguish loop from vmap, cheap on large models."""

MEASURED_SAMPLES = 64
"""Samples per mini-batch in a measurement, where a mini-batch is a client's whole data set."""

CLOSE = 1.5
"""Plans within this factor of the fastest are measured again, with more mini-batches."""

LOOP, GRAPH = ExecutionPlan("loop"), ExecutionPlan("graph")

TIE = 1.1
"""The loop is chosen unless another plan is faster by this factor: otherwise noise would decide, and with it the bits.
"""

BRIEF = 0.2
"""Plans whose chunks took less than this many seconds are measured again as well."""

RUN_OFF_STEPS = 10
"""Maximum number of mini-batches in that second measurement. In the first one, with two mini-batches, the fixed costs
of a client weigh too much: reading its state, copying its model and adding up its answer. Together, the two
measurements give the cost of a mini-batch.
"""

TOGETHER = 512
"""Maximum number of clients that are batched, over all variants."""

NO_BETTER, HOPELESS = 1.2, 2.0
"""A chunk slower than the best smaller chunk, or than the best plan so far, by these factors ends the measurement:
larger ones would only cost memory. Chunks that are a little slower than the loop may be followed by faster ones.
"""

COMPILE_SECONDS = 60.0
"""A compiled step is tried if it could save a run this many seconds: compiling takes about half of that."""

COMPILE_GAIN = 0.5
"""Fraction of its time that a compiled step may save; measured: 0.4 to 0.8 for small models on a CPU."""

UNROLLED = 64
"""Maximum number of mini-batches of a step that is compiled: its loop is unrolled."""


LIGHT = 3e-3
"""Maximum seconds per mini-batch of a chunk for which a compiled step is tried. A slower one is mostly arithmetic,
where nothing can be saved, or thousands of operators, which take many minutes to compile.
"""


@dataclass(frozen=True)
class Measurement:
    """Cost of one chunk of clients: seconds, memory of the process at rest, and additional memory, both in MB."""

    seconds: float
    at_rest: float = 0.0
    more: float = 0.0


Measure = Callable[[ExecutionPlan, int | None], Measurement]
"""Tries a plan on a number of mini-batches of a chunk of clients; None: on all of them."""


@dataclass(frozen=True)
class Workload:
    """Work to be done under a plan. clients: number per worker in a round. rounds: number of remaining rounds.

    steps: mean number of mini-batches per client. alike: whether all clients have the same number, so that all chunks
    have one shape. megabytes: memory limit of a worker's process; None: no limit. variants: number of variants, each of
    which runs every client of a chunk. on_gpu: whether the workers compute on GPUs.
    """

    clients: int
    rounds: int = 1
    steps: int = 1
    alike: bool = False
    megabytes: float | None = None
    variants: int = 1
    on_gpu: bool = False

    def chunks(self, plan: ExecutionPlan) -> int:
        """Number of chunks of a worker in a round."""
        return -(-self.clients // plan.chunk)

    def seconds(self, plan: ExecutionPlan, cost: Measurement) -> float:
        """Seconds of a worker for its clients of a round, from the cost of one chunk."""
        return self.chunks(plan) * cost.seconds


def candidate_plans(config: EngineConfig, workload: Workload, no_vmap: str | None = None) -> list[ExecutionPlan]:
    """Plans that the file allows; small chunks first. A graph serves clients with equal mini-batches.

    no_vmap: reason why the model cannot be batched, or None.
    """
    if config.mode in ("loop", "graph"):
        return [ExecutionPlan(config.mode)]
    one = [LOOP, *([GRAPH] if workload.on_gpu and workload.alike else [])]
    if no_vmap:
        return one if config.mode == "auto" else [LOOP]
    clients = workload.clients
    chunks = chunk_sizes(clients, workload.variants) if config.chunk == "auto" else [min(config.chunk, max(1, clients))]
    batched = [ExecutionPlan("vmap", chunk) for chunk in chunks]
    return [*one, *batched] if config.mode == "auto" else batched or [ExecutionPlan("vmap", 1)]


def chunk_sizes(clients: int, variants: int) -> list[int]:
    """Chunk sizes that divide the clients evenly; for several variants, only those with a limited total."""
    chunks = {-(-clients // -(-clients // most)) for most in (4, 8, 16, 32, 64, 128)}
    return [
        chunk for chunk in sorted(chunks) if chunk * variants > 1 and chunk * variants <= max(TOGETHER, 4 * variants)
    ]


def shortened(batches: dict[str, BatchSpec], steps: int | None) -> dict[str, BatchSpec]:
    """Same streams, cut to `steps` mini-batches (None: not cut); of whole local data sets, only a part."""
    if steps is None:
        return batches
    shortest = min((spec.steps for spec in batches.values() if spec.steps), default=steps)
    # A stream with several mini-batches per step is cut in proportion.
    fraction = min(1.0, steps / shortest)
    return {
        name: replace(
            spec,
            size=spec.size or MEASURED_SAMPLES,
            steps=steps if spec.steps is None else math.ceil(spec.steps * fraction),
        )
        for name, spec in batches.items()
    }


def tune_plan(
    config: EngineConfig, no_vmap: str | None, workload: Workload, key: dict, measure: Measure
) -> ExecutionPlan:
    """Choose the plan for one step.

    Choices that the file leaves open are measured, and cached for this user. Plans differ in the last bits of their
    sums, so the same numbers need the same plan: it is recorded in run.json. no_vmap: reason why the model cannot be
    batched, or None. key: everything that the choice depends on, including the hardware of the workers.
    """
    plans = candidate_plans(config, workload, no_vmap)
    may_compile = config.compile is not False and config.precision != "bfloat16" and can_compile()
    compiling = may_compile and workload.alike and workload.steps <= UNROLLED
    if len(plans) == 1:
        # The file determines the plan, so nothing is measured.
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


def can_compile() -> bool:
    """Whether torch.compile of the installed PyTorch traces client steps: 2.15 does, 2.11 to 2.14 do not."""
    return torch.__version__ >= "2.15"


def require_compiler(place: str, fix: str) -> None:
    """Raise UserError if torch.compile does not trace client steps. place: what wants it."""
    if not can_compile():
        raise UserError(
            f"{place}: compiled plans need PyTorch 2.15 or later, and {torch.__version__} is installed; {fix}"
        )


def _fastest(plans: list[ExecutionPlan], workload: Workload, measure: Measure) -> dict[str, Any]:
    """Best plan, best batched plan (None if none was tried), and seconds of a round's work under the best plan."""
    seconds = _measured(plans, workload, measure)
    steps = min(workload.steps, MEASURED_STEPS)
    fastest = min(seconds.values())
    candidates = [p for p, took in seconds.items() if took <= CLOSE * fastest or took < BRIEF * workload.chunks(p)]
    rerun: dict[ExecutionPlan, float] = {}
    if len(candidates) > 1 and workload.steps > MEASURED_STEPS:
        steps = min(workload.steps, RUN_OFF_STEPS)
        for plan in candidates:
            try:
                took = workload.seconds(plan, measure(plan, steps))
            except (PlanFailed, torch.OutOfMemoryError):
                # More mini-batches take more memory.
                continue
            slope = max(0.0, took - seconds[plan]) / (steps - MEASURED_STEPS)
            rerun[plan] = took + slope * (workload.steps - steps)
        steps = workload.steps if rerun else min(workload.steps, MEASURED_STEPS)
    final = rerun or seconds
    best = min(final, key=final.__getitem__)
    if final.get(LOOP, math.inf) <= TIE * final[best]:
        best = LOOP
    # Compare only plans with the same measurement: the second one, if it includes batched plans.
    timings = next((some for some in (rerun, seconds) if any(plan.mode == "vmap" for plan in some)), {})
    batched = min((plan for plan in timings if plan.mode == "vmap"), key=timings.__getitem__, default=None)
    work = final[best] * workload.steps / steps
    return {"best": asdict(best), "batched": batched and asdict(batched), "seconds": work}


def _measured(plans: list[ExecutionPlan], workload: Workload, measure: Measure) -> dict[ExecutionPlan, float]:
    """Seconds of a worker for its clients of a round, under each plan, from small chunks to large ones.

    Stops when larger chunks are slower, would exceed the memory limit, or ran out of memory. If the smallest chunk did,
    smaller ones are tried.
    """
    seconds: dict[ExecutionPlan, float] = {}
    cost, chunk = Measurement(0.0), 1
    for plan in plans:
        if workload.megabytes is not None and cost.at_rest + cost.more * plan.chunk / chunk > workload.megabytes:
            break
        try:
            cost, chunk = measure(plan, MEASURED_STEPS), plan.chunk
        except (PlanFailed, torch.OutOfMemoryError):
            if plan == GRAPH:
                continue
            if seconds:
                break
            if plan.chunk == 1:
                raise
            return _measured([replace(plan, chunk=plan.chunk // 2)], workload, measure)
        seconds[plan] = workload.seconds(plan, cost)
        batched = [took for other, took in seconds.items() if other.mode == "vmap"]
        # A graph says nothing about larger chunks, whose clients share each launch.
        others = [took for other, took in seconds.items() if other != GRAPH]
        if batched and (seconds[plan] > NO_BETTER * min(batched) or seconds[plan] > HOPELESS * min(others)):
            break
    return seconds


def _pays(compiled: ExecutionPlan, best: ExecutionPlan, workload: Workload, measure: Measure) -> bool:
    """Whether the compiled plan is faster than the best one."""
    try:
        seconds = workload.seconds(best, measure(best, None))
        return workload.seconds(compiled, measure(compiled, None)) < seconds
    except (ClientCrashed, ObjectsLost):
        raise
    except Exception as error:  # no compiler on this machine, or a step that cannot be traced
        logging.getLogger(__name__).info("not compiled: %s", error)
        return False


def _remembered(question: dict[str, Any], answer: Callable[[], Any]) -> Any:
    """Cached answer to a question, or a new one, which is cached unless another process was first.

    In that case returns the other process's answer, so that all experts of a search agree.
    """
    key = json.dumps(question | {"format": FORMAT, "torch": torch.__version__}, sort_keys=True, default=str)
    file = cache_folder() / "plans" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    known = read_entry(file)
    if known is not None:
        return known
    result = answer()
    with suppress(OSError):
        write_entry(file, result)
    stored = read_entry(file)
    return result if stored is None else stored
