"""The executor: deals exchanges to parts, runs these on whichever workers are free, and combines their answers."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import torch

from hedgerow.algorithms.core.messages import Aggregate, Exchange, Predictions
from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.runtime.aggregation import PartialAggregate, SumUp, combine
from hedgerow.platform.runtime.autotune import Measurement
from hedgerow.platform.runtime.exchange_costs import CommunicationCost
from hedgerow.platform.runtime.plans import Plans
from hedgerow.platform.runtime.shards import ClientCrashed, PlanFailed, Positions, WorkShard, deal, owner_of
from hedgerow.platform.runtime.state_store import StateStore
from hedgerow.platform.runtime.transport import Answer, Transport

LOOK_SECONDS = 1.0
"""Time between two checks for workers that do not answer."""

GATHER_SECONDS = 3.0
"""Time that the first work waits for further workers, once one has started: those that start together are all there
within it, and rounds of some workers would slow down the start of the others.
"""

SUSPICIOUS = 3
"""Number of times that a part may lose its worker, until a client of it is suspected."""

PATIENCE = 5
"""Number of losses that no client explains after which the run gives up."""


@dataclass(frozen=True)
class Call:
    """Call of a worker's method for a part. shards: its arguments that name clients."""

    method: str
    shards: list[WorkShard]
    others: tuple[Any, ...] = ()


