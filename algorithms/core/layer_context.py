"""Training and evaluation mode of users' models, with the buffers that training changes.

A torch layer such as BatchNorm or Dropout needs more than parameters and inputs: the mode, and buffers that it updates.
A `LayerContext` provides them for one client step. Random numbers come from torch's generator, which the engine seeds
by the client's key.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

from torch import Tensor, nn

from hedgerow.algorithms.core.precision import run_model
from hedgerow.algorithms.core.torch_private import BATCH_NORMS, call, set_parameters, without_levels

BufferPolicy = Literal["average", "local", "ignore"]
"""Running statistics: averaged by the server, client state, or not kept (see `CustomModel.buffers`)."""


@dataclass(frozen=True)
class TrainMode:
    """How a module differs in training mode. The module itself is in evaluation mode.

    module: a copy in training mode, with the same parameters.
    untracked: a copy in evaluation mode without running statistics, which normalises each mini-batch by its own; None
    if the module has no batch norm.
    buffers: names of the buffers that training changes, such as running statistics.
    is_random: whether it draws random numbers.
    takes_one: whether it trains on a mini-batch of one sample, for which batch norm has no variance.
    attributes: initial values of plain attributes that calls change, such as a hidden state. Each client step, and each
    call in evaluation mode, begins with them.
    changes_parameters: whether a call changes its parameters in place, as `nn.Embedding(max_norm=...)` does.
    changes_evaluation: whether a call in evaluation mode changes its parameters or buffers, and is given copies.
    differs: whether the output differs in evaluation mode, for the same samples and random numbers.
    """

    module: nn.Module
    untracked: nn.Module | None = None
    buffers: tuple[str, ...] = ()
    is_random: bool = False
    takes_one: bool = True
    policy: BufferPolicy = "average"
    attributes: tuple["Attribute", ...] = ()
    changes_parameters: bool = False
    changes_evaluation: bool = False
    differs: bool = False

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the buffers whose values are kept between steps."""
        return () if self.policy == "ignore" else self.buffers

    @property
    def takes_padding(self) -> bool:
        """Whether the padding of a mini-batch enters neither statistics nor buffers."""
        return self.untracked is None and not self.buffers

    @property
    def layers(self) -> str:
        """Description of its layers, for messages."""
        kinds = {
            "running statistics": self.buffers,
            "random numbers": self.is_random,
            "attributes that a call changes": self.attributes,
            "parameters that a call changes": self.changes_parameters,
        }
        rest = "a branch on self.training" if self.differs else "buffers that evaluation changes"
        return " and ".join(kind for kind, has in kinds.items() if has) or ("batch norm" if self.untracked else rest)

    def initial(self, module: nn.Module) -> dict[str, Tensor]:
        """Initial values of the buffers that are kept."""
        return {name: module.get_buffer(name).detach().clone() for name in self.kept}

    def reset(self, module: nn.Module) -> None:
        """Gives the attributes that calls change their initial values, in the module or its copy."""
        for attribute in self.attributes:
            attribute.reset(module)

    def to(self, device: Any) -> Self:
        untracked = None if self.untracked is None else self.untracked.to(device)
        return replace(self, module=self.module.to(device), untracked=untracked)

    def logits(self, module: nn.Module, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Output of the model for prepared samples, in the mode of the current context, by default evaluation.

        module: the module in evaluation mode.
        """
        context = _current.get()
        if context is None or context.mode is not self:
            context = LayerContext(self, False, {})
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


def without_statistics(module: nn.Module) -> nn.Module | None:
    """Copy of a module in evaluation mode without running statistics of batch norm; None if it has no batch norm."""
    copy = in_train_mode(module).eval()
    norms = [layer for layer in copy.modules() if isinstance(layer, BATCH_NORMS)]
    for layer in norms:
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(layer, name, None)
    return copy if norms else None


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


class LayerContext:
    """Mode and buffers of the layers during one client step. buffers: current values, which calls in training mode
    replace.
    """

    def __init__(self, mode: TrainMode, training: bool, buffers: Mapping[str, Tensor]):
        self.mode, self.training, self.buffers = mode, training, dict(buffers)
        mode.reset(mode.module)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Makes this the context of all calls of the model in this thread."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def call(self, module: nn.Module, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Output of the model at parameters `w`, which may also contain buffers. module: in evaluation mode."""
        mode, own = self.mode, self.mode.module
        is_single = len(x) == 1 and not mode.takes_one
        if not self.training or is_single:
            has_statistics = mode.policy == "average" or self.buffers or any(name in w for name in mode.buffers)
            module = module if has_statistics or is_single or mode.untracked is None else mode.untracked
            mode.reset(module)
            given = {**self.buffers, **w}
            if mode.changes_evaluation:
                given = _copies({**dict(module.named_buffers()), **given}, x)
            return call(module, given, x)
        # Buffers that are not kept change, too, and are then dropped.
        before = {name: module.get_buffer(name) for name in mode.buffers} | self.buffers
        with set_parameters(own, {**w, **_copies(before, x)}):
            output = run_model(own, x)
            # Others assign them.
            self.buffers = {name: without_levels(own.get_buffer(name).detach()) for name in self.buffers}
        return output


def _copies(tensors: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """Copies that layers may change in place, with a value for each client, as the samples have."""
    return {name: x.new_empty(value.shape, dtype=value.dtype).copy_(value) for name, value in tensors.items()}
