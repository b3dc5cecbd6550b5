"""The executor: distributes exchanges to workers, and combines the partial aggregates that they return."""

from collections import defaultdict
from dataclasses import asdict, astuple, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hedgerow.algorithms.core.algorithm import Aggregate, Predictions
from hedgerow.algorithms.core.messages import Cohort, Exchange
from hedgerow.algorithms.core.pytree import Tree, count, tree_map
from hedgerow.algorithms.slots.fedex_rounds import FEDEX
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.heartbeat import beat
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.resources import Kind, SpeedChange
from hedgerow.platform.data.sampling import steps_per_client
from hedgerow.platform.runtime.aggregation import PartialAggregate, SumUp, combine, sum_trees
from hedgerow.platform.runtime.assignment import (
    SMOOTHING,
    changed_speeds,
    longest_first,
    near_states,
    owner_of,
    speeds_in,
)
from hedgerow.platform.runtime.autotune import MEASURED_STEPS, Measurement, Workload, tune_plan
from hedgerow.platform.runtime.communication import CommunicationCost
from hedgerow.platform.runtime.shards import (
    EVALUATION,
    ChunkTooLarge,
    ClientCrashed,
    ExecutionPlan,
    WorkerLost,
    WorkShard,
    step_name,
    to_wire,
)
from hedgerow.platform.runtime.worker import Worker
from hedgerow.platform.storage.checkpoint import DamagedCheckpoint, read_states, round_of, save_tree, seal_of

IGNORED_IN_PLANS = {
    *("executor", "state_memory_mb", "state_folder", "min_actors", "mixed"),
    *("max_quarantined", "silence", "actor_timeout", "speeds"),
}
"""Keys of `resources` that affect no plan."""

Positions = list[np.ndarray]
"""For each share of the work, the positions of its clients in `Exchange.clients`."""


Moved = dict[int, list[Any]]
"""For each worker, client states and copies that arrive from other workers, or Ray's references to them."""


