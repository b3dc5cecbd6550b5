"""FedSep for clients of different capacities: they decode sub-models of the server's model (Li, Huang, 2023, Eq. 7)."""

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
    """FedSep (Algorithm 1) whose clients decode the server's model w into a sub-model, train it, and encode its update
    [Li2023].

    A client chooses the channels that serve its own samples best. The decoder solves the problem of Eq. 7 over the
    gates of the channels, a = HN(phi), and keeps those with the largest gates in each layer. The encoder is -a (.) v,
    the first term of Eq. 8 (Remark 3), which the server subtracts. With `mask: relaxed`, channels are multiplied by a
    instead of selected, and the encoder may be the whole of Eq. 8. phi starts from its initial value every time a
    client solves its mask problem; the client stores its gates, but not phi.
    """

    class Hyper(PartialTrainingHyper):
        mask: Literal["kernels", "relaxed"] = Field(
            "kernels",
            description="kernels: keep the best channels and drop the others; relaxed: scale every channel and drop "
            "none",
        )
        mask_from: Literal["hypernetwork", "direct"] = Field(
            "hypernetwork",
            description="source of a: a network that reads the layers in sequence, or one logit per channel",
        )
        mask_steps: int = Field(20, ge=1, description="number of AdamW steps on the mask problem")
        mask_lr: float = Field(0.01, gt=0, description="learning rate of the mask problem")
        mask_batch_size: int | None = Field(50, ge=1, description="samples per step of the mask problem; null: all")
        resource_weight: float = Field(10.0, ge=0, description="beta, weight of the resource loss")
        refresh_every: int = Field(
            2, ge=1, description="a client solves its mask problem again every so many rounds in which it takes part"
        )
        budget: Literal["width", "macs"] = Field(
            "width",
            description="quantity that a capacity is a share of; width: the channels of each layer; macs: the "
            "multiply-adds, where clients keep the square root of their capacity as their share of channels",
        )
        encoder: Literal["first_term", "full"] = Field(
            "first_term",
            description="part of Eq. 8 that is sent; first_term: -a (.) v (Remark 3); full, with `mask: relaxed`: "
            "all of it",
        )
        encode_steps: int = Field(20, ge=1, description="number of conjugate gradient steps of the full encoder")
        damping: float = Field(
            1e-3, ge=0, description="added to the curvature of the mask problem, for the full encoder"
        )

    def incompatibility(self) -> str | None:
        if self.hyper.encoder == "full" and self.hyper.mask == "kernels":
            return "algorithm.encoder: full needs the gradient of masks, and kernels have none; set mask to relaxed"
        return super().incompatibility()

    def init_server(self) -> Tree:
        # age: rounds of each client since it last solved its mask problem; empty until the population is known.
        return {"w": self.task.init(), "age": torch.zeros(0, dtype=torch.int64)}

    def init_client(self) -> Tree:
        return {"on": {space: torch.ones(size) for space, size in self.layout.thinned.items()}}

    # ---- server -----------------------------------------------------------------------------------------------------

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        w, age = server["w"], server["age"].clone()
        if not len(age):
            age = torch.full((cohort.population,), self.hyper.refresh_every)
        requests = [
            (replace(group, clients=group.clients[here]), solves)
            for group in self.groups(cohort)
            for solves in (True, False)
            if (here := (age[torch.from_numpy(group.clients)] >= self.hyper.refresh_every).numpy() == solves).any()
        ]
        results = yield [self.ask(w, group, solves) for group, solves in requests]
        for (group, solves), result in zip(requests, results, strict=True):
            clients = torch.from_numpy(group.clients[result.contributed])
            age[clients] = 1 if solves else age[clients] + 1
        return {"w": self.average(w, [group for group, _ in requests], results), "age": age}

    def channels(self, capacity: float, cohort: Cohort, client: int) -> Channels:
        """Number of channels of a client of this capacity, as a range; the client itself decides which it keeps."""
        if self.hyper.mask == "relaxed":
            return {}
        share, sizes = self.width(capacity), self.layout.thinned
        return {space: torch.arange(max(1, round(share * size))) for space, size in sizes.items()}

    def width(self, capacity: float) -> float:
        return sqrt(capacity) if self.hyper.budget == "macs" else capacity

    def ask(self, w: Params, group: CapacityGroup, solves: bool) -> Exchange:
        """Exchange with clients that solve their mask problem, which takes the whole model, or keep their masks."""
        numbers = self.layout.numbers({space: len(first) for space, first in group.channels.items()})
        again = np.full(len(group.clients), 0 if solves else 1)
        # A client that keeps its channels needs only these, and the server knows them.
        padding = again * sum(len(first) for first in group.channels.values())
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
            padding_up=padding,
        )

    # ---- clients ----------------------------------------------------------------------------------------------------

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        up, state, metrics = self.learn(hp, down, self.decode(hp, down, data), data)
        solving = 3e-9 * self.layout.macs({}) * data.streams["mask"][1].sum()
        return up, state, {**metrics, "spent_gmacs": metrics["spent_gmacs"] + solving}

    def train_again(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Trains with the client's previous mask."""
        return self.learn(hp, down, state["on"], data)

    def decode(self, hp: Any, down: Tree, data: ClientData) -> Shares:
        """Gates a of the channels."""
        problem = self.problem(hp, down, data)

        def loss(phi: Params, batch: Batch) -> Tensor:
            return problem(down["w"], self.shares(hp, phi, down), batch)

        return self.shares(hp, descend(loss, down["phi"], data.batches("mask"), hp.mask_lr), down)

    def learn(self, hp: Any, down: Tree, a: Shares, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Trains the sub-model and encodes its update."""
        w, state = down["w"], {"on": a}
        if hp.mask == "kernels":
            channels = most(a, down["first"])
            up, _, metrics = super().train(hp, {**down, "w": self.layout.part(w, channels)}, {}, data)
            return {**up, "channels": tree_map(lambda kept: kept.int(), channels)}, state, metrics
        # No layer is narrower, so scalers have nothing to compensate.
        dimmed = {**down, "w": masked(self.layout, w, a), "width": torch.ones_like(down["width"])}
        up, _, metrics = super().train(hp, dimmed, {}, data)
        if hp.encoder == "first_term":
            return {**up, "moved": masked(self.layout, up["moved"], a)}, state, metrics
        problem, batch = self.problem(hp, down, data), next(data.batches("mask"))
        encoding = encode(
            lambda w, a: problem(w, a, batch), self.layout, w, a, up["moved"], hp.encode_steps, hp.damping
        )
        update = scale(encoding, -1.0)
        if "classes" in up:
            update = tree_map(torch.mul, update, self.layout.mask({OUTPUTS: up["classes"]}))
        return {**up, "moved": update}, state, metrics

    def problem(self, hp: Any, down: Tree, data: ClientData) -> MaskProblem:
        here = classes_of(data, self.layout.sizes[OUTPUTS]) if hp.masked_loss else None
        return MaskProblem(self.task, self.layout, down["capacity"], hp.resource_weight, here)

    @cached_property
    def start(self) -> Tree:
        """Initial phi of AdamW, and the inputs of the network; every client can compute both."""
        sizes = self.layout.thinned
        if self.hyper.mask_from == "direct":
            return {"phi": {space: torch.zeros(size) for space, size in sizes.items()}}
        return {"phi": hypernetwork.initial(sizes), "inputs": hypernetwork.inputs(len(sizes))}

    def shares(self, hp: Any, phi: Params, down: Tree) -> Shares:
        """a = HN(phi)."""
        if hp.mask_from == "direct":
            return tree_map(hypernetwork.switched, phi)
        return hypernetwork.shares(phi, down["inputs"], list(self.layout.thinned))
