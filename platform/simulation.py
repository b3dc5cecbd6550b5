"""Stragglers and dropouts: which of a round's clients answer, and how long the server waits, in simulated seconds.

Everything is decided before the clients work, from (seed, round, client) and from what the server sends them: so it is
the same on any number of actors and after any failure. The algorithm sees the clients that answer, and no others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hedgerow.algorithms.core.client_data import Share
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.platform.common.section import Section
from hedgerow.platform.data.partition import Slices
from hedgerow.platform.data.sampling import keyed_hash, steps_per_client
from hedgerow.platform.ledger import Ledger

# ---- what is random, each a number per client ------------------------------------------------------------------------


def _uniform(seed: int, purpose: str, *keys: int | np.ndarray) -> np.ndarray:
    """In (0, 1)."""
    bits = keyed_hash(seed, "simulation", purpose, *keys) >> np.uint64(11)
    return (bits.astype(np.float64) + 0.5) / 2**53


def _normal(seed: int, purpose: str, *keys: int | np.ndarray) -> np.ndarray:
    """Standard normal, by Box and Muller."""
    u, v = (_uniform(seed, f"{purpose} {part}", *keys) for part in ("radius", "angle"))
    return np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)


class ConstantSpeed(Section):
    """All clients are equally fast."""

    kind: Literal["constant"] = "constant"
    speed: float = Field(1.0, gt=0, description="of every client")

    def of(self, seed: int, clients: np.ndarray) -> np.ndarray:
        return np.full(len(clients), self.speed)


class LognormalSpeed(Section):
    """A client's speed is drawn once, with median 1."""

    kind: Literal["lognormal"] = "lognormal"
    sigma: float = Field(0.5, ge=0, description="standard deviation of its logarithm")

    def of(self, seed: int, clients: np.ndarray) -> np.ndarray:
        return np.exp(self.sigma * _normal(seed, "speed", clients))


class ListedSpeeds(Section):
    """Speeds as they are given."""

    kind: Literal["list"] = "list"
    speeds: list[Annotated[float, Field(gt=0)]] = Field(
        min_length=1, description="client i has entry i, counted from 0; after the last they begin again"
    )

    def of(self, seed: int, clients: np.ndarray) -> np.ndarray:
        return np.array(self.speeds)[clients % len(self.speeds)]


class Always(Section):
    """Everybody is there."""

    kind: Literal["always"] = "always"

    def chance(self, seed: int, round: int, clients: np.ndarray) -> np.ndarray:
        return np.ones(len(clients))


class Bernoulli(Section):
    """A client is there in a round by chance."""

    kind: Literal["bernoulli"] = "bernoulli"
    probability: float = Field(gt=0, le=1, description="chance of each client in each round")

    def chance(self, seed: int, round: int, clients: np.ndarray) -> np.ndarray:
        return np.full(len(clients), self.probability)


class Diurnal(Section):
    """The chance rises and falls with the hour of the client's day."""

    kind: Literal["diurnal"] = "diurnal"
    probability: float = Field(0.5, gt=0, le=1, description="chance of a client, on the average over a day")
    amplitude: float = Field(1.0, ge=0, le=1, description="how far it rises and falls, as a share of that")
    period: float = Field(24.0, gt=0, description="rounds of a day")
    spread: float = Field(
        1.0, ge=0, le=1, description="share of a day over which the clients' clocks differ; 0: all have the same"
    )

    @model_validator(mode="after")
    def _is_a_chance(self) -> Self:
        highest = self.probability * (1 + self.amplitude)
        if highest > 1:
            raise ValueError(
                f"`probability` times 1 + `amplitude` is {highest:g}, which is no chance; lower one of them"
            )
        return self

    def chance(self, seed: int, round: int, clients: np.ndarray) -> np.ndarray:
        hour = round / self.period + self.spread * _uniform(seed, "clock", clients)
        return self.probability * (1 + self.amplitude * np.cos(2 * np.pi * hour))


Speed = Annotated[ConstantSpeed | LognormalSpeed | ListedSpeeds, Field(discriminator="kind")]
Availability = Annotated[Always | Bernoulli | Diurnal, Field(discriminator="kind")]


# ---- the section of an experiment file -------------------------------------------------------------------------------


class Simulation(Section):
    """Clients that are slow, away, or lost in the middle of a round."""

    speed: Speed = Field(ConstantSpeed(), description="how fast clients are; one of speed 1 is the measure")
    jitter: float = Field(
        0.0, ge=0, description="standard deviation of the logarithm of a factor on a client's time, drawn in each round"
    )
    seconds_per_step: float = Field(1.0, ge=0, description="what a mini-batch takes a client of speed 1")
    bandwidth: float | None = Field(
        None,
        gt=0,
        description="bytes per second of a client; an answer is taken to be as large as what the client received; "
        "null: messages take no time",
    )
    availability: Availability = Field(Always(), description="who is there when a round begins")
    dropout: float = Field(0.0, ge=0, lt=1, description="chance that a client which began a round does not finish it")
    deadline: float | None = Field(
        None, gt=0, description="simulated seconds after which the server waits for nobody; null: it waits"
    )
    over_selection: float = Field(
        1.0, ge=1, description="sample so many times the clients of a round; those that finish first count"
    )

    def selected(self, wanted: int) -> int:
        """How many clients are sampled so that `wanted` may answer."""
        return round(self.over_selection * wanted)

    def seconds(self, cohort: Cohort, steps: np.ndarray, received: np.ndarray) -> np.ndarray:
        """What each client of a cohort takes for its mini-batches and for what it receives, in bytes."""
        seed, clients = cohort.seed, cohort.clients
        work = steps * self.seconds_per_step / self.speed.of(seed, clients)
        messages = 2 * received / self.bandwidth if self.bandwidth else 0.0
        return (work + messages) * np.exp(self.jitter * _normal(seed, "jitter", cohort.round, clients))


