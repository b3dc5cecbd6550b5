"""Asynchronous rounds on the simulated clock: clients work from the server version of their start, and the server steps
as soon as enough of them have answered.

A round is one server step. The server state contains the clients that are at work (client, server version at the start,
finishing time) and the messages of earlier versions that some of them received. A client's work is carried out when it
arrives, from the message of its start, which gives the same update. The order of events depends on the seed and on the
simulation only, and a step is a function of (server state, round), as in synchronous rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Aggregate, Algorithm
from hedgerow.algorithms.core.messages import Exchange, Exchanges, ExchangeSteps, drive
from hedgerow.algorithms.core.parts import ContractError, Part
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.schedule_section import FedAsyncSchedule, Schedule
from hedgerow.platform.config.system_heterogeneity import Always, Simulation, uniform
from hedgerow.platform.data.sampling import sample_clients
from hedgerow.platform.storage.history import RoundRecord

IN_FLIGHT = "in_flight"
"""Key of the server state: the clients that are at work."""

VERSIONS = "versions"
"""Key of the server state: server version -> message that clients in flight received when they started."""

COUNT = "staleness_count_"
"""Prefix of record entries: number of updates of a round by staleness."""


class Flight(NamedTuple):
    """A client at work. Flights are ordered by their end; ties are broken at random."""

    finish: float
    """Simulated seconds after the latest server step, so that equal rounds have equal durations to the last bit."""
    tie: float
    number: int
    """How many clients had started before."""
    client: int
    version: int
    """Server version at the start: number of server steps before."""


@dataclass(frozen=True)
class ServerStep:
    """Events until the next server step."""

    arrivals: list[Flight]
    """Clients whose updates the server combines, in the order of their arrival."""
    started: list[np.ndarray]
    """Clients that received the current version, in groups that started together; ids ascending."""
    dropped_out: int
    seconds: float
    """Simulated seconds since the previous server step."""
    in_flight: Tree
    """Entry of the server state after the step."""
    versions: set[int]
    """Versions that clients still in flight have received."""

    def record(self, version: int, before: RoundRecord) -> RoundRecord:
        """Entries of the round's record. version: number of server steps before. before: previous record."""
        staleness = version - np.array([flight.version for flight in self.arrivals], int)
        counts = {f"{COUNT}{tau}": int(number) for tau, number in enumerate(np.bincount(staleness)) if number}
        return {
            "dropped_out": self.dropped_out,
            "simulated_round_seconds": self.seconds,
            "simulated_seconds": before.get("simulated_seconds", 0.0) + self.seconds,
            "staleness_mean": float(staleness.mean()) if len(staleness) else 0.0,
            "staleness_max": int(staleness.max(initial=0)),
            **counts,
        }


class EventQueue:
    """Clients that start, work and arrive on the simulated clock.

    concurrency: number of clients at work at any time, if there are enough clients.
    """

    def __init__(self, schedule: Schedule, simulation: Simulation, seed: int, population: int, concurrency: int):
        self.schedule, self.simulation, self.seed = schedule, simulation, seed
        self.population, self.concurrency = population, concurrency

    def initial(self) -> Tree:
        """Returns the entry of the server state before round 1."""
        return _entry([], 0)

    def next_step(
        self, entry: Tree, round: int, seconds: Callable[[np.ndarray], np.ndarray], excluded: np.ndarray
    ) -> ServerStep:
        """Simulates all events until the server has the updates of a round.

        entry: of the server state. seconds: simulated seconds of some clients for the work of this round. excluded:
        clients that neither start nor arrive any more.
        """
        flights = [Flight(*row) for row in zip(*(entry[name].tolist() for name in Flight._fields), strict=True)]
        heapify(flights)
        clock, number, dropped_out = 0.0, int(entry["started"]), 0
        arrivals: list[Flight] = []
        started: list[np.ndarray] = []
        while len(arrivals) < self.schedule.updates:
            busy = np.array([flight.client for flight in flights], int)
            clients = self._starting(round, len(started), busy, excluded)
            if len(clients):
                finish = clock + seconds(clients)
                ties = uniform(self.seed, "tie", round, len(started), clients)
                for row in zip(finish.tolist(), ties.tolist(), clients.tolist(), strict=True):
                    heappush(flights, Flight(row[0], row[1], number, row[2], round - 1))
                    number += 1
            started.append(clients)
            if not flights:
                break
            clock = flights[0].finish
            # All that arrive at the same time arrive before others start: these may then start from the next version.
            while flights and flights[0].finish == clock and len(arrivals) < self.schedule.updates:
                flight = heappop(flights)
                if flight.client in excluded:
                    continue
                if self._drops_out(flight):
                    dropped_out += 1
                else:
                    arrivals.append(flight)
        return ServerStep(
            arrivals,
            [clients for clients in started if len(clients)],
            dropped_out,
            clock,
            _entry([flight._replace(finish=flight.finish - clock) for flight in sorted(flights)], number),
            {flight.version for flight in flights},
        )

    def _starting(self, round: int, group: int, busy: np.ndarray, excluded: np.ndarray) -> np.ndarray:
        """Clients that start now, ascending. group: number of earlier groups that started in this round.

        The first group of a round is sampled as the cohort of a synchronous round.
        """
        missing = self.concurrency - len(busy)
        if missing <= 0:
            return busy[:0]
        free = np.setdiff1d(np.arange(self.population), np.concatenate([busy, excluded]))
        availability = self.simulation.availability
        if not isinstance(availability, Always):
            margins = availability.probabilities(self.seed, round, free) - uniform(
                self.seed, "availability", round, free
            )
            available = margins > 0
            if len(free) and not available.any() and not len(busy):
                # Without any client at work the clock would stop: the one closest to being available starts.
                available[margins.argmax()] = True
            free = free[available]
        count = min(missing, len(free))
        if not group or count == len(free):
            return free[sample_clients(self.seed, round, len(free), count)]
        rng = np.random.default_rng([self.seed, crc32(b"later starts"), round, group])
        return np.sort(free[rng.choice(len(free), count, replace=False, shuffle=False)])

    def _drops_out(self, flight: Flight) -> bool:
        dropout = self.simulation.dropout
        return dropout > 0 and bool(uniform(self.seed, "dropout", flight.number, np.array(flight.client)) < dropout)


