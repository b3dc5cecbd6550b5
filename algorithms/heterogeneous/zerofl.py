"""ZeroFL (Qiu et al., "ZeroFL: Efficient On-Device Training for Federated Learning with Local Sparsity", 2022), with a
density per client.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
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
from hedgerow.algorithms.nn.submodel import NoSubModelsError


class ZeroFL(SparseTraining):
    """Clients keep dense weights and compute with sparse ones, as SWAT does (Raihan, Aamodt, "Sparse Weight Activation
    Training", 2020); of how these moved they send the largest entries, with their places.

    In every step a layer computes, forwards and backwards, with the r largest of its weights, r being the client's
    density; gradients by weights are those of all of them, from the r largest of each sample's activations. SWAT takes
    the largest of a mini-batch's activations; a sample's own do not depend on whom it is padded with.

    What is sent are r of the entries of each layer, and what is dense. Nothing downwards is sparse: a client of any
    density gets all of w, and it is all of w that is scored. An entry that was not sent counts as no move, hence the
    mean over all.
    """

    class Hyper(SparseTrainingHyper):
        average: Literal["holders", "all"] = Field(
            "all", description="over whom an entry's moves are averaged: those who sent it, or all of the round"
        )
        sparse_activations: bool = Field(True, description="activations are sparse in gradients by weights; else dense")
        sent: Literal["moved", "weights"] = Field(
            "moved", description="whose largest entries are sent: of the moves, or moves of the largest weights"
        )

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        with suppress(NoSubModelsError):
            _ = self.swat

    def masks(self, server: Tree, ones: dict[str, int]) -> Params:
        return {}

    def exchange(self, w: Params, group: DensityGroup, **known: Any) -> Any:
        return super().exchange(w, group, density=torch.tensor(group.density), **known)

    def sent_down(self, group: DensityGroup) -> int:
        return sum(prod(shape) for shape in self.layout.shapes.values())

    def sent_up(self, group: DensityGroup) -> int:
        return super().sent_up(group) + self.bits(group)

    def macs(self, ones: Mapping[str, int]) -> float:
        """Of the three products of a layer, one is by activations."""
        by_weights = super().macs(ones)
        return by_weights if self.hyper.sparse_activations else (2 * by_weights + super().macs({})) / 3

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        learnt, here, metrics = self.learn(hp, down, data)
        moved = sub(learnt, down["w"])
        sent = largest_of(moved if hp.sent == "moved" else learnt, down["ones"])
        held = self.held(learnt, sent, here)
        return {"moved": tree_map(torch.mul, moved, held), "held": held}, state, metrics

    def local_loss(self, hp: Any, down: Tree, here: Tensor | None) -> Any:
        task = self.swat if hp.sparse_activations else self.task
        densities = {f"{_layer(name)}density": down["density"] for name in self.sizes if hp.sparse_activations}

        def loss(w: Params, batch: Batch) -> Tensor:
            now = tree_map(torch.Tensor.detach, w)
            masks = largest_of(now, down["ones"])
            # The values of sparse weights, and the gradients of dense ones.
            sparse = {name: p + (now[name] * masks[name] - now[name]) if name in masks else p for name, p in w.items()}
            return masked_loss(task, {**sparse, **densities}, batch, here)

        return loss

    @cached_property
    def swat(self) -> Task:
        """The task with a model whose sparse layers are SWAT's."""
        module = deepcopy(self.task.module)
        for name in self.sizes:
            layer: Any = module.get_submodule(_layer(name).rstrip("."))
            layer.__class__ = SwatLinear if isinstance(layer, nn.Linear) else SwatConv2d
            layer.register_buffer("density", torch.ones(()))
        return replace(self.task, module=module)


def _layer(weight: str) -> str:
    return weight.removesuffix("weight")


class SwatLinear(nn.Linear):
    """A layer whose gradient by weights is that of the largest of each sample's activations.

    What it puts out, and the gradient by what it reads, are what they would be. density: the share of these
    activations, a buffer that is given through `functional_call`.
    """

    density: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return swat(x, self.weight, self.bias, self.density, F.linear)


class SwatConv2d(nn.Conv2d):
    """The same of a convolution."""

    density: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return swat(x, self.weight, self.bias, self.density, self._conv_forward)


def swat(x: Tensor, weight: Tensor, bias: Tensor | None, density: Tensor, apply: Callable[..., Tensor]) -> Tensor:
    """apply(x, weight, bias), with the gradient by weight of the activations' largest."""
    scores = x.detach().abs().flatten(1)
    kept = largest(scores, (density * scores.shape[1]).round().clamp(min=1)).reshape(x.shape)
    inner = apply(x.detach() * kept, weight, None)
    return apply(x, weight.detach(), bias) + (inner - inner.detach())
