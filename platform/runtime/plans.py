"""Plans of the steps of a run: which run in a loop, which under vmap, and with how many clients at once."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from hedgerow.algorithms.core.messages import Exchange
from hedgerow.algorithms.core.pytree import count
from hedgerow.algorithms.slots.fedex_rounds import FEDEX
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data.sampling import steps_per_client
from hedgerow.platform.runtime.autotune import Measurement, Workload, tune_plan
from hedgerow.platform.runtime.shards import ExecutionPlan, PlanFailed, WorkShard, cohort_of, owner_of, step_name

IGNORED = {"executor", "timeout", "placement"}
"""Keys of `resources` that affect no plan."""

MeasureShards = Callable[[list[list[WorkShard]], int | None], Measurement]
"""(the shards of each part, number of mini-batches) -> cost of the largest chunk."""


class Plans:
    """Plans of each variant: step -> plan. A step has the plan of its file, a recorded one, or a newly chosen one."""

    def __init__(self, experiments: list[Experiment]):
        self.experiments = experiments
        self.known = [
            {step: ExecutionPlan(**plan.model_dump()) for step, plan in experiment.engine.plans.items()}
            for experiment in experiments
        ]

    def values(self, variant: int) -> dict[str, Any]:
        """Plans of a variant as JSON values."""
        return {step: asdict(plan) for step, plan in self.known[variant].items()}

    def take(self, variant: int, values: dict[str, Any]) -> None:
        """Use recorded plans for a variant."""
        self.known[variant] |= {step: ExecutionPlan(**plan) for step, plan in values.items()}

    def simplify(self, failed: PlanFailed) -> bool:
        """Give the steps whose plan failed a simpler one; returns whether there are any."""
        simpler, changed = failed.plan.simpler, False
        assert simpler is not None, "otherwise the error is raised as it is"
        for plans in self.known:
            for step, plan in plans.items():
                if plan == failed.plan and f"{step}/".startswith(f"{failed.step}/"):
                    plans[step], changed = simpler, True
        return changed

    def of(self, exchange: Exchange) -> ExecutionPlan | None:
        """Plan of the step of an exchange; None if it is not known yet."""
        return self.known[exchange.variant].get(_key(exchange))

    def choose(
        self,
        exchanges: list[Exchange],
        parts: list[list[WorkShard]],
        hardware: Callable[[], list[dict[str, Any]]],
        measure: MeasureShards,
    ) -> None:
        """Choose the plans of exchanges that run in parallel and have none.

        parts: for each part, its shards in the order of the exchanges. hardware: kinds of machines that run them.
        """
        # All parallel exchanges of a step share one plan, which is chosen for the largest messages.
        for i in sorted(range(len(exchanges)), key=lambda i: -_message_size(exchanges[i])):
            exchange = exchanges[i]
            own = [shards for shards in parts if len(shards[i].clients)]
            # A shard of the test set is already a large batch: batching shards gains nothing.
            if exchange.site != "clients" or not own or self.of(exchange):
                continue
            fused = [j for j, shard in enumerate(parts[0]) if shard.fusion_key == parts[0][i].fusion_key]
            known = next((plan for j in fused if (plan := self.of(exchanges[j]))), None)
            chosen = [[shards[j] for j in fused] for shards in own]
            plan = known or self._tune(exchange, [exchanges[j] for j in fused], chosen, hardware, measure)
            for j in fused:
                self.known[exchanges[j].variant].setdefault(_key(exchange), plan)

    def _tune(
        self,
        exchange: Exchange,
        fused: list[Exchange],
        parts: list[list[WorkShard]],
        hardware: Callable[[], list[dict[str, Any]]],
        measure: MeasureShards,
    ) -> ExecutionPlan:
        """Choose the plan of a step. fused: exchanges that run as one; parts: their shards."""
        clients = max(len(shards[0].clients) for shards in parts)
        cohort = cohort_of(exchange)
        experiment, sizes = self.experiments[fused[0].variant], cohort.population_sizes
        assert sizes is not None, "the server adds them"
        key = {
            "task": experiment.task.model_dump(mode="json"),
            "algorithm": type(owner_of(exchange).inner).__name__,
            "batches": {name: asdict(spec) for name, spec in exchange.batches.items()},
            "resources": experiment.resources.model_dump(mode="json", exclude=IGNORED),
            "inline": experiment.resources.executor == "inline",
            "step": _key(exchange),
            "experts": len(fused),
            "precision": experiment.engine.precision,
            "clients": clients,
            "numbers": _message_size(exchange),
            "hardware": hardware(),
        }

        def cost(plan: ExecutionPlan, steps: int | None) -> Measurement:
            return measure([[replace(shard, plan=plan) for shard in shards] for shards in parts], steps)

        steps, alike = _steps(exchange, sizes)
        rounds = experiment.rounds - cohort.round + 1
        resources = experiment.resources
        workload = Workload(clients, rounds, steps, alike, resources.memory_mb, len(fused), bool(resources.gpu))
        module, engine = owner_of(exchange).task.module, experiment.engine
        if getattr(module, "train_mode", None) is not None:
            # Replacements of torch functions are not traced.
            engine = engine.model_copy(update={"compile": False})
        hyper = owner_of(exchange).inner.hyper
        no_vmap = getattr(hyper, "no_vmap", None) or getattr(module, "no_vmap", None)
        return tune_plan(engine, no_vmap, workload, key, cost)


def _steps(exchange: Exchange, sizes: np.ndarray) -> tuple[int, bool]:
    """Mean number of mini-batches of a client's shortest stream, at least one; and whether this number, and the room
    for samples, is the same for all clients.
    """
    # The training decides, not the score after it.
    specs = [spec for name, spec in exchange.batches.items() if name != FEDEX]
    if not specs or exchange.site == "test" or any(spec.split in ("held_out", "selection") for spec in specs):
        return 1, False
    steps = np.min([steps_per_client(spec, sizes) for spec in specs], axis=0)
    full = sizes.min() == sizes.max() or all(spec.size and spec.size <= sizes.min() for spec in specs)
    # Clients may have different numbers of validation samples.
    alike = full and steps.min() == steps.max() and all(spec.split in ("train", "public") for spec in specs)
    return max(1, round(float(steps.mean()))), bool(alike) and FEDEX not in exchange.batches


def _message_size(exchange: Exchange) -> int:
    """Number of scalars that a client receives."""
    return count(exchange.received) + count(exchange.per_client) // max(1, len(exchange.clients))


def _key(exchange: Exchange) -> str:
    """Name under which the plan of a step is stored; a single client has a plan of its own."""
    return step_name(exchange.step.__name__, exchange.site) + ("/one" if len(exchange.clients) == 1 else "")
