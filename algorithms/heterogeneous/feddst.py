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

from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Aggregate, Cohort, Exchange, Exchanges, Weighting
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
    """Clients train under sparse masks that they readjust every few rounds, and the server combines them into its own
    [Bibikar2022].

    In a readjustment, a client drops its smallest weights and grows as many where the gradient is largest, with the
    value 0. The server makes its next mask from the weights that clients kept.

    The server's mask has the largest of the densities, distributed over layers by `layers`; at first it selects the
    largest initial weights. A client of density r trains a share r of all weights, distributed over layers by `layers`.
    In each layer these are the largest in the server's model, so masks of small clients are contained in those of large
    ones. A client readjusts its mask after training, as in the authors' program, by the gradient of one more
    mini-batch.

    Averages are weighted by samples, over the clients that trained a weight and kept it. The server's mask selects the
    largest of the weights in any client's mask and, among the grown ones, which are 0, those that most clients have,
    also weighted by samples. Weights that no client of the round trained stay in it. Two decisions are due to different
    densities: a client that grows back a weight of the server's model does not contribute to its value, and a weight
    that is dropped and grown again at once keeps its value, so that density 1 is FedAvg.
    """

    weighting: ClassVar[Weighting | None] = "samples"

    class Hyper(SparseTrainingHyper):
        layers: Literal["erk", "uniform"] = Field(
            "erk",
            description="densities of the layers; erk: small layers are denser (Erdos-Renyi kernel); uniform: all "
            "equal",
        )
        readjust: float = Field(0.1, ge=0, le=1, description="alpha, share of a mask's ones that are dropped and grown")
        readjust_every: int = Field(10, ge=1, description="number of rounds from one readjustment to the next")
        readjust_until: int = Field(1000, ge=1, description="round in which that share reaches 0, by a cosine schedule")

    def init_server(self) -> Tree:
        w = self.task.init()
        mask = largest_of(w, self.server_ones({}))
        return {"w": masked(w, mask), "mask": mask}

    def profile(self, server: Tree) -> Profile:
        if self.hyper.layers == "uniform":
            return super().profile(server)
        return erdos_renyi({name: self.layout.shapes[name] for name in self.sizes})

    def server_ones(self, server: Tree) -> dict[str, int]:
        """Sparse layer -> number of ones in the server's mask."""
        return spread(max(self.hyper.capacities), self.sizes, self.profile(server))

    def masks(self, server: Tree, ones: dict[str, int]) -> Params:
        return largest_of(server["w"], ones, among=server["mask"])

    def turnover(self, round: int) -> float:
        """Share of a mask's ones that are dropped and grown in a round."""
        hyper = self.hyper
        if round % hyper.readjust_every or round >= hyper.readjust_until:
            return 0.0
        return hyper.readjust / 2 * (1 + cos(pi * round / hyper.readjust_until))

    # ---- server -----------------------------------------------------------------------------------------------------

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
        """Exchange of a round in which clients readjust their masks and send them."""
        turnover = {name: torch.tensor(round(share * ones)) for name, ones in group.ones.items()}
        exchange = self.exchange(w, group, turned=turnover)
        return replace(
            exchange,
            step=self.train_and_readjust,
            batches={**exchange.batches, "regrow": BatchSpec(self.hyper.batch_size, steps=1)},
            padding_up=np.full(
                len(group.clients), 2 * count(w) + total(self.sizes) - self.sent_up(group) - self.bits(group)
            ),
        )

    def next_mask(self, w: Params, server: Tree, groups: list[DensityGroup], results: list[Aggregate]) -> Params:
        """Next mask of the server, from the averages w and the clients' own masks."""
        votes, trained = zeros_like(server["mask"]), zeros_like(server["mask"])
        for group, result in zip(groups, results, strict=True):
            if result.contributed.any():
                votes, trained = add(votes, result.up["mask"]), add(trained, group.masks)
        ones = self.server_ones(server)
        return {
            name: chosen(w[name].abs(), votes[name], (server["mask"][name] > 0) & (trained[name] == 0), ones[name])
            for name in ones
        }

    # ---- clients ----------------------------------------------------------------------------------------------------

    def train_and_readjust(
        self, hp: Any, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        new_w, here, metrics = self.learn(hp, down, data)
        batch = next(data.batches("regrow"))
        slope, _ = gradient_and_value(lambda w: masked_loss(self.task, w, batch, here))(new_w)
        masks = {
            name: readjusted(mask, new_w[name], slope[name], down["turned"][name])
            for name, mask in down["masks"].items()
        }
        held = self.held(new_w, tree_map(torch.mul, down["masks"], masks), here)
        update = tree_map(torch.mul, sub(new_w, down["w"]), held)
        metrics["spent_gmacs"] = metrics["spent_gmacs"] + 3e-9 * self.macs({}) * data.streams["regrow"][1].sum()
        return {"moved": update, "held": held, "mask": masks}, state, metrics


def readjusted(mask: Tensor, w: Tensor, slope: Tensor, turned: Any) -> Tensor:
    """Mask after dropping its `turned` smallest weights and growing as many where the gradient is largest."""
    before = mask.flatten()
    survivors = largest(torch.where(before > 0, w.abs().flatten(), -1.0), before.sum() - turned)
    growth = largest(torch.where(survivors > 0, -1.0, slope.abs().flatten()), turned)
    return (survivors + growth).reshape(mask.shape)


def chosen(size: Tensor, votes: Tensor, stays: Tensor, ones: int) -> Tensor:
    """Mask of the `ones` largest weights among those that have votes or stay; ties go to the most votes.

    If these are too few, the largest of the other weights are added.
    """
    others = size - size.max() - 1
    order = votes.flatten().argsort(descending=True, stable=True)
    scores = torch.where((votes > 0) | stays, size, others).flatten()
    return torch.zeros_like(scores).scatter(0, order, largest(scores[order], ones)).reshape(size.shape)