class Executor:
    """Runs exchanges on the workers of a transport.

    experiments: variants of one experiment, which differ only in floats of their algorithm. parts: number of parts of
    an exchange, which alone determines the bits of sums. stores: client states of each variant; None: its clients have
    none.

    A worker that is lost is reported and started again, and the part that it ran is repeated. `run` raises
    PlanFailed if a step cannot run under its plan, and ClientCrashed for a client that ends its
    worker each time; the round can run again from its beginning.
    """

    def __init__(
        self, experiments: list[Experiment], transport: Transport, parts: int, stores: list[StateStore | None]
    ):
        self.transport, self.parts, self.stores = transport, parts, stores
        self.plans = Plans(experiments)
        self.timeout = experiments[0].resources.timeout
        self.on_notice: Callable[[str], None] = lambda sentence: None
        """Receives a sentence about each lost worker."""
        self._scratch: list[dict[int, Tree]] = [{} for _ in experiments]
        """For each variant: entries that steps have added to the states of clients in this round."""
        self._hardware: list[dict[str, Any]] = []
        # For each worker that is at work: the part it runs (None: it starts), and since when.
        self._busy: dict[int, tuple[int | None, float]] = {}
        self._idle: set[int] = set()
        self._failed_starts: Counter[int] = Counter()
        self._reasons: set[str | None] = set()
        """Why workers could not be started; each is said once."""
        self._expired: set[int] = set()
        self._gather_until: float | None = None
        """When the first work begins at the latest; None: no worker has started yet."""
        self._searching = False
        """Whether a client is searched that ends its worker, so that losses are expected."""
        for worker in range(transport.workers):
            self._start(worker)

    def begin_round(self, variant: int) -> None:
        """Begin a round of a variant, for the first time or again: client states are those after the last commit."""
        self._scratch[variant].clear()
        if store := self.stores[variant]:
            store.begin()

    def commit(self, variant: int) -> None:
        """Make the client states of a variant's round final."""
        if store := self.stores[variant]:
            store.commit()

    def run(self, exchanges: list[Exchange]) -> list[Aggregate]:
        """Run exchanges in parallel; workers run as one the work that variants have in common."""
        positions = [deal(exchange, self.parts) for exchange in exchanges]
        parts = [
            [
                self._with_states(exchange, WorkShard.of(exchange, i, number, positions[i][number]))
                for i, exchange in enumerate(exchanges)
            ]
            for number in range(self.parts)
        ]
        partials: dict[tuple[int, int], PartialAggregate] = {}
        try:
            broadcasts = self.transport.publish([exchange.received for exchange in exchanges])
            self._choose_plans(exchanges, parts, broadcasts)
            calls: dict[int, Call] = {}
            for number, shards in enumerate(parts):
                plans = [
                    self.plans.of(exchange) or shard.plan for exchange, shard in zip(exchanges, shards, strict=True)
                ]
                planned = [replace(shard, plan=plan) for shard, plan in zip(shards, plans, strict=True)]
                if own := [shard for shard in planned if len(shard.clients)]:
                    calls[number] = Call("run", own)
            for number, answers in self._all(calls, broadcasts).items():
                for shard, partial in zip(calls[number].shards, answers, strict=True):
                    partials[number, shard.exchange] = partial
        finally:
            for number, shards in enumerate(parts):
                for shard in shards:
                    self._keep_states(shard, partials.get((number, shard.exchange)))
        return [
            _aggregate(
                exchange,
                [rows for number, rows in enumerate(positions[i]) if (number, i) in partials],
                [partials[number, i] for number in range(self.parts) if (number, i) in partials],
                self.transport.sum_up,
            )
            for i, exchange in enumerate(exchanges)
        ]

    def close(self) -> None:
        """End the workers and release the client states."""
        self.transport.close()
        self.release_states()

    def release_states(self) -> None:
        """Release the client states of a run that has ended."""
        for store in self.stores:
            if store:
                store.close()

    # ---- client states ----------------------------------------------------------------------------------------------

    def _with_states(self, exchange: Exchange, shard: WorkShard) -> WorkShard:
        """The shard with the rows of its clients' states, if its step reads or writes them."""
        if shard.site != "clients":
            return shard
        store, scratch = self.stores[shard.variant], {}
        known = [self._scratch[shard.variant].get(client) for client in shard.clients.tolist()]
        if shard.keeps_states and any(known):
            if None in known:
                raise UserError(
                    f"algorithm.name: step {shard.step} addresses client {shard.clients[known.index(None)]}, which has "
                    "no entries from the earlier exchanges of this round, as other clients have; address only the "
                    "clients that contributed (`Aggregate.clients`)"
                )
            scratch = tree_map(_stacked, *known)
        rows = None
        if store is not None and (shard.keeps_states or owner_of(exchange).reads_state(shard.step)):
            rows = store.rows(shard.clients, shard.keeps_states)
        return replace(shard, scratch=scratch, rows=rows)

    def _keep_states(self, shard: WorkShard, partial: PartialAggregate | None) -> None:
        """Take over the states that a step has written. partial: None if the exchange failed."""
        if not shard.keeps_states:
            return
        kept = np.zeros(len(shard.clients), bool) if partial is None else partial.kept
        if shard.rows is not None:
            objects = partial.objects if partial else []
            self.stores[shard.variant].keep(shard.clients, shard.rows, kept, objects)  # type: ignore[union-attr]
        scratch = self._scratch[shard.variant]
        for client in shard.clients[kept].tolist() if scratch else ():
            scratch.pop(client, None)
        for positions, entries in partial.scratch if partial else ():
            for row, position in enumerate(positions.tolist()):
                scratch[int(shard.clients[position])] = tree_map(lambda leaf, row=row: leaf[row], entries)

    # ---- plans ------------------------------------------------------------------------------------------------------

    def _choose_plans(self, exchanges: list[Exchange], parts: list[list[WorkShard]], broadcasts: Any) -> None:
        def hardware() -> list[dict[str, Any]]:
            if not self._hardware:
                kinds = self._all({part: Call("hardware", []) for part in range(self.transport.workers)}, None)
                self._hardware = [
                    dict(kind) for kind in sorted({tuple(sorted(kind.items())) for kind in kinds.values()})
                ]
            return self._hardware

        def measure(largest: list[list[WorkShard]], steps: int | None) -> Measurement:
            # All workers at once, as in a round: they share caches and memory.
            most = sorted(largest, key=lambda shards: -len(shards[0].clients))[: self.transport.workers]
            costs = self._all({i: Call("measure", shards, (steps,)) for i, shards in enumerate(most)}, broadcasts)
            return Measurement(*(max(values) for values in zip(*map(astuple, costs.values()), strict=True)))

        self.plans.choose(exchanges, parts, hardware, measure)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _all(self, calls: dict[int, Call], broadcasts: Any) -> dict[int, Any]:
        """Answers to calls, by part."""
        answers: dict[int, Any] = {}
        for _ in range(PATIENCE):
            left = {part: call for part, call in calls.items() if part not in answers}
            answers |= self._attempt(left, broadcasts, SUSPICIOUS)
            if len(answers) == len(calls):
                return {part: answers[part] for part in calls}
            for part, call in calls.items():
                if part not in answers:
                    self._find_crashing_client(call, broadcasts)
        raise RuntimeError(f"workers were lost {PATIENCE * SUSPICIOUS} times in a row")

    def _attempt(self, calls: dict[int, Call], broadcasts: Any, patience: int) -> dict[int, Any]:
        """Answers to calls, by part, except those that have lost their workers `patience` times.

        Errors are raised once no worker is at work on these calls any more.
        """
        waiting, losses = deque(calls), Counter[int]()
        answers: dict[int, Any] = {}
        errors: list[Exception] = []
        while (waiting and not errors) or any(part is not None for part, _ in self._busy.values()):
            for worker in sorted(self._idle) if waiting and not errors and self._is_ready() else ():
                if waiting:
                    self._idle.remove(worker)
                    self._busy[worker] = waiting[0], time.monotonic()
                    call = calls[waiting.popleft()]
                    arguments = (call.shards, *call.others) if call.shards else call.others
                    self.transport.call(worker, call.method, arguments, broadcasts if call.shards else None)
            for answer in self.transport.wait(LOOK_SECONDS):
                part, _ = self._busy.pop(answer.worker)
                if answer.lost is not None:
                    self._replace(answer, calls[part] if part is not None else None)
                    if part is not None:
                        losses[part] += 1
                        if losses[part] < patience:
                            waiting.append(part)
                    continue
                self._idle.add(answer.worker)
                self._failed_starts.pop(answer.worker, None)
                if answer.error is not None:
                    errors.append(answer.error)
                elif part is not None:
                    answers[part] = answer.value
            self._end_silent_workers()
        if errors:
            raise next((error for error in errors if not isinstance(error, PlanFailed)), errors[0])
        return answers

    def _is_ready(self) -> bool:
        """Whether work can begin: with all workers, or after a time with those that have started."""
        now = time.monotonic()
        if self._gather_until is None and self._idle:
            self._gather_until = now + GATHER_SECONDS
        if len(self._idle) == self.transport.workers:
            self._gather_until = now
        return self._gather_until is not None and now >= self._gather_until

    def _start(self, worker: int) -> None:
        self._busy[worker] = None, time.monotonic()
        self.transport.start(worker)

    def _replace(self, answer: Answer, call: Call | None) -> None:
        """Report a worker that was lost, and start it again. call: that it worked on; None: it was starting."""
        worker, name = answer.worker, self.transport.name(answer.worker)
        if call is None:
            self._failed_starts[worker] += 1
            if self._failed_starts[worker] == PATIENCE:
                raise RuntimeError(f"{name} could not be started {PATIENCE} times in a row: {answer.lost}")
            if answer.lost not in self._reasons:
                self._reasons.add(answer.lost)
                self.on_notice(f"{name} starts again: {answer.lost}")
        elif worker in self._expired:
            self._expired.remove(worker)
            self.on_notice(f"{name} did not answer for {self.timeout:g} s (resources.timeout) and was replaced")
        elif not self._searching:
            self.on_notice(f"{name} was lost ({answer.lost}) and replaced; its work runs again")
        self._start(worker)

    def _end_silent_workers(self) -> None:
        now = time.monotonic()
        for worker, (part, since) in self._busy.items():
            if self.timeout and part is not None and worker not in self._expired and now - since > self.timeout:
                self._expired.add(worker)
                self.transport.kill(worker)

    def _find_crashing_client(self, call: Call, broadcasts: Any) -> None:
        """Raise ClientCrashed if one of the clients of a call ends its worker each time.

        The clients are halved until one is left. Their answers are dropped.
        """
        suspects = [(i, row) for i, shard in enumerate(call.shards) for row in range(len(shard.clients))]
        if not suspects or any(shard.site != "clients" for shard in call.shards):
            raise RuntimeError(f"a worker was lost {SUSPICIOUS} times in a row while it ran `{call.method}`")

        def ends_worker(some: list[tuple[int, int]]) -> bool:
            rows = [np.array([row for j, row in some if j == i], int) for i in range(len(call.shards))]
            shards = [shard.only(mine) for shard, mine in zip(call.shards, rows, strict=True) if len(mine)]
            return not self._attempt({0: replace(call, shards=shards)}, broadcasts, patience=1)

        self._searching = True
        try:
            while len(suspects) > 1:
                half = len(suspects) // 2
                suspects = next((some for some in (suspects[:half], suspects[half:]) if ends_worker(some)), [])
            is_found = bool(suspects) and ends_worker(suspects)
        finally:
            self._searching = False
        if is_found:
            i, row = suspects[0]
            client = int(call.shards[i].clients[row])
            raise ClientCrashed([shard.variant for shard in call.shards if client in shard.clients], client)


