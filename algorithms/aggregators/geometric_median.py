"""The geometric median, by the smoothed Weiszfeld algorithm."""

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.aggregators.stacks import distances_to, squared_distances, weighted_sum
from hedgerow.algorithms.core.pytree import Tree

TOLERANCE = 1e-10
"""Largest change of a coefficient at which the iterations end."""


class GeometricMedian(Aggregator):
    """The point v that minimises sum_k a_k ||u_k - v|| over all parts, with weights a_k (RFA; Pillutla et al., 2022).

    v is a weighted mean of the updates. Only its coefficients are iterated, from the distances between the updates.
    """

    nu: float = Field(1e-6, gt=0, description="smoothing: distances below it count as this number")
    iterations: int = Field(1000, ge=1, description="maximum number of iterations")

    def combine(self, updates: Tree, weights: Tensor) -> Tree:
        weights = weights / weights.sum()
        squares, coefficients = squared_distances(updates), weights
        for _ in range(self.iterations):
            factors = weights / distances_to(coefficients, squares).clamp(min=self.nu)
            before, coefficients = coefficients, factors / factors.sum()
            if torch.dist(coefficients, before, p=torch.inf) < TOLERANCE:
                break
        return weighted_sum(updates, coefficients)
