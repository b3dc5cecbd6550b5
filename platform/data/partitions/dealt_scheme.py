"""Base classes of schemes that deal the training set to a given number of clients, with sizes of any law."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import Registry
from hedgerow.platform.data.partitions import SIZE_LAWS
from hedgerow.platform.data.partitions.scheme import SplitScheme
from hedgerow.platform.data.partitions.size_laws import ListedSizes, SizeLaw, divided

if TYPE_CHECKING:
    SizeLawConfig = SizeLaw
else:
    SizeLawConfig = Registry(SIZE_LAWS, SizeLaw, "task.partition.sizes.kind").choice()


class DealtScheme(SplitScheme):
    """Scheme with a given number of clients."""

    clients: int = Field(ge=1, description="number of clients, m")

    def check_clients(self, samples: int) -> None:
        """Raises UserError when there are more clients than samples."""
        if self.clients > samples:
            raise UserError(
                f"task.partition.clients: {self.clients} clients are more than the {samples} samples; lower it"
            )


class SizedScheme(DealtScheme):
    """Scheme whose clients may have equal or unequal sizes."""

    samples_per_client: int | None = Field(
        None, ge=1, description="samples per client (on average if sizes differ); null: all samples are dealt out"
    )
    sizes: SizeLawConfig | None = Field(None, description="law of the client sizes; null: equal sizes")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda scheme: (
                isinstance(scheme.sizes, ListedSizes)
                and len(scheme.sizes.samples) != scheme.clients
                and len(scheme.sizes.samples)
            ),
            "`sizes` lists {found} clients, but `clients` is {clients}; make them equal",
        ),
        Rule(
            lambda scheme: (
                scheme.sizes is not None and scheme.sizes.total is not None and scheme.samples_per_client is not None
            ),
            "`sizes` gives the number of samples of each client; remove `samples_per_client`",
        ),
    )

    @property
    def has_fixed_total(self) -> bool:
        """Whether the clients have a given number of samples, instead of all that are there."""
        return self.samples_per_client is not None or (self.sizes is not None and self.sizes.total is not None)

    def client_sizes(self, available: int, rng: np.random.Generator) -> np.ndarray:
        """Number of samples of each client, (m,), together at most `available`. Raises UserError if they do not fit."""
        self.check_clients(available)
        total, m = available, self.clients
        if self.samples_per_client is not None:
            total = self.samples_per_client * m
            if total > available:
                raise UserError(
                    f"task.partition.samples_per_client: {m} clients with {self.samples_per_client} samples need "
                    f"{total}, but the data set has {available}; lower it or the number of clients"
                )
        if self.sizes is None:
            return total // m + (np.arange(m) < total % m)
        if self.sizes.total is not None:
            total = self.sizes.total
            if total > available:
                raise UserError(
                    f"task.partition.sizes: the clients need {total} samples, but the data set has {available}; lower "
                    "the sizes"
                )
        if self.sizes.minimum * m > total:
            raise UserError(
                f"task.partition.sizes.minimum: {m} clients with at least {self.sizes.minimum} samples need "
                f"{self.sizes.minimum * m}, but {total} are dealt out; lower it or the number of clients"
            )
        return divided(total, self.weights(self.sizes, m, rng), self.sizes.minimum)

    def check_minimum(self, sizes: np.ndarray) -> None:
        """Raises UserError when the classes leave a client fewer samples than the law's minimum."""
        least = 1 if self.sizes is None else self.sizes.minimum
        if sizes.min() < least:
            raise UserError(
                f"task.partition.sizes.minimum: the classes of client {int(sizes.argmin())} leave it {sizes.min()} "
                f"samples, fewer than {least}; lower it or the number of clients"
            )

    def weights(self, law: SizeLaw, number: int, rng: np.random.Generator) -> np.ndarray:
        """Relative sizes by a law, (number,). Raises UserError if they are not finite, negative or all 0."""
        weights = np.asarray(law.weights(number, rng), dtype=float)
        if weights.shape != (number,) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
            raise UserError(
                f"task.partition.sizes.kind: {law.kind} gives weights that are not {number} finite numbers, 0 or more "
                "and not all 0; change its parameters"
            )
        return weights
