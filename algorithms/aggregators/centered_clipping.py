"""Centered clipping."""

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.aggregators.stacks import distances_to, squared_distances, weighted_sum
from hedgerow.algorithms.core.pytree import Tree


class CenteredClipping(Aggregator):
    """Repeats v <- v + sum_k a_k (u_k - v) min(1, tau / ||u_k - v||), with weights a_k of sum 1, norms over all parts.

    Karimireddy et al., 2021, start from the aggregate of the previous round. Here v starts from 0, which is the
    broadcast model, because rules keep no state between rounds.
    """

    tau: float = Field(1.0, gt=0, description="largest distance from the centre at which an update counts in full")
    iterations: int = Field(5, ge=1, description="number of steps, L in the paper")

    def combine(self, updates: Tree, weights: Tensor) -> Tree:
        weights = weights / weights.sum()
        squares = squared_distances(updates, origin=True)
        # v is a combination of the updates and of the origin, which has the last coefficient.
        coefficients = torch.zeros(len(squares), dtype=torch.float64)
        coefficients[-1] = 1
        for _ in range(self.iterations):
            distances = distances_to(coefficients, squares)[:-1]
            steps = weights * (self.tau / distances.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1)
            coefficients = (1 - steps.sum()) * coefficients
            coefficients[:-1] += steps
        return weighted_sum(updates, coefficients[:-1])
