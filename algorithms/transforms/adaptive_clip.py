"""Clipping at a quantile of the norms (Andrew et al., "Differentially Private Learning with Adaptive Clipping")."""

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, scale
from hedgerow.algorithms.transforms.clip import joint_norm
from hedgerow.algorithms.transforms.transform import Transform


class AdaptiveClip(Transform):
    """Scales an update down to norm S if it is longer, over all of its parts together. S follows a quantile of the
    clients' norms: each client also sends the bit b = [||u|| <= S], and the server sets S <- S exp(-lr (mean b - q)).
    """

    joint = is_clip = True
    receives = ("norm",)
    reports = ("bit",)

    quantile: float = Field(0.5, ge=0, le=1, description="q, share of the updates that are not clipped in the long run")
    lr: float = Field(0.2, gt=0, description="learning rate of log S")
    init: float = Field(0.1, gt=0, description="S of the first round")
    bit_noise: float = Field(
        0.0,
        ge=0,
        description="standard deviation of the noise on the sum of the clients' bits; accounting ignores it",
    )

    def bound(self, state: Tree) -> float:
        return float(state["norm"])

    def init_server(self, like: Tree) -> Tree:
        return {"norm": torch.tensor(self.init)}

    def client(self, hp: Any, update: Tree, state: Tree, key: Tensor | None) -> tuple[Tree, Tree]:
        norm = joint_norm(update)
        bit = (norm <= state["norm"]).float()
        return scale(update, (state["norm"] / norm).clamp(max=1.0)), {**state, "bit": bit}

    def server(
        self, update: Tree, state: Tree, like: Tree, key: int, clients: int, bound: float | None = None
    ) -> tuple[Tree, Tree]:
        if "bit" not in state:
            # No client has answered.
            return update, state
        share = float(state["bit"])
        if self.bit_noise:
            noise = torch.randn(1, generator=torch.Generator().manual_seed(key), dtype=torch.float64)
            share += float(noise) * self.bit_noise / clients
        norm = float(state["norm"]) * math.exp(-self.lr * (share - self.quantile))
        return update, {"norm": torch.tensor(norm)}
