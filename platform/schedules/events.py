"""Events of asynchronous rounds on the simulated clock: which clients start, arrive, or drop out.

A round is one server step. The server state contains the clients that are at work (client, server version at the start,
finishing time) and the messages of earlier versions that some of them received. A client's work is carried out when it
arrives, from the message of its start, which gives the same update. The order of events depends on the seed and on the
simulation only, and a step is a function of (server state, round), as in synchronous rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.config.schedule_section import Schedule
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
