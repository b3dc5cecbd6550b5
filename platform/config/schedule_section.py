"""The `schedule` section of an experiment file: when the server steps, if it does not wait for a whole cohort."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hedgerow.platform.common.section import Section


class ConstantStaleness(Section):
    """Late updates count as much as others: s(tau) = 1."""

    kind: Literal["constant"] = "constant"

    def factors(self, staleness: np.ndarray) -> np.ndarray:
        return np.ones(len(staleness))


class PolynomialStaleness(Section):
    """Late updates count less by a power: s(tau) = (1 + tau)^-exponent."""

    kind: Literal["polynomial"] = "polynomial"
    exponent: float = Field(0.5, ge=0, description="exponent a of (1 + tau)^-a")

    def factors(self, staleness: np.ndarray) -> np.ndarray:
        return (1.0 + staleness) ** -self.exponent


class HingeStaleness(Section):
    """Updates count less from a staleness on: s(tau) = 1 if tau <= start, else 1 / (slope (tau - start) + 1)."""

    kind: Literal["hinge"] = "hinge"
    slope: float = Field(10.0, gt=0, description="how fast the factor falls after `start`")
    start: float = Field(4.0, ge=0, description="largest staleness whose updates count fully")

    def factors(self, staleness: np.ndarray) -> np.ndarray:
        return 1.0 / (self.slope * np.maximum(staleness - self.start, 0.0) + 1.0)


Staleness = Annotated[ConstantStaleness | PolynomialStaleness | HingeStaleness, Field(discriminator="kind")]


class _Asynchronous(Section):
    staleness: Staleness = Field(
        PolynomialStaleness(),
        description="factor s(tau) of an update; tau: number of server steps since its client started",
    )
    concurrency: int | None = Field(
        None,
        ge=1,
        description="number of clients that work at any time; null: as many as `clients_per_round` says",
    )


class FedBuffSchedule(_Asynchronous):
    """Buffered asynchronous aggregation: the server steps with the mean of s(tau) times the update of `buffer` clients
    (Nguyen et al., 2022).
    """

    kind: Literal["fedbuff"] = "fedbuff"
    buffer: int = Field(10, ge=1, description="number of updates of one server step")

    @property
    def updates(self) -> int:
        """Number of updates of one server step."""
        return self.buffer


class FedAsyncSchedule(_Asynchronous):
    """Asynchronous mixing: the server moves towards each arriving model, by the share alpha s(tau) of the difference
    (Xie et al., 2019).
    """

    kind: Literal["fedasync"] = "fedasync"
    alpha: float = Field(0.6, gt=0, le=1, description="share of a model without staleness in the server's next model")

    @property
    def updates(self) -> int:
        """Number of updates of one server step."""
        return 1


Schedule = Annotated[FedBuffSchedule | FedAsyncSchedule, Field(discriminator="kind")]
