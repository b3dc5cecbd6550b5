"""Sparse vectors: the largest or randomly chosen entries of a vector, with their indices."""

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree


def top_k(u: Tensor, k: int) -> Tree:
    """Returns the k entries of u (d,) with the largest magnitudes: {"values": (k,), "indices": (k,) int32}.

    The omitted entries have at most a share 1 - k/d of the squared norm.
    """
    indices = u.abs().topk(k).indices
    return {"values": u.gather(0, indices), "indices": indices.int()}


def random_k(d: int, k: int, seed: int) -> Tensor:
    """Draws k of d coordinates without replacement, ascending: (k,). The entries of u at these coordinates, scaled by
    d/k, are an unbiased estimate of u ("random-k").
    """
    return torch.from_numpy(np.sort(np.random.default_rng([seed, 97]).choice(d, k, replace=False)))


def dense(message: Tree, d: int) -> Tensor:
    """Returns the vector (d,) of {"values": (k,), "indices": (k,)}: 0 elsewhere; values at equal indices are added."""
    return message["values"].new_zeros(d).index_add(0, message["indices"].long(), message["values"])
