"""The data of one client as a client step sees them: mini-batches drawn from its samples."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

EVAL_BATCH_SIZE = 200
"""Samples per batch of an evaluation: more take more memory and no less time."""


def channels_last(t: Tensor) -> Tensor:
    """Images and kernels in the layout in which CPU convolutions are 1.3 to 1.5 times faster; the values stay."""
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


NARROW = 8
"""Input channels of the narrowest 1x1 convolution that may run in that layout."""


def is_narrow(kernels: Iterable[Tensor]) -> bool:
    """Whether one of these parameters is the kernel of a narrow 1x1 convolution, which needs the default layout.

    On processors with AVX2 and without AVX-512, oneDNN 3.13 (PyTorch 2.15) writes past the end of its buffers in the
    weight gradient of such a convolution with a stride, when activations are in the layout of `channels_last`.
    """
    return any(k.dim() == 4 and k.shape[2:] == (1, 1) and k.shape[1] < NARROW for k in kernels)


Split = Literal["train", "validation", "held_out", "public"]
"""The parts of a client's samples; those that are public all have in common, and their labels are hidden."""


@dataclass(frozen=True)
class BatchSpec:
    """Which mini-batches a client step wants drawn from the client's samples.

    They are drawn outside the step from (seed, round, exchange, stream, client) alone.
    """

    size: int | None = None
    """Samples per batch; None: the whole local data as one batch."""
    epochs: int = 1
    steps: int | None = None
    """Number of batches; None: as many as `epochs` passes give. More than one pass reshuffles for each."""
    shuffle: bool = True
    split: Split = "train"
    """Which of the client's samples: for training; for validation, which the upper level of a bilevel problem learns
    from; those held out for the client's own evaluation (where the partition holds none out, the others); or public
    ones, of which everybody draws the same, in all exchanges of a round, for the same name."""
    pooled_from: Sequence[int] | None = None
    """Draw from the samples of these clients in place of the client's own: each batch from one of them, drawn anew.
    Hashable: a tuple or a range."""
    mixed: bool = False
    """With `of`: each sample of a batch from one of them, drawn anew; where `size` is None, all that they have."""
    views: int = 0
    """In how many ways each sample is wanted, each another draw of the task's augmentation; 0: as it is stored."""


@dataclass(frozen=True)
class Batch:
    """One mini-batch. In the batched form it is padded: `mask` is 1 for real samples, `active` for real steps.

    Padding repeats real samples of the same client: it is finite where the client's samples are.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    active: Tensor | float = 1.0
    rows: Tensor | None = None
    """Where the samples stand in the data set: which ones they are."""
    keys: Tensor | None = None
    """(views,) Of what is random about each view, 32 bits in int64; `chance.py` makes numbers of them."""
    view: Callable[[int], Tensor] | None = None
    """The samples in another way, by its number, where several are wanted; `x` is view 0."""


class UnknownStreamError(KeyError):
    """A client step reads a stream that the `batches` of its Exchange do not name."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self.stream = stream


@dataclass(frozen=True)
class ClientData:
    """What one client step sees of its client's data.

    `batched` says that the step runs under vmap for a chunk of clients at once; then every tensor carries a hidden
    client dimension, batches are padded, and values must not steer Python control flow.
    """

    x: Tensor
    y: Tensor
    prepare: Callable[[Tensor], Tensor]
    streams: Mapping[str, tuple[Tensor, Tensor]]
    """Stream name -> (indices (steps, size) into x and y, mask (steps, size))."""
    batched: bool
    keys: Mapping[str, Tensor] = field(default_factory=dict)
    """Stream name -> (steps, views), of those whose samples are wanted in several ways."""
    augment: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """What makes the views of raw samples: (samples, key, rows) -> samples."""
    narrow: bool = False
    """Whether the model needs the default layout, see `is_narrow`."""
    key: Tensor | None = None
    """(2,) 64 random bits, as two int64 of 32 bits each, from seed, round, exchange and client alone, for anything
    random in a step; `chance.py` makes numbers of them. None: the exchange is not `keyed`."""

    def batches(self, stream: str = "train") -> Iterator[Batch]:
        """The mini-batches of a stream, in order."""
        indices, mask = self._stream(stream)
        for step, (rows, real) in enumerate(zip(indices.unbind(0), mask.unbind(0), strict=True)):
            keys = self.keys[stream][step] if stream in self.keys else None
            if not self.batched:
                rows = rows[real]
                if len(rows):
                    yield self._batch(rows, keys)
            else:
                yield self._batch(rows, keys, real.float(), real.any().float())

    def _batch(
        self, rows: Tensor, keys: Tensor | None, mask: Tensor | None = None, active: Tensor | float = 1.0
    ) -> Batch:
        def view(number: int) -> Tensor:
            x = self.x[rows]
            if self.augment is not None and keys is not None:
                x = self.augment(x, keys[number], rows)
            x = self.prepare(x)
            return x if self.batched or self.narrow else channels_last(x)

        several = keys is not None and len(keys) > 1
        return Batch(view(0), self.y[rows], mask, active, rows, keys, view if several else None)

    def steps(self, stream: str = "train") -> Tensor:
        """How many mini-batches of a stream are real: K of the papers. 0-d."""
        return self._stream(stream)[1].any(-1).sum()

    def _stream(self, name: str) -> tuple[Tensor, Tensor]:
        if name not in self.streams:
            raise UnknownStreamError(name)
        return self.streams[name]
