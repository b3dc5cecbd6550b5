"""The federated loop: an iterator of rounds over clients, with its state as a dictionary.

Everything above (Ray, Tune, MLflow, checkpoints, reports) sees only: next(), state_dict(), load_state_dict().
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.algorithms.base import Algorithm, Cohort, Exchange, Exchanges, Result
from hedgerow.algorithms.trees import Tree, count, tree_map
from hedgerow.platform.checkpoint import latest_checkpoint, prune, read_checkpoint, write_checkpoint
from hedgerow.platform.data import Partition
from hedgerow.platform.engine import Plan
from hedgerow.platform.executors import Executor, WorkerLost
from hedgerow.platform.experiment import Experiment
from hedgerow.platform.ledger import Ledger
from hedgerow.platform.planning import choose
from hedgerow.platform.reduce import combine
from hedgerow.platform.streams import sample_clients
from hedgerow.platform.worker import Answer, Order, test_shards

Record = dict[str, Any]

EVALUATION = 1_000_000
"""Exchanges are numbered within their round; those of the evaluation from here."""

PLACE_OF_STATES = {"state_memory_mb", "state_folder"}

PATIENCE = 5
"""How often in one round workers may be lost before the run gives up."""


class NoContributors(Exception):  # noqa: N818
    """Every client of an exchange diverged: there is nothing to aggregate."""


class FederatedRun(Iterator[Record]):
    """Rounds of one experiment on one executor; each `next` runs one and returns its record of metrics.

    folder: where checkpoints go; a run goes on from the last one that lies there. None keeps none, and then a lost
    worker means starting again from round 1.
    """

    def __init__(
        self,
        experiment: Experiment,
        algorithm: Algorithm,
        partition: Partition,
        test_samples: int,
        executor: Executor,
        folder: Path | None = None,
    ):
        self.experiment = experiment
        self.algorithm = algorithm
        self.executor = executor
        self.folder = folder
        self.sizes = partition.train_sizes
        self.population = len(partition)
        self.cohort_size = experiment.cohort_size(self.population)
        self.stateless = not algorithm.init_client()
        self.test_shards = test_shards(test_samples)
        self.plans: dict[str, Plan] = {}
        self._evaluated = self._evaluation_cohort()
        self.history: list[Record] = []
        self._replay(0)

    # ---- the iterator -------------------------------------------------------------------------------------------

    def __next__(self) -> Record:
        if self.round >= self.experiment.rounds:
            raise StopIteration
        for _ in range(PATIENCE):
            try:
                self._one_round()
                return self.history[-1]
            except WorkerLost as error:
                lost = error
                self._recover()
        raise RuntimeError(f"round {self.round + 1}: client actors died {PATIENCE} times in a row") from lost

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs, beside the client states: the server's tree and the progress (JSON)."""
        progress = {
            "round": self.round,
            "seconds": self.seconds,
            "transmissions": self.transmissions,
            "plans": {step: asdict(plan) for step, plan in self.plans.items()},
            "history": self.history,
        }
        return {"server": self.server, "progress": progress}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; the client states are loaded apart, by the executor."""
        progress = state["progress"]
        self.server = state["server"]
        self.round = self.committed = progress["round"]
        self.seconds = progress["seconds"]
        self.transmissions = progress["transmissions"]
        self.plans = {step: Plan(**plan) for step, plan in progress["plans"].items()}
        self.history = list(progress["history"])

    def save(self) -> Path:
        """Write a checkpoint of the present round."""
        assert self.folder is not None
        for _ in range(PATIENCE):
            target = self.folder / f"round-{self.round:08d}"
            state = self.state_dict()
            try:
                write_checkpoint(
                    target,
                    state["server"],
                    state["progress"],
                    lambda aside: self.executor.save_states(aside, self.committed),
                )
            except WorkerLost as error:
                lost = error
                self._replay(self.round)
            else:
                prune(self.folder, self.experiment.checkpoints.keep)
                return target
        raise RuntimeError(f"checkpoint {self.round}: client actors died {PATIENCE} times in a row") from lost

    def load(self, checkpoint: Path) -> None:
        """Continue from a checkpoint folder."""
        server, progress = read_checkpoint(checkpoint)
        self.load_state_dict({"server": server, "progress": progress})
        self.executor.load_states(checkpoint)

    # ---- nothing is lost ----------------------------------------------------------------------------------------

    def _restart(self) -> None:
        self.server = self.algorithm.init_server()
        self.round = self.committed = 0
        self.seconds = self.transmissions = 0.0
        self.history = []

    def _recover(self) -> None:
        """A worker died. Without client states only the round at hand is lost; with them, all since the checkpoint."""
        if not self.stateless:
            self._replay(self.round)

    def _replay(self, target: int) -> None:
        """Back to the last checkpoint, and forward again to `target`: rounds are functions of state and number."""
        for _ in range(PATIENCE):
            try:
                found = latest_checkpoint(self.folder) if self.folder else None
                if found:
                    self.load(found[0])
                else:
                    self._restart()
                    self.executor.load_states(None)
                while self.round < target:
                    self._one_round()
                return
            except WorkerLost as error:
                lost = error
        raise RuntimeError(f"round {target}: client actors died {PATIENCE} times in a row") from lost

    # ---- one round ----------------------------------------------------------------------------------------------

    def _one_round(self) -> None:
        start = time.perf_counter()
        number = self.round + 1
        clients = sample_clients(self.experiment.seed, number, self.population, self.cohort_size)
        cohort = Cohort(number, clients, self.sizes[clients], self.population, self.test_shards)
        ledger = Ledger()
        results: list[Result] = []
        try:
            server = self._drive(self.algorithm.round(self.server, cohort), cohort, ledger, results)
            committed = number
        except NoContributors:
            server, committed = self.server, self.committed
        record: Record = {"round": number, "participants": len(clients), **_training_metrics(results)}
        record |= ledger.as_dict()
        model_size = count(self.algorithm.evaluate_params(self.server))
        transmissions = self.transmissions + ledger.transmissions(len(clients), model_size)
        record["transmissions"] = transmissions
        if number % self.experiment.evaluation.every == 0 or number == self.experiment.rounds:
            # Client states of this round are not final yet, and evaluation must not touch them.
            record |= self._evaluate(server, number)
        # Only now, with every answer in hand, does the round count: a worker lost above leaves all as it was.
        self.server, self.round, self.committed, self.transmissions = server, number, committed, transmissions
        self.seconds += time.perf_counter() - start
        record["seconds"] = self.seconds
        self.history.append(record)

    def _evaluate(self, server: Tree, number: int) -> Record:
        clients = self._evaluated
        cohort = Cohort(number, clients, self.sizes[clients], self.population, self.test_shards)
        test, local = self._drive(self.algorithm.evaluate(server, cohort), cohort, Ledger(), [], first=EVALUATION)
        samples = test.metrics["samples"].sum()
        record = {
            "test_accuracy": float(test.metrics["correct"].sum() / samples),
            "test_loss": float(test.metrics["loss"].sum() / samples),
        }
        if len(clients):
            accuracy = np.sort(local.metrics["correct"] / np.maximum(local.metrics["samples"], 1))
            record["client_accuracy"] = float(accuracy.mean())
            record["client_accuracy_worst10"] = float(accuracy[: -(-len(accuracy) // 10)].mean())
        return record

    def _evaluation_cohort(self) -> np.ndarray:
        """The same clients every time, a uniform sample of the population."""
        wanted = min(self.experiment.evaluation.clients, self.population)
        return sample_clients(self.experiment.seed, 0, self.population, wanted)

    # ---- exchanges ----------------------------------------------------------------------------------------------

    def _drive(
        self, generator: Exchanges, cohort: Cohort, ledger: Ledger, results: list[Result], first: int = 0
    ) -> Any:
        """Run a generator of exchanges to its end and return what it returns. first: number of its first exchange.

        Raises NoContributors when all clients of an exchange diverged.
        """
        reply: Any = None
        number = first
        while True:
            try:
                wanted = generator.send(reply)
            except StopIteration as stop:
                return stop.value
            exchanges = wanted if isinstance(wanted, list) else [wanted]
            answers = self._exchange(exchanges, cohort, number, ledger)
            results += answers
            if any(len(answer.kept) and not answer.kept.any() for answer in answers):
                generator.close()
                raise NoContributors
            reply = answers if isinstance(wanted, list) else answers[0]
            number += len(exchanges)

    def _exchange(self, exchanges: list[Exchange], cohort: Cohort, number: int, ledger: Ledger) -> list[Result]:
        shares = [self._deal(exchange, cohort) for exchange in exchanges]
        orders: list[list[Order]] = [[] for _ in range(self.executor.workers)]
        for offset, (exchange, positions) in enumerate(zip(exchanges, shares, strict=True)):
            plan = self._plan(exchange, positions, cohort.round, number + offset)
            for worker, rows in enumerate(positions):
                orders[worker].append(_order(exchange, rows, cohort.round, number + offset, plan))
        answers = self.executor.run(orders, [exchange.down for exchange in exchanges], self.committed)
        return [
            _result(exchange, positions, [mine[i] for mine in answers], ledger)
            for i, (exchange, positions) in enumerate(zip(exchanges, shares, strict=True))
        ]

    def _deal(self, exchange: Exchange, cohort: Cohort) -> list[np.ndarray]:
        """For each worker the positions, in `exchange.clients`, of its share.

        Clients with states stick to their worker. Without, the cohort is dealt evenly, in the same way for every
        exchange of the round, so that scratch states stay where they are.
        """
        workers = self.executor.workers
        if exchange.on == "test" or not len(exchange.clients):
            owner = exchange.clients % workers
        elif self.stateless:
            owner = np.searchsorted(cohort.clients, exchange.clients) % workers
        else:
            owner = owner_of(exchange.clients, workers)
        return [np.flatnonzero(owner == worker) for worker in range(workers)]

    def _plan(self, exchange: Exchange, positions: list[np.ndarray], round: int, number: int) -> Plan:
        step = f"{exchange.step.__name__}/{exchange.on}"
        if step not in self.plans:
            largest = max(positions, key=len)
            key = {
                "task": self.experiment.task.model_dump(mode="json"),
                "algorithm": type(self.algorithm).__name__,
                "batches": {name: asdict(spec) for name, spec in exchange.batches.items()},
                # Where the states lie decides no plan: with less memory for them a run still has the same bits.
                "resources": self.experiment.resources.model_dump(mode="json", exclude=PLACE_OF_STATES),
                "step": step,
                "share": len(largest),
            }
            order = _order(exchange, largest, round, number, Plan("loop"))
            self.plans[step] = choose(
                self.experiment.engine,
                getattr(self.algorithm.task.module, "no_vmap", None),
                len(largest),
                key,
                lambda plan: self.executor.measure(replace(order, plan=plan), exchange.down),
            )
        return self.plans[step]


def owner_of(clients: np.ndarray, workers: int) -> np.ndarray:
    """The worker on which each client's state lives."""
    return clients % workers


