"""Data of one client as seen by a client step: mini-batches drawn from the client's samples."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.torch_private import (
    batched_memory,
    hide_dimensions,
    is_batched,
    vmap_levels,
    without_transforms,
)

EVAL_BATCH_SIZE = 200
"""Samples per batch of an evaluation. Larger batches need more memory and are not faster."""


def channels_last(t: Tensor) -> Tensor:
    """Converts images and kernels to the format in which CPU convolutions are 1.3 to 1.5 times faster."""
    if t.dim() != 4:
        return t
    if t.shape[1] == 1:
        # `contiguous` leaves the strides of a single channel as they are, from which torch concludes the other format.
        _, _, height, width = t.shape
        return t.contiguous().as_strided(t.shape, (height * width, 1, width, 1))
    return t.contiguous(memory_format=torch.channels_last)


NARROW = 8
"""Minimum number of input channels of a 1x1 convolution that may run in the channels-last format."""


def needs_default_format(kernels: Iterable[Tensor]) -> bool:
    """Whether a model with these parameters needs the default memory format: on a GPU, or with a narrow 1x1 kernel.

    On a GPU, convolutions of float32 are faster in it.
    On processors with AVX2 and without AVX-512, oneDNN 3.13 (PyTorch 2.15) writes past the end of its buffers in the
    weight gradient of such a convolution with a stride, when activations are in the format of `channels_last`.
    """
    return any(k.is_cuda or (k.dim() == 4 and k.shape[2:] == (1, 1) and k.shape[1] < NARROW) for k in kernels)


def rows_of(table: Tensor, rows: Tensor) -> Tensor:
    """Returns table[rows]. Indexing itself takes a slow path under vmap."""
    if torch.compiler.is_compiling() or vmap_levels() is None or is_batched(table):
        return table[rows]
    memory, levels = batched_memory(rows)
    with without_transforms():
        samples = table.index_select(0, memory.reshape(-1)).reshape(*memory.shape, *table.shape[1:])
    return hide_dimensions(samples, levels)


def _split(part: Tensor, sizes: int | list[int]) -> Sequence[Tensor]:
    """Same as `part.split(sizes)`, which takes long for a single piece."""
    return (part,) if (sizes >= len(part) if isinstance(sizes, int) else len(sizes) == 1) else part.split(sizes)


GATHERED, GATHERED_EACH = 2**20, 2**16
"""Number of values up to which the samples of several mini-batches are gathered and prepared at once, and the same for
each of many clients."""

Split = Literal["train", "validation", "held_out", "public", "selection"]
"""Splits of the samples of a client. The public split is shared by all clients, and its labels are hidden."""


@dataclass(frozen=True)
class BatchSpec:
    """Specification of the mini-batches that a client step draws from the client's samples.

    They are drawn outside the step and depend on (seed, round, exchange, stream, client) only.
    """

    size: int | None = None
    """Samples per batch; None: the whole local data as one batch."""
    epochs: int = 1
    steps: int | None = None
    """Number of batches; None: as many as `epochs` passes give. Samples are reshuffled for each pass."""
    shuffle: bool = True
    split: Split = "train"
    """Split to draw from: "train"; "validation", used by the upper level of a bilevel problem; "held_out", for the
    client's own evaluation (if the partition has no such split: the validation samples, or else the training samples);
    "public", drawn identically for all clients in all exchanges of a round that use the same stream name; or
    "selection", held back to choose hyperparameters (`task.validation`)."""
    pooled_from: Sequence[int] | None = None
    """Clients to draw from instead of the addressed client. Each batch comes from one of them, chosen anew for each
    batch. Must be hashable: a tuple or a range."""
    mixed: bool = False
    """With `pooled_from`: the client is drawn anew for each sample; `size` None: all samples of these clients."""
    views: int = 0
    """Number of views of each sample, each a separate draw of the task's augmentation; 0: the sample as stored."""

    def objection(self) -> str | None:
        """Returns what is wrong with a value, and the fix; None if nothing is."""
        # No steps are a choice: a loop of an algorithm may have none.
        for name, least in (("size", 1), ("epochs", 1), ("steps", 0)):
            number = getattr(self, name)
            if not (isinstance(number, int | np.integer) and number >= least) and (
                number is not None or name == "epochs"
            ):
                return f"{name}={number!r}; give a whole number of at least {least}"
        if self.split not in get_args(Split):
            return f"split={self.split!r}; choose from {', '.join(get_args(Split))}"
        return None


ONCE = BatchSpec(EVAL_BATCH_SIZE, shuffle=False)
"""Each training sample once, in order, in the mini-batches of an evaluation."""


