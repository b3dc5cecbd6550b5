"""Splits of the training set by class: some classes for each client, shards, or given or random shares of classes."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.partitions.dealt_scheme import DealtScheme, SizedScheme
from hedgerow.platform.data.partitions.scheme import grouped
from hedgerow.platform.data.partitions.size_laws import ListedSizes, divided

ATTEMPTS = 100
"""Number of times that shares are drawn until every client has enough samples."""

FITTING_STEPS = 1000
"""Maximum number of steps of iterative proportional fitting."""


class Labels(SizedScheme):
    """Each client has samples of a fixed number of classes.

    With `sizes`, the clients of a class share its samples so that sizes follow the law as nearly as the
    classes allow, and all samples are used. With `samples_per_client` alone, a client has as many samples of each of
    its classes, and its first classes take the remainder. Otherwise clients share the samples of each class equally.
    """

    needs_classes: ClassVar[bool] = True

    labels_per_client: int = Field(ge=1, description="number of classes of each client")
    assignment: Literal["balanced", "random", "deterministic", "first_deterministic"] = Field(
        "balanced",
        description="classes of each client; balanced: at random, each class equally often; random: independently; "
        "deterministic: client i has consecutive classes from class i on, modulo the number of classes; "
        "first_deterministic: class i, others at random",
    )

    law_of: Literal["clients", "classes"] = Field(
        "clients",
        description="what the law in `sizes` gives; clients: the sizes of clients; classes: the clients' parts of each "
        "class, with at least `minimum` samples (FedProx's MNIST)",
    )

    rules = (
        Rule(
            lambda scheme: scheme.law_of == "classes" and (scheme.sizes is None or scheme.has_fixed_total),
            "`law_of: classes` needs a law in `sizes` that uses all samples; change one of them",
        ),
    )

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        self.check_clients(len(labels))
        m, k = self.clients, self.labels_per_client
        if k > classes:
            raise UserError(f"task.partition.labels_per_client: {k} is more than the {classes} classes; lower it")
        holders = self._holders(classes, rng)
        pools = []
        for label, clients in enumerate(holders):
            pools.append(rng.permutation(np.flatnonzero(labels == label)))
            if clients and len(pools[-1]) < len(clients):
                raise UserError(
                    f"task.partition.clients: class {label} has {len(pools[-1])} samples for {len(clients)} clients; "
                    "lower it or labels_per_client"
                )
        parts: list[list[np.ndarray]] = [[] for _ in range(m)]
        stock = np.array([len(pool) for pool in pools])
        shares = self._equal_shares(holders, stock) if self.sizes is None else self._shares(holders, stock, rng)
        for clients, pool, share in zip(holders, pools, shares, strict=True):
            for client, piece in zip(clients, np.split(pool, np.cumsum(share)), strict=False):
                parts[client].append(piece)
        return [rng.permutation(np.concatenate(part)) for part in parts]

    def _holders(self, classes: int, rng: np.random.Generator) -> list[list[int]]:
        """Clients of each class."""
        m, k = self.clients, self.labels_per_client
        holders: list[list[int]] = [[] for _ in range(classes)]
        if self.assignment == "balanced":
            slots = np.zeros(classes)
            for client in rng.permutation(m):
                for label in np.lexsort((rng.random(classes), slots))[:k]:
                    slots[label] += 1
                    holders[label].append(client)
            return holders
        first = np.arange(m) % classes
        for client in range(m):
            if self.assignment == "deterministic":
                own = (first[client] + np.arange(k)) % classes
            elif self.assignment == "random":
                own = rng.permutation(classes)[:k]
            else:
                own = np.append(first[client], (first[client] + 1 + rng.permutation(classes - 1)[: k - 1]) % classes)
            for label in own:
                holders[label].append(client)
        return holders

    def _equal_shares(self, holders: list[list[int]], stock: np.ndarray) -> list[np.ndarray]:
        """Number of samples of each class for each of its clients, without a law of sizes."""
        if self.samples_per_client is None:
            pairs = zip(stock, holders, strict=True)
            return [divided(int(n), np.ones(len(own))) if own else np.zeros(0, np.int64) for n, own in pairs]
        k, total = self.labels_per_client, self.samples_per_client
        if total < k:
            raise UserError(
                f"task.partition.samples_per_client: {total} is fewer than the {k} classes of a client; raise it"
            )
        before, shares = np.zeros(self.clients, int), []
        for label, clients in enumerate(holders):
            share = total // k + (before[clients] < total % k)
            if share.sum() > stock[label]:
                raise UserError(
                    f"task.partition.samples_per_client: {len(clients)} clients need {share.sum()} samples of class "
                    f"{label}, but the data set has {stock[label]}; lower it or the number of clients"
                )
            before[clients] += 1
            shares.append(share)
        return shares

    def _shares(self, holders: list[list[int]], stock: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """Number of samples of each class for each of its clients, so that the clients' sizes are as wanted."""
        if self.law_of == "classes":
            assert self.sizes is not None
            for label, clients in enumerate(holders):
                if len(clients) * self.sizes.minimum > stock[label]:
                    raise UserError(
                        f"task.partition.sizes.minimum: class {label} has {stock[label]} samples for {len(clients)} "
                        f"clients with at least {self.sizes.minimum}; lower it, labels_per_client or the number of "
                        "clients"
                    )
            return [
                divided(int(total), self.weights(self.sizes, len(clients), rng), self.sizes.minimum)
                if clients
                else np.zeros(0, np.int64)
                for clients, total in zip(holders, stock, strict=True)
            ]
        m, k = self.clients, self.labels_per_client
        labels = np.repeat(np.arange(len(holders)), [len(clients) for clients in holders])
        owners = np.concatenate([np.array(clients, np.int64) for clients in holders])
        available = int(stock[np.unique(labels)].sum())
        wanted = self.client_sizes(available, rng)
        # First all samples are shared out, in proportion to the wanted sizes.
        minimum = 1 if self.sizes is None else -(-self.sizes.minimum // k)
        counts = _fitted(owners, labels, wanted * (available / wanted.sum()), stock, minimum)
        if wanted.sum() < available and self.has_fixed_total:
            for slots in grouped(owners, m):
                client = owners[slots[0]]
                if counts[slots].sum() > wanted[client] >= k:
                    counts[slots] = divided(int(wanted[client]), counts[slots].astype(float), 1)
        if self.sizes is not None:
            self.check_minimum(np.bincount(owners, counts, m).astype(np.int64))
        if isinstance(self.sizes, ListedSizes):
            missing = np.where(wanted < k, k, wanted - np.bincount(owners, counts, m).astype(np.int64))
            client = int(missing.argmax())
            if missing[client] >= k:
                raise UserError(
                    f"task.partition.sizes: client {client} cannot have {wanted[client]} samples of its {k} classes "
                    f"{', '.join(map(str, np.sort(labels[owners == client])))}; change its size, or assign classes in "
                    "another way"
                )
        return np.split(counts, np.cumsum([len(clients) for clients in holders])[:-1])


def _fitted(owners: np.ndarray, labels: np.ndarray, wanted: np.ndarray, stock: np.ndarray, minimum: int) -> np.ndarray:
    """Samples of each slot: whole numbers of at least `minimum` (if the class has enough) that use up every class.

    Iterative proportional fitting (Deming, Stephan 1940), from equal shares of a client's classes: the clients' sizes
    are as wanted if their classes allow it, up to rounding, and otherwise as near as possible. owners, labels: client
    and class of each slot, sorted by class. wanted (m,), stock (classes,).
    """
    held = np.bincount(labels, minlength=len(stock))
    counts = (wanted / np.bincount(owners))[owners]
    for _ in range(FITTING_STEPS):
        counts *= (stock / np.maximum(np.bincount(labels, counts, len(stock)), 1e-300))[labels]
        sizes = np.bincount(owners, counts)
        if np.abs(sizes - wanted).max() < 0.1:
            break
        counts *= (wanted / sizes)[owners]
    counts *= (stock / np.maximum(np.bincount(labels, counts, len(stock)), 1e-300))[labels]
    pieces = np.split(counts, np.cumsum(held)[:-1])
    return np.concatenate(
        [
            divided(int(total), piece, min(minimum, int(total) // len(piece)))
            for total, piece in zip(stock, pieces, strict=True)
            if len(piece)
        ]
    )


class Shards(DealtScheme):
    """Samples are sorted by class and cut into shards, which are dealt at random (McMahan et al. 2017).

    With `shards_per_client` alone, all samples are cut into as many shards as are needed, equal up to one sample. With
    `shard_size` alone, shards are dealt until none is left, and some clients have one more. With both, the remaining
    samples are not used.
    """

    needs_classes: ClassVar[bool] = True

    shards_per_client: int | None = Field(None, ge=1, description="number of shards of each client")
    shard_size: int | None = Field(None, ge=1, description="number of samples of a shard")
    keep_incomplete: bool = Field(
        False, description="with `shard_size` alone: also deal the last, smaller shard; false: its samples are not used"
    )

    rules = (
        Rule(
            lambda scheme: scheme.shards_per_client is None and scheme.shard_size is None,
            "`shards` needs `shards_per_client` or `shard_size`; give one of them or both",
        ),
        Rule(
            lambda scheme: scheme.keep_incomplete and scheme.shards_per_client is not None,
            "`keep_incomplete` needs `shard_size` without `shards_per_client`; remove one of them",
        ),
    )

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        self.check_clients(len(labels))
        m, size = self.clients, self.shard_size
        shuffled = rng.permutation(len(labels))
        rows = shuffled[np.argsort(labels[shuffled], kind="stable")]
        if self.shards_per_client is not None:
            number = m * self.shards_per_client
            if number * (size or 1) > len(rows):
                raise UserError(
                    f"task.partition.shards_per_client: {number} shards of {size or 'at least 1'} samples need more "
                    f"than the {len(rows)} there are; lower it, the number of clients{' or shard_size' if size else ''}"
                )
            shards = np.array_split(rows, number) if size is None else _cut(rows, size)
            shards = [shards[i] for i in rng.permutation(len(shards))[:number]]
        else:
            assert size is not None
            shards = _cut(rows, size)
            shards += [rows[len(shards) * size :]] if self.keep_incomplete and len(rows) % size else []
            if len(shards) < m:
                raise UserError(
                    f"task.partition.shard_size: {len(rows)} samples make {len(shards)} shards of {size}, too few for "
                    f"{m} clients; lower it or the number of clients"
                )
            shards = [shards[i] for i in rng.permutation(len(shards))]
        ends = np.cumsum(np.bincount(np.arange(len(shards)) % m, minlength=m))
        groups = [shards[end - size : end] for end, size in zip(ends, np.diff(ends, prepend=0), strict=True)]
        return [rng.permutation(np.concatenate(group)) for group in groups]


def _cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Complete shards of a given size."""
    return list(rows[: len(rows) // size * size].reshape(-1, size))


class DirichletByClass(DealtScheme):
    """The clients' shares of each class are drawn from Dirichlet(alpha), so that sizes differ, too.

    Yurochkin et al. 2019; Li et al. 2022. `dirichlet` draws the classes of each client, and has sizes of its own.
    """

    needs_classes: ClassVar[bool] = True

    alpha: float = Field(gt=0, description="concentration: smaller values make clients differ more")
    minimum: int = Field(
        10, ge=1, description="smallest number of samples of a client; shares are drawn until it holds"
    )
    self_balancing: bool = Field(
        True, description="a client with more than the average number of samples gets none of the following classes"
    )

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        self.check_clients(len(labels))
        m = self.clients
        if self.minimum * m > len(labels):
            raise UserError(
                f"task.partition.minimum: {m} clients with at least {self.minimum} samples need {self.minimum * m}, "
                f"but the data set has {len(labels)}; lower it or the number of clients"
            )
        pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        for _ in range(ATTEMPTS):
            counts = np.zeros((classes, m), np.int64)
            for label, pool in enumerate(pools):
                shares = rng.dirichlet(np.full(m, self.alpha))
                if self.self_balancing:
                    is_open = counts.sum(0) <= len(labels) / m
                    shares = np.where(is_open, shares, 0)
                    if not shares.any():
                        # With a small alpha, all of a class may be for clients that have enough. The law of the other
                        # clients' shares, relative to their sum, is a Dirichlet distribution whatever the sum is.
                        shares[is_open] = rng.dirichlet(np.full(is_open.sum(), self.alpha))
                    shares = shares / shares.sum()
                ends = (np.cumsum(shares)[:-1] * len(pool)).astype(np.int64)
                counts[label] = np.diff(ends, prepend=0, append=len(pool))
            if counts.sum(0).min() >= self.minimum:
                break
        else:
            raise UserError(
                f"task.partition.minimum: in {ATTEMPTS} draws with alpha {self.alpha:g} one of {m} clients always had "
                f"fewer than {self.minimum} samples; lower it or the number of clients, or raise `alpha`"
            )
        return _dealt(pools, counts, rng)


class GivenShares(SizedScheme):
    """The share of each class is given for each client."""

    needs_classes: ClassVar[bool] = True

    matrix: list[list[float]] = Field(
        min_length=1,
        description="one row per client, one column per class, not negative; fewer rows than clients are repeated in "
        "turn",
    )
    normalise: Literal["clients", "classes"] = Field(
        "clients",
        description="clients: a row gives the mixture of a client's samples; classes: a column gives each client's "
        "part of all samples of a class",
    )

    rules = (
        Rule(
            lambda scheme: len({len(row) for row in scheme.matrix}) != 1,
            "`matrix` must have rows of one length, the number of classes",
        ),
        Rule(
            lambda scheme: not all(all(0 <= share < np.inf for share in row) and sum(row) for row in scheme.matrix),
            "`matrix` must have finite numbers, 0 or more, and in each row one above 0",
        ),
        Rule(
            lambda scheme: len(scheme.matrix) > scheme.clients and len(scheme.matrix),
            "`matrix` has {found} rows for {clients} clients; remove rows or raise `clients`",
        ),
        Rule(
            lambda scheme: (
                scheme.normalise == "classes" and (scheme.sizes is not None or scheme.samples_per_client is not None)
            ),
            "`normalise: classes` uses all samples, and sizes follow from the matrix; remove `sizes` "
            "and `samples_per_client`",
        ),
    )

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        self.check_clients(len(labels))
        rows = np.array(self.matrix, dtype=float)
        if rows.shape[1] != classes:
            raise UserError(
                f"task.partition.matrix: its rows have {rows.shape[1]} numbers, but the data set has {classes} "
                "classes; give one for each"
            )
        rows = rows[np.arange(self.clients) % len(rows)]
        pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        stock = np.array([len(pool) for pool in pools])
        counts = self._mixed(rows / rows.sum(1, keepdims=True), stock, rng)
        if self.normalise == "classes":
            counts = np.array([divided(n, w) if w.any() else 0 * w for n, w in zip(stock, rows.T, strict=True)], int)
        elif (counts.sum(1) > stock).any():
            label = int((counts.sum(1) - stock).argmax())
            raise UserError(
                f"task.partition.matrix: the clients need {counts[label].sum()} samples of class {label}, but the data "
                f"set has {stock[label]}; lower its column, or the sizes of clients"
            )
        if not counts.sum(0).all():
            client = int(counts.sum(0).argmin())
            raise UserError(
                f"task.partition.matrix: client {client} gets no samples of its classes; raise its row, or use fewer "
                "clients"
            )
        if self.sizes is not None:
            self.check_minimum(counts.sum(0))
        return _dealt(pools, counts, rng)

    def _mixed(self, mixtures: np.ndarray, stock: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Number of samples (classes, m) with the clients' mixtures (m, classes), as many as the classes have."""
        sizes = self.client_sizes(int(stock.sum()), rng)
        if self.has_fixed_total:
            return np.array([divided(int(n), mixture) for n, mixture in zip(sizes, mixtures, strict=True)]).T
        needed = sizes @ mixtures
        scale = min(1.0, float((stock[needed > 0] / needed[needed > 0]).min()))
        # A number that should be whole may be just below it.
        return np.floor(scale * sizes[:, None] * mixtures + 1e-9).astype(np.int64).T


def _dealt(pools: list[np.ndarray], counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Samples of each client, shuffled. pools: samples of each class. counts (classes, m): number for each client."""
    pieces = [np.split(pool, np.cumsum(row))[: len(row)] for pool, row in zip(pools, counts, strict=True)]
    return [rng.permutation(np.concatenate(own)) for own in zip(*pieces, strict=True)]
