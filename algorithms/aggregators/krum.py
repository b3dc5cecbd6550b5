"""Krum and Multi-Krum: the updates that are closest to their neighbours."""

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.aggregators.stacks import squared_distances, weighted_sum
from hedgerow.algorithms.core.pytree import Tree


def scores(updates: Tree, f: int) -> Tensor:
    """Sum of each update's squared distances to its n - f - 2 nearest neighbours, over all parts; (clients,)."""
    distances = squared_distances(updates)
    n = len(distances)
    # An update's distance to itself, 0, is the smallest of its row and adds nothing.
    return distances.sort(1).values[:, : n - f - 1].sum(1)


class Krum(Aggregator):
    """The one update with the smallest score (Blanchard et al., 2017): one client for all parts.

    Needs at least 2 f + 3 clients. The update is not averaged: weights are refused.
    """

    uses_weights = False

    f: int = Field(1, ge=0, description="number of attackers per round that it must withstand")

    def incompatibility(self, clients: int) -> str | None:
        if clients >= 2 * self.f + 3:
            return None
        fix = f"lower it to {(clients - 3) // 2}, or raise" if clients >= 3 else "raise"
        return f"f: {self.kind} needs at least 2 f + 3 = {2 * self.f + 3} clients per round, not {clients}; {fix} them"

    def combine(self, updates: Tree, weights: Tensor) -> Tree:
        coefficients = torch.zeros(len(weights), dtype=torch.float64)
        coefficients[scores(updates, self.f).argmin()] = 1
        return weighted_sum(updates, coefficients)


class MultiKrum(Krum):
    """Mean of the m updates with the smallest scores (Blanchard et al., 2017): the same clients for all parts.

    Needs at least 2 f + 3 clients. Weights do not affect the choice; the mean of the chosen updates is weighted.
    """

    uses_weights = True

    m: int = Field(2, ge=1, description="number of updates that are averaged; at most clients per round - f")

    def incompatibility(self, clients: int) -> str | None:
        if reason := super().incompatibility(clients):
            return reason
        if self.m > clients - self.f:
            return f"m: {self.m} is more than the {clients - self.f} clients per round that are not attackers; lower it"
        return None

    def combine(self, updates: Tree, weights: Tensor) -> Tree:
        chosen = scores(updates, self.f).argsort(stable=True)[: self.m]
        coefficients = torch.zeros(len(weights), dtype=torch.float64)
        coefficients[chosen] = weights[chosen] / weights[chosen].sum()
        return weighted_sum(updates, coefficients)