def _order(exchange: Exchange, rows: np.ndarray, round: int, number: int, plan: Plan) -> Order:
    weights = np.ones(len(exchange.clients)) if exchange.weights is None else exchange.weights
    return Order(
        round=round,
        number=number,
        step=exchange.step.__name__,
        on=exchange.on,
        clients=exchange.clients[rows],
        per_client=tree_map(lambda leaf: leaf[rows].numpy(), exchange.per_client),
        weights=np.asarray(weights, dtype=np.float64)[rows],
        batches=dict(exchange.batches),
        reduce=exchange.reduce,
        plan=plan,
        keep_states=number < EVALUATION,
    )


def _result(exchange: Exchange, positions: list[np.ndarray], answers: list[Answer], ledger: Ledger) -> Result:
    if not len(exchange.clients):
        return Result({}, np.zeros(0, bool), {})
    ledger.charge_down(exchange.down, len(exchange.clients))
    ledger.charge_down(exchange.per_client, 1)
    for answer in answers:
        ledger.charge_up(answer.up_scalars, answer.up_bytes)
    back = np.argsort(np.concatenate(positions))
    working = [answer for answer in answers if len(answer.kept)]
    kept = np.concatenate([answer.kept for answer in working])
    metrics = {name: np.concatenate([a.metrics[name] for a in working])[back] for name in working[0].metrics}
    up = combine([a.partial for a in working], np.concatenate(positions)[kept]) if kept.any() else {}
    return Result(up, kept[back], metrics)


def _training_metrics(results: list[Result]) -> Record:
    """Mean of each metric over the clients that were kept, and how many were left out."""
    record: Record = {"dropped": int(sum((~result.kept).sum() for result in results))}
    for result in results:
        for name, values in result.metrics.items():
            values = values[result.kept & np.isfinite(values)]
            record[f"train_{name}"] = float(values.mean()) if len(values) else float("nan")
    return record