def _stacked(*rows: Any) -> Any:
    """A stack of arrays, or of tensors of types that NumPy does not have."""
    return torch.stack(rows) if isinstance(rows[0], torch.Tensor) else np.stack(rows)


def _aggregate(exchange: Exchange, positions: Positions, partials: list[PartialAggregate], sum_up: SumUp) -> Aggregate:
    """Combine partial aggregates. positions: of the clients of each partial aggregate, in `Exchange.clients`."""
    cost = CommunicationCost()
    if not len(exchange.clients):
        return Aggregate({}, np.zeros(0, bool), {}, cost=cost)
    cost.gpu_peak_mb = max(partial.gpu_peak_mb for partial in partials)
    if exchange.site == "clients":
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
    mask = np.concatenate([partial.contributed for partial in partials])
    for name in dict.fromkeys(name for part in partials for name in part.metrics):
        if any(len(part.metrics.get(name, ())) != len(part.contributed) for part in partials):
            raise UserError(
                f"algorithm.name: only some clients return the metric {name} of step {exchange.step.__name__}; return "
                "the same metrics from every client"
            )
    metrics = {name: np.concatenate([part.metrics[name] for part in partials])[back] for name in partials[0].metrics}
    if exchange.reduce == "mean" and not mask.all() and not sum(partial.weight for partial in partials):
        # Every client with a weight diverged.
        mask[:] = False
    try:
        up = combine(partials, order[mask], sum_up) if mask.any() else {}
    except ContractError as error:
        raise UserError(f"algorithm.name: step {exchange.step.__name__}: {error}") from error
    deltas = [partial.client_model_delta for partial in partials if partial.client_model_delta is not None]
    each = [predictions for part in partials for predictions in part.predictions]
    predictions = None
    if len(each) == len(order) and any(one is not None for one in each):
        columns: Any = zip(*(each[i] for i in back if each[i] is not None), strict=True)
        joined: Any = (np.concatenate(column) if column[0] is not None else None for column in columns)
        predictions = Predictions(*joined)
    return Aggregate(up, mask[back], metrics, sum_up(deltas, 1.0), cost, predictions)
