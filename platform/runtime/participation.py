"""Stragglers and dropouts: which of a round's clients answer, and how long the server waits, in simulated seconds.

Everything is decided before the clients work, from (seed, round, client) and from what the server sends them: so it is
the same on any number of actors and after any failure. The algorithm sees the clients that answer, and no others.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hedgerow.algorithms.core.client_data import Split
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.platform.config.system_heterogeneity import Simulation, uniform
from hedgerow.platform.data.partition import Slices
from hedgerow.platform.data.sampling import steps_per_client
from hedgerow.platform.runtime.communication import CommunicationCost


@dataclass(frozen=True)
class Participation:
    """What becomes of the clients that were sampled for a round, each an array (bool), and when the server goes on."""

    answers: np.ndarray
    unavailable: np.ndarray
    dropped_out: np.ndarray
    late: np.ndarray
    seconds: float


def participation(simulation: Simulation, cohort: Cohort, seconds: np.ndarray, wanted: int) -> Participation:
    """Who answers: the `wanted` that finish first, if they do so by the deadline (Bonawitz et al., 2019).

    seconds: what each client of the cohort takes. The server goes on when it has as many answers, or when nobody is
    left that could give one: it hears of those that drop out. Else it waits until the deadline.
    """
    seed, number, clients = cohort.seed, cohort.round, cohort.clients
    there = uniform(seed, "availability", number, clients) < simulation.availability.probabilities(
        seed, number, clients
    )
    drops = there & (uniform(seed, "dropout", number, clients) < simulation.dropout)
    finish = there & ~drops
    # Among equals chance decides: their numbers would always favour the same ones.
    order = np.lexsort((uniform(seed, "tie", number, clients), seconds))
    order = order[finish[order]]
    deadline = np.inf if simulation.deadline is None else simulation.deadline
    first = order[seconds[order] <= deadline][:wanted]
    answers = np.zeros(len(clients), bool)
    answers[first] = True
    enough = len(first) == min(wanted, len(order))
    until = float(seconds[first].max(initial=0.0)) if enough else deadline
    return Participation(answers, ~there, drops, finish & ~answers, until)


class ParticipationSimulator:
    """A round whose clients may be late, away or lost: who takes part, what it takes, and its part of the record.

    shares: each client's samples. A client's time is that of the round's first exchange with clients, which decides on
    the whole round; later ones wait for all who are left. cost: what the clients received that were lost.
    """

    def __init__(self, simulation: Simulation, sampled: Cohort, shares: Mapping[Split, Slices]):
        self.simulation, self.sampled, self.shares = simulation, sampled, shares
        self.cost = CommunicationCost()
        self._later, self._begun = 0.0, False

    def begin(self, first: list[Exchange], wanted: int) -> Cohort:
        """The clients that answer. first: what those that were sampled would be sent first."""
        self._participation = participation(self.simulation, self.sampled, self._seconds(self.sampled, first), wanted)
        lost = self.sampled.clients[self._participation.dropped_out | self._participation.late]
        for exchange in first:
            _add_download(self.cost, exchange, np.isin(exchange.clients, lost))
        self._begun = not first
        return self.sampled.subset(self._participation.answers)

    def timed(self, exchanges: Exchanges, cohort: Cohort) -> Exchanges:
        """The same exchanges, of which all after those that `begin` was told of add to the round's time."""
        reply = None
        while True:
            try:
                wanted = exchanges.send(reply)
            except StopIteration as stop:
                return stop.value
            asked = with_clients(wanted)
            if self._begun and asked:
                self._later += float(self._seconds(cohort, asked).max())
            self._begun = self._begun or bool(asked)
            reply = yield wanted

    def record(self) -> dict[str, float]:
        """How many were lost and in what way, and the simulated seconds of the round."""
        lost = {name: int(getattr(self._participation, name).sum()) for name in ("unavailable", "dropped_out", "late")}
        return {**lost, "simulated_round_seconds": self._participation.seconds + self._later}

    def _seconds(self, cohort: Cohort, exchanges: list[Exchange]) -> np.ndarray:
        """What each client of a cohort takes for exchanges that run in parallel."""
        steps, received = np.zeros((2, len(cohort.clients)))
        for exchange in exchanges:
            at = np.searchsorted(cohort.clients, exchange.clients)
            for spec in exchange.batches.values():
                steps[at] += steps_per_client(spec, self.shares[spec.split].sizes[exchange.clients])
            received[at] += _received(exchange)
        return self.simulation.seconds(cohort, steps, received)


def with_clients(wanted: Exchange | list[Exchange]) -> list[Exchange]:
    """Those of some exchanges in which clients take part."""
    exchanges = wanted if isinstance(wanted, list) else [wanted]
    return [exchange for exchange in exchanges if exchange.on == "clients" and len(exchange.clients)]


def _received(exchange: Exchange) -> np.ndarray:
    """Bytes that each client of an exchange receives."""
    common, own = CommunicationCost(), CommunicationCost()
    common.add_download(exchange.broadcast, 1)
    own.add_download(exchange.per_client, 1)
    padding = 0 if exchange.padding_down is None else exchange.padding_down
    return np.full(len(exchange.clients), common.bytes_down + own.bytes_down / len(exchange.clients)) - 4 * padding


def _add_download(cost: CommunicationCost, exchange: Exchange, which: np.ndarray) -> None:
    """Add what some clients of an exchange, which (bool), receive."""
    cost.add_download(exchange.broadcast, int(which.sum()))
    cost.add_download(tree_map(lambda leaf: leaf[which], exchange.per_client), 1)
    cost.discount_padding(None if exchange.padding_down is None else exchange.padding_down[which], None)
