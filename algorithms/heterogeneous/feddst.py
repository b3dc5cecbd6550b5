"""FedDST (Bibikar, Vikalo, Wang, Chen, "Federated Dynamic Sparse Training: Computing Less, Communicating Less, Yet
Learning Better", 2022), with a density per client.
"""

from dataclasses import replace
from math import cos, pi
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Aggregate
from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges, Weighting
from hedgerow.algorithms.core.pytree import Tree, add, count, sub, tree_map, zeros_like
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.heterogeneous.capacities import masked_loss
from hedgerow.algorithms.heterogeneous.sparse_training import (
    DensityGroup,
    Profile,
    SparseTraining,
    SparseTrainingHyper,
    erdos_renyi,
    largest,
    largest_of,
    masked,
    spread,
    total,
)
from hedgerow.algorithms.optim.gradient import gradient_and_value


class FedDST(SparseTraining):
    """Clients train under masks, and every few rounds each readjusts its own: small weights go, and as many come where
    the gradient is largest, with the value 0. From what they kept the server makes its next mask.

    The server's mask has the largest of the densities, by layers; at first it has the largest of the initial weights.
    A client of density r trains r of all weights, dealt among the layers by `layers`, of each layer those that are
    largest in the server's model, so masks of small clients lie in those of large ones. It readjusts when it has
    trained, as in the authors' program, by the gradient of one more mini-batch.

    Averages are over those who trained a weight and kept it, by their samples. The server's mask has the largest of
    the weights that are in anyone's mask, and of those that came, which are 0, the ones that most have, by their
    samples too; weights that nobody of the round trained stay. Two decisions for different densities: a client that
    brings back a weight of the server's model has no say in its value; and a weight that goes and comes back at once
    keeps its value, so that density 1 is FedAvg.
    """

    weighting: ClassVar[Weighting | None] = "samples"

    class Hyper(SparseTrainingHyper):
        layers: Literal["erk", "uniform"] = Field(
            "erk", description="densities of the layers: small layers denser (Erdos-Renyi kernel), or all alike"
        )
        readjust: float = Field(0.1, ge=0, le=1, description="alpha, the share of a mask's ones that go and come")
        readjust_every: int = Field(10, ge=1, description="rounds from one readjustment to the next")
        readjust_until: int = Field(
            1000, ge=1, description="the round in which that share has fallen to 0, by a cosine"
        )

    def init_server(self) -> Tree:
        w = self.task.init()
        mask = largest_of(w, self.server_ones({}))
        return {"w": masked(w, mask), "mask": mask}

    def profile(self, server: Tree) -> Profile:
        if self.hyper.layers == "uniform":
            return super().profile(server)
        return erdos_renyi({name: self.layout.shapes[name] for name in self.sizes})

    def server_ones(self, server: Tree) -> dict[str, int]:
        """Sparse layer -> how many ones the server's mask has."""
        return spread(max(self.hyper.capacities), self.sizes, self.profile(server))

    def masks(self, server: Tree, ones: dict[str, int]) -> Params:
        return largest_of(server["w"], ones, among=server["mask"])

    def turnover(self, round: int) -> float:
        """The share of a mask's ones that go and come in a round."""
        hyper = self.hyper
        if round % hyper.readjust_every or round >= hyper.readjust_until:
            return 0.0
        return hyper.readjust / 2 * (1 + cos(pi * round / hyper.readjust_until))

    # ---- the server's half ------------------------------------------------------------------------------------------

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        share = self.turnover(cohort.round)
        if not share:
            return (yield from super().round(server, cohort))
        groups = self.groups(server, cohort)
        results = yield [self.readjusting(server["w"], group, share) for group in groups]
        w = self.average(server["w"], groups, results)
        mask = self.next_mask(w, server, groups, results)
        return {**server, "w": masked(w, mask), "mask": mask}

    def readjusting(self, w: Params, group: DensityGroup, share: float) -> Exchange:
        """The exchange of a round in which masks are readjusted, and sent upwards too."""
        turned = {name: torch.tensor(round(share * ones)) for name, ones in group.ones.items()}
        plain = self.exchange(w, group, turned=turned)
        return replace(
            plain,
            step=self.train_and_readjust,
            batches={**plain.batches, "regrow": BatchSpec(self.hyper.batch_size, steps=1)},
            padding_up=np.full(
                len(group.clients), 2 * count(w) + total(self.sizes) - self.sent_up(group) - self.bits(group)
            ),
        )

    def next_mask(self, w: Params, server: Tree, groups: list[DensityGroup], results: list[Aggregate]) -> Params:
        """The server's, from the averages w and the clients' own masks."""
        votes, trained = zeros_like(server["mask"]), zeros_like(server["mask"])
        for group, result in zip(groups, results, strict=True):
            if result.contributed.any():
                votes, trained = add(votes, result.up["mask"]), add(trained, group.masks)
        ones = self.server_ones(server)
        return {
            name: chosen(w[name].abs(), votes[name], (server["mask"][name] > 0) & (trained[name] == 0), ones[name])
            for name in ones
        }

    # ---- the client's half ------------------------------------------------------------------------------------------

    def train_and_readjust(
        self, hp: Any, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        learnt, here, metrics = self.learn(hp, down, data)
        batch = next(data.batches("regrow"))
        slope, _ = gradient_and_value(lambda w: masked_loss(self.task, w, batch, here))(learnt)
        masks = {
            name: readjusted(mask, learnt[name], slope[name], down["turned"][name])
            for name, mask in down["masks"].items()
        }
        held = self.held(learnt, tree_map(torch.mul, down["masks"], masks), here)
        moved = tree_map(torch.mul, sub(learnt, down["w"]), held)
        metrics["spent_gmacs"] = metrics["spent_gmacs"] + 3e-9 * self.macs({}) * data.streams["regrow"][1].sum()
        return {"moved": moved, "held": held, "mask": masks}, state, metrics


def readjusted(mask: Tensor, w: Tensor, slope: Tensor, turned: Any) -> Tensor:
    """`turned` of a mask's ones, the smallest weights, go, and as many come where the slope is steepest."""
    before = mask.flatten()
    kept = largest(torch.where(before > 0, w.abs().flatten(), -1.0), before.sum() - turned)
    come = largest(torch.where(kept > 0, -1.0, slope.abs().flatten()), turned)
    return (kept + come).reshape(mask.shape)


def chosen(size: Tensor, votes: Tensor, stays: Tensor, ones: int) -> Tensor:
    """The mask of the `ones` largest of the weights that have votes or stay; of equals those with the most votes.

    Where these are too few, the largest of the others make up for it.
    """
    others = size - size.max() - 1
    order = votes.flatten().argsort(descending=True, stable=True)
    scores = torch.where((votes > 0) | stays, size, others).flatten()
    return torch.zeros_like(scores).scatter(0, order, largest(scores[order], ones)).reshape(size.shape)
