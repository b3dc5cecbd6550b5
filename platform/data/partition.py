"""Partitions of a data set over clients, drawn from the seed alone."""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

import numpy as np
from pydantic import Field, model_validator

from hedgerow.algorithms.core.client_data import Share
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.section import Section
from hedgerow.platform.data.partitions.diversity import ACID, ALID, deal_diverse
from hedgerow.platform.data.partitions.task_stream import Stream

SHARES = get_args(Share)


class Slices(NamedTuple):
    """Who owns which of some samples in a row: client k's are those from offsets[k], sizes[k] of them."""

    offsets: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True)
class Partition:
    """Who owns which training samples.

    order: sample indices, client by client. offsets (m + 1,): client k owns order[offsets[k] : offsets[k + 1]].
    train_sizes (m,): the first so many of them are for training; validation_sizes (m,): the next so many for
    validation (None: nobody has any); the rest are held out for the client's own evaluation. labels: of all training
    samples of the data set, as their owners see them (None: as they are). public: samples that everybody has, and
    nobody as one's own; their labels are hidden (None: there are none).
    """

    order: np.ndarray
    offsets: np.ndarray
    train_sizes: np.ndarray
    validation_sizes: np.ndarray | None = None
    labels: np.ndarray | None = None
    public: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.train_sizes)

    @property
    def sizes(self) -> np.ndarray:
        """Samples of each client, (m,)."""
        return np.diff(self.offsets)

    @property
    def places(self) -> np.ndarray:
        """`order`, and the public samples after it."""
        return self.order if self.public is None else np.concatenate([self.order, self.public])

    def shares(self) -> dict[Share, Slices]:
        """Which part of `places` each client has for what.

        Where nothing is held out, clients are evaluated on what they validate with, or else on what they train on.
        """
        own = Slices(self.offsets[:-1], self.train_sizes)
        none = np.zeros_like(self.train_sizes)
        validation = Slices(own.offsets + own.sizes, none if self.validation_sizes is None else self.validation_sizes)
        begin = validation.offsets + validation.sizes
        held_out = Slices(begin, self.offsets[1:] - begin)
        evaluated = held_out if held_out.sizes.any() else validation if validation.sizes.any() else own
        public = Slices(np.full_like(none, len(self.order)), np.full_like(none, len(self.rows("public"))))
        return {"train": own, "validation": validation, "held_out": evaluated, "public": public}

    @property
    def holds_out(self) -> bool:
        """Whether every client keeps samples for evaluation alone."""
        shares = self.shares()
        return bool((self.sizes > shares["train"].sizes + shares["validation"].sizes).all())

    def rows(self, share: Share) -> np.ndarray:
        """Indices of all clients' samples of a share, client by client; of the public ones, once."""
        if share == "public":
            return self.order[:0] if self.public is None else self.public
        slices = self.shares()[share]
        within = np.arange(len(self.order)) - np.repeat(slices.offsets, self.sizes)
        return self.order[(within >= 0) & (within < np.repeat(slices.sizes, self.sizes))]

    def pool(self) -> "Partition":
        """One client with all clients' samples for training and for validation, and the public ones."""
        train, validation = self.rows("train"), self.rows("validation")
        order = np.concatenate([train, validation])
        ends, sizes = np.array([0, len(order)]), (np.array([len(train)]), np.array([len(validation)]))
        return Partition(order, ends, *sizes, public=self.public)

    def samples(self, client: int) -> np.ndarray:
        """Indices of all samples of a client."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def label_counts(self, labels: np.ndarray, classes: int, clients: int | None = None) -> np.ndarray:
        """(m, classes): how many samples of each class each client owns. clients: so many of the first; None: all."""
        sizes = self.sizes[:clients]
        owner = np.repeat(np.arange(len(sizes)), sizes)
        counts = np.zeros((len(sizes), classes), dtype=np.int64)
        np.add.at(counts, (owner, labels[self.order[: len(owner)]]), 1)
        return counts

    def arrays(self) -> dict[str, Any]:
        """The fields, in a form that travels."""
        return asdict(self)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> "Partition":
        return cls(**arrays)


class _Parts(Section):
    """What clients do with their samples."""

    holdout: float = Field(0.0, ge=0, lt=1, description="share of its samples that a client keeps for its evaluation")
    validation: float = Field(
        0.0, ge=0, lt=1, description="share that it keeps for validation: the upper level of bilevel problems"
    )
    validation_by: Literal["client", "class"] = Field(
        "client",
        description="whose samples a client validates with: its own; or, dealt anew from those of all clients, such of "
        "as few classes as can be",
    )

    label_noise: float | list[float] = Field(
        0.0,
        description="share of each client's training labels that are replaced by another class's, any of them; or "
        "[lowest, highest], between which each client's share is drawn",
    )

    @model_validator(mode="after")
    def _noise_is_a_share(self) -> Self:
        low, high = self.noise
        if not 0 <= low <= high <= 1:
            raise ValueError("`label_noise` must be a share from 0 to 1, or [lowest, highest]")
        return self

    @property
    def noise(self) -> tuple[float, float]:
        """The lowest and the highest share of wrong labels."""
        if isinstance(self.label_noise, float):
            return self.label_noise, self.label_noise
        return (self.label_noise[0], self.label_noise[1]) if len(self.label_noise) == 2 else (-1.0, -1.0)

    @model_validator(mode="after")
    def _some_are_left(self) -> Self:
        if self.holdout + self.validation >= 1:
            raise ValueError("`holdout` and `validation` leave nothing to train on; lower them")
        if self.validation_by == "class" and not self.validation:
            raise ValueError("`validation_by: class` needs `validation` above 0")
        return self


class _Dealt(_Parts):
    """Options of every partition that deals out the samples."""

    clients: int = Field(ge=1, description="number of clients, m")
    samples_per_client: int | None = Field(
        None, ge=1, description="samples of a client (on average, where unbalanced); null: everything is dealt out"
    )


class IID(_Dealt):
    """Shuffled and dealt equally."""

    kind: Literal["iid"] = "iid"
    unbalanced: float = Field(0.0, ge=0, description="standard deviation of the logarithm of the clients' sizes")


class Dirichlet(_Dealt):
    """Each client draws its samples, without replacement, from its own class prior ~ Dirichlet(alpha)."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(gt=0, description="concentration: small values make clients differ")
    unbalanced: float = Field(0.0, ge=0, description="standard deviation of the logarithm of the clients' sizes")


