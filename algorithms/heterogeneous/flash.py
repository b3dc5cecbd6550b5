"""Flash (Babakniya, Kundu, Prakash, Niu, Avestimehr, "Revisiting Sparsity Hunting in Federated Learning: Why does
Sparsity Consensus Matter?", 2023; "Lottery Aware Sparsity Hunting", 2022), with a density per client: hetero-FLASH.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.heterogeneous.feddst import FedDST
from hedgerow.algorithms.heterogeneous.sparse_training import (
    Profile,
    SparseTrainingHyper,
    largest,
    largest_of,
    masked,
    total,
)


class Flash(FedDST):
    """Clients find the density of each layer in round 1; then all clients train under masks of these densities
    [Babakniya2023].

    Stage 1, at the start of the first round that succeeds: each client warms up under a mask with the same density in
    all layers. Then it redistributes a share of each layer's ones, in proportion to the mean magnitude of the weights
    that the layer learnt (Dettmers, Zettlemoyer, "Sparse Networks from Scratch", 2019). It sends the resulting
    densities, in units of its own density, and the server takes their mean. All other results of stage 1 are discarded.

    Stage 2: the server's mask has the largest of the clients' densities, at random positions of the initial model. A
    client of density r trains the share r of each layer that is largest in the server's model. `mask_update: fixed` is
    the paper's SPDST. `joint` is its JMWST, where clients readjust their masks and the server makes its next mask from
    them, as in FedDST. The authors' program redistributes ones after each local epoch of stage 1, here this is done
    once; and it grows weights at random, here by the gradient.
    """

    class Hyper(SparseTrainingHyper):
        warmup_epochs: int = Field(10, ge=1, description="passes over the local data in stage 1")
        dealt: float = Field(0.5, ge=0, lt=1, description="share of a layer's ones that stage 1 redistributes")
        mask_update: Literal["fixed", "joint"] = Field(
            "fixed",
            description="server's mask; fixed: unchanged after stage 1; joint: readjusted jointly by the clients",
        )
        readjust: float = Field(
            0.25, ge=0, le=1, description="joint: share of a mask's ones that are dropped and grown"
        )
        readjust_every: int = Field(1, ge=1, description="joint: number of rounds from one readjustment to the next")

    def init_server(self) -> Tree:
        w = self.task.init()
        profile = {name: torch.tensor(1.0) for name in self.sizes}
        mask = largest_of(w, self.server_ones({"profile": profile}))
        return {"w": w, "mask": mask, "profile": profile, "found": torch.tensor(0)}

    def profile(self, server: Tree) -> Profile:
        return {name: float(value) for name, value in server["profile"].items()}

    def turnover(self, round: int) -> float:
        hyper = self.hyper
        return hyper.readjust if hyper.mask_update == "joint" and round % hyper.readjust_every == 0 else 0.0

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        if not server["found"]:
            server = yield from self.find_densities(server, cohort)
        return (yield from super().round(server, cohort))

    def find_densities(self, server: Tree, cohort: Cohort) -> Exchanges:
        """Runs stage 1; returns the server state with which stage 2 begins."""
        hyper, groups = self.hyper, self.groups(server, cohort)
        batches = {"train": BatchSpec(hyper.batch_size, epochs=hyper.warmup_epochs)}
        results = yield [
            replace(self.exchange(server["w"], group), step=self.warm_up, batches=batches, padding_up=None)
            for group in groups
        ]
        sampled_clients = sum(g.weights[result.contributed].sum() for g, result in zip(groups, results, strict=True))
        profiles = [result.up["profile"] for result in results if result.contributed.any()]
        if profiles:
            profile = {name: sum(one[name] for one in profiles) / float(sampled_clients) for name in self.sizes}
            server = {**server, "profile": profile}
        rng = np.random.default_rng(cohort.seed_for("mask"))
        mask = {
            name: largest(torch.from_numpy(rng.random(self.sizes[name])).float(), ones).reshape(
                self.layout.shapes[name]
            )
            for name, ones in self.server_ones(server).items()
        }
        return {**server, "w": masked(server["w"], mask), "mask": mask, "found": torch.tensor(1)}

    def warm_up(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        new_w, _, metrics = self.learn(hp, down, data)
        ones = {name: mask.sum() for name, mask in down["masks"].items()}
        means = {name: (new_w[name].abs() * down["masks"][name]).sum() / ones[name] for name in ones}
        every, dealt = sum(ones.values()), hp.dealt * sum(ones.values())
        own = every / total(self.sizes)
        profile = {
            name: ((1 - hp.dealt) * ones[name] + dealt * means[name] / sum(means.values())).clamp(max=self.sizes[name])
            / self.sizes[name]
            / own
            for name in ones
        }
        return {"profile": profile}, state, metrics
