"""Side losses: what makes a client's loss generalise from little data, whatever the federated method (thesis, 7.2).

    L = alpha CE(w; xa, y) + (1 - alpha) S(w),  or CE(w; xa, y) + lambda (S(w) - limit) with a multiplier per client

xa and xb are two draws of the task's augmentation of x, wbar its teacher, KL(p, q) = sum p log(p / q):

    robustness (Eq. 7.2)    tau^2 KL(w^tau(xa), w^tau(xb))
    distillation (Eq. 7.3)  tau^2 KL(wbar^tau(xa), w^tau(xa))
    both (Eq. 7.4)          their sum
    stability               tau^2 KL(w^tau(xa), w^tau(xa + noise)), which is named there without a formula; this one is
                            of Zheng et al., "Improving the Robustness of Deep Neural Networks via Stability
                            Training", 2016
    disk                    L_dist of DiSK, with excuses of the client's own guide; see side_guide.py
    simkd                   ||Psi(f) - f_t||^2 of SimKD: the model has a projector, which travels with it, and ends in
                            the teacher's last layer; its own is not used
    simkd_disk              mean (1 - g) ||Psi(f) - f_t||^2, the two together; its guide learns as that of `disk`, from
                            the logits under the teacher's last layer, with a multiplier that stays the same
    synthetic               CE of synthetic samples (7.1); experimental, see synthetic.py

DiSK and SimKD are named there as next steps, in place of plain distillation, without formulas.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import SCORED, Batch, Batches, ClientData
from hedgerow.algorithms.core.hyperparameters import HyperParameters, Settings
from hedgerow.algorithms.core.keyed_random import normal
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, Task, mean_over
from hedgerow.algorithms.nn.feature_maps import Reusing, apart, no_maps, own, under_its_teacher
from hedgerow.algorithms.nn.features import Inside, asked, head, inside
from hedgerow.algorithms.objectives.client_guide import ClientGuide, Far
from hedgerow.algorithms.objectives.distillation_loss import between
from hedgerow.algorithms.objectives.guide import Guidance
from hedgerow.algorithms.objectives.synthetic_samples import MOST, Gaussians, nearness, synthetic_loss
from hedgerow.algorithms.optim.local_sgd import minimise

Kind = Literal["robustness", "distillation", "both", "stability", "disk", "simkd", "simkd_disk", "synthetic"]

STRICT = 50.0
"""lambda_min of a guide beside SimKD, as high as lambda_max: a client has few lessons, and while all is excused its
model does not move."""

Beside = Callable[[Params, Batch], tuple[Tensor, Tensor]]
"""(w, mini-batch) -> the logits of its samples xa, and S; 0-d."""


class Side(Settings):
    """A side loss beside the cross-entropy."""

    alternatives = (("alpha", "limit"),)

    kind: Kind = Field(
        description="robustness: two augmentations of a sample are told alike; distillation: as `task.teacher` says; "
        "both; stability: a sample is told as it is with noise on it; disk: distillation, from which a guide of each "
        "client excuses; simkd: the teacher's last feature map, under its last layer (alpha: 0 is the published one); "
        "simkd_disk: the same with excuses of such a guide, whose `lambda_min` is 50, as `lambda_max`, unless given; "
        "synthetic (experimental): features drawn from each class's Gaussian have its label"
    )
    alpha: float | None = Field(
        0.5,
        ge=0,
        le=1,
        description="weight of the cross-entropy; the side loss has the rest; null where `limit` is given",
    )
    temperature: float = Field(3.5, gt=0, description="tau, by which logits are divided")
    detach_target: bool = Field(False, description="of robustness and stability: no gradient through the target")
    noise: float = Field(0.1, gt=0, description="of stability: its standard deviation, where a data set's is about 1")
    ratio: float = Field(1.0, gt=0, le=MOST, description="of synthetic: samples for each real one")
    duplicate: float = Field(
        0.5,
        gt=0,
        description="of synthetic: what lies nearer to a sample than so much of the samples' usual distance is counted "
        "as a duplicate",
    )
    limit: float | None = Field(
        None,
        ge=0,
        description="what the side loss shall not exceed, on each client's mean: it is weighted by a multiplier of the "
        "client's, which rises while it does",
    )
    dual_lr: float = Field(1.0, gt=0, description="learning rate of the multiplier, which moves once a round")
    guide: Guidance | None = Field(None, description="of disk and simkd_disk: each client's guide")

    @model_validator(mode="before")
    @classmethod
    def _with_a_guide(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("kind") not in ("disk", "simkd_disk"):
            return values
        given = values.get("guide") or {}
        own = {"lambda_min": STRICT} if values["kind"] == "simkd_disk" else {}
        return {**values, "guide": {**own, **given}} if isinstance(given, dict) else values

    @model_validator(mode="after")
    def _whose_guide(self) -> Self:
        if self.guide and not self.guided:
            raise ValueError("`guide` is what `kind: disk` has, and simkd_disk; remove it")
        if self.guide and self.limit is not None:
            raise ValueError(f"`limit`: {self.kind} has a budget of its own, `guide.delta`; give `alpha`")
        return self

    @property
    def pairs(self) -> bool:
        """Whether it compares two augmentations."""
        return self.kind in ("robustness", "both")

    @property
    def guided(self) -> bool:
        """Whether each client has a guide."""
        return self.kind in ("disk", "simkd_disk")

    @property
    def reuses(self) -> bool:
        """Whether the model ends in its teacher's last layer."""
        return self.kind in ("simkd", "simkd_disk")

    @property
    def taught(self) -> bool:
        """Whether it needs a teacher."""
        return self.kind in ("distillation", "both") or self.guided or self.reuses


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
        found = twice | {name: once for name, wanted in more.items() if wanted}
        if self.side.guide:
            found["guide"] = twice["train"]
            if self.side.guide.student_tau == "fit":
                found["fit"] = Batches(SCORED, shuffle=False)
        return found

    def at(self, round: int) -> Self:
        now = super().at(round)
        if self.side is None or self.side.guide is None or self.side.guide.guide_lr is None:
            return now
        rate = self.side.guide.guide_lr * now.lr / self.lr  # type: ignore[attr-defined]
        return now.with_floats({"side.guide.guide_lr": rate})

    @model_validator(mode="after")
    def _sgd_alone(self) -> Self:
        if self.side and getattr(self, "solver", "sgd") == "newton":
            raise ValueError("`side` draws anew in every step, and `solver: newton` has none; set it to sgd")
        return self


