"""Side losses: what makes a client's loss generalise from little data, whatever the federated method (thesis, 7.2).

    L = alpha CE(w; xa, y) + (1 - alpha) S(w),  or CE(w; xa, y) + lambda (S(w) - limit) with a multiplier per client

xa and xb are two draws of the task's augmentation of x, wbar its teacher, KL(p, q) = sum p log(p / q):

    robustness (Eq. 7.2)    tau^2 KL(w^tau(xa), w^tau(xb))
    distillation (Eq. 7.3)  tau^2 KL(wbar^tau(xa), w^tau(xa))
    both (Eq. 7.4)          their sum
    stability               tau^2 KL(w^tau(xa), w^tau(xa + noise)), which is named there without a formula; this one is
                            of Zheng et al., "Improving the Robustness of Deep Neural Networks via Stability
                            Training", 2016
    synthetic               CE of synthetic samples (7.1); experimental, see synthetic.py
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hedgerow.algorithms.base import Algorithm, Batch, Batches, ClientData
from hedgerow.algorithms.chance import normal
from hedgerow.algorithms.distillation import between
from hedgerow.algorithms.local import minimise
from hedgerow.algorithms.meta import head
from hedgerow.algorithms.settings import HyperParameters, Settings
from hedgerow.algorithms.synthetic import MOST, Gaussians, synthetic_loss
from hedgerow.algorithms.task import Params, Task
from hedgerow.algorithms.trees import Tree


class Side(Settings):
    """A side loss beside the cross-entropy."""

    alternatives = (("alpha", "limit"),)

    kind: Literal["robustness", "distillation", "both", "stability", "synthetic"] = Field(
        description="robustness: two augmentations of a sample are told alike; distillation: as `task.teacher` says; "
        "both; stability: a sample is told as it is with noise on it; synthetic (experimental): features drawn from "
        "each class's Gaussian have its label"
    )
    alpha: float | None = Field(
        0.5,
        gt=0,
        le=1,
        description="weight of the cross-entropy; the side loss has the rest; null where `limit` is given",
    )
    temperature: float = Field(3.5, gt=0, description="tau, by which logits are divided")
    detach_target: bool = Field(False, description="of robustness and stability: no gradient through the target")
    noise: float = Field(0.1, gt=0, description="of stability: its standard deviation, where a data set's is about 1")
    ratio: float = Field(1.0, gt=0, le=MOST, description="of synthetic: samples for each real one")
    limit: float | None = Field(
        None,
        ge=0,
        description="what the side loss shall not exceed, on each client's mean: it is weighted by a multiplier of the "
        "client's, which rises while it does",
    )
    dual_lr: float = Field(1.0, gt=0, description="learning rate of the multiplier, which moves once a round")

    @property
    def pairs(self) -> bool:
        """Whether it compares two augmentations."""
        return self.kind in ("robustness", "both")

    @property
    def taught(self) -> bool:
        """Whether it needs a teacher."""
        return self.kind in ("distillation", "both")


def side_loss(
    task: Task, w: Params, logits: Tensor, batch: Batch, side: Any, generator: Gaussians | None = None
) -> Tensor:
    """S on a mini-batch, whose own samples are xa and `logits` what w makes of them; 0-d.

    side: a Side. generator: of synthetic samples, where it wants them.
    """
    if generator is not None:
        return synthetic_loss(task, w, batch, generator, side.ratio)
    loss = torch.zeros((), device=logits.device)
    if side.kind in ("distillation", "both"):
        with torch.no_grad():
            taught = task.taught(batch.x)
        loss = loss + between(taught, logits, batch, side.temperature)
    if side.kind != "distillation":
        target = logits.detach() if side.detach_target else logits
        loss = loss + between(target, task.logits(w, _other(batch, side)), batch, side.temperature)
    return loss


def _other(batch: Batch, side: Any) -> Tensor:
    """The samples as they are told again."""
    if side.kind == "stability":
        assert batch.keys is not None
        assert batch.rows is not None
        return batch.x + side.noise * normal(batch.keys[1], batch.rows, batch.x.shape)
    assert batch.view is not None
    return batch.view(1)


class WithSide(HyperParameters):
    """Hyperparameters of who may have a side loss. Before those of the local solver among a class's bases."""

    side: Side | None = Field(None, description="a loss beside the cross-entropy; null: none")

    @property
    def batches(self) -> dict[str, Batches]:
        plain: dict[str, Batches] = super().batches  # type: ignore[misc]
        if self.side is None:
            return plain
        twice = {name: replace(spec, views=2) for name, spec in plain.items()}
        once = replace(twice["train"], epochs=1, steps=None)
        # What the multiplier is moved by, and what synthetic samples are made of.
        more = {"side": self.side.limit is not None, "real": self.side.kind == "synthetic"}
        return twice | {name: once for name, wanted in more.items() if wanted}

    @model_validator(mode="after")
    def _sgd_alone(self) -> Self:
        if self.side and getattr(self, "solver", "sgd") == "newton":
            raise ValueError("`side` draws anew in every step, and `solver: newton` has none; set it to sgd")
        return self