@dataclass(frozen=True)
class Turnout:
    """What becomes of the clients that were sampled for a round, each an array (bool), and when the server goes on."""

    answers: np.ndarray
    unavailable: np.ndarray
    dropped_out: np.ndarray
    late: np.ndarray
    seconds: float


def turnout(simulation: Simulation, cohort: Cohort, seconds: np.ndarray, wanted: int) -> Turnout:
    """Who answers: the `wanted` that finish first, if they do so by the deadline (Bonawitz et al., 2019).

    seconds: what each client of the cohort takes. The server goes on when it has as many answers, or when nobody is
    left that could give one: it hears of those that drop out. Else it waits until the deadline.
    """
    seed, number, clients = cohort.seed, cohort.round, cohort.clients
    there = _uniform(seed, "availability", number, clients) < simulation.availability.chance(seed, number, clients)
    drops = there & (_uniform(seed, "dropout", number, clients) < simulation.dropout)
    finish = there & ~drops
    # Among equals chance decides: their numbers would always favour the same ones.
    order = np.lexsort((_uniform(seed, "tie", number, clients), seconds))
    order = order[finish[order]]
    deadline = np.inf if simulation.deadline is None else simulation.deadline
    first = order[seconds[order] <= deadline][:wanted]
    answers = np.zeros(len(clients), bool)
    answers[first] = True
    enough = len(first) == min(wanted, len(order))
    until = float(seconds[first].max(initial=0.0)) if enough else deadline
    return Turnout(answers, ~there, drops, finish & ~answers, until)


# ---- a round ---------------------------------------------------------------------------------------------------------


class SimulatedRound:
    """A round whose clients may be late, away or lost: who takes part, what it takes, and its part of the record.

    shares: each client's samples. A client's time is that of the round's first exchange with clients, which decides on
    the whole round; later ones wait for all who are left.
    """

    def __init__(self, simulation: Simulation, sampled: Cohort, shares: Mapping[Share, Slices]):
        self.simulation, self.sampled, self.shares = simulation, sampled, shares
        self._later, self._begun = 0.0, False

    def begin(self, first: list[Exchange], wanted: int, ledger: Ledger) -> Cohort:
        """The clients that answer.

        first: what those that were sampled would be sent first; ledger: is charged with what the lost receive of it.
        """
        self._turnout = turnout(self.simulation, self.sampled, self._seconds(self.sampled, first), wanted)
        lost = self.sampled.clients[self._turnout.dropped_out | self._turnout.late]
        for exchange in first:
            _charge(ledger, exchange, np.isin(exchange.clients, lost))
        self._begun = not first
        return self.sampled.among(self._turnout.answers)

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
        lost = {name: int(getattr(self._turnout, name).sum()) for name in ("unavailable", "dropped_out", "late")}
        return {**lost, "simulated_round_seconds": self._turnout.seconds + self._later}

    def _seconds(self, cohort: Cohort, exchanges: list[Exchange]) -> np.ndarray:
        """What each client of a cohort takes for exchanges that run in parallel."""
        steps, received = np.zeros((2, len(cohort.clients)))
        for exchange in exchanges:
            at = np.searchsorted(cohort.clients, exchange.clients)
            for spec in exchange.batches.values():
                steps[at] += steps_per_client(spec, self.shares[spec.share].sizes[exchange.clients])
            received[at] += _received(exchange)
        return self.simulation.seconds(cohort, steps, received)


def with_clients(wanted: Exchange | list[Exchange]) -> list[Exchange]:
    """Those of some exchanges in which clients take part."""
    exchanges = wanted if isinstance(wanted, list) else [wanted]
    return [exchange for exchange in exchanges if exchange.on == "clients" and len(exchange.clients)]


def _received(exchange: Exchange) -> np.ndarray:
    """Bytes that each client of an exchange receives."""
    common, own = Ledger(), Ledger()
    common.charge_down(exchange.down, 1)
    own.charge_down(exchange.per_client, 1)
    padding = 0 if exchange.padding_down is None else exchange.padding_down
    return np.full(len(exchange.clients), common.bytes_down + own.bytes_down / len(exchange.clients)) - 4 * padding


def _charge(ledger: Ledger, exchange: Exchange, which: np.ndarray) -> None:
    """Charge what some clients of an exchange, which (bool), receive."""
    ledger.charge_down(exchange.down, int(which.sum()))
    ledger.charge_down(tree_map(lambda leaf: leaf[which], exchange.per_client), 1)
    ledger.forgive(None if exchange.padding_down is None else exchange.padding_down[which], None)