@dataclass(frozen=True)
class Batch:
    """One mini-batch. In the batched form it is padded: `mask` is 1 for real samples, `active` is 1 for real steps.

    Padding repeats real samples of the same client, so that it is finite where the client's samples are.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    active: Tensor | float = 1.0
    rows: Tensor | None = None
    """Row indices of the samples in the data set."""
    keys: Tensor | None = None
    """(views,) Random key of each view: 32 bits in int64. `keyed_random.py` derives random numbers from them."""
    view: Callable[[int], Tensor] | None = None
    """Returns the view of the samples with a given number, if there are several views; `x` is view 0."""


class UnknownStreamError(KeyError):
    """Raised when a client step reads a stream that the `batches` of its Exchange do not declare."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self.stream = stream


@dataclass(frozen=True)
class ClientData:
    """Data of one client as seen by one client step.

    `batched`: the step runs under vmap for a chunk of clients at once. Every tensor then has a hidden client dimension,
    batches are padded, and values must not steer Python control flow.
    """

    x: Tensor
    y: Tensor
    prepare: Callable[[Tensor], Tensor]
    streams: Mapping[str, tuple[Tensor, Tensor]]
    """Stream name -> (indices (steps, size) into x and y, mask (steps, size)). Of a single client, the mask is on the
    CPU, where reading it waits for no GPU, and the real samples of a mini-batch come first."""
    batched: bool
    keys: Mapping[str, Tensor] = field(default_factory=dict)
    """Stream name -> (steps, views), for streams with several views of each sample."""
    augment: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """Creates the views of raw samples: (samples, key, rows) -> samples."""
    plain: bool = False
    """Whether the model needs the default memory format: see `needs_default_format` and `gradient_check.py`."""
    key: Tensor | None = None
    """(2,) 64 random bits, as two int64 of 32 bits each, derived from seed, round, exchange and client only, for
    randomness inside a step; `keyed_random.py` derives random numbers from them. None if the exchange is not
    `keyed`."""
    relabel: Callable[[Tensor], Tensor] | None = None
    """Changes the labels of each batch, as attackers do; None: they are as stored."""

    def batches(self, stream: str = "train") -> Iterator[Batch]:
        """Yields the mini-batches of a stream, in order."""
        indices, mask = self._stream(stream)
        if stream in self.keys:
            yield from self._augmented(indices, mask, self.keys[stream])
            return
        most = GATHERED_EACH if self.batched else GATHERED
        together = max(1, most // max(1, indices.shape[1] * self.x[0].numel()))
        for rows, real in zip(_split(indices, together), _split(mask, together), strict=True):
            if self.batched:
                chunk = self._prepared(rows_of(self.x, rows)), rows_of(self.y, rows)
                parts = *chunk, real.float(), real.any(-1).float(), rows
                for x, y, exists, active, own in zip(*(part.unbind(0) for part in parts), strict=True):
                    yield Batch(x, self._labels(y), exists, active, own)
                continue
            if real.all():
                sizes, rows = [rows.shape[1]] * len(rows), rows.flatten()
            else:
                # Real samples come first. A mask as index would wait for a GPU.
                sizes = real.sum(-1).tolist()
                rows = torch.cat([own[:size] for own, size in zip(rows, sizes, strict=True)])
            samples = self._prepared(self.x.index_select(0, rows)), self.y.index_select(0, rows), rows
            for x, y, own in zip(*(_split(part, sizes) for part in samples), strict=True):
                if len(own):
                    yield Batch(x, self._labels(y), rows=own)

    def _augmented(self, indices: Tensor, mask: Tensor, keys: Tensor) -> Iterator[Batch]:
        """Mini-batches of a stream with views."""
        for rows, real, own in zip(indices.unbind(0), mask.unbind(0), keys.unbind(0), strict=True):
            if self.batched:
                yield self._with_views(rows, own, real.float(), real.any().float())
            elif size := int(real.sum()):
                yield self._with_views(rows[:size], own)

    def _with_views(
        self, rows: Tensor, keys: Tensor, mask: Tensor | None = None, active: Tensor | float = 1.0
    ) -> Batch:
        def view(number: int) -> Tensor:
            x = rows_of(self.x, rows)
            return self._prepared(x if self.augment is None else self.augment(x, keys[number], rows))

        y = self._labels(rows_of(self.y, rows))
        return Batch(view(0), y, mask, active, rows, keys, view if len(keys) > 1 else None)

    def _prepared(self, x: Tensor) -> Tensor:
        x = self.prepare(x)
        return x if self.batched or self.plain else channels_last(x)

    def _labels(self, y: Tensor) -> Tensor:
        return y if self.relabel is None else self.relabel(y)

    def steps(self, stream: str = "train") -> Tensor:
        """Number of real mini-batches of a stream, K in the papers; 0-d."""
        count = self._stream(stream)[1].any(-1).sum()
        return count if count.device == self.x.device else torch.full_like(count, int(count), device=self.x.device)

    def _stream(self, name: str) -> tuple[Tensor, Tensor]:
        if name not in self.streams:
            raise UnknownStreamError(name)
        return self.streams[name]
