"""Section `simulation` of an experiment file: how fast clients are, and when they are available."""

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hedgerow.algorithms.core.messages import Cohort
from hedgerow.platform.common.section import Section
from hedgerow.platform.data.sampling import keyed_hash

# ---- what is random, each a number per client ------------------------------------------------------------------------


def uniform(seed: int, purpose: str, *keys: int | np.ndarray) -> np.ndarray:
    """In (0, 1)."""
    bits = keyed_hash(seed, "simulation", purpose, *keys) >> np.uint64(11)
    return (bits.astype(np.float64) + 0.5) / 2**53


def normal(seed: int, purpose: str, *keys: int | np.ndarray) -> np.ndarray:
    """Standard normal, by Box and Muller."""
    u, v = (uniform(seed, f"{purpose} {part}", *keys) for part in ("radius", "angle"))
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
        return np.exp(self.sigma * normal(seed, "speed", clients))


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

    def probabilities(self, seed: int, round: int, clients: np.ndarray) -> np.ndarray:
        return np.ones(len(clients))


class Bernoulli(Section):
    """A client is there in a round by chance."""

    kind: Literal["bernoulli"] = "bernoulli"
    probability: float = Field(gt=0, le=1, description="chance of each client in each round")

    def probabilities(self, seed: int, round: int, clients: np.ndarray) -> np.ndarray:
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

    def probabilities(self, seed: int, round: int, clients: np.ndarray) -> np.ndarray:
        hour = round / self.period + self.spread * uniform(seed, "clock", clients)
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
        return (work + messages) * np.exp(self.jitter * normal(seed, "jitter", cohort.round, clients))
