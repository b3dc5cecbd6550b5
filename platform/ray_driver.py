"""The coordinator as a Ray actor, its replacement when it dies, and client actors on nodes that join and leave."""

import sys
import time
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hedgerow.algorithms.trees import Tree
from hedgerow.platform.coordinator import Coordinator
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.errors import UserError
from hedgerow.platform.learner import Record
from hedgerow.platform.placement import PATIENCE, actors_that_fit, bundle_of, lasting_nodes, reserved
from hedgerow.platform.process import settle
from hedgerow.platform.ray_executor import Hosting, RayExecutor, end_if_broken
from hedgerow.platform.resources import Resources

REPLACEMENTS = 3
"""How often a dead coordinator is replaced."""

LOOK = 1.0
"""Seconds between two looks at the cluster."""

HOMELESS = 5.0
"""Seconds that Ray is given to find another node for actors that were lost with theirs."""

BRIEFLY = 5.0
"""Seconds to wait for room that others may be using, where fewer actors will do."""


class CoordinatorActor(Coordinator):
    """A coordinator in a process of its own; data and partition come from the object store."""

    def __init__(
        self,
        hosting: Hosting,
        data: dict[str, Any],
        partition: dict[str, Any],
        executor: RayExecutor,
        checkpoints: Path,
    ):
        settle(1, hosting.import_path)
        dataset = Dataset.from_arrays(data)
        super().__init__(hosting.experiments, dataset, Partition.from_arrays(partition), executor, [checkpoints])


class RayDriver:
    """Starts client actors and their coordinator, all at once, and speaks to the coordinator.

    workers: shares into which the work is dealt, which decide the numbers. There is a client actor for each, or fewer
    that carry out several; as nodes join and leave, actors are gathered anew, and go on from a checkpoint. least: how
    many it needs to start. Checkpoints lie on this node's disk, so the coordinator is kept on this node.
    """

    coordinator: Any

    def __init__(
        self,
        experiment: dict[str, Any],
        dataset: Dataset,
        partition: Partition,
        checkpoints: Path,
        workers: int,
        least: int,
    ):
        self.hosting = Hosting([experiment], sys.path, ray.put(dataset.arrays()), ray.put(partition.arrays()))
        self.resources = Resources.model_validate(experiment["resources"])
        self.checkpoints = checkpoints.absolute()
        self.workers = workers
        self.gathered: list[int] = []
        self.reported = 0
        self._gather(least)
        self._first_answer = self.coordinator.plans.remote()

    def is_ready(self) -> bool:
        """Whether the coordinator and the client actors are there. Does not wait."""
        return bool(ray.wait([self._first_answer], timeout=0)[0])

    def advance(self, seconds: float) -> tuple[list[Record], bool]:
        """As Coordinator.advance; between rounds it looks who has joined and who is about to leave."""
        if self._nodes_changed():
            self.save()
            self._gather_anew()
        records, done = self._ask("advance", seconds)
        # Rounds that a replaced coordinator ran again were reported before, with the same numbers.
        new = [record for record in records if record["round"] > self.reported]
        self.reported = max([self.reported, *(record["round"] for record in records)])
        return new, done

    def go_on_from(self, round: int) -> None:
        """Go on from the checkpoint of a round that somebody else has run and reported. Waits for the actors."""
        self._ask("reload")
        self.reported = round

    def save(self) -> None:
        self._ask("save")

    def plans(self) -> dict[str, Any]:
        return self._ask("plans")

    def parameters(self) -> Tree:
        return self._ask("parameters")

    def close(self) -> None:
        ray.kill(self.coordinator)
        self.executor.close()
        self._reservation.close()

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the coordinator. One that died is replaced, and goes on from its last checkpoint."""
        lost: Exception | None = None
        for _ in range(REPLACEMENTS):
            call = getattr(self.coordinator, method).remote(*arguments)
            try:
                if self._answered(call):
                    return ray.get(call)
                self._gather_anew()
            except RayActorError as error:
                end_if_broken(error)
                lost = error
                self.coordinator = self._spawn()
            except RayTaskError as error:
                raise error.cause from error
        raise RuntimeError(f"the coordinator or its nodes were lost {REPLACEMENTS} times in a row") from lost

    def _answered(self, call: Any) -> bool:
        """Wait for an answer; False when a client actor that was lost has had no place to start again for too long."""
        until = None
        while not ray.wait([call], timeout=LOOK)[0]:
            if placement_group_table(self.group)["state"] == "CREATED":
                until = None
            elif until is None:
                until = time.monotonic() + HOMELESS
            elif time.monotonic() > until:
                return False
        return True

    # ---- nodes join and leave -----------------------------------------------------------------------------------

    @property
    def _least(self) -> int:
        return self.resources.min_actors or 1

    def _gather(self, least: int) -> None:
        """Start as many client actors as there is room for, `least` at least, and their coordinator.

        Raises UserError when the cluster's resources stay in use for too long.
        """
        nodes = lasting_nodes()
        self._seen, self._looked = set(nodes), time.monotonic()
        room = actors_that_fit(self.resources, list(nodes.values()))
        with ExitStack() as stack:
            for actors in range(max(least, min(room, self.workers)), least - 1, -1):
                patience = PATIENCE if actors == least else BRIEFLY
                with suppress(UserError) if actors > least else nullcontext():
                    self.group = stack.enter_context(reserved(self.resources, actors, patience))
                    break
            self._reservation = stack.pop_all()
        self.gathered.append(actors)
        places = [bundle_of(self.resources, rank) for rank in range(actors)]
        self.executor = RayExecutor(self.hosting, self.group, places, self.workers)
        self.coordinator = self._spawn()

    def _gather_anew(self) -> None:
        self.close()
        self._gather(self._least)

    def _nodes_changed(self) -> bool:
        """Whether a node that hosts client actors is about to leave and others have room, or more have room now."""
        if time.monotonic() < self._looked + LOOK:
            return False
        nodes, self._looked = lasting_nodes(), time.monotonic()
        if set(nodes) == self._seen:
            return False
        self._seen = set(nodes)
        room, running = actors_that_fit(self.resources, list(nodes.values())), len(self.executor.actors)
        hosts = set(placement_group_table(self.group)["bundles_to_node_id"].values())
        return room > running < self.workers or (not hosts <= set(nodes) and room >= self._least)

    def _spawn(self) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        h = self.hosting
        actor = ray.remote(CoordinatorActor).options(num_cpus=0, scheduling_strategy=here)
        return actor.remote(h, h.data, h.partition, self.executor, self.checkpoints)
