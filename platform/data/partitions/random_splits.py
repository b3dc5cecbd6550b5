"""Random splits of the training set: equal, by Dirichlet priors, by classes, or by the data set's natural clients."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.partitions.scheme import SplitScheme


class DealtScheme(SplitScheme):
    """Options of the schemes that deal out all samples."""

    clients: int = Field(ge=1, description="number of clients, m")
    samples_per_client: int | None = Field(
        None, ge=1, description="samples per client (on average if unbalanced); null: all samples are dealt out"
    )

    def _check_clients(self, samples: int) -> None:
        if self.clients > samples:
            raise UserError(
                f"task.partition.clients: {self.clients} clients are more than the {samples} samples; lower it"
            )

    def _sizes(self, total: int, unbalanced: float, rng: np.random.Generator) -> np.ndarray:
        """Samples per client: equal up to one, or lognormal; at most `total` together, and at least 1 each."""
        m = self.clients
        if self.samples_per_client is not None:
            if self.samples_per_client * m > total:
                raise UserError(
                    f"task.partition.samples_per_client: {m} clients with {self.samples_per_client} samples need "
                    f"{m * self.samples_per_client}, but the data set has {total}; lower it or the number of clients"
                )
            total = self.samples_per_client * m
        if not unbalanced:
            return total // m + (np.arange(m) < total % m)
        shares = rng.lognormal(0.0, unbalanced, m)
        sizes = np.maximum((shares / shares.sum() * total).astype(np.int64), 1)
        while sizes.sum() > total:
            sizes[sizes.argmax()] -= 1
        return sizes


class IID(DealtScheme):
    """Samples are shuffled and dealt equally to clients."""

    unbalanced: float = Field(
        0.0, ge=0, description="standard deviation of the logarithm of client sizes; 0: equal sizes"
    )

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        self._check_clients(len(labels))
        sizes = self._sizes(len(labels), self.unbalanced, rng)
        shuffled = rng.permutation(len(labels))
        return np.split(shuffled[: sizes.sum()], np.cumsum(sizes)[:-1])


class Dirichlet(DealtScheme):
    """Each client draws its samples, without replacement, from its own class prior ~ Dirichlet(alpha)."""

    needs_classes: ClassVar[bool] = True

    alpha: float = Field(gt=0, description="concentration: smaller values make clients differ more")
    unbalanced: float = Field(
        0.0, ge=0, description="standard deviation of the logarithm of client sizes; 0: equal sizes"
    )

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        self._check_clients(len(labels))
        sizes = self._sizes(len(labels), self.unbalanced, rng)
        return _by_dirichlet(self.alpha, sizes, labels, classes, rng)


class Labels(DealtScheme):
    """Each client has samples of a fixed number of classes."""

    needs_classes: ClassVar[bool] = True

    labels_per_client: int = Field(ge=1, description="number of classes of each client")

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Assigns each class to equally many clients and splits it equally among them."""
        self._check_clients(len(labels))
        m, k = self.clients, self.labels_per_client
        if k > classes:
            raise UserError(f"task.partition.labels_per_client: {k} is more than the {classes} classes; lower it")
        slots = np.zeros(classes)
        holders: list[list[int]] = [[] for _ in range(classes)]
        for client in rng.permutation(m):
            for label in np.lexsort((rng.random(classes), slots))[:k]:
                slots[label] += 1
                holders[label].append(client)
        parts: list[list[np.ndarray]] = [[] for _ in range(m)]
        for label, clients in enumerate(holders):
            pool = rng.permutation(np.flatnonzero(labels == label))
            if clients and len(pool) < len(clients):
                raise UserError(
                    f"task.partition.clients: class {label} has {len(pool)} samples for {len(clients)} clients; lower "
                    "it or labels_per_client"
                )
            for client, share in zip(clients, np.array_split(pool, len(clients)) if clients else [], strict=True):
                parts[client].append(
                    share if self.samples_per_client is None else share[: self.samples_per_client // k]
                )
        return [rng.permutation(np.concatenate(part)) for part in parts]


class Natural(SplitScheme):
    """The natural clients that the data set itself defines."""

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        if natural is None:
            raise UserError(
                "task.partition.kind: this data set has no natural clients; choose iid, dirichlet or labels"
            )
        _, owners = np.unique(natural, return_inverse=True)
        return [rng.permutation(g) for g in _group(owners, owners.max() + 1)]


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
            # With a tiny alpha, some priors have no mass on the remaining classes: these clients take any of them.
            weights[weights.sum(1) == 0] = stock / stock.sum()
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
    return [rng.permutation(samples[rows]) for rows in _group(owner, m)]


def _group(owners: np.ndarray, clients: int) -> list[np.ndarray]:
    """Positions that each client owns."""
    by_owner = np.argsort(owners, kind="stable")
    return np.split(by_owner, np.cumsum(np.bincount(owners, minlength=clients))[:-1])
