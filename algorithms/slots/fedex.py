"""FedEx (Khodak et al., "Federated Hyperparameter Tuning", NeurIPS 2021): exponentiated gradient over configurations
of the clients, within one run.

Each parameter of the search, or the whole configuration, has a distribution theta. A client draws its values from it,
and theta moves towards values whose clients have a small validation error after their local training. All computations
use float64.
"""

import math
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.keyed_random import WORD, uniform
from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.core.pytree import Tree

Schedule = Literal["adaptive", "aggressive", "auto", "constant"]

Values = dict[str, float]
"""Hyperparameters by their dotted keys in the experiment file: {"algorithm.lr": 0.1}."""


class FedExSteps(Settings):
    """How the distributions of FedEx learn: the keys that a run and a search of kind fedex share."""

    schedule: Schedule = Field(
        "adaptive",
        description="step size sqrt(2 ln N) / D with D: adaptive, root of the sum of max |g|^2 so far; aggressive, "
        "max |g| of the round; auto, root of the number of rounds; constant, 1",
    )
    discount: float = Field(
        0.0, ge=0, le=1, description="weight of earlier rounds in the baseline of the errors; 0: the last round alone"
    )
    cutoff: float = Field(
        0.0,
        ge=0,
        description="entropy (in nats) below which a distribution stops to learn and its most probable value is used",
    )


class FedEx(FedExSteps):
    """Hyperparameters that each client draws anew in each round, from distributions that the run learns (FedEx)."""

    factors: list[list[Values]] = Field(
        description="for each distribution, the values that a client may draw from it: numbers by their keys in this "
        "file; one list of whole configurations, or one list per parameter"
    )

    @model_validator(mode="after")
    def _configurations_differ_in_values(self) -> "FedEx":
        if math.prod(len(factor) for factor in self.factors) < 2 or not self.factors:
            raise ValueError("`factors` has fewer than 2 configurations; give more values")
        seen: set[str] = set()
        for factor in self.factors:
            keys = set(factor[0])
            if not keys or any(set(values) != keys for values in factor):
                raise ValueError("all values of a list in `factors` need the same keys; complete them")
            if twice := sorted(keys & seen):
                raise ValueError(f"`factors` has {twice[0]} in two lists; remove one of them")
            seen |= keys
        return self

    @property
    def keys(self) -> list[str]:
        """Keys that the clients draw."""
        return [key for factor in self.factors for key in factor[0]]


def initial_state(sizes: list[int]) -> Tree:
    """State before round 1, with a uniform theta. sizes: number of values of each distribution.

    baseline: {"sum", "weight"}, discounted sums of the rounds' mean errors and of ones; updates: number of rounds with
    an error; distributions: by number, {"log_theta" (N,), "scale" 0-d, "draws" (N,)}.
    """
    zero = torch.zeros((), dtype=torch.float64)
    distributions = {
        str(i): {
            "log_theta": torch.full((n,), -math.log(n), dtype=torch.float64),
            "scale": zero,
            "draws": torch.zeros(n, dtype=torch.float64),
        }
        for i, n in enumerate(sizes)
    }
    return {"baseline": {"sum": zero, "weight": zero}, "updates": zero, "distributions": distributions}


def theta(distribution: Tree) -> Tensor:
    """Probabilities (N,) of a distribution."""
    return distribution["log_theta"].exp()


def is_settled(distribution: Tree, cutoff: float) -> bool:
    """Whether the entropy of a distribution is below the cutoff, so that it no longer learns."""
    return cutoff > 0 and float(torch.special.entr(theta(distribution)).sum()) < cutoff


def draw(state: Tree, cohort: Cohort, cutoff: float) -> list[Tensor]:
    """Value that each client of a cohort draws from each distribution: (clients,), int64.

    A draw depends on seed, round, client and distribution only. A settled distribution gives its most probable value.
    """
    clients, key = torch.from_numpy(cohort.clients), torch.tensor(cohort.seed_for("fedex") & WORD)
    result = []
    for number, distribution in state["distributions"].items():
        p = theta(distribution)
        if is_settled(distribution, cutoff):
            result.append(torch.full_like(clients, int(p.argmax())))
            continue
        at = uniform(key, clients, int(number)).double() * p.sum()
        result.append(torch.searchsorted(p.cumsum(0), at, right=True).clamp(max=len(p) - 1))
    return result


def updated(state: Tree, draws: list[Tensor], errors: Tensor, sizes: Tensor, settings: FedExSteps) -> Tree:
    """State after a round.

    draws: as returned by `draw`. errors, sizes (clients,): validation error of each client after its local training,
    and number of its validation samples. If no client has such samples, only the draws are counted.
    """
    counted = {
        number: {**one, "draws": one["draws"] + torch.bincount(drawn, minlength=len(one["draws"]))}
        for (number, one), drawn in zip(state["distributions"].items(), draws, strict=True)
    }
    state = {**state, "distributions": counted}
    if not sizes.sum() > 0:
        return state
    weights = sizes.double() / sizes.double().sum()
    errors = torch.where(weights > 0, errors.double(), 0.0)
    total, ones = state["baseline"]["sum"], state["baseline"]["weight"]
    baseline = total / ones if ones > 0 else total
    updates = state["updates"] + 1
    moved = {
        number: _moved(one, drawn, weights * (errors - baseline), updates, settings)
        for (number, one), drawn in zip(counted.items(), draws, strict=True)
    }
    value = (weights * errors).sum()
    sums = {"sum": settings.discount * total + value, "weight": settings.discount * ones + 1}
    return {"baseline": sums, "updates": updates, "distributions": moved}


def _moved(distribution: Tree, drawn: Tensor, excess: Tensor, updates: Tensor, settings: FedExSteps) -> Tree:
    """Distribution after a step. excess (clients,): weighted errors above the baseline."""
    if is_settled(distribution, settings.cutoff):
        return distribution
    p = theta(distribution)
    sums = torch.zeros_like(p).index_add(0, drawn, excess)
    # Each value is drawn with probability theta: division by it makes the estimate of the gradient unbiased.
    gradient = torch.where(sums == 0, 0.0, sums / p)
    largest = gradient.abs().max()
    squares = distribution["scale"] + largest**2
    divisor = {
        "adaptive": squares.sqrt(),
        "aggressive": largest,
        "auto": updates.sqrt(),
        "constant": torch.ones_like(largest),
    }[settings.schedule]
    rate = math.sqrt(2 * math.log(len(p))) / divisor if divisor > 0 else torch.zeros_like(divisor)
    logs = distribution["log_theta"] - rate * gradient
    return {**distribution, "log_theta": logs - logs.logsumexp(0), "scale": squares}
