"""Large sums of client actors on several nodes, added where they are by tasks of Ray."""

from typing import Any

import numpy as np
import ray

# Only NumPy: the processes of these tasks need no torch.


@ray.remote(num_cpus=0)
def add(one: Any, other: Any) -> Any:
    """Sum of two trees of arrays."""
    return _mapped(np.add, one, other)


@ray.remote(num_cpus=0)
def scale(total: Any, factor: float) -> Any:
    """A tree of float64 arrays times a number, as float32."""
    return _mapped(lambda leaf: np.asarray(leaf * factor, dtype=np.float32), total)


def _mapped(function: Any, tree: Any, *others: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(function, child, *(other[key] for other in others)) for key, child in tree.items()}
    return function(tree, *others)
