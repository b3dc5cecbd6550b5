"""Stragglers and dropouts: which clients of a round answer, and how long the server waits, in simulated seconds.

Everything is decided before the clients work, from (seed, round, client) and from the messages that the server sends
them. It is therefore the same on any number of actors and after any failure. The algorithm sees only the clients that
answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hedgerow.algorithms.attacks.attack import attackers
from hedgerow.algorithms.core.client_data import Split
from hedgerow.algorithms.core.messages import Cohort, Exchange, ExchangeSteps
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.slots.middleware import Middleware
from hedgerow.platform.config.system_heterogeneity import Simulation, uniform
from hedgerow.platform.data.partition import Slices
from hedgerow.platform.data.sampling import steps_per_client
from hedgerow.platform.runtime.exchange_costs import CommunicationCost


@dataclass(frozen=True)
class Participation:
    """Outcome for each client that was sampled for a round (bool arrays), and seconds until the server continues."""

    answers: np.ndarray
    unavailable: np.ndarray
    dropped_out: np.ndarray
    late: np.ndarray
    seconds: float


def participation(simulation: Simulation, cohort: Cohort, seconds: np.ndarray, wanted: int) -> Participation:
    """Select the clients that answer: the first `wanted` that finish by the deadline (Bonawitz et al., 2019).

    seconds: time that each client of the cohort takes. The server continues when it has `wanted` answers, or when no
    other client can answer: dropouts are reported to it. Otherwise it waits until the deadline.
    """
    seed, number, clients = cohort.seed, cohort.round, cohort.clients
    available = uniform(seed, "availability", number, clients) < simulation.availability.probabilities(
        seed, number, clients
    )
    drops = available & (uniform(seed, "dropout", number, clients) < simulation.dropout)
    finish = available & ~drops
    # Ties are broken at random: client ids would always favour the same clients.
    order = np.lexsort((uniform(seed, "tie", number, clients), seconds))
    order = order[finish[order]]
    deadline = np.inf if simulation.deadline is None else simulation.deadline
    first = order[seconds[order] <= deadline][:wanted]
    answers = np.zeros(len(clients), bool)
    answers[first] = True
    enough = len(first) == min(wanted, len(order))
    until = float(seconds[first].max(initial=0.0)) if enough else deadline
    return Participation(answers, ~available, drops, finish & ~answers, until)


class ParticipationSimulator(Middleware):
    """Simulates a round with late, unavailable and lost clients: the participants, the duration and the record entries.

    splits: each client's samples. A client's time is that of the round's first exchange with clients, which decides for
    the whole round; later exchanges wait for all remaining clients, and add to the round's time. cost: downloads of the
    clients that were lost.
    """

    def __init__(self, simulation: Simulation, sampled: Cohort, splits: Mapping[Split, Slices]):
        self.simulation, self.sampled, self.splits = simulation, sampled, splits
        self.cost = CommunicationCost()
        self._later, self._begun = 0.0, False

    def answering(self, first: list[Exchange], wanted: int) -> Cohort:
        """Cohort of the clients that answer. first: exchanges that the sampled clients would receive first."""
        self._participation = participation(self.simulation, self.sampled, self._seconds(self.sampled, first), wanted)
        lost = self.sampled.clients[self._participation.dropped_out | self._participation.late]
        for exchange in first:
            add_download(self.cost, exchange, np.isin(exchange.clients, lost))
        self._begun = not first
        self._cohort = self.sampled.subset(self._participation.answers)
        return self._cohort

    def parallel(self, exchanges: list[Exchange], number: int) -> ExchangeSteps:
        client_exchanges = with_clients(exchanges)
        if self._begun and client_exchanges:
            self._later += float(self._seconds(self._cohort, client_exchanges).max())
        self._begun = self._begun or bool(client_exchanges)
        return (yield exchanges)

    def record(self) -> dict[str, float]:
        """Number of lost clients by reason, of attackers that answered, and the simulated seconds of the round."""
        lost = {name: int(getattr(self._participation, name).sum()) for name in ("unavailable", "dropped_out", "late")}
        attacked = attackers_among(self.simulation, self.sampled, self.sampled.clients[self._participation.answers])
        return {**lost, **attacked, "simulated_round_seconds": self._participation.seconds + self._later}

    def _seconds(self, cohort: Cohort, exchanges: list[Exchange]) -> np.ndarray:
        return client_seconds(self.simulation, self.splits, cohort, exchanges)


def attackers_among(simulation: Simulation, cohort: Cohort, answered: np.ndarray) -> dict[str, int]:
    """Record entry with the number of attackers among clients that answered; none without an attack."""
    if not simulation.attack:
        return {}
    mask = attackers(cohort.seed, cohort.population, simulation.attack.fraction)
    return {"attackers": int(mask[answered].sum())}


def client_seconds(
    simulation: Simulation, splits: Mapping[Split, Slices], cohort: Cohort, exchanges: list[Exchange]
) -> np.ndarray:
    """Simulated seconds that each client of a cohort takes for exchanges that run in parallel."""
    steps, received = np.zeros((2, len(cohort.clients)))
    for exchange in exchanges:
        at = np.searchsorted(cohort.clients, exchange.clients)
        for spec in exchange.batches.values():
            steps[at] += steps_per_client(spec, splits[spec.split].sizes[exchange.clients])
        received[at] += _received(exchange)
    return simulation.seconds(cohort, steps, received)


def with_clients(exchanges: list[Exchange]) -> list[Exchange]:
    """Exchanges in which clients take part."""
    return [exchange for exchange in exchanges if exchange.site == "clients" and len(exchange.clients)]


def _received(exchange: Exchange) -> np.ndarray:
    """Bytes that each client of an exchange receives."""
    common, own = CommunicationCost(), CommunicationCost()
    common.add_download(exchange.broadcast, 1)
    own.add_download(exchange.per_client, 1)
    padding = 0 if exchange.padding_down is None else exchange.padding_down
    return np.full(len(exchange.clients), common.bytes_down + own.bytes_down / len(exchange.clients)) - 4 * padding


def add_download(cost: CommunicationCost, exchange: Exchange, which: np.ndarray) -> None:
    """Add the download cost of the clients of an exchange that `which` (bool) selects."""
    cost.add_download(exchange.broadcast, int(which.sum()))
    cost.add_download(tree_map(lambda leaf: leaf[which], exchange.per_client), 1)
    cost.discount_padding(None if exchange.padding_down is None else exchange.padding_down[which], None)
