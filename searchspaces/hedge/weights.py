"""Hedge and its variants: weights over experts from their losses (thesis, Algorithm 10; Freund & Schapire 1997).

All computations use float64. In each round, `probs()` returns p^t, and `update(losses)` returns the loss
h_t = sum_i p_i^t l_i^t and computes p^{t+1}. The regret bounds hold for losses in [0, 1]; the bound of AdaHedge holds
for losses of any range, in their unit. Losses outside the range are not clipped; a loss that is not finite counts as 1.
"""

import math
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

Rate = Literal["fixed", "tuned", "anytime", "adahedge", "fixed_share", "leader", "exp3", "exp3_ix"]


class Hedge:
    """Exponential weights p = softmax(-eta C) on the cumulative losses C, with eta = -ln gamma.

    Weights are never computed as a product of probabilities: with gamma = 0.1, a gap of 0.7 in every round exceeds the
    range of double precision after 460 rounds, and a weight of exactly 0 can never recover.

    experts: number of experts, at least 1. gamma: in (0, 1]; with 1 the weights never change. Raises ValueError.
    """

    def __init__(self, experts: int, gamma: float = 0.1):
        if experts < 1:
            raise ValueError(f"Hedge needs at least 1 expert, not {experts}")
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be greater than 0 and at most 1, not {gamma:g}")
        self.experts = experts
        self.eta = -math.log(gamma)
        self.rounds = 0
        self.total = 0.0
        """H_t, the sum of the expected losses."""
        self.losses = np.zeros(experts)
        """L (experts,): cumulative losses. A sleeping expert is charged the loss of Hedge, so it adds no regret."""
        self._scores = np.zeros(experts)

    @classmethod
    def tuned(cls, experts: int, rounds: int) -> "Hedge":
        """Hedge with eta = sqrt(8 ln N / T), T = `rounds`: regret <= sqrt(T ln N / 2) (Cesa-Bianchi & Lugosi 2006)."""
        return cls(experts, math.exp(-math.sqrt(8 * math.log(experts) / rounds)))

    def probs(self) -> np.ndarray:
        """Weights p^t (experts,) of the next round."""
        gaps = self._scores - self._scores.min()
        weights = (gaps == 0).astype(float) if math.isinf(self.rate()) else np.exp(-self.rate() * gaps)
        return weights / weights.sum()

    def probs_among(self, awake: np.ndarray) -> np.ndarray:
        """Weights (experts,) of the next round, normalised over the experts of a mask; 0 for the others."""
        weights = np.zeros(self.experts)
        weights[awake] = self._among(awake).probs()
        return weights

    def rate(self) -> float:
        """Learning rate eta of the next round."""
        return self.eta

    def expected(self, values: ArrayLike, awake: ArrayLike | None = None) -> float:
        """Mean sum_i p_i v_i over the awake experts, with their p normalised to sum to 1. NaN if all are asleep."""
        if awake is None:
            return float((self.probs() * np.asarray(values, dtype=float)).sum())
        mask = np.asarray(awake, dtype=bool)
        # Weights among all experts might underflow.
        return self._among(mask).expected(np.asarray(values, dtype=float)[mask]) if mask.any() else math.nan

    def update(self, losses: ArrayLike, awake: ArrayLike | None = None) -> float:
        """Update the weights with the losses (experts,) of a round; returns h_t under the previous weights.

        awake: (experts,) bool; None: all. A sleeping expert keeps its probability (Freund et al. 1997, specialists):
        it is charged the mix loss of the others. A round in which all experts sleep changes nothing. Raises ValueError.
        """
        loss = np.asarray(losses, dtype=float)
        if loss.shape != (self.experts,):
            raise ValueError(f"losses need one entry for each of the {self.experts} experts, not shape {loss.shape}")
        loss = np.where(np.isfinite(loss), loss, 1.0)
        mask = np.ones(self.experts, dtype=bool) if awake is None else np.asarray(awake, dtype=bool)
        if not mask.any():
            return math.nan
        hedge_loss, observed = self._observe(loss, mask)
        mix = self._among(mask)._mix_loss(observed[mask])
        self._move(np.where(mask, observed, mix), hedge_loss, mix)
        self.losses = self.losses + np.where(mask, loss, hedge_loss)
        self.total += hedge_loss
        self.rounds += 1
        return hedge_loss

    def sample(self, rng: np.random.Generator) -> int:
        """Index of an expert drawn from p^t; its expected loss is h_t."""
        return int(rng.choice(self.experts, p=self.probs()))

    @property
    def leader(self) -> int:
        """Index of the expert with the largest weight; the first one on ties."""
        return int(self.probs().argmax())

    @property
    def best(self) -> int:
        """Index of the best expert in hindsight; the first one on ties."""
        return int(self.losses.argmin())

    @property
    def regret(self) -> float:
        """Regret H_t - L*_t against the best expert in hindsight."""
        return self.total - float(self.losses.min())

    def bound(self) -> float:
        """Smallest known bound on the regret so far, for losses in [0, 1] (Freund & Schapire 1997)."""
        if self.eta == 0:
            return float(self.rounds)
        gamma, best, n = math.exp(-self.eta), float(self.losses.min()), math.log(self.experts)
        by_loss = (best * self.eta + n) / (1 - gamma) - best
        return min(by_loss, n / self.eta + self.eta * self.rounds / 8, float(self.rounds))

    def state_dict(self) -> dict[str, Any]:
        """State without the settings, as JSON."""
        state = {key: value for key, value in vars(self).items() if key not in ("experts", "eta")}
        return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        for key, value in state.items():
            setattr(self, key, np.array(value, dtype=float) if isinstance(value, list) else value)

    def _observe(self, loss: np.ndarray, awake: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns h_t, and the losses (experts,) that enter the weights. awake: mask with at least one expert."""
        return self.expected(loss) if awake.all() else self.expected(loss, awake), loss

    def _move(self, charged: np.ndarray, suffered: float, mix: float) -> None:
        """Update the scores. charged (experts,): losses, or the mix loss where an expert sleeps."""
        self._scores = self._scores + charged

    def _mix_loss(self, loss: np.ndarray) -> float:
        """Mix loss -(1/eta) ln sum_i p_i exp(-eta l_i)."""
        eta = self.rate()
        if eta == 0:
            return self.expected(loss)
        if math.isinf(eta):
            return float((self._scores + loss).min() - self._scores.min())
        return float(_soft_min(self._scores + loss, eta) - _soft_min(self._scores, eta))

    def _among(self, chosen: np.ndarray) -> Self:
        """Copy of this object, restricted to the experts of a mask (experts,)."""
        if chosen.all():
            return self
        subset = object.__new__(type(self))
        subset.__dict__ = vars(self) | {"experts": int(chosen.sum()), "_scores": self._scores[chosen]}
        return subset


class AnytimeHedge(Hedge):
    """Hedge with eta_t = sqrt(8 ln N / t), for an unknown number of rounds (Cesa-Bianchi & Lugosi 2006)."""

    def __init__(self, experts: int):
        super().__init__(experts)
        self.eta = math.sqrt(8 * math.log(experts))

    def rate(self) -> float:
        return self.eta / math.sqrt(self.rounds + 1)

    def bound(self) -> float:
        """Regret bound sqrt(2 t ln N) + sqrt(ln N / 8), at most the number of rounds."""
        n = math.log(self.experts)
        return min(math.sqrt(2 * self.rounds * n) + math.sqrt(n / 8), float(self.rounds))


class AdaHedge(Hedge):
    """Hedge without a rate, horizon or range: eta_t = ln N / Delta_{t-1} (de Rooij et al. 2014)."""

    def __init__(self, experts: int):
        super().__init__(experts)
        self.eta = math.log(experts)
        self.gap = 0.0
        """Delta_t, the sum of h - mix loss over the rounds."""

    def rate(self) -> float:
        return self.eta / self.gap if self.gap > 0 else math.inf

    def bound(self) -> float:
        """Regret bound 2 Delta_t, in the unit of the losses, for losses of any range."""
        return 2 * self.gap

    def _move(self, charged: np.ndarray, suffered: float, mix: float) -> None:
        super()._move(charged, suffered, mix)
        self.gap += max(suffered - mix, 0.0)


class FixedShare(Hedge):
    """Hedge for a changing best expert: each gets share / N of the weight per round (Herbster & Warmuth 1998)."""

    def __init__(self, experts: int, gamma: float = 0.1, share: float = 0.01):
        super().__init__(experts, gamma)
        if not 0 <= share < 1 or gamma == 1:
            raise ValueError(f"fixed share needs 0 <= share < 1 and gamma < 1, not share {share:g} and gamma {gamma:g}")
        self.share = share

    def bound(self) -> float:
        """Bound on the regret against the best fixed expert (m = 0 switches)."""
        n, stay = math.log(self.experts), -math.log1p(-self.share) * max(self.rounds - 1, 0)
        return min((n + stay) / self.eta + self.eta * self.rounds / 8, float(self.rounds))

    def _move(self, charged: np.ndarray, suffered: float, mix: float) -> None:
        super()._move(charged, suffered, mix)
        shared = np.logaddexp(
            math.log1p(-self.share) + np.log(np.maximum(self.probs(), np.finfo(float).tiny)),
            math.log(self.share / self.experts) if self.share else -math.inf,
        )
        self._scores = -shared / self.eta if self.share else self._scores


class FollowTheLeader(Hedge):
    """Baseline: all weight on the best expert so far; its regret is linear when losses alternate."""

    def rate(self) -> float:
        return math.inf

    def bound(self) -> float:
        """Number of rounds; no better bound holds."""
        return float(self.rounds)


class Exp3(Hedge):
    """Bandit: one expert is drawn from p^t in each round, and only its loss is observed (Auer et al. 2002).

    The loss estimate is l / p for the observed expert and 0 for the others, which is unbiased. A draw depends only on
    `seed` and the round, so the same losses give the same draws. `update` takes the losses of all experts, because the
    regret needs them, and returns the loss of the observed one; the weights do not depend on the others.

    rounds: T of the rate eta = sqrt(2 ln N / (N T)). exploration: share g of uniform draws in
    p = (1 - g) softmax(-eta C) + g / N. Raises ValueError.
    """

    played: int | None = None
    """Index of the expert that was observed in the latest round; None before the first round."""

    def __init__(self, experts: int, rounds: int, seed: int = 0, exploration: float = 0.0):
        super().__init__(experts)
        if not 0 <= exploration < 1:
            raise ValueError(f"the exploration of exp3 must be at least 0 and less than 1, not {exploration:g}")
        self.eta = math.sqrt(2 * math.log(experts) / (experts * rounds))
        self.seed, self.exploration = seed, exploration

    def probs(self) -> np.ndarray:
        """Probabilities p^t (experts,) of the next draw."""
        return (1 - self.exploration) * super().probs() + self.exploration / self.experts

    def draw(self) -> int:
        """Index of the expert that is observed in the next round."""
        return int(np.random.default_rng((self.seed, self.rounds)).choice(self.experts, p=self.probs()))

    def estimate(self, losses: ArrayLike, expert: int) -> np.ndarray:
        """Loss estimates (experts,) if `expert` is observed."""
        weights = np.zeros(self.experts)
        weights[expert] = 1 / self._chance(expert)
        return weights * np.asarray(losses, dtype=float)

    def bound(self) -> float:
        """Bound on the expected regret: (1 - g) ln N / eta + eta N t / 2 + g t."""
        if self.eta == 0:
            return 0.0
        fixed = (1 - self.exploration) * math.log(self.experts) / self.eta
        return min(fixed + (self.eta * self.experts / 2 + self.exploration) * self.rounds, float(self.rounds))

    def _chance(self, expert: int) -> float:
        """Divisor of the observed loss."""
        return float(self.probs()[expert])

    def _observe(self, loss: np.ndarray, awake: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the loss of the expert that is drawn from the awake ones, and the estimates."""
        among, numbers = self._among(awake), np.flatnonzero(awake)
        place = among.draw()
        estimates = np.zeros(self.experts)
        estimates[numbers] = among.estimate(loss[numbers], place)
        self.played = int(numbers[place])
        return float(loss[self.played]), estimates


class Exp3IX(Exp3):
    """Exp3 with implicit exploration: the loss estimate is l / (p + g) (Neu 2015).

    The estimate is at most l in expectation, which bounds the regret with high probability instead of on average.

    exploration: g; None: eta / 2, as in Theorem 1 of the paper. Raises ValueError.
    """

    CONFIDENCE = 0.95
    """Probability with which the regret stays within `bound()`."""

    def __init__(self, experts: int, rounds: int, seed: int = 0, exploration: float | None = None):
        super().__init__(experts, rounds, seed)
        self.implicit = self.eta / 2 if exploration is None else exploration
        if not self.implicit >= 0:
            raise ValueError(f"the exploration of exp3_ix must be at least 0, not {self.implicit:g}")
        self.horizon = rounds

    def bound(self) -> float:
        """Bound on the regret after T rounds with probability 0.95; the number of rounds if g is not eta / 2."""
        if self.implicit != self.eta / 2:
            return float(self.rounds)
        if self.eta == 0:
            return 0.0
        n, work = math.log(self.experts), 2 * self.experts * self.horizon
        tail = (math.sqrt(work / n) + 1) * math.log(2 / (1 - self.CONFIDENCE))
        return min(2 * math.sqrt(work * n) + tail, float(self.rounds))

    def _chance(self, expert: int) -> float:
        return super()._chance(expert) + self.implicit


def make_hedge(
    rate: Rate,
    experts: int,
    gamma: float = 0.1,
    rounds: int = 1,
    share: float = 0.01,
    seed: int = 0,
    exploration: float | None = None,
) -> Hedge:
    """Returns Hedge by the name of its rate.

    gamma: for fixed and fixed_share; rounds: for tuned, exp3 and exp3_ix; share: for fixed_share; seed, exploration:
    for exp3 and exp3_ix, see their classes.
    """
    match rate:
        case "fixed":
            return Hedge(experts, gamma)
        case "tuned":
            return Hedge.tuned(experts, rounds)
        case "anytime":
            return AnytimeHedge(experts)
        case "adahedge":
            return AdaHedge(experts)
        case "fixed_share":
            return FixedShare(experts, gamma, share)
        case "leader":
            return FollowTheLeader(experts)
        case "exp3":
            return Exp3(experts, rounds, seed, exploration or 0.0)
        case "exp3_ix":
            return Exp3IX(experts, rounds, seed, exploration)


def entropy(p: np.ndarray) -> float:
    """Entropy of probabilities (experts,), in nats."""
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def _soft_min(scores: np.ndarray, eta: float) -> float:
    """Soft minimum -(1/eta) ln sum_i exp(-eta s_i)."""
    least = scores.min()
    return float(least - math.log(np.exp(-eta * (scores - least)).sum()) / eta)