class Labels(_Dealt):
    """Each client has samples of a fixed number of classes."""

    kind: Literal["labels"] = "labels"
    labels_per_client: int = Field(ge=1, description="classes that each client has")


class Natural(_Parts):
    """The clients that the data set itself names."""

    kind: Literal["natural"] = "natural"


PartitionConfig = Annotated[IID | Dirichlet | Labels | Natural | ACID | ALID | Stream, Field(discriminator="kind")]


def make_partition(
    config: Any, labels: np.ndarray, classes: int, natural: np.ndarray | None, seed: int, lent: int = 0
) -> Partition:
    """Draw a partition. labels: of the training samples; natural: their natural client ids, or None. Of a stream, whose
    samples lie task by task, the tasks. lent: how many of the samples, the last ones, are the test set's.

    Raises UserError when the partition does not fit the data.
    """
    if isinstance(config, Stream):
        each = config.train + config.test
        offsets = np.arange(config.tasks + 1) * each
        return Partition(np.arange(config.tasks * each), offsets, np.full(config.tasks, config.train))
    if isinstance(config, ACID):
        order, seen = deal_diverse(config, labels, classes, lent, seed)
        offsets = np.arange(config.clients + 1) * (config.train + config.test)
        return Partition(order, offsets, np.full(config.clients, config.train), labels=seen)
    labels = labels[: len(labels) - lent]
    rng = np.random.default_rng([seed, 43])
    partition = _assemble(_groups(config, labels, classes, natural, rng), config)
    if config.validation_by == "class":
        partition = _validated_by_class(partition, labels)
    return _noisy(partition, labels, classes, config.noise, seed) if config.noise[1] else partition


def _groups(
    config: Any, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
) -> list[np.ndarray]:
    """The samples of each client, in random order."""
    if isinstance(config, Natural):
        if natural is None:
            raise UserError("task.partition.kind: this data set names no clients; choose iid, dirichlet or labels")
        _, owners = np.unique(natural, return_inverse=True)
        return [rng.permutation(g) for g in _group(owners, owners.max() + 1)]
    if config.clients > len(labels):
        raise UserError(
            f"task.partition.clients: {config.clients} clients are more than the {len(labels)} samples; lower it"
        )
    if isinstance(config, Labels):
        return _by_labels(config, labels, classes, rng)
    sizes = _sizes(config, len(labels), rng)
    if isinstance(config, IID):
        shuffled = rng.permutation(len(labels))
        return np.split(shuffled[: sizes.sum()], np.cumsum(sizes)[:-1])
    return _by_dirichlet(config.alpha, sizes, labels, classes, rng)


