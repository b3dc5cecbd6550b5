"""ZeroFL (Qiu et al., "ZeroFL: Efficient On-Device Training for Federated Learning with Local Sparsity", 2022), with a
density per client.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.pytree import Tree, sub, tree_map
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.heterogeneous.capacities import masked_loss
from hedgerow.algorithms.heterogeneous.sparse_training import (
    DensityGroup,
    SparseTraining,
    SparseTrainingHyper,
    largest,
    largest_of,
)


class ZeroFL(SparseTraining):
    """Clients keep dense weights, compute with sparse ones as SWAT does, and send the largest entries of their update
    [Qiu2022].

    SWAT is by Raihan, Aamodt, "Sparse Weight Activation Training", 2020. In every step, a layer computes its forward
    and backward pass with the r largest of its weights, where r is the client's density. Gradients are taken for all
    weights, from the r largest of each sample's activations. SWAT takes the largest of a mini-batch's activations;
    those of a single sample do not depend on how its batch is padded.

    A client sends a share r of the entries of each layer, with their positions, and all dense parameters. Downloads are
    not sparse: a client of any density receives all of w, and all of w is scored. An entry that was not sent counts as
    no change, hence the mean over all clients.
    """

    computed = ("layout", "sizes", "swat")

    class Hyper(SparseTrainingHyper):
        average: Literal["holders", "all"] = Field(
            "all",
            description="clients over which the updates of an entry are averaged; holders: those that sent it; all: "
            "all of the round",
        )
        sparse_activations: bool = Field(
            True, description="use sparse activations in the gradients of weights; false: dense ones"
        )
        sent: Literal["moved", "weights"] = Field(
            "moved",
            description="entries that are sent; moved: the largest updates; weights: the updates of the largest "
            "weights",
        )

    def masks(self, server: Tree, ones: dict[str, int]) -> Params:
        return {}

    def exchange(self, w: Params, group: DensityGroup, **known: Any) -> Any:
        return super().exchange(w, group, density=torch.tensor(group.density), **known)

    def sent_down(self, group: DensityGroup) -> int:
        return sum(prod(shape) for shape in self.layout.shapes.values())

    def sent_up(self, group: DensityGroup) -> int:
        return super().sent_up(group) + self.bits(group)

    def macs(self, ones: Mapping[str, int]) -> float:
        """Multiply-adds of one sample; one of a layer's three products is sparse only if activations are."""
        by_weights = super().macs(ones)
        return by_weights if self.hyper.sparse_activations else (2 * by_weights + super().macs({})) / 3

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        new_w, here, metrics = self.learn(hp, down, data)
        update = sub(new_w, down["w"])
        masks = largest_of(update if hp.sent == "moved" else new_w, down["ones"])
        held = self.held(new_w, masks, here)
        return {"moved": tree_map(torch.mul, update, held), "held": held}, state, metrics

    def local_loss(self, hp: Any, down: Tree, here: Tensor | None) -> Any:
        task = self.swat if hp.sparse_activations else self.task
        densities = {f"{_layer(name)}density": down["density"] for name in self.sizes if hp.sparse_activations}

        def loss(w: Params, batch: Batch) -> Tensor:
            now = tree_map(torch.Tensor.detach, w)
            masks = largest_of(now, down["ones"])
            # Forward values are those of sparse weights; gradients are those of dense ones.
            sparse = {name: p + (now[name] * masks[name] - now[name]) if name in masks else p for name, p in w.items()}
            return masked_loss(task, {**sparse, **densities}, batch, here)

        return loss

    @cached_property
    def swat(self) -> Task:
        """Task with a model whose sparse layers are SWAT layers."""
        module = deepcopy(self.task.module)
        for name in self.sizes:
            layer: Any = module.get_submodule(_layer(name).rstrip("."))
            layer.__class__ = SwatLinear if isinstance(layer, nn.Linear) else SwatConv2d
            layer.register_buffer("density", torch.ones(()))
        return replace(self.task, module=module)


def _layer(weight: str) -> str:
    return weight.removesuffix("weight")


class SwatLinear(nn.Linear):
    """Linear layer whose weight gradient uses only the largest of each sample's activations.

    Its output and the gradient with respect to its input are unchanged. density: share of these activations, a buffer
    that is passed through `call`.
    """

    density: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return swat(x, self.weight, self.bias, self.density, F.linear)


class SwatConv2d(nn.Conv2d):
    """Convolution whose weight gradient uses only the largest of each sample's activations."""

    density: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return swat(x, self.weight, self.bias, self.density, self._conv_forward)


def swat(x: Tensor, weight: Tensor, bias: Tensor | None, density: Tensor, apply: Callable[..., Tensor]) -> Tensor:
    """apply(x, weight, bias), where the weight gradient uses only the largest activations."""
    scores = x.detach().abs().flatten(1)
    mask = largest(scores, (density * scores.shape[1]).round().clamp(min=1)).reshape(x.shape)
    inner = apply(x.detach() * mask, weight, None)
    return apply(x, weight.detach(), bias) + (inner - inner.detach())
