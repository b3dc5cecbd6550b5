"""Sub-models: a model with a subset of the channels of every layer, or with a subset of its layers (`named`).

Channels are grouped in spaces, one for all layers that must agree: a layer reads the channels that the previous one
writes, and layers whose outputs a residual network adds write the same channels. Units of linear layers are channels
too.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn

from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import Params, Task

Axes = tuple[str, ...]
"""Spaces of a parameter's first dimension and, for weights, of its second; empty: the dimension counts no channels."""

OUTPUTS = "outputs"
"""Space of the logits, which every sub-model has completely."""

Channels = Mapping[str, Tensor]
"""Space -> channels of a sub-model, ascending (number,). Spaces that are missing are complete."""


class NoSubModelsError(ValueError):
    """Raised if a model has no sub-models; the message has the reason and the fix."""


@dataclass(frozen=True)
class Layout:
    """Positions of the channels in the parameters of a model.

    axes: parameter -> its spaces.
    sizes: space -> number of its channels.
    shapes: parameter -> shape in the full model.
    work: weight -> multiply-adds per sample, output channel and input.
    scaled: weights and biases of layers that write channels.
    """

    axes: dict[str, Axes]
    sizes: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    work: dict[str, int]
    scaled: frozenset[str]

    @classmethod
    def of(cls, task: Task) -> "Layout":
        """Layout of a task's model: of a chain of layers, or of a module that declares the spaces of its parameters in
        its attribute `axes`.

        Raises NoSubModelsError.
        """
        module = task.module
        frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
        if frozen:
            raise NoSubModelsError(
                f"{frozen[0]} is frozen (requires_grad=False), but a sub-model trains a part of every layer; unfreeze "
                "it or choose another algorithm"
            )
        axes = dict(getattr(module, "axes", None) or _chain(module))
        shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        if axes.keys() != shapes.keys():
            mismatches = sorted(axes.keys() ^ shapes.keys())
            raise NoSubModelsError(f"its `axes` must name its parameters, all and no others; fix {mismatches[0]}")
        sizes = {spaces[0]: shapes[name][0] for name, spaces in axes.items() if spaces[0]}
        layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
        positions = _positions(task, layers)
        work = {
            f"{name}.weight": positions[name] * prod(shapes[f"{name}.weight"][2:])
            for name in layers
            if name in positions
        }
        written = (f"{name}.{kind}" for name, layer in layers.items() for kind, _ in layer.named_parameters())
        return cls(axes, sizes, shapes, work, frozenset(name for name in written if axes[name][0] != OUTPUTS))

    @property
    def thinned(self) -> dict[str, int]:
        """Spaces that a sub-model has only partly, with their numbers of channels."""
        return {space: size for space, size in self.sizes.items() if space != OUTPUTS}

    def counts(self, share: float) -> dict[str, int]:
        """Number of channels of each space for a share of it, rounded up."""
        return {space: ceil(share * size - 1e-9) for space, size in self.thinned.items()}

    def nested(self, share: float) -> dict[str, Tensor]:
        """First channels of each space, as many as a share of it."""
        return {space: torch.arange(number) for space, number in self.counts(share).items()}

    def counted(self, part: Params) -> dict[str, int]:
        """Number of channels of each space in a sub-model's parameters."""
        return {self.axes[name][0]: len(p) for name, p in part.items() if self.axes[name][0] in self.thinned}

    # ---- parameters --------------------------------------------------------------------------------------------------

    def part(self, w: Params, channels: Channels) -> Params:
        """Extracts the sub-model's parameters from the full ones."""
        part = dict(w)
        for name, dim, index in self._indices(w, channels):
            part[name] = part[name].index_select(dim, index)
        return part

    def whole(self, part: Params, channels: Channels) -> Params:
        """Returns full parameters with the sub-model's values in their places, and 0 elsewhere."""
        whole = dict(part)
        for name, dim, index in self._indices(part, channels):
            p = whole[name]
            zeros = p.new_zeros(*p.shape[:dim], self.shapes[name][dim], *p.shape[dim + 1 :])
            whole[name] = zeros.index_copy(dim, index, p)
        return whole

    def _indices(self, w: Params, channels: Channels) -> Iterator[tuple[str, int, Tensor]]:
        """Yields each thinned dimension of a parameter: (parameter, dimension, indices to keep)."""
        for name in w:
            for dim, space in enumerate(self.axes[name]):
                if space in channels:
                    indices, width = channels[space], self._each(name, dim)
                    inner = torch.arange(width, device=indices.device)
                    yield name, dim, (indices[:, None] * width + inner).flatten() if width > 1 else indices

    def mask(self, on: Mapping[str, Tensor], inputs: bool = True) -> dict[str, Any]:
        """Parameter -> factor for channels that are on (1), off (0) or something between.

        on: space -> (channels,); missing spaces are on.
        inputs: whether channels that are off also mask the weights that read them, and not only those that write them.
        A mask has the parameter's dimensions, or 1 in their place; it is the number 1 if all channels are on.
        """
        masks: dict[str, Any] = {}
        for name, spaces in self.axes.items():
            rank = len(self.shapes[name])
            mask: Any = 1.0
            for dim, space in enumerate(spaces):
                if space in on and (inputs or dim == 0):
                    values = on[space].repeat_interleave(self._each(name, dim))
                    mask = mask * values.reshape(-1, *[1] * (rank - dim - 1))
            masks[name] = mask
        return masks

    def scale(self, w: Params, factor: Any) -> Params:
        """Multiplies the outputs of layers by a factor, which has the effect of HeteroFL's scalers on linear layers."""
        return {name: p * factor if name in self.scaled else p for name, p in w.items()}

    def _each(self, name: str, dim: int) -> int:
        """Number of consecutive indices per channel: the pixels of a flattened image, else 1."""
        return self.shapes[name][dim] // self.sizes[self.axes[name][dim]]  # type: ignore[index]

    # ---- cost --------------------------------------------------------------------------------------------------------

    def macs(self, counts: Mapping[str, Any]) -> Any:
        """Multiply-adds per sample of a sub-model with these numbers of channels per space (FedSep's T(a)).

        Counts may be 0-d tensors with fractions; the result is then a 0-d tensor.
        """
        return sum(work * prod(self._shape(name, counts)[:2]) for name, work in self.work.items())

    def numbers(self, counts: Mapping[str, int]) -> int:
        """Number of parameters of a sub-model with these numbers of channels per space."""
        return sum(prod(self._shape(name, counts)) for name in self.shapes)

    def _shape(self, name: str, counts: Mapping[str, Any]) -> list[Any]:
        shape: list[Any] = list(self.shapes[name])
        for dim, space in enumerate(self.axes[name]):
            if space in counts:
                shape[dim] = counts[space] * self._each(name, dim)
        return shape


