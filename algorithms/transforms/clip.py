"""Clipping of updates."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, leaves, scale
from hedgerow.algorithms.transforms.transform import Transform


def joint_norm(tree: Tree) -> Tensor:
    """Euclidean norm of all leaves together; 0-d."""
    return torch.stack([leaf.norm() for leaf in leaves(tree)]).norm()


class Clip(Transform):
    """Scales an update down to norm S if it is longer: u min(1, S / ||u||), over all of its parts together."""

    joint = is_clip = True

    norm: float = Field(gt=0, description="S, maximum norm of an update")

    def bound(self, state: Tree) -> float:
        return self.norm

    def client(self, hp: Any, update: Tree, state: Tree, key: Tensor | None) -> tuple[Tree, Tree]:
        # If the update is 0, the quotient is infinite and the factor is 1.
        return scale(update, (hp.norm / joint_norm(update)).clamp(max=1.0)), state
