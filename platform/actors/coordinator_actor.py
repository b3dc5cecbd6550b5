"""The coordinator as a Ray actor, and the handle through which a run calls its coordinator in any process."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock, Timer
from typing import Any, Self

import ray
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hedgerow.algorithms.core.own_code import Surroundings
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.actors.actor_pool import ActorGroup, acquire, freed_by_idle, release, start_group
from hedgerow.platform.actors.actor_room import (
    actors_to_start,
    choose_actors,
    least_actors,
    local_gpus,
    local_resources,
    room_by_kind,
    say_unused_gpus,
)
from hedgerow.platform.actors.client_actor import LOST, ActorSpec, BrokenNodesError, RayExecutor, end_if_broken
from hedgerow.platform.actors.nodes_of_run import LostNodes, Nodes, NodesOfRun
from hedgerow.platform.actors.placement import PATIENCE, wait_for_nodes
from hedgerow.platform.actors.ray_health import RayHealth
from hedgerow.platform.actors.session import (
    DeferredStart,
    gpus_of_nodes,
    lasting_nodes,
    node_resources,
    ray_starting,
    starts_here,
)
from hedgerow.platform.actors.shared_data import opened, share
from hedgerow.platform.actors.silence import Signs, Silence, Watch, WatchedActor
from hedgerow.platform.common.errors import RayLost
from hedgerow.platform.common.heartbeat import listen
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.resources import Kind
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.coordinator import Coordinator
from hedgerow.platform.runtime.launch import build_coordinator, build_servers, inline_executor
from hedgerow.platform.runtime.process import free_memory, init_process
from hedgerow.platform.storage.checkpoint import latest_checkpoint, round_of
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.run_lock import Claim

REPLACEMENTS = 3
"""Number of times that a dead coordinator is replaced."""

LOOK = 1.0
"""Seconds between two checks of the cluster."""

ENOUGH, SOME = 10.0, 0.5
"""Seconds of remaining work for which Ray is started, and seconds of rounds after which the work is estimated."""

UNKNOWN = 5.0
"""Seconds after which Ray is started if the first round has not ended."""

AGAIN = 30.0
"""Seconds after which a placement that found fewer resources than were free is tried again."""

HOMELESS = 5.0
"""Seconds that Ray has to find another node for actors that were lost with their node."""


class CoordinatorActor(Coordinator):
    """A coordinator in a process of its own; data and partition come from the object store."""

    def __init__(self, *run: Any):
        self.load_run(*run)

    def load_run(
        self,
        spec: ActorSpec,
        data: dict[str, Any],
        partition: dict[str, Any],
        executor: Any,
        checkpoints: Path,
        claim: Claim | None,
    ) -> None:
        """Serve a run, the first or a later one."""
        init_process(1)
        listen(executor.signs.alive)
        servers = build_servers(spec.experiments, opened(data), Partition(**partition))
        Coordinator.__init__(self, servers, executor, [checkpoints], claim)
        self.on_notice = executor.signs.notice

    def unload_run(self) -> list[Any]:
        """Release a run that has ended, here and in the client actors, until the next one begins.

        Returns the client actors.
        """
        assert isinstance(self.executor, RayExecutor)
        actors = self.executor.unload_run()
        del self.servers, self.executor
        listen(None)
        free_memory()
        return actors


class CoordinatorHandle:
    """Methods of a run's coordinator, which is in this process until client actors are ready, and then an actor.

    Ray and its processes take some ten seconds to start; a small run is finished by then, and does not start them. A
    round has the same bits in any process, because the local coordinator keeps the actors' shares separate. If Ray
    fails to start, or is lost, the rounds that ran here are saved first.

    On Ray, client actors and their coordinator start together, or idle ones of an earlier run are reused. A coordinator
    that dies is replaced, and continues from its last checkpoint. When nodes join or leave, the actors are placed
    again. Checkpoints are on this node's disk, so the coordinator stays on this node.

    shares: kind of the client actor for each share of the work, which determines the results. There is a client actor
    for each, or fewer that run several. least: minimum number of client actors to start. notify: receives sentences for
    the user about silent processes. claim: see Coordinator. ready: future of the Ray session. local: coordinator in
    this process, or None.
    """

    group: ActorGroup
    health: RayHealth

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset,
        partition: Partition,
        checkpoints: Path,
        shares: list[Kind],
        least: int,
        notify: Callable[[str], None],
        claim: Claim | None,
        ready: DeferredStart,
        local: Coordinator | None = None,
    ):
        self.experiment, self.dataset, self.partition = experiment, dataset, partition
        self.resources = experiment.resources
        self.checkpoints, self.claim = checkpoints.absolute(), claim
        self.notify, self.silence = notify, Silence(self.resources)
        self.signs = Signs(self.checkpoints.parent / ".signs")
        self.shares, self.least, self.local = shares, least, local
        if local:
            local.on_notice = notify
        # The process that continues the run already knows the earlier rounds.
        checkpoint = latest_checkpoint(checkpoints)
        self._last_reported = len(local.servers[0].history) if local else round_of(checkpoint[0]) if checkpoint else 0
        # The processes are the same for `executor: auto` and `executor: ray`.
        self.nodes = NodesOfRun(notify)
        self.lost_nodes = LostNodes(
            lambda node: notify(
                f"node {node} was lost after round {self._last_reported}; the run continues on the other nodes"
            )
        )
        self._purpose = self.resources.model_dump(exclude={"executor"}), tuple(shares), Surroundings.here()
        self._actor_counts: list[int] = []
        self._again, self._pause = math.inf, AGAIN
        self._lost: RayLost | None = None
        self._is_needed, self._is_started, self._is_computing = True, False, False
        self._ready = ready
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="client-actors")
        self._start: Future[None] | None = None
        self._start_lock = Lock()
        self._began: float | None = None
        self._timer = Timer(UNKNOWN, self._begin_start)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if self.local is None:
            self._start_actors()
        elif self._ready.begun.is_set():
            self._begin_start()
        else:
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: Any) -> None:
        with self._start_lock:
            self._is_needed = False
        self._timer.cancel()
        self._thread.shutdown()
        if self._is_started:
            self._stop_looking()
            self.nodes.close()
            if kind is None:
                release(self.group)
            else:
                self.group.close()
            # The object store keeps the data as long as a reference to them exists.
            del self.spec

    def advance(self, seconds: float) -> tuple[list[RoundRecord], bool]:
        """Like Coordinator.advance; between rounds it checks which nodes have joined or are about to leave."""
        if self.local is not None:
            if not self._can_hand_over():
                return self._advance_here(self.local, seconds)
            self._hand_over(self.local)
        room = self._room_elsewhere()
        if room:
            self.save()
            self._gather_anew(room)
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

    def parameters(self) -> Tree:
        return self._ask("parameters")

    @property
    def num_shards(self) -> int:
        """Number of shares of the clients' work."""
        return len(self.shares)

    @property
    def kinds(self) -> list[Kind]:
        """Kind of the client actor for each share."""
        return self.shares

    @property
    def actor_counts(self) -> list[int]:
        """Number of client actors after each placement on the nodes of the cluster."""
        return [] if self.local is not None else self._actor_counts

    # ---- in this process --------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether the coordinator and the client actors have started. Does not wait. Raises RayLost, or the error that
        prevented their start.
        """
        if self._lost:
            raise self._lost
        if self._start is None or not self._start.done():
            return False
        self._start.result()
        return self.health.check() and bool(ray.wait([self._first_answer], timeout=0)[0])

    def _can_hand_over(self) -> bool:
        """Like `is_ready`. Saves the rounds that ran here if Ray fails."""
        try:
            return self.is_ready()
        except Exception:
            self._save_here()
            raise

    def _advance_here(self, local: Coordinator, seconds: float) -> tuple[list[RoundRecord], bool]:
        """Run rounds here, and start Ray if much work remains."""
        with self._at_work():
            records, done = local.advance(seconds, self._last_reported)
        self._last_reported += len(records)
        if self._start is None:
            self._timer.cancel()
            now = time.monotonic()
            if self._began is None:
                # The first round may have measured plans.
                self._began, self._rounds_before = now, local.round
            elif (taken := now - self._began) > SOME:
                each = taken / (local.round - self._rounds_before)
                if each * (self.experiment.rounds - local.round) > ENOUGH:
                    self._begin_start()
        return records, done

    def _begin_start(self) -> None:
        """Start Ray and the actors in the background, once."""
        with self._start_lock:
            if self._start is None and self._is_needed:
                self._start = self._thread.submit(self._start_actors)

    def _hand_over(self, local: Coordinator) -> None:
        """Continue on Ray, from a checkpoint of the rounds that ran here. Waits for the actors."""
        # Save before the wait: Ray may fail in the meantime.
        self._save_here()
        assert self._start is not None
        self._start.result()
        self.local = None
        if local.round:
            self._ask("reload")

    def _save_here(self) -> None:
        if self.local is not None and self.local.round:
            with self._at_work():
                self.local.save()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Within this context, the loss of Ray does not end this process."""
        self._is_computing = True
        try:
            yield
        finally:
            self._is_computing = False

    def _works_without_ray(self, error: RayLost) -> bool:
        """Note that Ray is lost; returns whether this process itself runs or saves rounds. Called in another thread."""
        self._lost = error
        return self._is_computing

    # ---- the actors -------------------------------------------------------------------------------------------------

    def _start_actors(self) -> None:
        """Start the actors once Ray is ready, unless the run has ended before."""
        self._ready.result()
        if not self._is_needed:
            return
        self.health = RayHealth(self.checkpoints.parent, self.claim, self._works_without_ray)
        with ExitStack() as begun:
            # Without this, the thread of `health` would later treat any end of this Ray as the loss of a run.
            begun.callback(self._stop_looking)
            self.signs.begin()
            arrays = share(self.dataset), ray.put(vars(self.partition))
            self.spec = ActorSpec([self.experiment], Surroundings.here(), *arrays)
            nodes = self.nodes.usable(lasting_nodes())
            self._seen, self._looked = set(nodes), time.monotonic()
            room = room_by_kind(self.resources, list(freed_by_idle(nodes).values()))
            if not self._take_over_idle(set(nodes)):
                self._gather(room, self.least)
            begun.callback(self.group.close)
            self._first_answer = self.group.coordinator.plans.remote()
            begun.pop_all()
        self._is_started = True

    def _take_over_idle(self, nodes: set[str]) -> bool:
        """Use the idle processes of an earlier run, if there are any and their nodes stay; returns whether it does."""
        group = acquire(self._purpose)
        if group is None:
            return False
        self.group, usable = group, False
        group.executor.signs = self.signs
        try:
            if len(group.executor.actors) == self.num_shards and set(group.hosts().values()) <= nodes:
                with suppress(*LOST, BrokenNodesError, RayTaskError, GetTimeoutError):
                    group.executor.actors = ray.get(group.unloaded, timeout=PATIENCE)
                    group.executor.load_run(self.spec)
                    call = group.coordinator.load_run.remote(*self._run_of(group.executor))
                    if self._is_answered(call):
                        ray.get(call)
                        usable = True
        finally:
            if not usable:
                group.close()
        if usable:
            self.lost_nodes.use(group.hosts().values())
            self._actor_counts.append(self.num_shards)
        return usable

    def _gather(self, room: Mapping[Kind, int], least: int) -> None:
        """Start client actors and their coordinator. For the arguments see `start_group`."""
        self.group = start_group(
            *(self.spec, self.signs, self.shares, room, least, self._purpose, self._start_coordinator),
            self.nodes.broken,
        )
        self.lost_nodes.use(self.group.hosts().values())
        running = len(self.group.executor.actors)
        self._actor_counts.append(running)
        if running < len(actors_to_start(self.shares, room, 0)):
            # Free resources may not fit together, such as halves of two GPUs.
            self._again, self._pause = time.monotonic() + self._pause, 2 * self._pause

    def _gather_anew(self, room: Mapping[Kind, int]) -> None:
        self.lost_nodes.look(self.group.hosts().values())
        self.group.close()
        self._gather(room, self.resources.min_actors or 1)

    def _start_coordinator(self, executor: RayExecutor) -> Any:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(CoordinatorActor).options(num_cpus=0, scheduling_strategy=here)
        return actor.remote(*self._run_of(executor))

    def _run_of(self, executor: RayExecutor) -> tuple[Any, ...]:
        """Arguments of CoordinatorActor."""
        return self.spec, self.spec.data, self.spec.partition, executor, self.checkpoints, self.claim

    def _room_elsewhere(self) -> dict[Kind, int]:
        """Number of client actors of each kind that fit now, if nodes have joined or are about to leave and a new
        placement is useful; else empty.

        It is useful if more actors fit than are running, or enough to leave a node that is about to go.
        """
        if time.monotonic() < self._looked + LOOK or not self.health.check():
            return {}
        found, self._looked = lasting_nodes(), time.monotonic()
        self.lost_nodes.look(self.group.hosts().values())
        self.nodes.start_on_new(self.spec, found)
        nodes = self.nodes.usable(found)
        if set(nodes) == self._seen and self._looked < self._again:
            return {}
        if set(nodes) != self._seen:
            self._pause = AGAIN
        self._seen, self._again = set(nodes), math.inf
        room, running = self._room(nodes), len(self.group.executor.actors)
        leaving = not set(self.group.hosts().values()) <= set(nodes)
        fits, least = self._is_enough(room), self.resources.min_actors or 1
        number = len(actors_to_start(self.shares, room, 0))
        return room if fits and (number > running or (leaving and number >= least)) else {}

    def _room(self, nodes: Nodes) -> dict[Kind, int]:
        """Number of client actors of each kind that fit on the nodes, with their free resources and those of the
        current actors.
        """
        return room_by_kind(self.resources, list(self.group.freed(nodes).values()))

    def _is_enough(self, room: Mapping[Kind, int]) -> bool:
        """Whether there is room for a client actor of each kind."""
        return all(room[kind] for kind in self.shares)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the coordinator. An actor that died is replaced, and continues from its last checkpoint."""
        if self.local is not None:
            with self._at_work():
                return getattr(self.local, method)(*arguments)
        losses = 0
        while True:
            call = getattr(self.group.coordinator, method).remote(*arguments)
            try:
                if self._is_answered(call):
                    return ray.get(call)
                self._gather_anew(self._room(self.nodes.usable(lasting_nodes())))
            except LOST as error:
                self.health.check()
                if broken := self.group.executor.broken_nodes():
                    # Its start asks the client actors.
                    self._leave(BrokenNodesError(broken))
                    continue
                end_if_broken(error)
                losses += 1
                if losses == REPLACEMENTS:
                    raise RuntimeError(f"the coordinator or its nodes were lost {losses} times in a row") from error
                self.group.coordinator = self._start_coordinator(self.group.executor)
            except RayTaskError as error:
                if not isinstance(error.cause, BrokenNodesError):
                    raise error.cause from error
                self._leave(error.cause)

    def _leave(self, broken: BrokenNodesError) -> None:
        """Place the client actors on other nodes than those where they cannot start. Raises RuntimeError if there is no
        other.
        """
        left = {node: free for node, free in lasting_nodes().items() if node not in broken.reasons}
        room = self._room(self.nodes.usable(left))
        if not self._is_enough(room):
            raise RuntimeError(str(broken)) from broken
        self.nodes.leave_out(broken.reasons)
        self._gather_anew(room)

    def _is_answered(self, call: Any) -> bool:
        """Wait for an answer; False if a lost client actor has had no place to restart for too long.

        A coordinator that stays silent for too long is killed.
        """
        until = None
        watch = Watch("the coordinator", WatchedActor(self.group.coordinator), self.silence, self.signs.file)
        while not ray.wait([call], timeout=LOOK)[0]:
            if not self.health.check():
                continue
            self._pass_on_notices()
            self.lost_nodes.look(self.group.hosts().values())
            if watch.look(self.notify):
                # The call will raise an error.
                return True
            if placement_group_table(self.group.placement_group)["state"] == "CREATED":
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

    def _stop_looking(self) -> None:
        self.health.close()
        self._pass_on_notices()
        self.signs.remove()


@contextmanager
def coordinator_on_ray(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    checkpoints: Path,
    address: str | None,
    num_shards: int | None,
    notify: Callable[[str], None],
    claim: Claim | None,
) -> Iterator[CoordinatorHandle]:
    """Coordinator of a run on the Ray at `address`; it begins in this process if Ray has to be started first.

    num_shards: original number of a run that is resumed, however many actors fit now; None: new run.
    """
    resources = experiment.resources
    if num_shards:
        # A resumed run may continue with fewer actors.
        resources = resources.model_copy(update={"actors": num_shards, "min_actors": resources.min_actors or 1})
    cohort = experiment.cohort_size(len(partition))
    with ray_starting(address) as ready:
        here = resources.executor == "auto" and not resources.gpus_per_actor and starts_here(address)
        local = None
        if here and not ready.done():
            say_unused_gpus(resources, local_gpus())
            shares = choose_actors(resources, cohort, [local_resources()])
            executor = inline_executor([experiment], dataset, partition, len(shares))
            local = build_coordinator([experiment], dataset, partition, executor, [checkpoints], claim)
        else:
            ready.result()
            wait_for_nodes(resources, least_actors(resources))
            say_unused_gpus(resources, gpus_of_nodes())
            shares = choose_actors(resources, cohort, node_resources())
        least = resources.min_actors or len(shares)
        run = experiment, dataset, partition, checkpoints, shares, least, notify, claim, ready, local
        with CoordinatorHandle(*run) as handle:
            yield handle