class Executor:
    """Runs exchanges on one worker in this process; also the reference that the executor on Ray must match.

    experiments: variants of one experiment, which differ only in floats of their algorithm. num_shards: number of
    shares of the work, which determines the bits of sums; the worker runs one after the other.

    Every method may raise WorkerLost. A step runs under its known plan, or else under a newly chosen one. `run` raises
    ChunkTooLarge if a chunk of several clients does not fit into memory; the round can run again from its beginning.
    """

    def __init__(self, experiments: list[Experiment], worker: Worker | None, num_shards: int = 1):
        self.worker, self.num_shards = worker, num_shards
        self.shares: list[Kind] = list(experiments[0].resources.kinds[:1]) * num_shards
        """Kind of client actor that runs each share. The bits of a share depend on the device of its actor."""
        self.begin(experiments)

    def begin(self, experiments: list[Experiment]) -> None:
        """Serve these experiments from now on, with only the plans and speeds of their files."""
        self.experiments = experiments
        self.plans = [
            {step: ExecutionPlan(**plan.model_dump()) for step, plan in experiment.engine.plans.items()}
            for experiment in experiments
        ]
        """For each variant: step -> plan."""
        speeds = experiments[0].resources.speeds
        self.speeds: list[SpeedChange] = [] if isinstance(speeds, str) else list(speeds)
        """Relative speeds of the shares, in the order of their rounds. The assignment of clients depends on them."""
        self._seconds: dict[int, float] = {}
        """For each share whose work was timed: smoothed seconds per sample."""
        self._hardware: list[dict[str, Any]] = []
        """Kind of hardware of each worker, once it is known."""
        self._away: dict[int, tuple[int, dict[int, int]]] = {}
        """For each variant: the last round in which states were lent, and to which worker each client's."""
        self.checkpoints: dict[int, Path | None] = {}
        """For each variant: the checkpoint that copies of client states continue; None: the initial states."""
        self._copies: dict[int, Moved] = {}
        """For each variant: copies of client states that have not yet arrived at the workers that keep them."""
        self.exposed: set[int] = set()
        """Workers that have lost the copies that they kept since the last checkpoint."""
        self._is_stateful = False
        self._empty: set[int] = set()
        """Workers that have been replaced and do not have their clients' states yet."""
        self._restored = False
        """Whether states were restored since the exchange began."""

    @property
    def num_workers(self) -> int:
        """Number of processes that host clients."""
        return 1

    @cached_property
    def hosts(self) -> np.ndarray:
        """Worker that runs each share of the work, and keeps the states of the clients that the share owns."""
        return np.arange(self.num_shards) % self.num_workers

    @cached_property
    def _shares_of_workers(self) -> list[list[int]]:
        """Shares of the work that each worker runs."""
        return [np.flatnonzero(self.hosts == worker).tolist() for worker in range(self.num_workers)]

    def run(self, exchanges: list[Exchange]) -> list[Aggregate]:
        """Run exchanges in parallel; workers run as one the work that variants have in common."""
        positions = [self._assign(exchange) for exchange in exchanges]
        shards = [
            [_shard(exchange, number, rows[number]) for exchange, rows in zip(exchanges, positions, strict=True)]
            for number in range(self.num_shards)
        ]
        broadcasts = [exchange.received for exchange in exchanges]
        self._restored = False
        stateless = [_cohort(exchange).is_stateless for exchange in exchanges]
        self._is_stateful = self._is_stateful or not all(stateless)
        # Before plans are measured, which begins the round on every worker.
        moved = self._move_states(exchanges, positions)
        for worker, copy in self._undelivered():
            moved[worker].append(copy)
        self._set_plans(exchanges, shards, broadcasts)
        # Then a worker has nothing that the exchange needs and that cannot be restored.
        again = all(
            exchange.position == 0 or (alone and exchange.position >= EVALUATION)
            for exchange, alone in zip(exchanges, stateless, strict=True)
        )
        partials = self._run_shards(shards, broadcasts, moved, again)
        self._copies = {}
        return [
            _aggregate(exchange, rows, [mine[i] for mine in partials], self._sum_up)
            for i, (exchange, rows) in enumerate(zip(exchanges, positions, strict=True))
        ]

    def run_one_by_one(self, exchanges: list[Exchange]) -> list[Aggregate]:
        """Run exchanges with one client at a time, to identify a client that crashes its worker.

        Sums have other bits than those of `run`. Raises ClientCrashed.
        """
        return [self._run_one_by_one(exchange) for exchange in exchanges]

    def save_states(self, variant: int, folder: Path, round: int) -> None:
        """Commit `round` of a variant and write every worker's share of its client states into `folder`.

        The states of a worker whose node does not have the folder are written here, one part at a time.
        """
        moved = self._bring_back(variant)
        orders = {worker: (variant, folder, round, *moved[worker]) for worker in range(self.num_workers)}
        for worker, is_written in enumerate(self._send("save_states", orders)):
            number = 0
            while not is_written and (part := self._send("states_part", {worker: (variant, number)})[0]):
                name, tree = part
                save_tree(tree_map(torch.as_tensor, tree), folder / name)
                beat()
                number += 1

    def load_states(self, variant: int, folder: Path | None) -> None:
        """Replace a variant's client states with those in `folder`, or with the initial ones."""
        self._away.pop(variant, None)
        self._copies.pop(variant, None)
        self._empty = set()
        self.checkpoints[variant] = folder
        self._load_into(variant, folder, list(range(self.num_workers)))

    def copy_states(self, rounds: dict[int, int]) -> None:
        """Copy the new client states of a round, so that another worker has those of a worker that is lost.

        The copies travel with the next exchange. rounds: the round by variant.
        """
        if self.num_workers == 1:
            return
        copies: dict[int, Moved] = {}
        for variant, round in rounds.items():
            moved = self._bring_back(variant) if self._away.get(variant, (0,))[0] == round else {}
            what = variant, round, self._since(variant)
            orders = {worker: (*what, *moved.get(worker, [])) for worker in range(self.num_workers)}
            results = self._results("copy_changes", orders)
            copies[variant] = {self._keeper(worker): [copy] for worker, copy in results.items()}
        # Of all variants or none: otherwise the round runs again.
        for variant, mine in copies.items():
            before = self._copies.get(variant, {})
            self._copies[variant] = {keeper: before.get(keeper, []) + copy for keeper, copy in mine.items()}

    def restore_states(self) -> bool:
        """Give workers that were replaced their clients' states: those of the last checkpoint, and later copies.

        Returns False if the copies are lost too.
        """
        lost = sorted(self._empty)
        if not self._is_stateful:
            return True
        if not lost and self._restored:
            # The exchange failed again although every worker has its states: copies on their way may be lost.
            self.exposed |= {keeper for keeper, _ in self._undelivered()}
            self._copies = {}
            return True
        if not lost or any(self._keeper(worker) in self.exposed for worker in lost):
            return False
        try:
            for worker, copy in self._undelivered():
                self._send("accept", {worker: (copy,)})
            self._copies = {}
            for variant, folder in self.checkpoints.items():
                self._load_into(variant, folder, lost)
                for worker in lost:
                    what, number = (variant, self._since(variant)), 0
                    while part := self._send("copied_part", {self._keeper(worker): (*what, number)})[0]:
                        self._send("restore", {worker: (part,)})
                        number += 1
        except (WorkerLost, DamagedCheckpoint):
            return False
        self._empty, self._restored = set(), True
        return True

    def _undelivered(self) -> list[tuple[int, Any]]:
        """Copies that have not yet arrived, and the worker that keeps each."""
        return [(worker, copy) for mine in self._copies.values() for worker, copies in mine.items() for copy in copies]

    def _keeper(self, worker: int) -> int:
        """Worker that keeps the copies of another one: on another node, unless one node has most of the workers."""
        return (worker + self.num_workers // 2) % self.num_workers

    def _since(self, variant: int) -> int:
        """Round of the checkpoint that copies of client states continue."""
        folder = self.checkpoints.get(variant)
        return round_of(folder) if folder else 0

    def _replaced(self, workers: list[int]) -> None:
        """Note that workers have been lost and replaced."""
        if self._is_stateful:
            self._empty |= set(workers)
            self.exposed |= set(workers)

    def _load_into(self, variant: int, folder: Path | None, workers: list[int]) -> None:
        """Replace the states of some workers' clients; they are read here if a worker's node does not have the
        folder.
        """
        answers = self._send("load_states", dict.fromkeys(workers, (variant, folder, folder and seal_of(folder))))
        absent = [worker for worker, is_complete in zip(workers, answers, strict=True) if not is_complete]
        if folder is None or not absent:
            return

        def homes(clients: np.ndarray) -> np.ndarray:
            return self.hosts[owner_of(clients, self.num_shards)]

        for clients, states in read_states(folder, lambda clients: np.isin(homes(clients), absent)):
            home = homes(clients)
            rows = {worker: np.flatnonzero(home == worker) for worker in np.unique(home).tolist()}
            self._send(
                "put_states",
                {
                    worker: (
                        variant,
                        folder,
                        clients[mine],
                        to_wire(tree_map(lambda leaf, mine=mine: leaf[mine], states)),
                    )
                    for worker, mine in rows.items()
                },
            )
            beat()

    def _send(
        self, method: str, arguments: dict[int, tuple], broadcasts: list[Tree] | None = None, again: bool = False
    ) -> list[Any]:
        """Call a method of some workers in parallel, and wait for their results.

        arguments: by worker. broadcasts: passed to all of them as well; None: nothing. again: repeat the calls to
        workers that are lost, once, and keep the results of the others.
        """
        shared = {} if broadcasts is None else {"broadcasts": broadcasts}
        return [getattr(self.worker, method)(*mine, **shared) for mine in arguments.values()]

    def _sum_up(self, totals: list[Any], scale: float) -> Tree:
        """Scaled sum of trees that workers returned; see `sum_trees`."""
        return sum_trees(totals, scale)

    def _call(self, worker: int, method: str, *arguments: Any) -> Any:
        """Call a method of one of several workers. The result can only be passed on to other workers."""
        raise NotImplementedError

    def _results(self, method: str, arguments: dict[int, tuple]) -> dict[int, Any]:
        """Call a method of some workers in parallel, and wait. The results can only be passed on to other workers."""
        return dict(zip(arguments, self._send(method, arguments), strict=True))

    def _run_shards(
        self, shards: list[list[WorkShard]], broadcasts: list[Tree], moved: Moved | None = None, again: bool = False
    ) -> list[list[PartialAggregate]]:
        """Run the shards of each share, one shard per exchange.

        moved: states that arrive for them. again: see `_send`.
        """
        shares = self._shares_of_workers
        orders = {
            worker: ([shard for share in mine for shard in shards[share]], *(moved or {}).get(worker, []))
            for worker, mine in enumerate(shares)
        }
        partials: list[list[PartialAggregate]] = [[] for _ in shards]
        for mine, results in zip(shares, self._send("run", orders, broadcasts, again), strict=True):
            parts = iter(results)
            for share in mine:
                partials[share] = [next(parts) for _ in shards[share]]
        return partials

    def _run_one_by_one(self, exchange: Exchange) -> Aggregate:
        if exchange.on != "clients" or not len(exchange.clients):
            return self.run([exchange])[0]
        positions: Positions = []
        partials: list[PartialAggregate] = []
        shares = self._assign(exchange)
        if moved := self._move_states([exchange], [shares]):
            # By itself: no client is to blame if a worker is lost that sends states.
            self._send("accept", {worker: tuple(states) for worker, states in moved.items()})
        for number, share in enumerate(shares):
            for row in share:
                alone = [share[:0]] * self.num_shards
                alone[number] = np.array([row])
                # Only the first shard begins the round: otherwise the next one would drop its states, as in a replay.
                begins = not partials
                shards = [[replace(_shard(exchange, other, rows), begins=begins)] for other, rows in enumerate(alone)]
                try:
                    result = self._run_shards(shards, [exchange.received])[number][0]
                except WorkerLost as error:
                    raise ClientCrashed(exchange.variant, int(exchange.clients[row]), str(error)) from error
                positions.append(alone[number])
                partials.append(result)
        return _aggregate(exchange, positions, partials, self._sum_up)

    def _assign(self, exchange: Exchange) -> Positions:
        """Positions of the clients of each share.

        The work of the cohort is divided evenly, in the same way for every exchange of the round, so that scratch
        states stay where they are; most clients with states run where these are kept. Each share starts with its
        largest clients: chunks then contain clients with similar numbers of steps, and need little padding. Evenly
        means: so that shares of different speeds finish at the same time.
        """
        shares, clients = self.num_shards, exchange.clients
        if exchange.on != "clients" or not len(clients):
            owner = clients % shares
            return [np.flatnonzero(owner == share) for share in range(shares)]
        cohort = _cohort(exchange)
        speeds = speeds_in(cohort.round, self.speeds, shares)
        if cohort.is_stateless:
            owner = longest_first(cohort.sizes, speeds)[np.searchsorted(cohort.clients, clients)]
        elif exchange.position >= EVALUATION:
            owner = owner_of(clients, shares)
        else:
            owner = near_states(cohort.clients, cohort.sizes, speeds)[np.searchsorted(cohort.clients, clients)]
        by_size = np.argsort(-_sizes(exchange)[clients], kind="stable")
        return [by_size[owner[by_size] == share] for share in range(shares)]

    def review_speeds(self, from_round: int) -> None:
        """Compare the measured speeds of the shares with those in use, and append them to `speeds` if they differ.

        They are in use from `from_round` on. Nothing changes with one worker, or while a share has had no clients.
        """
        times = self._send("seconds_per_sample", dict.fromkeys(range(self.num_workers), ()))
        if self.num_workers == 1:
            return
        for share, seconds in [item for one in times for item in one.items()]:
            before = self._seconds.get(share, seconds)
            self._seconds[share] = before + SMOOTHING * (seconds - before)
        if len(self._seconds) < self.num_shards:
            return
        in_use = speeds_in(from_round, self.speeds, self.num_shards)
        speeds = changed_speeds(in_use, [self._seconds[share] for share in range(self.num_shards)])
        if speeds is not None:
            self.speeds.append(SpeedChange(from_round=from_round, speeds=speeds.tolist()))

    def _move_states(self, exchanges: list[Exchange], positions: list[Positions]) -> Moved:
        """Let states travel to the workers that run their clients, and back after the round.

        Returns what each worker has to accept before it runs its shards.
        """
        moved: Moved = defaultdict(list)
        hosts = self.hosts
        if self.num_workers == 1:
            return moved
        for exchange, shares in zip(exchanges, positions, strict=True):
            variant, round = exchange.variant, _cohort(exchange).round
            is_evaluation = exchange.position >= EVALUATION
            last, away = self._away.get(variant, (0, {}))
            # Before any exchange that begins a round, since workers then commit the states of the round before.
            if away and (exchange.position == 0 or is_evaluation or round != last):
                if last <= exchange.committed_round or is_evaluation:
                    for worker, states in self._bring_back(variant).items():
                        moved[worker] += states
                else:
                    # That round did not end, and runs again from the states before it.
                    del self._away[variant]
                away = {}
            is_trained = exchange.on == "clients" and len(exchange.clients) and not is_evaluation
            if not is_trained or _cohort(exchange).is_stateless:
                continue
            guests: dict[tuple[int, int], list[int]] = defaultdict(list)
            for share, rows in enumerate(shares):
                clients = exchange.clients[rows]
                homes, host = hosts[owner_of(clients, self.num_shards)], int(hosts[share])
                for client, home in zip(clients.tolist(), homes.tolist(), strict=True):
                    if home != host and client not in away:
                        guests[home, host].append(client)
                        away[client] = host
            self._away[variant] = round, away
            for (home, worker), lent in guests.items():
                arrived = moved.pop(home, [])
                when = round, exchange.position, exchange.committed_round
                moved[worker].append(self._call(home, "lend", variant, np.array(lent), *when, *arrived))
        return moved

    def _bring_back(self, variant: int) -> Moved:
        """New states of a variant's clients that ran on another worker, for the workers that keep their states."""
        moved: Moved = defaultdict(list)
        _, away = self._away.pop(variant, (0, {}))
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        hosts = self.hosts
        for client, worker in away.items():
            groups[int(hosts[owner_of(np.array([client]), self.num_shards)[0]]), worker].append(client)
        for (home, worker), clients in groups.items():
            moved[home].append(self._call(worker, "give_back", variant, np.array(clients)))
        return moved

    # ---- plans ------------------------------------------------------------------------------------------------------

    def smaller_plans(self, failed: ChunkTooLarge) -> list[dict[str, ExecutionPlan]]:
        """For each variant, the steps whose plan failed, with half the clients at once."""
        smaller = replace(failed.plan, chunk=failed.plan.chunk // 2)
        return [
            {
                step: smaller
                for step, plan in plans.items()
                if plan == failed.plan and f"{step}/".startswith(f"{failed.step}/")
            }
            for plans in self.plans
        ]

    def _set_plans(self, exchanges: list[Exchange], shards: list[list[WorkShard]], broadcasts: list[Tree]) -> None:
        """Give every shard its plan: the known plan of its variant for the step, else a newly chosen one.

        With client actors of two kinds, each kind has a plan of its own, unless the file has one for both.
        """
        # All parallel exchanges of a step share one plan, which is chosen for the largest messages.
        for i in sorted(range(len(exchanges)), key=lambda i: -_message_size(exchanges[i])):
            exchange = exchanges[i]
            # A shard of the test set is already a large batch: batching shards gains nothing.
            if exchange.on != "clients":
                continue
            for kind in dict.fromkeys(self.shares):
                step = self._plan_key(exchange, kind)
                own = {
                    share: mine
                    for share, mine in enumerate(shards)
                    if self.shares[share] == kind and len(mine[i].clients)
                }
                if not own or self._known_plan(exchange, kind):
                    continue
                fused = [j for j, shard in enumerate(shards[0]) if shard.fusion_key == shards[0][i].fusion_key]
                plans = [self.plans[exchanges[j].variant] for j in fused]
                known = next((theirs[step] for theirs in plans if step in theirs), None)
                plan = known or self._tune(
                    exchange,
                    [exchanges[j] for j in fused],
                    {share: [mine[j] for j in fused] for share, mine in own.items()},
                    [broadcasts[j] for j in fused],
                )
                for theirs in plans:
                    theirs.setdefault(step, plan)
        for kind, mine in zip(self.shares, shards, strict=True):
            mine[:] = [
                replace(shard, plan=self._known_plan(exchange, kind) or shard.plan)
                for shard, exchange in zip(mine, exchanges, strict=True)
            ]

    def _known_plan(self, exchange: Exchange, kind: Kind) -> ExecutionPlan | None:
        plans = self.plans[exchange.variant]
        return plans.get(self._plan_key(exchange, kind)) or plans.get(_plan_key(exchange))

    def _plan_key(self, exchange: Exchange, kind: Kind) -> str:
        """Name under which the plan of a step is stored, for the shares of a kind."""
        return _plan_key(exchange) + (f"/{kind}" if len(set(self.shares)) > 1 else "")

    def _tune(
        self, exchange: Exchange, fused: list[Exchange], shards: dict[int, list[WorkShard]], broadcasts: list[Tree]
    ) -> ExecutionPlan:
        """Choose the plan of a step. fused: exchanges that run as one; shards: their shards, by share of the work.

        Only the workers of these shares are measured.
        """
        share = max(len(mine[0].clients) for mine in shards.values())
        workers = set(self.hosts[list(shards)].tolist())
        experiment, sizes = self.experiments[fused[0].variant], _sizes(exchange)
        key = {
            "task": experiment.task.model_dump(mode="json"),
            "algorithm": type(_owner(exchange).inner).__name__,
            "batches": {name: asdict(spec) for name, spec in exchange.batches.items()},
            "resources": experiment.resources.model_dump(mode="json", exclude=IGNORED_IN_PLANS),
            "inline": experiment.resources.executor == "inline",
            "step": _plan_key(exchange),
            "experts": len(fused),
            "share": share,
            "numbers": _message_size(exchange),
            "hardware": self._kinds_of_hardware(workers),
        }

        def measure(plan: ExecutionPlan, steps: int | None = MEASURED_STEPS) -> Measurement:
            planned = {share: [replace(shard, plan=plan) for shard in mine] for share, mine in shards.items()}
            return self._measure(planned, broadcasts, steps)

        steps, alike = _steps(exchange, sizes)
        rounds = experiment.rounds - _cohort(exchange).round + 1
        workload = Workload(share, rounds, steps, alike, experiment.resources.memory_mb, len(fused))
        module, engine = _module(exchange), experiment.engine
        if getattr(module, "train_mode", None) is not None:
            # Replacements of torch functions are not traced.
            engine = engine.model_copy(update={"compile": False})
        no_vmap = _owner(exchange).no_vmap or getattr(module, "no_vmap", None)
        return tune_plan(engine, no_vmap, workload, key, measure)

    def _kinds_of_hardware(self, workers: set[int]) -> list[dict[str, Any]]:
        """Kinds of hardware that some workers run on: plans are the same for machines of the same kind."""
        if not self._hardware:
            self._hardware = self._send("hardware", dict.fromkeys(range(self.num_workers), ()))
        return [dict(kind) for kind in sorted({tuple(sorted(self._hardware[worker].items())) for worker in workers})]

    def _measure(self, shards: dict[int, list[WorkShard]], broadcasts: list[Tree], steps: int | None) -> Measurement:
        """Time a chunk of shards with one fusion key under their plan, with all their workers active.

        shards: by share of the work, those of shares with clients. See Worker.measure.
        """
        largest: dict[int, list[WorkShard]] = {}
        for share, mine in shards.items():
            worker = int(self.hosts[share])
            if len(mine[0].clients) > len(largest.setdefault(worker, mine)[0].clients):
                largest[worker] = mine
        # All at once, as in a round: they share caches and memory. Each runs its own clients, which may have states.
        arguments = {worker: (largest[worker], steps) for worker in sorted(largest)}
        costs = self._send("measure", arguments, broadcasts)
        return Measurement(*(max(values) for values in zip(*map(astuple, costs), strict=True)))


def _shard(exchange: Exchange, number: int, rows: np.ndarray) -> WorkShard:
    """Share `number` of an exchange. rows: positions of its clients."""
    weights = np.ones(len(exchange.clients)) if exchange.weights is None else exchange.weights
    return WorkShard(
        step=exchange.step.__name__,
        clients=exchange.clients[rows],
        round=_cohort(exchange).round,
        position=exchange.position,
        on=exchange.on,
        per_client=tree_map(lambda leaf: leaf[rows].numpy(), exchange.received_per_client),
        weights=np.asarray(weights, dtype=np.float64)[rows],
        weighted_by=exchange.weighted_by,
        batches=dict(exchange.batches),
        reduce=exchange.reduce,
        keep_states=exchange.position < EVALUATION,
        number=number,
        variant=exchange.variant,
        committed_round=exchange.committed_round,
        keyed=exchange.keyed,
        constants=getattr(_module(exchange), "constants", None),
    )


def _aggregate(exchange: Exchange, positions: Positions, partials: list[PartialAggregate], sum_up: SumUp) -> Aggregate:
    """Combine partial aggregates. positions: of the clients of each partial aggregate, in `Exchange.clients`."""
    cost = CommunicationCost()
    if not len(exchange.clients):
        return Aggregate({}, np.zeros(0, bool), {}, cost=cost)
    cost.gpu_peak_mb = max(partial.gpu_peak_mb for partial in partials)
    if exchange.on == "clients":
        cost.exchanges = 1
        cost.add_download(exchange.broadcast, len(exchange.clients))
        cost.add_download(exchange.per_client, 1)
        if exchange.wire is not None:
            clients = len(exchange.clients)
            cost.add_upload(clients * exchange.wire.scalars, clients * exchange.wire.bytes)
        else:
            for partial in partials:
                cost.add_upload(partial.up_scalars, partial.up_bytes)
        cost.discount_padding(exchange.padding_down, exchange.padding_up)
    order = np.concatenate(positions)
    back = np.argsort(order)
    parts = [partial for partial in partials if len(partial.contributed)]
    mask = np.concatenate([partial.contributed for partial in parts])
    for name in dict.fromkeys(name for part in parts for name in part.metrics):
        if any(len(part.metrics.get(name, ())) != len(part.contributed) for part in parts):
            raise UserError(
                f"algorithm.name: only some clients return the metric {name} of step {exchange.step.__name__}; return "
                "the same metrics from every client"
            )
    metrics = {name: np.concatenate([part.metrics[name] for part in parts])[back] for name in parts[0].metrics}
    up = combine(parts, order[mask], sum_up) if mask.any() else {}
    deltas = [partial.client_model_delta for partial in parts if partial.client_model_delta is not None]
    each = [predictions for part in parts for predictions in part.predictions]
    predictions = None
    if len(each) == len(order):
        columns = zip(*(each[i] for i in back), strict=True)
        predictions = Predictions(*(np.concatenate(column) for column in columns))
    return Aggregate(up, mask[back], metrics, sum_up(deltas, 1.0), cost, predictions)


def _steps(exchange: Exchange, sizes: np.ndarray) -> tuple[int, bool]:
    """Mean number of mini-batches of a client's shortest stream, at least one; and whether this number, and the room
    for samples, is the same for all clients.
    """
    # The training decides, not the score after it.
    specs = [spec for name, spec in exchange.batches.items() if name != FEDEX]
    if not specs or exchange.on == "test" or any(spec.split in ("held_out", "selection") for spec in specs):
        return 1, False
    steps = np.min([steps_per_client(spec, sizes) for spec in specs], axis=0)
    full = sizes.min() == sizes.max() or all(spec.size and spec.size <= sizes.min() for spec in specs)
    # Clients may have different numbers of validation samples.
    alike = full and steps.min() == steps.max() and all(spec.split in ("train", "public") for spec in specs)
    return max(1, round(float(steps.mean()))), bool(alike) and FEDEX not in exchange.batches


def _message_size(exchange: Exchange) -> int:
    """Number of scalars that a client receives."""
    return count(exchange.received) + count(exchange.per_client) // max(1, len(exchange.clients))


def _plan_key(exchange: Exchange) -> str:
    """Name under which the plan of a step is stored; a single client has a plan of its own."""
    return step_name(exchange.step.__name__, exchange.on) + ("/one" if len(exchange.clients) == 1 else "")


def _owner(exchange: Exchange) -> Any:
    """Algorithm that the step is a method of."""
    return exchange.step.__self__  # type: ignore[attr-defined]


def _module(exchange: Exchange) -> nn.Module:
    return _owner(exchange).task.module


def _cohort(exchange: Exchange) -> Cohort:
    assert exchange.cohort is not None, "the server adds it"
    return exchange.cohort


def _sizes(exchange: Exchange) -> np.ndarray:
    """Number of training samples of each client of the population."""
    sizes = _cohort(exchange).population_sizes
    assert sizes is not None, "the server adds them"
    return sizes
