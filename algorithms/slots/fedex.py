"""FedEx (Khodak et al., "Federated Hyperparameter Tuning", NeurIPS 2021): exponentiated gradient over configurations
of the clients, within one run.

Each parameter of the search, or the whole configuration, has a distribution theta. A client draws its values from it,
and theta moves towards values with a small validation error: of the client's own model after its local training
(`updated`), or of the server's model that the round leads to (`updated_by_next`). All computations use float64.
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

    score: Literal["client", "server"] = Field(
        "client",
        description="model whose validation error counts; client: each client's own after its local training; server: "
        "the averaged one, which the clients of the next round score before they train",
    )
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
    an error; distributions: by number, {"log_theta" (N,), "scale" 0-d, "draws" (N,), "credit" (2, N)}; pending: (2,).
    The last two are those of the last round with `score: server`, see `updated_by_next`.
    """
    zero = torch.zeros((), dtype=torch.float64)
    distributions = {
        str(i): {
            "log_theta": torch.full((n,), -math.log(n), dtype=torch.float64),
            "scale": zero,
            "draws": torch.zeros(n, dtype=torch.float64),
            "credit": torch.zeros((2, n), dtype=torch.float64),
        }
        for i, n in enumerate(sizes)
    }
    baseline, pending = {"sum": zero, "weight": zero}, torch.zeros(2, dtype=torch.float64)
    return {"baseline": baseline, "updates": zero, "distributions": distributions, "pending": pending}


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
    """State after a round, with `score: client`.

    draws: as returned by `draw`. errors, sizes (clients,): validation error of each client after its local training,
    and number of its validation samples. If no client has such samples, only the draws are counted.
    """
    state = _with_draws(state, draws)
    if not sizes.sum() > 0:
        return state
    weights = sizes.double() / sizes.double().sum()
    errors = torch.where(weights > 0, errors.double(), 0.0)
    excess = weights * (errors - _baseline(state))
    gradients = [_over_theta(one, drawn, excess) for one, drawn in zip(_each(state), draws, strict=True)]
    return _moved(state, gradients, (weights * errors).sum(), settings)


def updated_by_next(
    state: Tree, draws: list[Tensor], errors: Tensor, sizes: Tensor, contributed: Tensor, settings: FedExSteps
) -> Tree:
    """State after round t, with `score: server`: a step for the draws of round t - 1.

    draws: of round t. errors (clients,): validation error of the model that the clients of round t received, before
    they train. contributed (clients,): whether a client's update is part of the average; others diverged. With the
    weights w_i = v_i / sum_k v_k by the validation samples v of the clients of their round:

        E^(t-1) = sum_i w_i^t errors_i
        e_i^(t-1) = E^(t-1) if client i contributed to round t - 1, else 1
        g_j = (1 / theta_j^(t-1)) sum_(i: c_i^(t-1) = j) w_i^(t-1) (e_i^(t-1) - b)

    The baseline b is that of `updated` with the values sum_i w_i^(t-1) e_i^(t-1), and so are step size and step. Round
    t has drawn by then, so a step takes effect in round t + 1, and the draws of the last round have none. The state
    keeps, for clients that contributed and those that diverged, sums of w_i ("pending") and of w_i / theta_j
    ("credit"). If no client of a round has validation samples, neither its draws nor those of the round before count.
    """
    before, state = state, _with_draws(state, draws)
    weights = sizes.double() / sizes.double().sum().clamp(min=1.0)
    if sizes.sum() > 0 and before["pending"].sum() > 0:
        score = (weights * torch.where(weights > 0, errors.double(), 0.0)).sum()
        values = torch.stack([score, torch.ones_like(score)])
        gradients = [(values - _baseline(state)) @ one["credit"] for one in _each(state)]
        state = _moved(state, gradients, before["pending"] @ values, settings)
    groups = [weights * contributed, weights * ~contributed]
    # The draws are from theta as it was before the step.
    credits = [
        torch.stack([_over_theta(one, drawn, group) for group in groups])
        for one, drawn in zip(_each(before), draws, strict=True)
    ]
    distributions = {
        number: {**one, "credit": credit}
        for (number, one), credit in zip(state["distributions"].items(), credits, strict=True)
    }
    return {**state, "distributions": distributions, "pending": torch.stack([group.sum() for group in groups])}


def _each(state: Tree) -> list[Tree]:
    """Distributions of a state, in their order."""
    return list(state["distributions"].values())


def _with_draws(state: Tree, draws: list[Tensor]) -> Tree:
    """State with the draws of a round counted."""
    distributions = {
        number: {**one, "draws": one["draws"] + torch.bincount(drawn, minlength=len(one["draws"]))}
        for (number, one), drawn in zip(state["distributions"].items(), draws, strict=True)
    }
    return {**state, "distributions": distributions}


def _baseline(state: Tree) -> Tensor:
    """Discounted mean of the errors of earlier rounds; 0 without any."""
    total, ones = state["baseline"]["sum"], state["baseline"]["weight"]
    return total / ones if ones > 0 else total


def _over_theta(distribution: Tree, drawn: Tensor, amounts: Tensor) -> Tensor:
    """Sums of the amounts (clients,) of the clients that drew each value, over the probability of the value: (N,).

    Each value is drawn with probability theta: division by it makes the estimate of a gradient unbiased.
    """
    p = theta(distribution)
    sums = torch.zeros_like(p).index_add(0, drawn, amounts)
    return torch.where(sums == 0, 0.0, sums / p)


def _moved(state: Tree, gradients: list[Tensor], value: Tensor, settings: FedExSteps) -> Tree:
    """State after a step of each distribution. value: mean error of the round that the gradients are of."""
    updates = state["updates"] + 1
    distributions = {
        number: _step(one, gradient, updates, settings)
        for (number, one), gradient in zip(state["distributions"].items(), gradients, strict=True)
    }
    total, ones = state["baseline"]["sum"], state["baseline"]["weight"]
    baseline = {"sum": settings.discount * total + value, "weight": settings.discount * ones + 1}
    return {**state, "baseline": baseline, "updates": updates, "distributions": distributions}


def _step(distribution: Tree, gradient: Tensor, updates: Tensor, settings: FedExSteps) -> Tree:
    """Distribution after a step of exponentiated gradient."""
    if is_settled(distribution, settings.cutoff):
        return distribution
    largest = gradient.abs().max()
    squares = distribution["scale"] + largest**2
    divisor = {
        "adaptive": squares.sqrt(),
        "aggressive": largest,
        "auto": updates.sqrt(),
        "constant": torch.ones_like(largest),
    }[settings.schedule]
    rate = math.sqrt(2 * math.log(len(gradient))) / divisor if divisor > 0 else torch.zeros_like(divisor)
    logs = distribution["log_theta"] - rate * gradient
    return {**distribution, "log_theta": logs - logs.logsumexp(0), "scale": squares}
