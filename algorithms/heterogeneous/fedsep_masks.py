"""FedSep for clients of different capacities: sub-models are decoded from the server's (Li, Huang, 2023, Eq. 7)."""

from dataclasses import replace
from functools import cached_property
from math import sqrt
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, count, scale, tree_map
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.heterogeneous.capacities import classes_of
from hedgerow.algorithms.heterogeneous.channel_masks import MaskProblem, Shares, descend, encode, masked, most
from hedgerow.algorithms.heterogeneous.partial_training import CapacityGroup, PartialTraining, PartialTrainingHyper
from hedgerow.algorithms.nn import hypernetwork
from hedgerow.algorithms.nn.submodel import OUTPUTS, Channels


class FedSepMasks(PartialTraining):
    """Algorithm 1: a client decodes the server's model w into a sub-model, by choosing the channels that serve its own
    samples best, learns it, and encodes how it moved.

    The decoder is the problem of Eq. 7 over how far each channel is on, a = HN(phi); of each layer it keeps those that
    are on most. The encoder is -a (.) v, the first term of Eq. 8 (Remark 3), which the server subtracts; with
    `mask: relaxed` channels are dimmed by a in place of chosen, and the encoder may be the whole of Eq. 8. Every time a
    client solves its mask problem, phi begins as it did at first; it keeps how far its channels are on, and no phi.
    """

    class Hyper(PartialTrainingHyper):
        mask: Literal["kernels", "relaxed"] = Field(
            "kernels", description="keep the best channels and leave out the others; or dim each, and leave out none"
        )
        mask_from: Literal["hypernetwork", "direct"] = Field(
            "hypernetwork", description="what puts a out: a network that reads the layers in a row, or a logit each"
        )
        mask_steps: int = Field(20, ge=1, description="steps of AdamW on the mask problem")
        mask_lr: float = Field(0.01, gt=0, description="their learning rate")
        mask_batch_size: int | None = Field(50, ge=1, description="samples of each; null: all")
        resource_weight: float = Field(10.0, ge=0, description="beta, of the resource loss")
        refresh_every: int = Field(2, ge=1, description="a client solves its mask problem every so many rounds of its")
        budget: Literal["width", "macs"] = Field(
            "width",
            description="what a capacity is a share of: the channels of each layer; or the multiply-adds, of which the "
            "root of a share of channels takes about that share",
        )
        encoder: Literal["first_term", "full"] = Field(
            "first_term", description="what of Eq. 8 is sent: -a (.) v (Remark 3); full, with `mask: relaxed`: all"
        )
        encode_steps: int = Field(20, ge=1, description="of conjugate gradients, for the full encoder")
        damping: float = Field(1e-3, ge=0, description="added to the mask problem's curvature, for the full encoder")

    def incompatibility(self) -> str | None:
        if self.hyper.encoder == "full" and self.hyper.mask == "kernels":
            return "algorithm.encoder: full differentiates masks, and chosen kernels have no slope; set mask to relaxed"
        return super().incompatibility()

    def init_server(self) -> Tree:
        # Of every client, once their number is known: how often it was asked since it last solved its mask problem.
        return {"w": self.task.init(), "age": torch.zeros(0, dtype=torch.int64)}

    def init_client(self) -> Tree:
        return {"on": {space: torch.ones(size) for space, size in self.layout.thinned.items()}}

    # ---- the server's half ------------------------------------------------------------------------------------------

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        w, age = server["w"], server["age"].clone()
        if not len(age):
            age = torch.full((cohort.population,), self.hyper.refresh_every)
        asked = [
            (replace(group, clients=group.clients[here]), solves)
            for group in self.groups(cohort)
            for solves in (True, False)
            if (here := (age[torch.from_numpy(group.clients)] >= self.hyper.refresh_every).numpy() == solves).any()
        ]
        results = yield [self.ask(w, group, solves) for group, solves in asked]
        for (group, solves), result in zip(asked, results, strict=True):
            clients = torch.from_numpy(group.clients[result.contributed])
            age[clients] = 1 if solves else age[clients] + 1
        return {"w": self.average(w, [group for group, _ in asked], results), "age": age}

    def channels(self, capacity: float, cohort: Cohort, client: int) -> Channels:
        """As many as a client of this capacity keeps; it decides itself which."""
        if self.hyper.mask == "relaxed":
            return {}
        share, sizes = self.width(capacity), self.layout.thinned
        return {space: torch.arange(max(1, round(share * size))) for space, size in sizes.items()}

    def width(self, capacity: float) -> float:
        return sqrt(capacity) if self.hyper.budget == "macs" else capacity

    def ask(self, w: Params, group: CapacityGroup, solves: bool) -> Exchange:
        """Of clients that solve their mask problem, which takes the whole model, or that keep their masks."""
        numbers = self.layout.numbers({space: len(first) for space, first in group.channels.items()})
        again = np.full(len(group.clients), 0 if solves else 1)
        # Whoever keeps its channels needs those alone, which the server knows.
        spared_up = again * sum(len(first) for first in group.channels.values())
        mask = {"mask": BatchSpec(self.hyper.mask_batch_size, steps=self.hyper.mask_steps)}
        return Exchange(
            self.train if solves else self.train_again,
            {"w": w},
            group.clients,
            local_inputs={
                **self.known(group.capacity, self.macs(group)),
                "capacity": torch.tensor(group.capacity),
                "first": group.channels,
                **self.start,
            },
            batches={**self.hyper.batches, **(mask if solves or self.hyper.encoder == "full" else {})},
            reduce="stack" if group.channels else "sum",
            padding_down=again * (count(w) - numbers),
            padding_up=spared_up,
        )

    # ---- the client's half ------------------------------------------------------------------------------------------

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        up, state, metrics = self.learn(hp, down, self.decode(hp, down, data), data)
        solving = 3e-9 * self.layout.macs({}) * data.streams["mask"][1].sum()
        return up, state, {**metrics, "spent_gmacs": metrics["spent_gmacs"] + solving}

    def train_again(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """With the mask of the last time."""
        return self.learn(hp, down, state["on"], data)

    def decode(self, hp: Any, down: Tree, data: ClientData) -> Shares:
        """How far each channel is on, a."""
        problem = self.problem(hp, down, data)

        def loss(phi: Params, batch: Batch) -> Tensor:
            return problem(down["w"], self.shares(hp, phi, down), batch)

        return self.shares(hp, descend(loss, down["phi"], data.batches("mask"), hp.mask_lr), down)

    def learn(self, hp: Any, down: Tree, a: Shares, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Learn the sub-model, and encode how it moved."""
        w, state = down["w"], {"on": a}
        if hp.mask == "kernels":
            channels = most(a, down["first"])
            up, _, metrics = super().train(hp, {**down, "w": self.layout.part(w, channels)}, {}, data)
            return {**up, "channels": tree_map(lambda kept: kept.int(), channels)}, state, metrics
        # Nothing is narrower: scalers have nothing to make up for.
        dimmed = {**down, "w": masked(self.layout, w, a), "width": torch.ones_like(down["width"])}
        up, _, metrics = super().train(hp, dimmed, {}, data)
        if hp.encoder == "first_term":
            return {**up, "moved": masked(self.layout, up["moved"], a)}, state, metrics
        problem, batch = self.problem(hp, down, data), next(data.batches("mask"))
        encoded = encode(lambda w, a: problem(w, a, batch), self.layout, w, a, up["moved"], hp.encode_steps, hp.damping)
        moved = scale(encoded, -1.0)
        if "classes" in up:
            moved = tree_map(torch.mul, moved, self.layout.mask({OUTPUTS: up["classes"]}))
        return {**up, "moved": moved}, state, metrics

    def problem(self, hp: Any, down: Tree, data: ClientData) -> MaskProblem:
        here = classes_of(data, self.layout.sizes[OUTPUTS]) if hp.masked_loss else None
        return MaskProblem(self.task, self.layout, down["capacity"], hp.resource_weight, here)

    @cached_property
    def start(self) -> Tree:
        """What AdamW begins with, phi, and the inputs of the network; everybody can make them."""
        sizes = self.layout.thinned
        if self.hyper.mask_from == "direct":
            return {"phi": {space: torch.zeros(size) for space, size in sizes.items()}}
        return {"phi": hypernetwork.initial(sizes), "inputs": hypernetwork.inputs(len(sizes))}

    def shares(self, hp: Any, phi: Params, down: Tree) -> Shares:
        """a = HN(phi)."""
        if hp.mask_from == "direct":
            return tree_map(hypernetwork.switched, phi)
        return hypernetwork.shares(phi, down["inputs"], list(self.layout.thinned))
