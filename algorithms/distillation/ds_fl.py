"""DS-FL (Itahara, Nishio, Koda, Morikura, Yamamoto, "Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training with Non-IID Private Data", 2021, Algorithm 2).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.heterogeneous.model_families import ModelFamilies, ModelFamilyHyper
from hedgerow.algorithms.objectives.distillation_loss import Distiller, distil, divergence, sharpened, soft_labels
from hedgerow.algorithms.optim.local_sgd import minimize


class OpenSet(Distiller):
    """Hyperparameters of the distillation on the round's public samples."""

    batches: int = Field(10, ge=1, description="number of mini-batches of public samples that are labelled in a round")
    epochs: int = Field(1, ge=1, description="number of passes over these mini-batches")


class DSFL(ModelFamilies):
    """Clients keep their models and label public samples; all models learn from the sharpened mean of the labels
    [Itahara2021].

    Only soft labels are transmitted. The scored model is the server's, which learns from these labels only. All passes
    over the round's public samples have the same order.
    """

    needs = ModelFamilies.needs | {"public"}

    class Hyper(ModelFamilyHyper):
        sharpen: float = Field(
            0.1, gt=0, description="temperature of the softmax that sharpens the mean of the clients' probabilities"
        )
        open_set: OpenSet = OpenSet()

    @property
    def public_samples(self) -> int:
        # Makes all mini-batches full, so that all soft labels have the same shape.
        return int(self.hyper.open_set.batches * self.hyper.open_set.batch_size)

    def init_client(self) -> Tree:
        return {"w": self.task.init()}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        groups, open_set = self.groups(cohort), self.hyper.open_set
        public = {"public": BatchSpec(size=open_set.batch_size, steps=open_set.batches, split="public")}
        known = [{"channels": group.channels} for group in groups]
        results = yield [
            Exchange(
                self.label, {}, group.clients, local_inputs=own, batches={**self.hyper.batches, **public}, reduce="sum"
            )
            for group, own in zip(groups, known, strict=True)
        ]
        voters = sum(int(result.contributed.sum()) for result in results)
        mean = torch.stack([result.up["labels"] for result in results if result.contributed.any()]).sum(0) / voters
        down = {"labels": sharpened(mean, self.hyper.sharpen)}
        *_, distilled = yield [
            *(
                Exchange(self.learn, down, group.clients, local_inputs=own, batches=public)
                for group, own in zip(groups, known, strict=True)
            ),
            Exchange(self.follow, {**down, "w": server["w"]}, POOL, batches=public, site="pool"),
        ]
        return distilled.up if distilled.contributed.all() else server

    def label(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Steps Update and Predict; sends soft labels (mini-batches, samples, classes)."""
        w, loss = minimize(self.task.loss, self.layout.part(state["w"], down["channels"]), data, hp)
        labels = [soft_labels(self.task.logits(w, batch.x)) for batch in data.batches("public")]
        return {"labels": torch.stack(labels)}, self.kept(w, down), {"loss": loss}

    def learn(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Distillation step of a client."""
        w, loss = self.distilled(hp, self.layout.part(state["w"], down["channels"]), down["labels"], data)
        return {}, self.kept(w, down), {"distillation_loss": loss}

    def follow(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Distillation step of the server."""
        w, loss = self.distilled(hp, down["w"], down["labels"], data)
        return {"w": w}, state, {"server_distillation_loss": loss}

    def distilled(self, hp: Any, w: Params, labels: Tensor, data: ClientData) -> tuple[Params, Tensor]:
        def labelled() -> Iterator[Batch]:
            for _ in range(hp.open_set.epochs):
                # A step that runs only to be measured has fewer mini-batches than labels.
                for batch, target in zip(data.batches("public"), labels.unbind(0), strict=False):
                    yield replace(batch, y=target)

        students, loss = distil(
            self.task,
            {"w": w},
            data,
            hp.open_set,
            labelled(),
            lambda logits, batch: divergence(batch.y, logits, batch),
        )
        return students["w"], loss

    def kept(self, w: Params, down: Tree) -> Tree:
        """Client state: the model, placed in one of full size, because all states have the same shape."""
        return {"w": self.layout.whole(w, down["channels"])}
