"""Partition of a data set over clients: the result, independent of how it was drawn."""

from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np

from hedgerow.algorithms.core.client_data import Split

SPLITS = get_args(Split)


class Slices(NamedTuple):
    """Contiguous samples of each client: client k owns sizes[k] samples from offsets[k] on."""

    offsets: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True)
class Partition:
    """Assignment of training samples to clients.

    order: sample indices, client by client. offsets (m + 1,): client k owns order[offsets[k] : offsets[k + 1]].
    train_sizes (m,): number of each client's samples for training, its first ones. validation_sizes (m,): number of the
    next samples, for the validation split (None: no client has any). The rest are held out for the client's own
    evaluation.
    labels: labels of all training samples of the data set, as their owners see them (None: unchanged).
    public: indices of samples that all clients share and no client owns; their labels are hidden (None: there are
    none). selection_sizes (m,): number of each client's samples between training and validation split that are held
    back to choose hyperparameters (None: no client has any). server_validation: indices of samples that the server
    holds back for the same purpose and no client owns (None: there are none).
    """

    order: np.ndarray
    offsets: np.ndarray
    train_sizes: np.ndarray
    validation_sizes: np.ndarray | None = None
    labels: np.ndarray | None = None
    public: np.ndarray | None = None
    selection_sizes: np.ndarray | None = None
    server_validation: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.train_sizes)

    @property
    def sizes(self) -> np.ndarray:
        """Number of samples of each client, (m,)."""
        return np.diff(self.offsets)

    @property
    def places(self) -> np.ndarray:
        """`order`, followed by the public samples."""
        return self.order if self.public is None else np.concatenate([self.order, self.public])

    def splits(self) -> dict[Split, Slices]:
        """Slices of `places` that each client uses for each split.

        If nothing is held out, clients are evaluated on their validation samples, or else on their training samples.
        """
        own = Slices(self.offsets[:-1], self.train_sizes)
        none = np.zeros_like(self.train_sizes)
        selection = Slices(own.offsets + own.sizes, none if self.selection_sizes is None else self.selection_sizes)
        begin = selection.offsets + selection.sizes
        validation = Slices(begin, none if self.validation_sizes is None else self.validation_sizes)
        begin = validation.offsets + validation.sizes
        held_out = Slices(begin, self.offsets[1:] - begin)
        evaluated = held_out if held_out.sizes.any() else validation if validation.sizes.any() else own
        public = Slices(np.full_like(none, len(self.order)), np.full_like(none, len(self.rows("public"))))
        return {
            "train": own,
            "validation": validation,
            "held_out": evaluated,
            "public": public,
            "selection": selection,
        }

    @property
    def holds_out(self) -> bool:
        """Whether every client keeps samples for evaluation only."""
        splits = self.splits()
        used = splits["train"].sizes + splits["selection"].sizes + splits["validation"].sizes
        return bool((self.sizes > used).all())

    def rows(self, split: Split) -> np.ndarray:
        """Indices of all clients' samples of a split, client by client; public samples occur once."""
        if split == "public":
            return self.order[:0] if self.public is None else self.public
        slices = self.splits()[split]
        within = np.arange(len(self.order)) - np.repeat(slices.offsets, self.sizes)
        return self.order[(within >= 0) & (within < np.repeat(slices.sizes, self.sizes))]

    def pool(self) -> "Partition":
        """Partition with one client that has all clients' training and validation samples, and the public samples."""
        train, validation = self.rows("train"), self.rows("validation")
        order = np.concatenate([train, validation])
        ends, sizes = np.array([0, len(order)]), (np.array([len(train)]), np.array([len(validation)]))
        return Partition(order, ends, *sizes, public=self.public)

    def samples(self, client: int) -> np.ndarray:
        """Indices of all samples of a client."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def label_counts(self, labels: np.ndarray, classes: int, clients: int | None = None) -> np.ndarray:
        """Number of samples of each class that each client owns, (m, classes). clients: how many, from the first; None:
        all."""
        sizes = self.sizes[:clients]
        owner = np.repeat(np.arange(len(sizes)), sizes)
        counts = np.zeros((len(sizes), classes), dtype=np.int64)
        np.add.at(counts, (owner, labels[self.order[: len(owner)]]), 1)
        return counts