def _entry(flights: list[Flight], started: int) -> Tree:
    """Entry of the server state."""
    columns = zip(*flights, strict=True) if flights else ((),) * len(Flight._fields)
    types = {"finish": torch.float64, "tie": torch.float64}
    return {
        "started": torch.tensor(started),
        **{
            name: torch.tensor(column, dtype=types.get(name, torch.int64))
            for name, column in zip(Flight._fields, columns, strict=True)
        },
    }


# ---- the exchange of a step ------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Arriving clients that started from the same version."""

    version: int
    clients: np.ndarray
    """Ascending, each once."""


def groups(arrivals: list[Flight]) -> list[Group]:
    """Arrivals by version, ascending. A client that arrives twice from a version is in two groups."""
    members: dict[tuple[int, int], list[int]] = {}
    times: dict[tuple[int, int], int] = {}
    for flight in arrivals:
        time = times.get((flight.version, flight.client), 0)
        times[flight.version, flight.client] = time + 1
        members.setdefault((flight.version, time), []).append(flight.client)
    return [Group(version, np.sort(clients)) for (version, _), clients in sorted(members.items())]


def stale_round(
    generator: Exchanges, schedule: Schedule, version: int, arrived: list[Group], versions: Tree, algorithm: Algorithm
) -> ExchangeSteps:
    """Runs a round whose clients start from different versions; returns the return value of its generator.

    version: number of server steps before. versions: messages of earlier versions.
    """
    name, parts = algorithm.hyper.name, algorithm.inner.parts
    # With transforms, clients send differences to the message that they received.
    sends_differences = bool(getattr(algorithm.hyper, "transforms", ()))

    def run(exchanges: list[Exchange], number: int) -> ExchangeSteps:
        exchange = exchanges[0]
        step = exchange.step.__name__
        if number or len(exchanges) > 1 or exchange.per_client or exchange.reduce != "mean" or step not in parts:
            raise ContractError(
                f"{name} declares `single_exchange`, but its round is not one exchange whose `parts` are averaged; "
                "set it to False"
            )
        only = arrived[0] if len(arrived) == 1 else None
        sent = [_from_version(exchange, group, version, versions) for group in arrived]
        # The same exchange, so that updates without staleness give the bits of a synchronous round.
        sent = [exchange] if only and only.version == version else sent
        results = yield sent
        staleness = version - np.array([group.version for group in arrived], float)
        factors = schedule.staleness.factors(staleness)
        mixes = isinstance(schedule, FedAsyncSchedule)
        factors = schedule.alpha * factors if isinstance(schedule, FedAsyncSchedule) else factors
        if only and only.version == version and factors[0] == 1:
            return results
        pieces = [
            (result, exchange.broadcast if mixes else one.broadcast, factor, weight)
            for result, one, factor, weight in zip(
                results, sent, factors, _weights(exchange, arrived, results), strict=True
            )
            if result.up
        ]
        up = _combined(exchange, pieces, parts[step], sends_differences) if pieces else {}
        return [_merged(exchange, arrived, results, up)]

    return (yield from drive(generator, run))


def _from_version(exchange: Exchange, group: Group, version: int, versions: Tree) -> Exchange:
    """Exchange with a group of clients, which have received the message of their version."""
    rows = np.searchsorted(exchange.clients, group.clients)
    weights = None if exchange.weights is None else np.asarray(exchange.weights)[rows]
    return replace(
        exchange,
        clients=exchange.clients[rows],
        broadcast=exchange.broadcast if group.version == version else versions[str(group.version)],
        # A group has a mean even if its weight in the mean of all groups is 0.
        weights=weights if weights is not None and weights.any() else None,
        local_inputs_per_client=tree_map(lambda leaf: leaf[rows], exchange.local_inputs_per_client),
        padding_down=None if exchange.padding_down is None else exchange.padding_down[rows],
        padding_up=None if exchange.padding_up is None else exchange.padding_up[rows],
    )


