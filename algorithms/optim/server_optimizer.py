"""The server's step on an averaged model: plain averaging and the FedOpt family."""

from typing import Literal

import torch
from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule, Settings
from hedgerow.algorithms.core.pytree import Tree, add, sub, tree_map, zeros_like

UNREAD = {"sgd": ("beta2", "tau"), "adagrad": ("beta2",)}
"""Optimiser -> settings that it does not read."""


class ServerOptimizer(Settings):
    """Server optimiser (Reddi et al., "Adaptive Federated Optimization", 2021, Algorithm 2).

    It treats mean(w_k) - w as the negative gradient. `sgd` with lr 1 and no momentum is plain averaging.
    """

    optimizer: Literal["sgd", "adagrad", "adam", "yogi"] = Field(
        "sgd",
        description="sgd: plain averaging, or FedAvgM with momentum; the others: FedAdagrad, FedAdam, FedYogi",
    )
    lr: float = Field(1.0, gt=0, description="server learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="server momentum; beta_1 of the adaptive methods")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment (adam, yogi)")
    tau: float = Field(1e-3, gt=0, description="adaptivity: added to the root of the second moment")

    rules = (
        Rule(
            lambda hyper: next((key for key in UNREAD.get(hyper.optimizer, ()) if hyper.has_own(key)), None),
            "`{found}` has no effect with `optimizer: {optimizer}`; remove it",
        ),
    )

    def has_own(self, key: str) -> bool:
        """Whether a key has another value than its default."""
        return bool(getattr(self, key) != type(self).model_fields[key].default)

    @property
    def is_plain(self) -> bool:
        """Whether it is plain averaging."""
        return self.optimizer == "sgd" and self.lr == 1.0 and not self.momentum

    def init(self, w: Tree) -> Tree:
        """Returns the optimiser's initial state at parameters `w`."""
        state = {"momentum": zeros_like(w)} if self.momentum else {}
        if self.optimizer != "sgd":
            state["second"] = tree_map(lambda p: torch.full_like(p, self.tau**2), w)
        return state

    def step(self, w: Tree, mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Takes one server step from `w` towards `mean`; returns the new parameters and the new state."""
        if self.is_plain:
            return mean, state
        delta = sub(mean, w)
        new: Tree = {}
        direction = delta
        if self.momentum:
            # As published: adaptive methods average (1 - beta_1), server momentum accumulates (FedAvgM).
            gain = 1.0 if self.optimizer == "sgd" else 1.0 - self.momentum
            direction = tree_map(lambda m, d: self.momentum * m + gain * d, state["momentum"], delta)
            new["momentum"] = direction
        if self.optimizer != "sgd":
            new["second"] = tree_map(self._second_moment, state["second"], delta)
            direction = tree_map(lambda d, v: d / (v.sqrt() + self.tau), direction, new["second"])
        return add(w, direction, self.lr), new

    def _second_moment(self, v: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        square = delta.square()
        if self.optimizer == "adagrad":
            return v + square
        if self.optimizer == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        return v - (1 - self.beta2) * square * torch.sign(v - square)
