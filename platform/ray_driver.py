"""The coordinator as a Ray actor, its replacement when it dies, and client actors on nodes that join and leave."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.common.errors import RayLost, UserError
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.coordinator import Coordinator
from hedgerow.platform.crew import Crew, Nodes, all_given_back, rest, take
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.heartbeat import listen
from hedgerow.platform.learner import Record
from hedgerow.platform.placement import PATIENCE, actors_that_fit, bundle_of, bundles, lasting_nodes, reserved
from hedgerow.platform.process import release, settle
from hedgerow.platform.ray_executor import LOST, Hosting, RayExecutor, end_if_broken
from hedgerow.platform.ray_health import RayHealth
from hedgerow.platform.silence import Signs, Silence, Watch
from hedgerow.platform.storage.checkpoint import latest_checkpoint, round_of
from hedgerow.platform.storage.run_lock import Claim

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
        claim: Claim | None,
    ):
        self.begin(hosting, data, partition, executor, checkpoints, claim)

    def begin(
        self,
        hosting: Hosting,
        data: dict[str, Any],
        partition: dict[str, Any],
        executor: RayExecutor,
        checkpoints: Path,
        claim: Claim | None,
    ) -> None:
        """Drive a run, its first or another one."""
        settle(1, hosting.import_path)
        listen(executor.signs.alive)
        dataset, dealt = Dataset.from_arrays(data), Partition.from_arrays(partition)
        Coordinator.__init__(self, hosting.experiments, dataset, dealt, executor, [checkpoints], claim)

    def forget(self) -> list[Any]:
        """Hold nothing of a run that has ended, here and in the client actors, until the next one begins.

        Returns those actors.
        """
        assert isinstance(self.run.executor, RayExecutor)
        actors = self.run.executor.forget()
        del self.run
        listen(None)
        release()
        return actors


class RayDriver:
    """Starts client actors and their coordinator, all at once, or takes those that a run before has left, and speaks to
    the coordinator.

    workers: shares into which the work is dealt, which decide the numbers. There is a client actor for each, or fewer
    that carry out several; as nodes join and leave, actors are gathered anew, and go on from a checkpoint. least: how
    many it needs to start. Checkpoints lie on this node's disk, so the coordinator is kept on this node.
    notify: takes sentences for the user on processes that are silent. claim: see FederatedRun. needless: see RayHealth.
    """

    crew: Crew

    def __init__(
        self,
        experiment: dict[str, Any],
        dataset: Dataset,
        partition: Partition,
        checkpoints: Path,
        workers: int,
        least: int,
        notify: Callable[[str], None],
        claim: Claim | None,
        needless: Callable[[RayLost], bool] = lambda error: False,
    ):
        self.resources = Resources.model_validate(experiment["resources"])
        self.checkpoints, self.claim = checkpoints.absolute(), claim
        self.notify, self.silence = notify, Silence(self.resources)
        self.signs = Signs(self.checkpoints.parent / ".signs")
        self.workers = workers
        self.gathered: list[int] = []
        found = latest_checkpoint(checkpoints)
        # Those before are known to whoever goes on with the run.
        self.told = round_of(found[0]) if found else 0
        # Whether Ray was wanted or found is all the same to the processes.
        self._purpose = self.resources.model_dump(exclude={"executor"}), workers, tuple(sys.path)
        self.health = RayHealth(self.checkpoints.parent, claim, needless)
        with ExitStack() as begun:
            # Without this, the thread of `health` would later take any end of this Ray for the loss of a run.
            begun.callback(self._stop_looking)
            self.signs.begin()
            self.hosting = Hosting([experiment], sys.path, ray.put(dataset.arrays()), ray.put(partition.arrays()))
            nodes = lasting_nodes()
            self._seen, self._looked = set(nodes), time.monotonic()
            room = actors_that_fit(self.resources, list(all_given_back(nodes).values()))
            if not self._taken_over(set(nodes)):
                self._gather(room, least)
            begun.callback(self.crew.close)
            self._first_answer = self.crew.coordinator.plans.remote()
            begun.pop_all()

    def is_ready(self) -> bool:
        """Whether the coordinator and the client actors are there. Does not wait. Raises RayLost."""
        return self.health.check() and bool(ray.wait([self._first_answer], timeout=0)[0])

    def advance(self, seconds: float) -> tuple[list[Record], bool]:
        """As Coordinator.advance; between rounds it looks who has joined and who is about to leave."""
        room = self._room_elsewhere()
        if room:
            self.save()
            self._gather_anew(room)
        # By number: a coordinator that died may have run rounds that it has not told, or told some that are run again.
        records, done = self._ask("advance", seconds, self.told)
        self.told = max([self.told, *(record["round"] for record in records)])
        return records, done

    def go_on_from(self, round: int) -> None:
        """Go on from the checkpoint of a round that somebody else has run and reported. Waits for the actors."""
        self._ask("reload")
        self.told = round

    def save(self) -> None:
        self._ask("save")

    def plans(self) -> dict[str, Any]:
        return self._ask("plans")

    def warnings(self) -> list[str]:
        return self._ask("warnings")

    def parameters(self) -> Tree:
        return self._ask("parameters")

    def rest(self) -> None:
        """Leave the processes to the next run, where there may be one."""
        self._stop_looking()
        rest(self.crew)

    def close(self) -> None:
        """End the processes."""
        self._stop_looking()
        self.crew.close()

    def _stop_looking(self) -> None:
        self.health.close()
        self._pass_on_notices()
        self.signs.remove()

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the coordinator. One that died is replaced, and goes on from its last checkpoint."""
        lost: Exception | None = None
        for _ in range(REPLACEMENTS):
            call = getattr(self.crew.coordinator, method).remote(*arguments)
            try:
                if self._answered(call):
                    return ray.get(call)
                self._gather_anew(self._room(lasting_nodes()))
            except LOST as error:
                self.health.check()
                end_if_broken(error)
                lost = error
                self.crew.coordinator = self._spawn(self.crew.executor)
            except RayTaskError as error:
                raise error.cause from error
        raise RuntimeError(f"the coordinator or its nodes were lost {REPLACEMENTS} times in a row") from lost

    def _answered(self, call: Any) -> bool:
        """Wait for an answer; False when a client actor that was lost has had no place to start again for too long.

        A coordinator that is silent for too long is killed.
        """
        until, watch = None, Watch("the coordinator", self.crew.coordinator, self.silence, self.signs.file)
        while not ray.wait([call], timeout=LOOK)[0]:
            if not self.health.check():
                continue
            self._pass_on_notices()
            if watch.look(self.notify):
                # The call fails.
                return True
            if placement_group_table(self.crew.group)["state"] == "CREATED":
                until = None
            elif until is None:
                until = time.monotonic() + HOMELESS
            elif time.monotonic() > until:
                return False
        watch.sign()
        self._pass_on_notices()
        return True

    def _pass_on_notices(self) -> None:
        for sentence in self.signs.news():
            self.notify(sentence)

    def _taken_over(self, nodes: set[str]) -> bool:
        """Whether there are processes that another run has left, on nodes that stay."""
        crew = take(self._purpose)
        if crew is None:
            return False
        self.crew, usable = crew, False
        crew.executor.signs = self.signs
        try:
            if len(crew.executor.actors) == self.workers and set(crew.hosts().values()) <= nodes:
                with suppress(*LOST, RayTaskError, GetTimeoutError):
                    crew.executor.actors = ray.get(crew.rested, timeout=PATIENCE)
                    crew.executor.host(self.hosting)
                    begun = crew.coordinator.begin.remote(*self._run_of(crew.executor))
                    if self._answered(begun):
                        ray.get(begun)
                        usable = True
        finally:
            if not usable:
                crew.close()
        if usable:
            self.gathered.append(self.workers)
        return usable

    # ---- nodes join and leave -----------------------------------------------------------------------------------

    def _gather(self, room: int, least: int) -> None:
        """Start as many client actors as there is room for, `least` at least, and their coordinator.

        Raises UserError when the cluster's resources stay in use for too long.
        """
        wanted = max(least, min(room, self.workers))
        with ExitStack() as stack:
            try:
                actors, patience = wanted, PATIENCE if wanted == least else BRIEFLY
                group = stack.enter_context(reserved(self.resources, actors, patience))
            except UserError:
                if wanted == least:
                    raise
                # Others were faster.
                actors = least
                group = stack.enter_context(reserved(self.resources, actors))
            places = [bundle_of(self.resources, rank) for rank in range(actors)]
            executor = RayExecutor(self.hosting, group, places, self.signs, self.workers)
            coordinator, sizes = self._spawn(executor), bundles(self.resources, actors)
            self.crew = Crew(self._purpose, group, sizes, stack.pop_all(), executor, coordinator)
        self.gathered.append(actors)

    def _gather_anew(self, room: int) -> None:
        self.crew.close()
        self._gather(room, self.resources.min_actors or 1)

    def _room_elsewhere(self) -> int:
        """Where nodes have joined or are about to leave: how many client actors have room now, if that is of use.

        It is where there are more than now, or enough to leave a node that is about to go.
        """
        if time.monotonic() < self._looked + LOOK or not self.health.check():
            return 0
        nodes, self._looked = lasting_nodes(), time.monotonic()
        if set(nodes) == self._seen:
            return 0
        self._seen = set(nodes)
        room, running = self._room(nodes), len(self.crew.executor.actors)
        leaving = not set(self.crew.hosts().values()) <= set(nodes)
        of_use = room > running < self.workers or (leaving and room >= (self.resources.min_actors or 1))
        return room if of_use else 0

    def _room(self, nodes: Nodes) -> int:
        """How many client actors the nodes hold, with what is free there and what those have that are there now."""
        return actors_that_fit(self.resources, list(self.crew.given_back(nodes).values()))

    def _spawn(self, executor: RayExecutor) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(CoordinatorActor).options(num_cpus=0, scheduling_strategy=here)
        return actor.remote(*self._run_of(executor))

    def _run_of(self, executor: RayExecutor) -> tuple[Any, ...]:
        """What a coordinator is told of a run."""
        return self.hosting, self.hosting.data, self.hosting.partition, executor, self.checkpoints, self.claim
