"""The coordinator of a run as an actor of Ray, and the handle through which the driver calls it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.actors.actor_room import (
    actors_that_fit,
    choose_actors,
    local_gpus,
    local_resources,
    named_cluster,
    no_room,
)
from hedgerow.platform.actors.cluster_nodes import LOOK_SECONDS, ClusterNodes
from hedgerow.platform.actors.placement import wait_for_room
from hedgerow.platform.actors.ray_health import RayHealth, gcs_answers
from hedgerow.platform.actors.ray_transport import LOST, ActorSpec, RayTransport, cause_of, put_dataset
from hedgerow.platform.actors.session import node_resources, on_cluster, ray_session
from hedgerow.platform.actors.surroundings import Surroundings
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.process import free_memory, init_process
from hedgerow.platform.storage.checkpoint import latest_checkpoint, round_of
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.run_lock import Claim

REPLACEMENTS = 3
"""Number of times that a dead coordinator is replaced."""


class CoordinatorActor:
    """A coordinator in a process of its own, with the client actors that it makes.

    Its calls come from two threads: while one works, `notices` answers in the other.
    """

    def __init__(self) -> None:
        self._transport: RayTransport | None = None
        self._notices: list[str] = []

    def load_run(
        self,
        spec: ActorSpec,
        data: dict[str, Any],
        partition: dict[str, Any],
        checkpoints: Path,
        claim: Claim | None,
        parts: int,
        actors: int,
        several_nodes: bool,
    ) -> None:
        """Serve a run, the first or a later one."""
        init_process(1)
        if self._transport is None:
            strategy = "SPREAD" if spec.resources.placement == "spread" else "DEFAULT"
            self._transport = RayTransport(spec, actors, several_nodes, [strategy] * actors)
        else:
            self._transport.load_run(spec)
        self.run = build_coordinator(
            spec.experiments, Dataset.opened(data), Partition(**partition), [checkpoints], claim, self._transport, parts
        )
        self.run.on_notice = self._notices.append

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the coordinator."""
        return getattr(self.run, method)(*arguments)

    def notices(self) -> list[str]:
        """Sentences for the user since the last call."""
        count = len(self._notices)
        sentences = self._notices[:count]
        del self._notices[:count]
        return sentences

    def unload_run(self) -> None:
        """Release a run that has ended, here and in the client actors, until the next one begins."""
        assert self._transport is not None
        self._transport.unload_run()
        self.run.executor.release_states()
        del self.run
        free_memory()