class Sided(Algorithm):
    """Whose clients minimise L_k in its own way, with a side loss or without. Its hyperparameters are WithSide."""

    takes_side: ClassVar[bool] = True

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        side = hyper.side
        if side is None or Sided.incompatibility(self) is not None:
            return
        if side.guided:
            self.client_guide = ClientGuide(task, side)
        if side.reuses:
            self.task = under_its_teacher(task)

    def incompatibility(self) -> str | None:
        side = self.hyper.side
        if side and side.pairs and self.task.augment is None:
            return f"algorithm.side: {side.kind} compares two augmentations of a sample; give `task.augment`"
        if side and side.taught:
            if self.task.teacher is None or self.task.schooling is not None:
                return f"algorithm.side: {side.kind} needs a teacher; give `task.teacher`, a run"
            if self.task.master.is_static:
                return (
                    f"task.teacher: it normalises by statistics of samples, of which clients' mini-batches are too few "
                    f"for {side.kind}; teach with a model that has GroupNorm, such as preact_resnet"
                )
        if side and side.reuses and not isinstance(self.task.module, Reusing):
            found = no_maps(side.kind, self.task, self.task.master)
            if found:
                return found
        if side and side.kind == "synthetic" and head(self.task.module) is None:
            return (
                "algorithm.side: synthetic needs a model that is a torch.nn.Sequential and ends in a linear layer; "
                "choose one such as mlp, cnn or preact_resnet"
            )
        return super().incompatibility()

    def init_client(self) -> Tree:
        """Its multiplier, where the side loss is limited, or its guide."""
        side = self.hyper.side
        if side and side.guided:
            return self.client_guide.init()
        return {"multiplier": torch.zeros(())} if side and side.limit is not None else {}

    def scored(self, server: Tree) -> Tree:
        return {"w": server["w"]} if self._is_reusing else super().scored(server)

    def evaluate_params(self, server: Tree) -> Tree:
        """The model, without SimKD's projector."""
        return own(server["w"]) if self._is_reusing else super().evaluate_params(server)

    @property
    def _is_reusing(self) -> bool:
        return bool(self.hyper.side and self.hyper.side.reuses)

    def objective(self, hp: Any) -> Callable[[Params, Batch], Tensor]:
        if hp.side is None:
            return super().objective(hp)
        return self._weighed(self._beside(hp.side), hp.side.alpha, 1 - hp.side.alpha)

    def learn(
        self, hp: Any, w: Params, state: Tree, data: ClientData, **terms: Any
    ) -> tuple[Params, Tensor, Tree, dict[str, Tensor]]:
        """`minimise` from w: what was learnt, the mean loss, the client's multiplier or guide, and what to say of it.

        terms: those of `minimise` that the method adds to the objective.
        """
        side = hp.side
        if side is None:
            return (*minimise(self.objective(hp), w, data, hp, **terms), {}, {})
        kept: Tree = {}
        told: dict[str, Tensor] = {}
        generator = far = None
        if side.kind == "synthetic":
            generator = Gaussians.fit(self.task, w, data.batches("real"))
            # Of all samples in one place there would be too many pairs.
            if not self.is_centralized:
                told = nearness(self.task, w, data.batches("real"), generator, side.duplicate)
        if self.hyper.side.guided:
            far, kept, told = self.client_guide.lesson(self.task, hp, w, state, data)
        beside = self._beside(side, generator, far)
        if side.limit is None:
            objective = self._weighed(beside, side.alpha, 1 - side.alpha)
            return (*minimise(objective, w, data, hp, **terms), kept, told)
        multiplier = state["multiplier"]
        w, loss = minimise(self._weighed(beside, 1.0, multiplier), w, data, hp, **terms)
        excess = self._side(w, data, beside) - side.limit
        multiplier = (multiplier + side.dual_lr * excess).clamp(min=0.0)
        told |= {"multiplier": multiplier, "side_loss": excess + side.limit}
        return w, loss, {"multiplier": multiplier}, told

    def _beside(self, side: Any, generator: Gaussians | None = None, far: Far | None = None) -> Beside:
        """generator: of synthetic samples. far: from the teacher, with excuses."""

        def unexcused(seen: Inside, batch: Batch) -> Tensor:
            return mean_over(apart(seen, asked(self.task, batch.x)), batch)

        def both(w: Params, batch: Batch) -> tuple[Tensor, Tensor]:
            if far is not None or self._is_reusing:
                seen = inside(self.task, w, batch.x)
                return seen.logits, (far or unexcused)(seen, batch)
            logits = self.task.logits(w, batch.x)
            return logits, side_loss(self.task, w, logits, batch, side, generator)

        return both

    def _weighed(self, beside: Beside, plain: Any, other: Any) -> Callable[[Params, Batch], Tensor]:
        def loss(w: Params, batch: Batch) -> Tensor:
            logits, side = beside(w, batch)
            return plain * self.task.criterion(logits, batch) + other * side

        return loss

    def _side(self, w: Params, data: ClientData, beside: Beside) -> Tensor:
        """S over all samples of the client; 0-d."""
        total, samples = torch.zeros((), device=data.x.device), torch.zeros((), device=data.x.device)
        for batch in data.batches("side"):
            n = len(batch.y) if batch.mask is None else batch.mask.sum()
            total = total + n * beside(w, batch)[1]
            samples = samples + n
        return total / samples