def named(w: Params, names: Container[str]) -> Params:
    """Selects the parameters with these names: a sub-model of whole layers."""
    return {name: p for name, p in w.items() if name in names}


def submodel_incompatibility(task: Task, name: str) -> str | None:
    """Returns why a method that needs sub-models cannot learn a task, and the fix; None if it can."""
    try:
        if Layout.of(task).thinned:
            return None
    except NoSubModelsError as error:
        return f"task.model: {name} needs sub-models, but this model has none: {error}"
    return f"task.model: {name} needs layers to thin, but this model has only an output layer; choose another"


def _chain(module: nn.Module) -> dict[str, Axes]:
    """Returns the axes of consecutive layers."""
    axes: dict[str, Axes] = {}
    space = last = ""
    for name, layer in _layers(module):
        if isinstance(layer, nn.Conv2d | nn.Linear) and getattr(layer, "groups", 1) == 1:
            axes |= {f"{name}.{kind}": (name, space) if kind == "weight" else (name,) for kind in _kinds(layer)}
            space = last = name
        elif isinstance(layer, StaticBatchNorm2d):
            axes |= {f"{name}.{kind}": (space,) for kind in _kinds(layer)}
        elif _kinds(layer):
            raise NoSubModelsError(
                f"its {type(layer).__name__} at {name} mixes channels; choose a model of convolutions, linear layers "
                "and static batch norm, or give yours an attribute `axes`"
            )
    return {name: tuple(OUTPUTS if space == last else space for space in spaces) for name, spaces in axes.items()}


def _layers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if not isinstance(module, nn.Sequential):
        yield prefix.rstrip(".") or "module", module
        return
    for name, layer in module.named_children():
        yield from _layers(layer, f"{prefix}{name}.")


def _kinds(layer: nn.Module) -> list[str]:
    return [name for name, _ in layer.named_parameters()]


def _positions(task: Task, layers: Mapping[str, nn.Module]) -> dict[str, int]:
    """Number of times a layer is applied to a sample: once per pixel of its output, or once."""
    counts: dict[str, int] = {}

    def look(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: Any, output: Tensor) -> None:
            counts[name] = prod(output.shape[2:])

        return hook

    handles = [layer.register_forward_hook(look(name)) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            task.module(torch.zeros(2, *task.sample_shape, dtype=next(task.module.parameters()).dtype))
    finally:
        for handle in handles:
            handle.remove()
    return counts
