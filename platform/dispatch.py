"""Deals exchanges out to the workers of an executor, and puts their answers together."""

import heapq
from dataclasses import asdict, replace

import numpy as np

from hedgerow.algorithms.core.messages import Exchange, Result
from hedgerow.algorithms.core.pytree import count, tree_map
from hedgerow.platform.data.sampling import steps_per_client
from hedgerow.platform.engine import Plan
from hedgerow.platform.executors import Deadly, Executor, WorkerLost
from hedgerow.platform.learner import Learner, Request
from hedgerow.platform.ledger import Ledger
from hedgerow.platform.planning import MEASURED_STEPS, Cost, Load, choose
from hedgerow.platform.reduce import combine
from hedgerow.platform.worker import EVALUATION, Answer, Order

NO_MATTER = {
    *("executor", "state_memory_mb", "state_folder", "min_actors"),
    *("max_quarantined", "silence", "actor_timeout"),
}
"""Keys of `resources` that decide no plan: a run has the same bits whatever they are."""

Positions = list[np.ndarray]
"""For each worker the positions, in `Exchange.clients`, of its share."""


class Dispatcher:
    """Carries out requests of learners on an executor. learners: by the number of the expert that the workers know."""

    def __init__(self, learners: list[Learner], executor: Executor):
        self.learners, self.executor = learners, executor

    def carry_out(self, requests: list[tuple[int, Request]]) -> list[Result]:
        """Run requests, each with its expert, all at once; what experts want in common, workers do as one."""
        shares = [self._deal(self.learners[expert], request) for expert, request in requests]
        orders: list[list[Order]] = [[] for _ in range(self.executor.workers)]
        for (expert, request), positions in zip(requests, shares, strict=True):
            for worker, rows in enumerate(positions):
                orders[worker].append(self._order(expert, worker, request, rows))
        downs = [request.exchange.received for _, request in requests]
        self._plan(requests, orders)
        answers = self.executor.run(orders, downs)
        return [
            _result(request.exchange, positions, [mine[i] for mine in answers], request.ledger)
            for i, ((_, request), positions) in enumerate(zip(requests, shares, strict=True))
        ]

    def one_by_one(self, requests: list[tuple[int, Request]]) -> list[Result]:
        """The same with one client at a time, so that one who kills its worker is known.

        Sums have other bits than those of `carry_out`. Raises Deadly.
        """
        return [self._one_by_one(expert, request) for expert, request in requests]

    def _one_by_one(self, expert: int, request: Request) -> Result:
        exchange = request.exchange
        if exchange.on != "clients":
            return self.carry_out([(expert, request)])[0]
        positions: Positions = []
        answers: list[Answer] = []
        for worker, share in enumerate(self._deal(self.learners[expert], request)):
            for row in share:
                alone = [share[:0]] * self.executor.workers
                alone[worker] = np.array([row])
                # The next client's order must not take for a replay what this one leaves.
                begins = not answers
                orders = [
                    [replace(self._order(expert, rank, request, rows), begins=begins)]
                    for rank, rows in enumerate(alone)
                ]
                try:
                    answer = self.executor.run(orders, [exchange.received])[worker][0]
                except WorkerLost as error:
                    raise Deadly(expert, int(exchange.clients[row]), str(error)) from error
                positions.append(alone[worker])
                answers.append(answer)
        return _result(exchange, positions, answers, request.ledger)

    def _order(self, expert: int, worker: int, request: Request, rows: np.ndarray) -> Order:
        exchange = request.exchange
        weights = np.ones(len(exchange.clients)) if exchange.weights is None else exchange.weights
        return Order(
            round=request.cohort.round,
            number=request.number,
            step=exchange.step.__name__,
            on=exchange.on,
            clients=exchange.clients[rows],
            per_client=tree_map(lambda leaf: leaf[rows].numpy(), exchange.received_per_client),
            weights=np.asarray(weights, dtype=np.float64)[rows],
            batches=dict(exchange.batches),
            reduce=exchange.reduce,
            plan=Plan("loop"),
            keep_states=request.number < EVALUATION,
            worker=worker,
            expert=expert,
            committed=request.committed,
            constants=getattr(self.learners[expert].algorithm.task.module, "constants", None),
        )

    def _deal(self, learner: Learner, request: Request) -> Positions:
        """Clients with states stick to their worker.

        Without, the work of the cohort is dealt evenly, in the same way for every exchange of the round, so that
        scratch states stay where they are. Each worker gets its largest clients first: chunks then hold clients with
        similar numbers of steps, and little is padded.
        """
        workers, exchange = self.executor.workers, request.exchange
        if exchange.on != "clients" or not len(exchange.clients):
            owner = exchange.clients % workers
            return [np.flatnonzero(owner == worker) for worker in range(workers)]
        if learner.stateless:
            cohort = request.cohort
            owner = longest_first(cohort.sizes, workers)[np.searchsorted(cohort.clients, exchange.clients)]
        else:
            owner = owner_of(exchange.clients, workers)
        by_size = np.argsort(-learner.sizes[exchange.clients], kind="stable")
        return [by_size[owner[by_size] == worker] for worker in range(workers)]

    def _plan(self, requests: list[tuple[int, Request]], orders: list[list[Order]]) -> None:
        """Give every order its plan: the one that its learner has for the step, else a newly chosen one."""
        # One plan serves all exchanges of a step that run in parallel: that of the one with the largest messages.
        for i in sorted(range(len(requests)), key=lambda i: -_numbers(requests[i][1].exchange)):
            expert, request = requests[i]
            learner, step = self.learners[expert], _name(request.exchange)
            # A shard of the test set is a large batch already: nothing is gained by batching shards.
            wanted = request.exchange.on == "clients" and len(request.exchange.clients)
            if wanted and step not in learner.plans:
                kin = [j for j, order in enumerate(orders[0]) if order.kin == orders[0][i].kin]
                plans = [self.learners[requests[j][0]].plans for j in kin]
                known = next((theirs[step] for theirs in plans if step in theirs), None)
                plan = known or self._choose(step, request.exchange, kin, [r.exchange for _, r in requests], orders)
                for theirs in plans:
                    theirs.setdefault(step, plan)
        for mine in orders:
            mine[:] = [
                replace(order, plan=self.learners[expert].plans.get(_name(request.exchange), order.plan))
                for order, (expert, request) in zip(mine, requests, strict=True)
            ]

    def _choose(
        self, step: str, exchange: Exchange, kin: list[int], exchanges: list[Exchange], orders: list[list[Order]]
    ) -> Plan:
        busiest = max(orders, key=lambda mine: len(mine[kin[0]].clients))
        share = len(busiest[kin[0]].clients)
        learner = self.learners[busiest[kin[0]].expert]
        experiment = learner.experiment
        key = {
            "task": experiment.task.model_dump(mode="json"),
            "algorithm": type(learner.algorithm).__name__,
            "batches": {name: asdict(spec) for name, spec in exchange.batches.items()},
            "resources": experiment.resources.model_dump(mode="json", exclude=NO_MATTER),
            "inline": experiment.resources.executor == "inline",
            "step": step,
            "experts": len(kin),
            "share": share,
            "numbers": _numbers(exchange),
        }

        def measure(plan: Plan, steps: int | None = MEASURED_STEPS) -> Cost:
            planned = [[replace(mine[j], plan=plan) for j in kin] for mine in orders]
            return self.executor.measure(planned, [exchanges[j].received for j in kin], steps)

        no_vmap = getattr(learner.algorithm.task.module, "no_vmap", None)
        left, (steps, alike) = experiment.rounds - learner.round, _steps(exchange, learner.sizes)
        load = Load(share, left, steps, alike, experiment.resources.memory_mb, len(kin))
        return choose(experiment.engine, no_vmap, load, key, measure)