def _weights(exchange: Exchange, arrived: list[Group], results: list[Aggregate]) -> list[float]:
    """Weight of each group in the mean of all."""
    weights = []
    for group, result in zip(arrived, results, strict=True):
        rows = np.searchsorted(exchange.clients, group.clients)
        each = np.ones(len(rows)) if exchange.weights is None else np.asarray(exchange.weights, np.float64)[rows]
        each = each * result.metrics[exchange.weighted_by] if exchange.weighted_by else each
        weights.append(float(each[result.contributed].sum()))
    return weights


def _combined(
    exchange: Exchange, pieces: list[tuple[Aggregate, Tree, float, float]], parts: Any, sends_differences: bool
) -> Tree:
    """Mean of the groups' updates, times their factors, in the form that the algorithm expects.

    pieces: for each group the result, the tree that its values are compared with, its factor, and its weight.
    """
    total = sum(weight for *_, weight in pieces)
    if not total > 0:
        raise ContractError("the clients' weights of an exchange are all 0, so that they have no mean")

    def mean(part: Part | None, name: str) -> Any:
        is_value = part is not None and part.kind == "value" and not sends_differences
        is_plain = part is None or part.kind == "opaque"
        sums: Any = None
        for result, reference, factor, weight in pieces:
            change = result.up[name]
            if is_value:
                change = _mapped(lambda a, b: a.double() - b.double(), change, reference[part.like])  # type: ignore[union-attr]
            scale = weight / total * (1.0 if is_plain else factor)
            change = _mapped(lambda leaf, scale=scale: scale * leaf.double(), change)
            sums = change if sums is None else _mapped(torch.add, sums, change)
        if is_value:
            sums = _mapped(lambda a, b: a + b.double(), sums, exchange.broadcast[part.like])  # type: ignore[union-attr]
        return _mapped(lambda leaf, like: leaf.to(like.dtype), sums, pieces[0][0].up[name])

    return {name: mean(parts.get(name), name) for name in pieces[0][0].up}


def _mapped(function: Callable[..., Tensor], first: Any, *others: Any) -> Any:
    """Applies a function to leaves; an entry of an update may be a single tensor."""
    return tree_map(function, first, *others) if isinstance(first, dict) else function(first, *others)


def _merged(exchange: Exchange, arrived: list[Group], results: list[Aggregate], up: Tree) -> Aggregate:
    """Result of all groups, with one row per client. Of a client that arrives twice, the last metrics remain."""
    contributed = np.zeros(len(exchange.clients), bool)
    metrics: dict[str, np.ndarray] = {}
    for group, result in zip(arrived, results, strict=True):
        rows = np.searchsorted(exchange.clients, group.clients)
        contributed[rows] |= result.contributed
        for name, values in result.metrics.items():
            metrics.setdefault(name, np.full(len(exchange.clients), np.nan))[rows] = values
    return Aggregate(up, contributed, metrics)


# ---- compatibility ---------------------------------------------------------------------------------------------------


def schedule_objection(experiment: Experiment, algorithm: Algorithm, population: int) -> str | None:
    """Returns one sentence on why an experiment cannot have an asynchronous schedule; None if it can."""
    schedule, name, simulation = experiment.schedule, experiment.algorithm.name, experiment.simulation
    assert schedule is not None
    hyper = algorithm.hyper
    transforms = getattr(hyper, "transforms", ())
    if not type(algorithm.inner).supports_async():
        return f"schedule: a round of {name} is not one exchange that only averages updates; remove it"
    if not experiment.aggregation.rule.is_mean:
        return "schedule: it weights updates by their staleness, which only a mean does; set aggregation.rule to mean"
    if isinstance(schedule, FedAsyncSchedule) and transforms:
        return "transforms: fedasync mixes models, not updates; remove them, or set schedule.kind to fedbuff"
    if experiment.fedex:
        return "schedule: FedEx compares the clients of a round, which start from different versions; remove `fedex`"
    if experiment.evaluation.follows:
        return "evaluation.model: with a schedule the server's model is evaluated; set it to server"
    if algorithm.init_client():
        return f"schedule: clients of {name} keep states between rounds with these settings; remove it"
    if simulation and simulation.deadline is not None:
        return "simulation.deadline: an asynchronous server waits for no client; remove it"
    if simulation and simulation.over_selection != 1:
        return "simulation.over_selection: an asynchronous server uses the update of every client; remove it"
    if (clients := experiment.concurrency(population)) > population:
        return f"schedule.concurrency: {clients} clients at work exceed the population of {population}; lower it"
    return None
