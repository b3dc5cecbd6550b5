"""Random splits of the training set: at random, or by a Dirichlet prior of each client."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from hedgerow.platform.data.partitions.dealt_scheme import SizedScheme
from hedgerow.platform.data.partitions.scheme import grouped


class IID(SizedScheme):
    """Samples are shuffled and dealt equally to clients."""

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        sizes = self.client_sizes(len(labels), rng)
        shuffled = rng.permutation(len(labels))
        return np.split(shuffled[: sizes.sum()], np.cumsum(sizes)[:-1])


class Dirichlet(SizedScheme):
    """Each client draws its samples, without replacement, from its own class prior ~ Dirichlet(alpha)."""

    needs_classes: ClassVar[bool] = True

    alpha: float = Field(gt=0, description="concentration: smaller values make clients differ more")

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        sizes = self.client_sizes(len(labels), rng)
        return _by_dirichlet(self.alpha, sizes, labels, classes, rng)


def _by_dirichlet(
    alpha: float, sizes: np.ndarray, labels: np.ndarray, classes: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Sweeps over the clients: each draws a label from its prior and takes one unused sample of it (thesis, A.1.1).

    A label without unused samples is drawn again, which renormalises the prior over the other labels.
    """
    m = len(sizes)
    priors = rng.dirichlet(np.full(classes, alpha), m)
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    stock = np.array([len(pool) for pool in pools])
    parts: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    for sweep in range(int(sizes.max())):
        waiting = np.flatnonzero(sizes > sweep)
        while len(waiting):
            weights = priors[waiting] * (stock > 0)
            if len(none := np.flatnonzero(~weights.any(1))):
                # With a tiny alpha, some priors have no mass on the remaining classes. Renormalised over these, a prior
                # follows a Dirichlet distribution whatever its mass is.
                weights[np.ix_(none, stock > 0)] = rng.dirichlet(np.full((stock > 0).sum(), alpha), len(none))
                priors[waiting[none]] = weights[none]
            cumulative = np.cumsum(weights, axis=1)
            points = rng.random((len(waiting), 1)) * cumulative[:, -1:]
            choice = np.minimum((points >= cumulative).sum(1), classes - 1)
            retry = []
            for label in np.unique(choice):
                clients = waiting[choice == label]
                receivers = clients[: stock[label]]
                retry.append(clients[stock[label] :])
                parts.append(pools[label][stock[label] - len(receivers) : stock[label]])
                owners.append(receivers)
                stock[label] -= len(receivers)
            waiting = np.sort(np.concatenate(retry))
    samples, owner = np.concatenate(parts), np.concatenate(owners)
    return [rng.permutation(samples[rows]) for rows in grouped(owner, m)]
