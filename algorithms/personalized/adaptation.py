"""Algorithms that are trained and scored through an adaptation: f(U(w)) instead of f(w)."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ONCE, Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.hyperparameters import HyperParameters, Rule
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add
from hedgerow.algorithms.core.task import Params, Task, trainable
from hedgerow.algorithms.nn.features import embedded, head
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.optim.local_sgd import Loss


class Adapting(Algorithm):
    """Base class of algorithms whose hyperparameters are an `Adaptation`."""

    def objective(self, hp: Any) -> Loss:
        """Training loss on a mini-batch, (w, batch) -> 0-d."""
        return lambda w, batch: meta_loss(self.task, w, batch, hp)

    def incompatibility(self) -> str | None:
        hyper = self.hyper
        if hyper.adapt == "proto" and self.task.targets != "classes":
            return "algorithm.adapt: proto predicts classes, and this task has other targets; set it to maml or none"
        if self.task.is_static:
            return (
                f"task.model: {hyper.name} cannot adapt a model that normalises by statistics of all clients' samples; "
                "choose another model, such as resnet18_gn"
            )
        if hyper.adapt == "proto" and hyper.proto_layer == "features" and head(self.task.module) is None:
            return (
                "algorithm.proto_layer: features needs a model that is a torch.nn.Sequential and ends in a linear "
                "layer; set it to output"
            )
        if hyper.adapt == "proto" and hyper.proto_layer == "features":
            last = f"{len(self.task.module) - 1}."  # type: ignore[arg-type]
            if all(name.startswith(last) for name in trainable(self.task.module)):
                return (
                    "algorithm.proto_layer: features does not train the last layer, and all other parameters of this "
                    "model are frozen (requires_grad=False); set it to output"
                )
        return None

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        """Scores U(w) on the cohort's held-out samples; returns an empty Aggregate for the shared test set."""
        batches = {
            "support": BatchSpec(shuffle=False),
            "test": replace(ONCE, split="held_out"),
        }
        down = {"w": self.evaluate_params(server)}
        nothing = Exchange(self.evaluate_client, {}, np.zeros(0, int))
        return (yield [nothing, Exchange(self.evaluate_client, down, cohort.clients, batches=batches)])

    def evaluate_client(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Evaluation step of a client: adapts to all of its training samples and scores its test samples."""
        predictor, u = adapted(self.task, down["w"], next(data.batches("support"), None), hp)
        return {}, state, self.task.tally(lambda batch: predictor.score(u, batch), data)


class Adaptation(HyperParameters):
    """Adaptation U, which derives a task's own model from the meta-model and some of the task's samples."""

    adapt: Literal["maml", "proto", "none"] = Field(
        "maml",
        description="maml: gradient steps on the task's loss, differentiated through; proto: predict the class "
        "with the nearest mean output; none: no adaptation",
    )
    adapt_steps: int = Field(1, ge=1, description="number of MAML gradient steps")
    adapt_lr: float = Field(0.1, gt=0, description="MAML's learning rate, eta")
    proto_layer: Literal["output", "features"] = Field(
        "output",
        description="vectors that are averaged into prototypes: the model's output, or the features, the input "
        "of its last, linear layer (which is then not trained)",
    )

    @property
    def learns_adapted(self) -> bool:
        """Whether the training loss is the loss after adaptation."""
        return self.adapt != "none"

    rules = (
        Rule(
            lambda hyper: getattr(hyper, "solver", "sgd") == "newton" and hyper.learns_adapted,
            "`solver: newton` works only for convex losses, without adaptation; set `adapt: none`",
        ),
    )


FAR = 50.0
"""Margin by which a class without support is farther than the farthest centre. e^-50 is negligible next to 1, in double
precision too, so losses depend only on the classes with support.
"""


@dataclass(frozen=True)
class PrototypeTask(Task):
    """Predicts the class whose centre is nearest to the model's output for a sample (Snell et al., 2017).

    centres (classes, outputs). seen (classes,): False for a class without support, which is never predicted because it
    is placed far beyond the farthest centre. layer: layer of the centres, see `Adaptation.proto_layer`.
    """

    centres: Tensor | None = None
    seen: Tensor | None = None
    layer: str = "output"

    def logits(self, w: Params, x: Tensor) -> Tensor:
        """Negative squared distances to the centres."""
        assert self.centres is not None
        assert self.seen is not None
        outputs = embedded(self.module, w, x, self.layer)
        # The square is expanded to avoid a tensor of samples x classes x outputs.
        products = outputs @ self.centres.T
        near = 2 * products - self.centres.square().sum(-1) - outputs.square().sum(-1, keepdim=True)
        # Centres of classes without support are 0.
        farthest = near.min(-1, keepdim=True).values.detach()
        return torch.where(self.seen, near, farthest - FAR)

    def loss(self, w: Params, batch: Batch) -> Tensor:
        """Loss over the samples whose class has support; there is nothing to learn from the others."""
        assert self.seen is not None
        known = self.seen[batch.y].to(batch.x.dtype)
        mask = known if batch.mask is None else known * batch.mask
        return super().loss(w, Batch(batch.x, batch.y, mask, batch.active))


def adapted(task: Task, w: Params, support: Batch | None, hp: Any) -> tuple[Task, Params]:
    """Applies U(w); returns the task that predicts, and its parameters.

    support: labelled samples of the task; None: no adaptation. hp: Adaptation.
    """
    if support is None or hp.adapt == "none":
        return task, w
    if hp.adapt == "maml":
        return task, maml(task, w, support, hp.adapt_lr, hp.adapt_steps)
    outputs = embedded(task.module, w, support.x, hp.proto_layer)
    last = head(task.module) if hp.proto_layer == "features" else None
    classes = last.out_features if last else outputs.shape[-1]
    members = (support.y[:, None] == torch.arange(classes, device=outputs.device)).to(outputs.dtype)
    if support.mask is not None:
        members = members * support.mask[:, None]
    counts = members.sum(0)
    centres = (members.T @ outputs) / counts.clamp(min=1.0)[:, None]
    centred: Any = {"centres": centres, "seen": counts > 0, "layer": hp.proto_layer}
    nearest = PrototypeTask(task.module, task.mean, task.std, scored=task.scored, scoring=task.scoring, **centred)
    return nearest, w


def maml(task: Task, w: Params, support: Batch, lr: Any, steps: int) -> Params:
    """Takes gradient steps from w on the support loss; the result is twice differentiable with respect to w."""
    gradient = gradient_and_value(task.loss, differentiable=True)
    for _ in range(steps):
        w = add(w, gradient(w, support)[0], -lr)
    return w


def meta_loss(task: Task, w: Params, batch: Batch, hp: Any) -> Tensor:
    """F(w) on a mini-batch of one task: the loss of U(w). Half of the batch adapts, the other half is scored."""
    if hp.adapt == "none":
        return task.loss(w, batch)
    support, query = halves(batch)
    predictor, u = adapted(task, w, support, hp)
    return predictor.loss(u, query)


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Splits a batch alternately into two; real samples come first, so each half gets its share of them."""
    mask = batch.mask
    if mask is None and len(batch.y) < 2:
        # The second half is empty; the mask makes its mean loss 0, as in the batched form.
        mask = torch.ones(batch.y.shape, device=batch.x.device)
    first, second = (
        Batch(batch.x[half], batch.y[half], None if mask is None else mask[half], batch.active)
        for half in (slice(0, None, 2), slice(1, None, 2))
    )
    return first, second