class Sided(Algorithm):
    """Whose clients minimise L_k in its own way, with a side loss or without. Its hyperparameters are WithSide."""

    takes_side: ClassVar[bool] = True

    def objection(self) -> str | None:
        side = self.hyper.side
        if side and side.pairs and self.task.augment is None:
            return f"algorithm.side: {side.kind} compares two augmentations of a sample; give `task.augment`"
        if side and side.taught and (self.task.teacher is None or self.task.schooling is not None):
            return f"algorithm.side: {side.kind} needs a teacher; give `task.teacher`, a run"
        if side and side.kind == "synthetic" and head(self.task.module) is None:
            return (
                "algorithm.side: synthetic needs a model that is a torch.nn.Sequential and ends in a linear layer; "
                "choose one such as mlp, cnn or preact_resnet"
            )
        return super().objection()

    def init_client(self) -> Tree:
        """Its multiplier, where the side loss is limited."""
        constrained = self.hyper.side and self.hyper.side.limit is not None
        return {"multiplier": torch.zeros(())} if constrained else {}

    def objective(self, hp: Any) -> Callable[[Params, Batch], Tensor]:
        return super().objective(hp) if hp.side is None else self._weighed(hp.side, hp.side.alpha, 1 - hp.side.alpha)

    def learn(
        self, hp: Any, w: Params, state: Tree, data: ClientData, **terms: Any
    ) -> tuple[Params, Tensor, Tree, dict[str, Tensor]]:
        """`minimise` from w: what was learnt, the mean loss, the client's multiplier, and what to say of it.

        terms: those of `minimise` that the method adds to the objective.
        """
        side = hp.side
        generator = Gaussians.fit(self.task, w, data.batches("real")) if side and side.kind == "synthetic" else None
        if side is None or side.limit is None:
            objective = self.objective(hp)
            if generator is not None:
                objective = self._weighed(side, side.alpha, 1 - side.alpha, generator)
            return (*minimise(objective, w, data, hp, **terms), {}, {})
        multiplier = state["multiplier"]
        w, loss = minimise(self._weighed(side, 1.0, multiplier, generator), w, data, hp, **terms)
        excess = self._side(w, data, side, generator) - side.limit
        multiplier = (multiplier + side.dual_lr * excess).clamp(min=0.0)
        told = {"multiplier": multiplier, "side_loss": excess + side.limit}
        return w, loss, {"multiplier": multiplier}, told

    def _weighed(
        self, side: Any, plain: Any, other: Any, generator: Gaussians | None = None
    ) -> Callable[[Params, Batch], Tensor]:
        def loss(w: Params, batch: Batch) -> Tensor:
            logits = self.task.logits(w, batch.x)
            beside = side_loss(self.task, w, logits, batch, side, generator)
            return plain * self.task.criterion(logits, batch) + other * beside

        return loss

    def _side(self, w: Params, data: ClientData, side: Any, generator: Gaussians | None) -> Tensor:
        """S over all samples of the client; 0-d."""
        total, samples = torch.zeros((), device=data.x.device), torch.zeros((), device=data.x.device)
        for batch in data.batches("side"):
            n = len(batch.y) if batch.mask is None else batch.mask.sum()
            total = total + n * side_loss(self.task, w, self.task.logits(w, batch.x), batch, side, generator)
            samples = samples + n
        return total / samples
