"""The `simulation` section of an experiment file: speed and availability of clients, and attacks."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.core.messages import Cohort
from hedgerow.platform.common.section import Section
from hedgerow.platform.config.registries import AttackConfig
from hedgerow.platform.data.sampling import keyed_hash

# ---- random numbers, one per client ----------------------------------------------------------------------------------


def uniform(seed: int, purpose: str, *keys: int | np.ndarray) -> np.ndarray:
    """Uniform random numbers in (0, 1)."""
    bits = keyed_hash(seed, "simulation", purpose, *keys) >> np.uint64(11)
    return (bits.astype(np.float64) + 0.5) / 2**53


def normal(seed: int, purpose: str, *keys: int | np.ndarray) -> np.ndarray:
    """Standard normal random numbers, by the Box-Muller transform."""
    u, v = (uniform(seed, f"{purpose} {part}", *keys) for part in ("radius", "angle"))
    return np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)


class ConstantSpeed(Section):
    """All clients are equally fast."""

    kind: Literal["constant"] = "constant"
    speed: float = Field(1.0, gt=0, description="speed of every client")

    def of(self, seed: int, clients: np.ndarray) -> np.ndarray:
        return np.full(len(clients), self.speed)


class LognormalSpeed(Section):
    """The speed of each client is drawn once from a lognormal distribution with median 1."""

    kind: Literal["lognormal"] = "lognormal"
    sigma: float = Field(0.5, ge=0, description="standard deviation of the logarithm of the speed")

    def of(self, seed: int, clients: np.ndarray) -> np.ndarray:
        return np.exp(self.sigma * normal(seed, "speed", clients))


class ListedSpeeds(Section):
    """The speeds are listed explicitly."""

    kind: Literal["list"] = "list"
    speeds: list[Annotated[float, Field(gt=0)]] = Field(
        min_length=1, description="client i has entry i, counted from 0; a shorter list is repeated"
    )

    def of(self, seed: int, clients: np.ndarray) -> np.ndarray:
        return np.array(self.speeds)[clients % len(self.speeds)]


class Always(Section):
    """All clients are available in every round."""

    kind: Literal["always"] = "always"

    def probabilities(self, seed: int, round: int, clients: np.ndarray) -> np.ndarray:
        return np.ones(len(clients))


class Bernoulli(Section):
    """Each client is available in a round with a fixed probability."""

    kind: Literal["bernoulli"] = "bernoulli"
    probability: float = Field(gt=0, le=1, description="probability that a client is available in a round")

    def probabilities(self, seed: int, round: int, clients: np.ndarray) -> np.ndarray:
        return np.full(len(clients), self.probability)


class Diurnal(Section):
    """The probability that a client is available varies with the hour of its day."""

    kind: Literal["diurnal"] = "diurnal"
    probability: float = Field(0.5, gt=0, le=1, description="mean probability over a day that a client is available")
    amplitude: float = Field(1.0, ge=0, le=1, description="amplitude over a day, as a share of the mean probability")
    period: float = Field(24.0, gt=0, description="length of a day in rounds")
    spread: float = Field(
        1.0, ge=0, le=1, description="share of a day over which the clients' clocks differ; 0: all clocks are the same"
    )

    rules = (
        Rule(
            lambda clock: (highest := clock.probability * (1 + clock.amplitude)) > 1 and highest,
            "`probability` times 1 + `amplitude` is {found:g}, which is not a probability; lower one of them",
        ),
    )

    def probabilities(self, seed: int, round: int, clients: np.ndarray) -> np.ndarray:
        hour = round / self.period + self.spread * uniform(seed, "clock", clients)
        return self.probability * (1 + self.amplitude * np.cos(2 * np.pi * hour))


Speed = Annotated[ConstantSpeed | LognormalSpeed | ListedSpeeds, Field(discriminator="kind")]
Availability = Annotated[Always | Bernoulli | Diurnal, Field(discriminator="kind")]


# ---- the section of an experiment file -------------------------------------------------------------------------------


class Simulation(Section):
    """Clients that are slow, unavailable, drop out during a round, or attack."""

    speed: Speed = Field(ConstantSpeed(), description="speed of the clients, relative to `seconds_per_step`")
    jitter: float = Field(
        0.0, ge=0, description="standard deviation of the logarithm of a factor on a client's time, drawn in each round"
    )
    seconds_per_step: float = Field(1.0, ge=0, description="simulated seconds per mini-batch of a client of speed 1")
    bandwidth: float | None = Field(
        None,
        gt=0,
        description="bytes per second of a client; an answer is assumed to be as large as the message that the client "
        "received; null: messages take no time",
    )
    availability: Availability = Field(Always(), description="which clients are available when a round begins")
    dropout: float = Field(0.0, ge=0, lt=1, description="probability that a client does not finish a round")
    deadline: float | None = Field(
        None, gt=0, description="simulated seconds after which the server stops waiting for clients; null: no limit"
    )
    over_selection: float = Field(
        1.0, ge=1, description="sample this many times the clients of a round; the first ones to finish count"
    )

    attack: AttackConfig | None = Field(None, description="attack of malicious clients; null: all clients are honest")

    def selected(self, wanted: int) -> int:
        """Number of clients to sample for a round of `wanted` clients."""
        return round(self.over_selection * wanted)

    def seconds(self, cohort: Cohort, steps: np.ndarray, received: np.ndarray) -> np.ndarray:
        """Simulated seconds of each client of a cohort for its mini-batches and messages. received: in bytes."""
        seed, clients = cohort.seed, cohort.clients
        work = steps * self.seconds_per_step / self.speed.of(seed, clients)
        messages = 2 * received / self.bandwidth if self.bandwidth else 0.0
        return (work + messages) * np.exp(self.jitter * normal(seed, "jitter", cohort.round, clients))