def _sizes(config: IID | Dirichlet, total: int, rng: np.random.Generator) -> np.ndarray:
    """Samples per client: equal up to one, or lognormal; together at most `total`, each at least 1."""
    m = config.clients
    if config.samples_per_client is not None:
        if config.samples_per_client * m > total:
            raise UserError(
                f"task.partition.samples_per_client: {m} clients with {config.samples_per_client} samples need "
                f"{m * config.samples_per_client}, the data set has {total}; lower it or the number of clients"
            )
        total = config.samples_per_client * m
    if not config.unbalanced:
        return total // m + (np.arange(m) < total % m)
    shares = rng.lognormal(0.0, config.unbalanced, m)
    sizes = np.maximum((shares / shares.sum() * total).astype(np.int64), 1)
    while sizes.sum() > total:
        sizes[sizes.argmax()] -= 1
    return sizes


def _by_dirichlet(
    alpha: float, sizes: np.ndarray, labels: np.ndarray, classes: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Sweep over the clients; each draws a label from its prior and takes one unused sample of it (thesis, A.1.1).

    A label whose samples are used up is drawn again, which is the prior renormalised over the others.
    """
    m = len(sizes)
    priors = rng.dirichlet(np.full(classes, alpha), m)
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    left = np.array([len(pool) for pool in pools])
    taken: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    for sweep in range(int(sizes.max())):
        waiting = np.flatnonzero(sizes > sweep)
        while len(waiting):
            weights = priors[waiting] * (left > 0)
            # A tiny alpha leaves some clients with no mass on what is left: they take whatever there is.
            weights[weights.sum(1) == 0] = left / left.sum()
            cumulative = np.cumsum(weights, axis=1)
            points = rng.random((len(waiting), 1)) * cumulative[:, -1:]
            drawn = np.minimum((points >= cumulative).sum(1), classes - 1)
            again = []
            for label in np.unique(drawn):
                clients = waiting[drawn == label]
                served = clients[: left[label]]
                again.append(clients[left[label] :])
                taken.append(pools[label][left[label] - len(served) : left[label]])
                owners.append(served)
                left[label] -= len(served)
            waiting = np.sort(np.concatenate(again))
    samples, owner = np.concatenate(taken), np.concatenate(owners)
    return [rng.permutation(samples[rows]) for rows in _group(owner, m)]


def _by_labels(config: Labels, labels: np.ndarray, classes: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Every client gets `labels_per_client` classes, all classes equally often; a class is split equally among its."""
    m, k = config.clients, config.labels_per_client
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
                f"task.partition.clients: class {label} has {len(pool)} samples for {len(clients)} clients; lower it "
                "or labels_per_client"
            )
        for client, share in zip(clients, np.array_split(pool, len(clients)) if clients else [], strict=True):
            parts[client].append(
                share if config.samples_per_client is None else share[: config.samples_per_client // k]
            )
    return [rng.permutation(np.concatenate(part)) for part in parts]


def _group(owners: np.ndarray, clients: int) -> list[np.ndarray]:
    """For each client the positions at which it is the owner."""
    by_owner = np.argsort(owners, kind="stable")
    return np.split(by_owner, np.cumsum(np.bincount(owners, minlength=clients))[:-1])


def _assemble(groups: list[np.ndarray], config: _Parts) -> Partition:
    sizes = np.array([len(group) for group in groups], dtype=np.int64)
    held_out, validation = (np.round(share * sizes).astype(np.int64) for share in (config.holdout, config.validation))
    validation = np.minimum(validation, np.maximum(sizes - 1, 0))
    train = np.maximum(sizes - validation - held_out, np.minimum(sizes, 1))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    order = np.concatenate(groups).astype(np.int64)
    return Partition(order, offsets, train, validation if validation.any() else None)


def _noisy(partition: Partition, labels: np.ndarray, classes: int, noise: tuple[float, float], seed: int) -> Partition:
    """The same with wrong labels among each client's training samples: as many as its share says, to the nearest."""
    if classes < 2:
        raise UserError("task.partition.label_noise: this data set has a single class; remove it")
    rng = np.random.default_rng([seed, 53])
    seen = labels.copy()
    for start, size in zip(*partition.shares()["train"], strict=True):
        wrong = round(rng.uniform(*noise) * size)
        rows = partition.order[start + rng.choice(size, wrong, replace=False)]
        seen[rows] = (labels[rows] + rng.integers(1, classes, wrong)) % classes
    return replace(partition, labels=seen)


def _validated_by_class(partition: Partition, labels: np.ndarray) -> Partition:
    """The same, where the clients' samples for validation change owners: sorted by class, they are dealt in a row."""
    starts, sizes = partition.shares()["validation"]
    places = np.repeat(starts, sizes) + np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = partition.order.copy()
    rows = order[places]
    order[places] = rows[np.argsort(labels[rows], kind="stable")]
    return replace(partition, order=order)
