"""The coordinator as a Ray actor, and its replacement when it dies."""

import sys
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hedgerow.algorithms.trees import Tree
from hedgerow.platform.coordinator import Coordinator
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.learner import Record
from hedgerow.platform.process import settle
from hedgerow.platform.ray_executor import Hosting, RayExecutor

REPLACEMENTS = 3
"""How often a dead coordinator is replaced."""


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

    bundles: that of each client actor, of the placement group. Checkpoints lie on this node's disk, so the coordinator
    is kept on this node.
    """

    def __init__(
        self,
        experiment: dict[str, Any],
        dataset: Dataset,
        partition: Partition,
        checkpoints: Path,
        group: PlacementGroup,
        bundles: list[int],
    ):
        self.hosting = Hosting([experiment], sys.path, ray.put(dataset.arrays()), ray.put(partition.arrays()))
        resources = experiment["resources"]
        self.executor = RayExecutor(
            self.hosting, group, bundles, resources["cpus_per_actor"], resources["gpus_per_actor"]
        )
        self.checkpoints = checkpoints.absolute()
        self.reported = 0
        self.coordinator = self._spawn()
        self._first_answer = self.coordinator.plans.remote()

    def is_ready(self) -> bool:
        """Whether the coordinator and the client actors are there. Does not wait."""
        return bool(ray.wait([self._first_answer], timeout=0)[0])

    def advance(self, seconds: float) -> tuple[list[Record], bool]:
        """As Coordinator.advance."""
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

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the coordinator. One that died is replaced, and goes on from its last checkpoint."""
        for _ in range(REPLACEMENTS):
            try:
                return ray.get(getattr(self.coordinator, method).remote(*arguments))
            except RayActorError as error:
                lost = error
                self.coordinator = self._spawn()
            except RayTaskError as error:
                raise error.cause from error
        raise RuntimeError(f"the coordinator died {REPLACEMENTS} times in a row") from lost

    def _spawn(self) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        h = self.hosting
        actor = ray.remote(CoordinatorActor).options(num_cpus=0, scheduling_strategy=here)
        return actor.remote(h, h.data, h.partition, self.executor, self.checkpoints)
