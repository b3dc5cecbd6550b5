"""Sparse training: clients of different densities train some weights of each layer, at arbitrary positions.

The weights of convolutions and linear layers are sparse. Biases and norms are dense, and so is the output layer unless
`dense_output` is false. Every client trains all dense parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, prod
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import Aggregate, Cohort, Exchange, Exchanges, Weighting
from hedgerow.algorithms.core.pytree import Tree, add, count, sub, tree_map, zeros_like
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.core.torch_private import is_batched
from hedgerow.algorithms.heterogeneous.capacities import (
    CAPACITIES,
    ByLayers,
    Capacity,
    Heterogeneous,
    averaged,
    by_capacity,
    classes_of,
    masked_loss,
)
from hedgerow.algorithms.nn.submodel import OUTPUTS, NoSubModelsError
from hedgerow.algorithms.optim.local_sgd import minimize

Profile = Mapping[str, float]
"""Sparse layer -> its density relative to the other layers."""


class SparseTrainingHyper(Heterogeneous):
    """Hyperparameters of sparse training algorithms."""

    capacities: list[Capacity] = Field(
        CAPACITIES,
        min_length=1,
        description="densities, shares of the sparse layers' weights; each client has one of them, drawn uniformly",
    )
    dense_output: bool = Field(True, description="keep the output layer dense, like biases and norms")


@dataclass(frozen=True)
class DensityGroup:
    """Clients of a round that have the same density.

    weights: weight of each client in means. ones: sparse layer -> number of its weights that they send. masks: sparse
    layer -> 1 for the weights that they train, else 0; layers without a mask are trained completely.
    """

    density: float
    clients: np.ndarray
    weights: np.ndarray
    ones: dict[str, int]
    masks: Params


class SparseTraining(ByLayers):
    """Base class in which clients train under masks and the server averages their updates, weight by weight.

    Subclasses define the masks. Traffic is charged as for a protocol that sends the values under a mask, all dense
    values and, where anything is masked, the mask itself: one bit per weight of the sparse layers, so 1/32 of a number.
    The trees of the simulation also hold zeros, which are not charged (`padding`).
    """

    weighting: ClassVar[Weighting | None] = "uniform"
    computed: ClassVar[tuple[str, ...]] = ("layout", "sizes")

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Sparse layer -> number of its weights."""
        layout, dense_output = self.layout, self.hyper.dense_output
        return {
            name: prod(layout.shapes[name])
            for name in layout.work
            if not (dense_output and layout.axes[name][0] == OUTPUTS)
        }

    def incompatibility(self) -> str | None:
        try:
            if self.sizes:
                return None
        except NoSubModelsError as error:
            return f"task.model: {self.hyper.name} needs a model whose layers it can make sparse: {error}"
        return "algorithm.dense_output: this model has only an output layer; set it to false, or choose another model"

    def profile(self, server: Tree) -> Profile:
        """Relative densities of the layers; by default all are equal."""
        return dict.fromkeys(self.sizes, 1.0)

    def masks(self, server: Tree, ones: dict[str, int]) -> Params:
        """Masks of a client that has the given number of ones in each layer."""
        raise NotImplementedError

    # ---- server -----------------------------------------------------------------------------------------------------

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        groups = self.groups(server, cohort)
        results = yield [self.exchange(server["w"], group) for group in groups]
        return {**server, "w": self.average(server["w"], groups, results)}

    def groups(self, server: Tree, cohort: Cohort) -> list[DensityGroup]:
        """Clients of the round, grouped by density."""
        groups, all_weights = [], self.weights(cohort)
        for density, clients in by_capacity(cohort, self.hyper.capacities, self.hyper.redraw):
            members = np.isin(cohort.clients, clients)
            weights = np.ones(len(clients)) if all_weights is None else all_weights[members]
            ones = spread(density, self.sizes, self.profile(server))
            groups.append(DensityGroup(density, clients, weights, ones, self.masks(server, ones)))
        return groups

    def exchange(self, w: Params, group: DensityGroup, **known: Any) -> Exchange:
        """Exchange with a group. known: further inputs of its clients."""
        counts = {name: torch.tensor(ones) for name, ones in group.ones.items()}
        down = {"w": masked(w, group.masks), "masks": group.masks}
        return Exchange(
            self.train,
            down,
            group.clients,
            batches=self.hyper.batches,
            reduce="sum",
            weights=group.weights,
            local_inputs={"ones": counts, "macs": torch.tensor(self.macs(group.ones)), **known},
            padding_down=np.full(len(group.clients), count(down) - self.sent_down(group)),
            # Simulated clients send w-shaped updates and the masks over which these are averaged.
            padding_up=np.full(len(group.clients), 2 * count(w) - self.sent_up(group)),
        )

    def values(self, group: DensityGroup) -> int:
        """Number of values in a group's model: those under the mask, and all dense ones."""
        return sum(prod(shape) for shape in self.layout.shapes.values()) - sum(self.sizes.values()) + total(group.ones)

    def bits(self, group: DensityGroup) -> int:
        """Cost of a mask, in numbers; 0 if all its entries are 1, because it is then not sent."""
        weights = sum(self.sizes.values())
        return ceil(weights / 32) if total(group.ones) < weights else 0

    def sent_down(self, group: DensityGroup) -> int:
        """Number of values that a client receives."""
        return self.values(group) + self.bits(group)

    def sent_up(self, group: DensityGroup) -> int:
        """Number of values that a client sends: the server knows its mask, but not its classes."""
        return self.values(group) + (self.layout.sizes[OUTPUTS] if self.hyper.masked_loss else 0)

    def macs(self, ones: Mapping[str, int]) -> float:
        """Multiply-adds of one sample with the given number of ones in each sparse layer."""
        shapes = self.layout.shapes
        return float(
            sum(
                work * ones.get(name, prod(shapes[name])) / prod(shapes[name][2:])
                for name, work in self.layout.work.items()
            )
        )

    def average(self, w: Params, groups: list[DensityGroup], results: list[Aggregate]) -> Params:
        """w after the server step: each weight's updates are averaged over the clients that trained it, or over all."""
        moves, holders, sampled_clients = zeros_like(w), zeros_like(w), 0.0
        for group, result in zip(groups, results, strict=True):
            if result.contributed.any():
                moves, holders = add(moves, result.up["moved"]), add(holders, result.up["held"])
                sampled_clients += float(group.weights[result.contributed].sum())
        return averaged(self.hyper, w, moves, holders, sampled_clients)

    # ---- clients ----------------------------------------------------------------------------------------------------

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        new_w, here, metrics = self.learn(hp, down, data)
        held = self.held(new_w, down["masks"], here)
        return {"moved": tree_map(torch.mul, sub(new_w, down["w"]), held), "held": held}, state, metrics

    def learn(self, hp: Any, down: Tree, data: ClientData) -> tuple[Params, Tensor | None, dict[str, Any]]:
        """Trains under the client's masks; returns (parameters, classes that it has or None, metrics)."""
        here = classes_of(data, self.layout.sizes[OUTPUTS]) if hp.masked_loss else None
        new_w, loss = minimize(self.local_loss(hp, down, here), down["w"], data, hp)
        samples = data.streams["train"][1].sum()
        return new_w, here, {"loss": loss, "spent_gmacs": 3e-9 * down["macs"] * samples}

    def local_loss(self, hp: Any, down: Tree, here: Tensor | None) -> Any:
        """Loss on a batch under the client's masks. here: classes that the client has, or None."""

        def loss(w: Params, batch: Batch) -> Tensor:
            return masked_loss(self.task, masked(w, down["masks"]), batch, here)

        return loss

    def held(self, w: Params, masks: Params, here: Tensor | None) -> Params:
        """1 for trained weights, with the shapes of w: those under masks, and only the client's output classes."""
        held = masked(tree_map(torch.ones_like, w), masks)
        return held if here is None else tree_map(torch.mul, held, self.layout.mask({OUTPUTS: here}))


