"""Training and evaluation mode of users' models: running statistics and random numbers of unmodified torch layers.

A torch layer such as BatchNorm or Dropout needs more than parameters and inputs: the mode, buffers that it updates, and
random numbers. A `LayerContext` provides them for one client step. Random numbers are hashes of a key, so that a step
has the same bits on any worker, and in a loop and under vmap.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from threading import Lock
from typing import Any, Literal, NamedTuple, Self
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.keyed_layers import KeyedFunctions
from hedgerow.algorithms.core.keyed_random import derived
from hedgerow.algorithms.core.torch_private import call, is_transformed, set_parameters, without_levels

BufferPolicy = Literal["average", "local", "ignore"]
"""Running statistics: averaged by the server, client state, or not kept (see `CustomModel.buffers`)."""


@dataclass(frozen=True)
class TrainMode:
    """How a module differs in training mode. The module itself is in evaluation mode.

    module: a copy in training mode, with the same parameters.
    buffers: names of the buffers that training changes, such as running statistics.
    is_random: whether training draws random numbers.
    seeds_torch: whether some of them come from torch's generator, which is then seeded before each call, in a loop.
    attributes: initial values of plain attributes that calls change, such as a hidden state. Each client step, and each
    call in evaluation mode, begins with them.
    changes_parameters: whether a call changes its parameters in place, as `nn.Embedding(max_norm=...)` does.
    """

    module: nn.Module
    buffers: tuple[str, ...] = ()
    is_random: bool = False
    seeds_torch: bool = False
    policy: BufferPolicy = "average"
    attributes: tuple["Attribute", ...] = ()
    changes_parameters: bool = False

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the buffers whose values are kept between steps."""
        return () if self.policy == "ignore" else self.buffers

    @property
    def layers(self) -> str:
        """Description of its layers, for messages."""
        kinds = {
            "running statistics": self.buffers,
            "random numbers": self.is_random,
            "attributes that a call changes": self.attributes,
            "parameters that a call changes": self.changes_parameters,
        }
        return " and ".join(kind for kind, has in kinds.items() if has) or "batch norm"

    def initial(self, module: nn.Module) -> dict[str, Tensor]:
        """Initial values of the buffers that are kept."""
        return {name: module.get_buffer(name).detach().clone() for name in self.kept}

    def reset(self, module: nn.Module) -> None:
        """Gives the attributes that calls change their initial values, in the module or its copy."""
        for attribute in self.attributes:
            attribute.reset(module)

    def to(self, device: torch.device) -> Self:
        return replace(self, module=self.module.to(device))

    def logits(self, module: nn.Module, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Output of the model for prepared samples, in the mode of the current context, by default evaluation.

        module: the module in evaluation mode.
        """
        context = _current.get()
        if context is None or context.mode is not self:
            context = LayerContext(self, False, {}, None)
        return context.call(module, w, x)


class Attribute(NamedTuple):
    """A plain attribute of a module. layer: name of the submodule. values: its value; empty if it has none."""

    layer: str
    name: str
    values: tuple[Any, ...]

    def reset(self, module: nn.Module) -> None:
        """Gives the attribute this value."""
        own = vars(module.get_submodule(self.layer))
        own.pop(self.name, None)
        if self.values:
            own[self.name] = copied(self.values[0], module)

    def __str__(self) -> str:
        return f"{self.layer}.{self.name}".removeprefix(".")


def copied(value: Any, module: nn.Module) -> Any:
    """Copy of a value that shares the parameters, buffers and layers of a module."""
    return deepcopy(value, {id(one): one for one in (*module.parameters(), *module.buffers(), *module.modules())})


def in_train_mode(module: nn.Module) -> nn.Module:
    """Copy of a module in training mode; both have the same parameters and buffers."""
    shared = [*module.parameters(), *module.buffers()]
    return deepcopy(module, {id(tensor): tensor for tensor in shared}).train()


class Padding(NamedTuple):
    """Which samples of a mini-batch are real, see `Batch`."""

    mask: Tensor | None
    active: Any


_current: ContextVar["LayerContext | None"] = ContextVar("layers", default=None)


@contextmanager
def evaluation_mode() -> Iterator[None]:
    """Calls of the model are in evaluation mode, also in a training step: buffers stay as they are."""
    context = _current.get()
    if context is None:
        yield
        return
    before, context.training = context.training, False
    try:
        yield
    finally:
        context.training = before


SEEDING = Lock()
"""Held while torch's generator, which all threads share, is seeded and drawn from."""


class LayerContext:
    """Mode, buffers and random numbers of the layers during one client step.

    buffers: current values, which calls in training mode replace. key: of the client, (2,) int64; None: no random
    numbers. The numbers of a call depend on the key, the latest mini-batch's stream and position, and the number of
    calls since.
    """

    def __init__(self, mode: TrainMode, training: bool, buffers: Mapping[str, Tensor], key: Tensor | None):
        self.mode, self.training, self.buffers = mode, training, dict(buffers)
        self.key = key
        self.is_random = self.uses_batches = False
        """Whether a call drew random numbers, or used statistics of its mini-batch."""
        self._position, self._calls, self._is_padded = (0, 0), 0, False
        # Of the samples of each mini-batch, as long as they are in use.
        self._paddings = WeakIdKeyDictionary()
        mode.reset(mode.module)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Makes this the context of all calls of the model in this thread."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def observed(self, data: ClientData) -> ClientData:
        """Data of a step whose mini-batches this context knows."""
        self._is_padded = data.batched
        return _ObservedData(**{field.name: getattr(data, field.name) for field in fields(ClientData)}, context=self)

    def note(self, stream: str, step: int, batch: Batch) -> Batch:
        """Marks the mini-batch that the step draws next."""
        self._position, self._calls = (crc32(stream.encode()), step), 0
        padding = Padding(batch.mask, batch.active)
        self._paddings[batch.x] = padding
        if batch.view is None:
            return batch
        view = batch.view
        return replace(batch, view=lambda number: self._noted(view(number), padding))

    def _noted(self, x: Tensor, padding: Padding) -> Tensor:
        self._paddings[x] = padding
        return x

    def call(self, module: nn.Module, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Output of the model at parameters `w`, which may also contain buffers. module: in evaluation mode."""
        known = self._paddings.get(x)
        mask, active = known or Padding(None, 1.0)
        is_unknown = known is None and self._is_padded
        if not self.training:
            self.mode.reset(module)
            has_statistics = self.mode.policy == "average" or self.buffers or any(n in w for n in self.mode.buffers)
            replaces = not has_statistics or is_transformed()
            with KeyedFunctions(None, mask, is_unknown, not has_statistics) if replaces else nullcontext():
                return call(module, {**self.buffers, **w}, x)
        # Buffers that are not kept change, too, and are then dropped.
        before = {name: module.get_buffer(name).detach() for name in self.mode.buffers} | self.buffers
        given = {name: value.clone() for name, value in before.items()}
        values = {**w, **given}
        own, functions = self.mode.module, KeyedFunctions(self._next_key(), mask, is_unknown, False)
        with self._seeded(x.device), functions, set_parameters(own, values):
            output = own(x)
            values |= {name: own.get_buffer(name) for name in self.buffers}
        self.is_random |= functions.is_random
        self.uses_batches |= functions.uses_batches
        for name in self.buffers:
            # Layers change buffers in place or by assignment, or a replaced function notes the new value.
            after = without_levels(functions.updates.get(id(given[name]), values[name])).detach()
            # A step that is only padding leaves them unchanged.
            is_real = active > 0
            after = torch.where(is_real, after, before[name]) if isinstance(is_real, Tensor) else after
            self.buffers[name] = without_levels(after)
        return output

    def _next_key(self) -> tuple[Any, Any] | None:
        """Key of the next call: two words of 32 bits, as integers in a loop and as tensors under vmap."""
        if self.key is None:
            return None
        words = self.key.unbind(0) if is_transformed() else self.key.tolist()
        stream, step = self._position
        for purpose in (stream, step, self._calls):
            words = derived(words, purpose)
        self._calls += 1
        return words[0], words[1]

    @contextmanager
    def _seeded(self, device: torch.device) -> Iterator[None]:
        """Seeds torch's generator for a call, for layers that draw from it directly, and restores it."""
        if not self.mode.seeds_torch or self.key is None:
            yield
            return
        first, second = derived(self.key.tolist(), crc32(f"torch {self._position} {self._calls}".encode()))
        seed, is_gpu = (first << 31) ^ second, device.type == "cuda"
        with SEEDING, torch.random.fork_rng(devices=[device] if is_gpu else []):
            torch.default_generator.manual_seed(seed)
            if is_gpu:
                torch.cuda.manual_seed(seed)
            yield


@dataclass(frozen=True)
class _ObservedData(ClientData):
    context: LayerContext | None = None

    def batches(self, stream: str = "train") -> Iterator[Batch]:
        for step, batch in enumerate(super().batches(stream)):
            yield batch if self.context is None else self.context.note(stream, step, batch)