def _steps(exchange: Exchange, sizes: np.ndarray) -> tuple[int, bool]:
    """Mini-batches of a client's shortest stream, on average, one at least; and whether all clients have as many, with
    room for as many samples."""
    specs = exchange.batches.values()
    if not specs or exchange.on == "test" or any(spec.share == "held_out" for spec in specs):
        return 1, False
    steps = np.min([steps_per_client(spec, sizes) for spec in specs], axis=0)
    full = sizes.min() == sizes.max() or all(spec.size and spec.size <= sizes.min() for spec in specs)
    # Of samples for validation clients may have other numbers.
    alike = full and steps.min() == steps.max() and all(spec.share in ("train", "public") for spec in specs)
    return max(1, round(float(steps.mean()))), bool(alike)


def longest_first(sizes: np.ndarray, workers: int) -> np.ndarray:
    """The worker of each client: the largest first, each to whoever has the least to do (Graham, 1969).

    A client's work is its number of samples and not a measured time, so that the same clients meet in the same sums
    whenever a run is repeated.
    """
    owner = np.arange(len(sizes)) % workers
    if sizes.min() < sizes.max():
        loads = [(0, worker) for worker in range(workers)]
        for client in np.argsort(-sizes, kind="stable").tolist():
            load, worker = loads[0]
            owner[client] = worker
            heapq.heapreplace(loads, (load + int(sizes[client]), worker))
    return owner


def owner_of(clients: np.ndarray, workers: int) -> np.ndarray:
    """The worker on which each client's state lives."""
    return clients % workers


def _numbers(exchange: Exchange) -> int:
    """Of what a client receives."""
    return count(exchange.received) + count(exchange.per_client) // max(1, len(exchange.clients))


def _name(exchange: Exchange) -> str:
    """Of a plan: one for a single client is none for many."""
    return f"{exchange.step.__name__}/{exchange.on}" + ("/one" if len(exchange.clients) == 1 else "")


def _result(exchange: Exchange, positions: Positions, answers: list[Answer], ledger: Ledger) -> Result:
    if not len(exchange.clients):
        return Result({}, np.zeros(0, bool), {})
    ledger.gpu_peak_mb = max(ledger.gpu_peak_mb, *(answer.gpu_peak_mb for answer in answers))
    if exchange.on == "clients":
        ledger.charge_down(exchange.down, len(exchange.clients))
        ledger.charge_down(exchange.per_client, 1)
        for answer in answers:
            ledger.charge_up(answer.up_scalars, answer.up_bytes)
        ledger.forgive(exchange.padding_down, exchange.padding_up)
    back = np.argsort(np.concatenate(positions))
    working = [answer for answer in answers if len(answer.kept)]
    kept = np.concatenate([answer.kept for answer in working])
    metrics = {name: np.concatenate([a.metrics[name] for a in working])[back] for name in working[0].metrics}
    up = combine([a.partial for a in working], np.concatenate(positions)[kept]) if kept.any() else {}
    moved = [a.moved for a in working if a.moved.tree is not None]
    return Result(up, kept[back], metrics, combine(moved, np.zeros(0)) if moved else {})