def masked(w: Params, masks: Params) -> Params:
    """w under masks; layers without a mask are unchanged."""
    return {name: p * masks[name] if name in masks else p for name, p in w.items()}


def total(ones: Mapping[str, int]) -> int:
    return sum(ones.values())


def spread(density: float, sizes: Mapping[str, int], profile: Profile) -> dict[str, int]:
    """Number of ones in each layer, so that they make up `density` of all weights.

    Densities are proportional to the profile, at most 1. Every layer has at least one. A higher density gives more ones
    in every layer.
    """
    full: set[str] = set()
    while len(full) < len(sizes):
        rest = density * total(sizes) - sum(sizes[name] for name in full)
        factor = rest / sum(size * profile[name] for name, size in sizes.items() if name not in full)
        over = {name for name in sizes if name not in full and factor * profile[name] >= 1}
        if not over:
            break
        full |= over
    return {
        name: size if name in full else max(1, round(factor * profile[name] * size)) for name, size in sizes.items()
    }


def erdos_renyi(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, float]:
    """Profile ERK, in which small layers are denser (Evci et al., "Rigging the Lottery", 2020, section 3)."""
    return {name: sum(shape) / prod(shape) for name, shape in shapes.items()}


def largest(scores: Tensor, ones: Any) -> Tensor:
    """Mask of the `ones` largest scores (..., n) along the last dimension; ties go to the first.

    ones: a number, or 0-d tensor. Scores of weights that may be chosen are at least 0; others are negative.
    """
    n = scores.shape[-1]
    if torch.compiler.is_compiling() or is_batched(ones):
        # Clients have different numbers.
        order = scores.argsort(dim=-1, descending=True, stable=True)
        first = (torch.arange(n, device=scores.device) < ones).to(scores.dtype)
        return torch.zeros_like(scores).scatter(-1, order, first.expand(scores.shape))
    number = min(n, ceil(ones))
    if number <= 0:
        return torch.zeros_like(scores)
    # Several times faster than sorting, which puts NaN first.
    scores = torch.where(scores.isnan(), inf, scores)
    threshold = scores.kthvalue(n - number + 1, dim=-1, keepdim=True).values
    above, tied = scores > threshold, scores == threshold
    rest = number - above.sum(-1, keepdim=True)
    return (above | (tied & (tied.cumsum(-1) <= rest))).to(scores.dtype)


def largest_of(w: Params, ones: Mapping[str, Any], among: Params | None = None) -> Params:
    """Sparse layer -> mask of its `ones` largest magnitudes. among: masks of the weights that may be chosen."""
    masks = {}
    for name, number in ones.items():
        scores = w[name].abs() if among is None else torch.where(among[name] > 0, w[name].abs(), -1.0)
        masks[name] = largest(scores.flatten(), number).reshape(scores.shape)
    return masks