class RayCoordinator:
    """Methods of a coordinator that is an actor of Ray.

    An actor that dies is replaced, and continues from its last checkpoint. Checkpoints are on this node's disk, so the
    coordinator stays on this node. notify: receives sentences for the user. For the other arguments see Coordinator.
    """

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset,
        partition: Partition,
        checkpoints: Path,
        parts: int,
        actors: int,
        notify: Callable[[str], None],
        claim: Claim | None,
    ):
        self.parts, self.notify, self.timeout = parts, notify, experiment.resources.timeout
        surroundings = Surroundings.here(experiment)
        self.spec = ActorSpec([experiment], surroundings, put_dataset(dataset), ray.put(vars(partition)))
        several = on_cluster()
        self._run = checkpoints.absolute(), claim, parts, actors, several
        self._purpose = (
            experiment.resources.model_dump(exclude={"executor", "timeout"}),
            actors,
            several,
            surroundings,
        )
        # The process that continues the run already knows the earlier rounds.
        checkpoint = latest_checkpoint(checkpoints)
        self._last_reported = round_of(checkpoint[0]) if checkpoint else 0
        self.health = RayHealth(checkpoints.absolute().parent, claim)
        self._nodes = ClusterNodes(notify)
        self._news: tuple[Any, float] | None = None
        self.actor = self._started(_acquire(self._purpose))

    def close(self, keep: bool) -> None:
        """End the actors, or keep them for the next run if runs keep them warm."""
        self._pass_on_notices(wait=True)
        self.health.close()
        if keep and _keeps_warm:
            _idle.append((self._purpose, self.actor, self.actor.unload_run.remote()))
        else:
            _end(self.actor)

    def advance(self, seconds: float) -> tuple[list[RoundRecord], bool]:
        # By number: a coordinator that died may not have reported its last rounds, or have reported rounds that run
        # again.
        records, done = self._ask("advance", seconds, self._last_reported)
        self._last_reported = max([self._last_reported, *(record["round"] for record in records)])
        return records, done

    def save(self) -> None:
        self._ask("save")

    def plans(self) -> dict[str, Any]:
        return self._ask("plans")

    def warnings(self) -> list[str]:
        return self._ask("warnings")

    def ended(self) -> str | None:
        """See Coordinator."""
        return self._ask("ended")

    def parameters(self) -> Tree:
        return self._ask("parameters")

    def _started(self, actor: Any) -> Any:
        """An actor that loads the run. actor: an idle one, or None."""
        if actor is None:
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            options = {"num_cpus": 0, "scheduling_strategy": here, "max_concurrency": 2}
            actor = ray.remote(CoordinatorActor).options(**options).remote()
        self._loading = actor.load_run.remote(self.spec, self.spec.data, self.spec.partition, *self._run)
        return actor

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the coordinator. An actor that died is replaced, and continues from its last checkpoint."""
        for _ in range(REPLACEMENTS):
            try:
                if self._loading is not None:
                    self._answer(self._loading)
                    # The time in which it starts does not count.
                    self._loading, self._news = None, None
                return self._answer(self.actor.call.remote(method, *arguments))
            except LOST as error:
                self.health.check()
                lost = error
                self.notify(f"the coordinator was lost ({cause_of(error)}) and continues from its last checkpoint")
                _end(self.actor)
                self._news = None
                self.actor = self._started(None)
        raise RuntimeError(f"the coordinator or its nodes were lost {REPLACEMENTS} times in a row") from lost

    def _answer(self, call: Any) -> Any:
        """Answer to a call. A coordinator that gives no sign of life for too long is killed."""
        while not ray.wait([call], timeout=LOOK_SECONDS)[0]:
            if self.health.check():
                self._pass_on_notices()
                self._nodes.look()
        self._pass_on_notices()
        if self.health.check():
            self._nodes.look()
        try:
            return ray.get(call)
        except RayTaskError as error:
            if isinstance(error.cause, LOST) or not isinstance(error.cause, Exception):
                raise
            raise error.cause from error

    def _pass_on_notices(self, wait: bool = False) -> None:
        """Pass on what the coordinator has to say. wait: ask it, at the end of a run."""
        if self._loading is not None:
            return
        if self._news is None:
            self._news = self.actor.notices.remote(), time.monotonic()
        call, since = self._news
        if ray.wait([call], timeout=LOOK_SECONDS if wait else 0)[0]:
            self._news = None
            with suppress(*LOST):
                for sentence in ray.get(call):
                    self.notify(sentence)
        elif self.timeout and time.monotonic() > since + self.timeout:
            self.notify(f"the coordinator did not answer for {self.timeout:g} s (resources.timeout) and was replaced")
            _end(self.actor)


# ---- actors that stay for the next run ------------------------------------------------------------------------------

_idle: list[tuple[Any, Any, Any]] = []
"""Coordinators whose run has ended: the purpose for which they can be used again, the actor, and a reference that is
ready once it has released its run."""

_keeps_warm = False


@contextmanager
def keep_warm() -> Iterator[None]:
    """Within this context, actors whose run ends are kept for other runs, until they are shut down.

    Processes take seconds to start, mostly to import torch.
    """
    global _keeps_warm
    before, _keeps_warm = _keeps_warm, True
    try:
        yield
    finally:
        _keeps_warm = before


def _acquire(purpose: Any) -> Any:
    """Idle coordinator with this purpose. If there is none, ends all idle ones, since their resources may be needed."""
    for entry in _idle:
        known, actor, unloaded = entry
        if known == purpose:
            _idle.remove(entry)
            ray.wait([unloaded])
            return actor
    shutdown_idle()
    return None


def shutdown_idle() -> None:
    """End all idle actors."""
    actors = [actor for _, actor, _ in _idle]
    _idle.clear()
    for actor in actors if ray.is_initialized() else ():
        _end(actor)


def _end(actor: Any) -> None:
    """End a coordinator; its client actors end with it."""
    # Without Ray's control store the processes have ended, and the call would block.
    if gcs_answers():
        ray.kill(actor)


@contextmanager
def coordinator_on_ray(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    checkpoints: Path,
    address: str | None,
    parts: int | None,
    notify: Callable[[str], None],
    claim: Claim | None,
) -> Iterator[RayCoordinator]:
    """Coordinator of a run on the Ray at `address`.

    parts: original number of a run that is resumed, however many actors fit now; None: new run.
    """
    resources, cohort = experiment.resources, experiment.cohort_size(len(partition))
    if not named_cluster(address) and not ray.is_initialized() and parts is None:
        # Before Ray starts.
        choose_actors(resources, cohort, [local_resources() | {"GPU": float(local_gpus())}])
    with ray_session(address):
        if on_cluster():
            wait_for_room(resources, 1)
        nodes = node_resources()
        room = actors_that_fit(resources, nodes)
        if parts is None:
            several = on_cluster() and resources.actors != "auto"
            parts = int(resources.actors) if several else choose_actors(resources, cohort, nodes)
        if not room:
            raise no_room(resources, 1, nodes)
        # On a cluster, those for which there is no room yet are what makes it grow.
        actors = parts if on_cluster() else min(parts, room)
        coordinator = RayCoordinator(experiment, dataset, partition, checkpoints, parts, actors, notify, claim)
        keep = False
        try:
            yield coordinator
            keep = True
        finally:
            coordinator.close(keep)
