"""Hedge and its relatives: weights over experts from their losses (thesis, Algorithm 10; Freund & Schapire 1997).

Plain mathematics, in float64. In every round: `probs()` is p^t, `update(losses)` suffers h_t = sum_i p_i^t l_i^t and
moves on to p^{t+1}. The regret bounds hold for losses in [0, 1], that of AdaHedge for losses of any range, in their own
unit. Other losses are taken as they are; a loss that is not finite counts as 1.
"""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

Rate = Literal["fixed", "tuned", "anytime", "adahedge", "fixed_share", "leader", "exp3"]


class Hedge:
    """Exponential weights p = softmax(-eta C) on the cumulative losses C, with eta = -ln gamma.

    Never a product of probabilities: at gamma = 0.1 a gap of 0.7 in every round leaves the range of double precision
    after 460 rounds, and a weight of exactly 0 can never recover.

    experts: their number, at least 1. gamma: in (0, 1]; 1 never moves. Raises ValueError.
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
        """L (experts,): cumulative losses. A sleeping expert is charged what Hedge suffers: no regret either way."""
        self._scores = np.zeros(experts)

    @classmethod
    def tuned(cls, experts: int, rounds: int) -> "Hedge":
        """eta = sqrt(8 ln N / T) for T = `rounds`: regret at most sqrt(T ln N / 2) (Cesa-Bianchi & Lugosi 2006)."""
        return cls(experts, math.exp(-math.sqrt(8 * math.log(experts) / rounds)))

    def probs(self) -> np.ndarray:
        """p^t (experts,), for the round to come."""
        above = self._scores - self._scores.min()
        weights = (above == 0).astype(float) if math.isinf(self.rate()) else np.exp(-self.rate() * above)
        return weights / weights.sum()

    def rate(self) -> float:
        """eta in the round to come."""
        return self.eta

    def expected(self, values: ArrayLike, awake: ArrayLike | None = None) -> float:
        """sum_i p_i v_i; over the experts that are awake, their p made to sum to 1. NaN when nobody is."""
        p = self.probs()
        if awake is None:
            return float((p * np.asarray(values, dtype=float)).sum())
        chosen = np.asarray(awake, dtype=bool)
        mass = p[chosen].sum()
        if mass > 0:
            return float((p[chosen] * np.asarray(values, dtype=float)[chosen]).sum() / mass)
        # The weights of those awake are below the smallest double: the mean among them alone.
        return self._among(chosen).expected(np.asarray(values, dtype=float)[chosen]) if chosen.any() else math.nan

    def update(self, losses: ArrayLike, awake: ArrayLike | None = None) -> float:
        """Take the losses (experts,) of a round; returns h_t, under the weights from before.

        awake: (experts,) bool; None: all. A sleeping expert keeps its probability (Freund et al. 1997, specialists):
        it is charged the mix loss of the others. A round in which all sleep changes nothing. Raises ValueError.
        """
        loss = np.asarray(losses, dtype=float)
        if loss.shape != (self.experts,):
            raise ValueError(f"there are {self.experts} experts, but losses of shape {loss.shape}")
        loss = np.where(np.isfinite(loss), loss, 1.0)
        chosen = np.ones(self.experts, dtype=bool) if awake is None else np.asarray(awake, dtype=bool)
        if not chosen.any():
            return math.nan
        suffered = self.expected(loss) if chosen.all() else self.expected(loss, chosen)
        mix = self._among(chosen)._mix_loss(loss[chosen])
        self._move(np.where(chosen, loss, mix), suffered, mix)
        self.losses = self.losses + np.where(chosen, loss, suffered)
        self.total += suffered
        self.rounds += 1
        return suffered

    def sample(self, rng: np.random.Generator) -> int:
        """An expert drawn from p^t; its expected loss is h_t."""
        return int(rng.choice(self.experts, p=self.probs()))

    @property
    def leader(self) -> int:
        """The expert with the largest weight, the first among equals."""
        return int(self.probs().argmax())

    @property
    def best(self) -> int:
        """The best expert in hindsight, the first among equals."""
        return int(self.losses.argmin())

    @property
    def regret(self) -> float:
        """H_t - L*_t."""
        return self.total - float(self.losses.min())

    @property
    def entropy(self) -> float:
        """Of p^t, in nats."""
        p = self.probs()
        return float(-(p[p > 0] * np.log(p[p > 0])).sum())

    def bound(self) -> float:
        """The smallest known bound on the regret so far, losses in [0, 1] (Freund & Schapire 1997)."""
        if self.eta == 0:
            return float(self.rounds)
        gamma, best, n = math.exp(-self.eta), float(self.losses.min()), math.log(self.experts)
        by_loss = (best * self.eta + n) / (1 - gamma) - best
        return min(by_loss, n / self.eta + self.eta * self.rounds / 8, float(self.rounds))

    def state_dict(self) -> dict[str, Any]:
        """Everything but the settings, as JSON."""
        state = {key: value for key, value in vars(self).items() if key not in ("experts", "eta")}
        return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        for key, value in state.items():
            setattr(self, key, np.array(value, dtype=float) if isinstance(value, list) else value)

    def _move(self, charged: np.ndarray, suffered: float, mix: float) -> None:
        """To the scores of the next round. charged (experts,): losses, and the mix loss where an expert sleeps."""
        self._scores = self._scores + charged

    def _mix_loss(self, loss: np.ndarray) -> float:
        """-(1/eta) ln sum_i p_i exp(-eta l_i)."""
        eta = self.rate()
        if eta == 0:
            return self.expected(loss)
        if math.isinf(eta):
            return float((self._scores + loss).min() - self._scores.min())
        return float(_soft_min(self._scores + loss, eta) - _soft_min(self._scores, eta))

    def _among(self, chosen: np.ndarray) -> "Hedge":
        """The same weights among some of the experts."""
        if chosen.all():
            return self
        some = object.__new__(type(self))
        some.__dict__ = vars(self) | {"experts": int(chosen.sum()), "_scores": self._scores[chosen]}
        return some


class AnytimeHedge(Hedge):
    """eta_t = sqrt(8 ln N / t), without knowing how many rounds there will be (Cesa-Bianchi & Lugosi 2006)."""

    def __init__(self, experts: int):
        super().__init__(experts)
        self.eta = math.sqrt(8 * math.log(experts))

    def rate(self) -> float:
        return self.eta / math.sqrt(self.rounds + 1)

    def bound(self) -> float:
        """sqrt(2 t ln N) + sqrt(ln N / 8)."""
        n = math.log(self.experts)
        return min(math.sqrt(2 * self.rounds * n) + math.sqrt(n / 8), float(self.rounds))


class AdaHedge(Hedge):
    """eta_t = ln N / Delta_{t-1}, Delta the sum of h - mix loss (de Rooij et al. 2014): no rate, horizon or range."""

    def __init__(self, experts: int):
        super().__init__(experts)
        self.eta = math.log(experts)
        self.gap = 0.0
        """Delta_t."""

    def rate(self) -> float:
        return self.eta / self.gap if self.gap > 0 else math.inf

    def bound(self) -> float:
        """2 Delta_t, in the unit of the losses, whatever their range is."""
        return 2 * self.gap

    def _move(self, charged: np.ndarray, suffered: float, mix: float) -> None:
        super()._move(charged, suffered, mix)
        self.gap += max(suffered - mix, 0.0)


class FixedShare(Hedge):
    """After each round every expert gets share / N of the weight (Herbster & Warmuth 1998): the best may change."""

    def __init__(self, experts: int, gamma: float = 0.1, share: float = 0.01):
        super().__init__(experts, gamma)
        if not 0 <= share < 1 or gamma == 1:
            raise ValueError(
                f"fixed share needs share at least 0 and below 1 and gamma below 1, not {share:g}, {gamma:g}"
            )
        self.share = share

    def bound(self) -> float:
        """To the best expert that never changes (m = 0 switches)."""
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
    """All weight on the best expert so far: linear regret where losses alternate. For comparison."""

    def rate(self) -> float:
        return math.inf

    def bound(self) -> float:
        """None better than the number of rounds."""
        return float(self.rounds)


class Exp3(Hedge):
    """Plays one expert and sees its loss alone (Auer et al. 2002): l / p in place of l. For comparison.

    `update` plays from the generator of `seed` and returns the loss of the play. rounds: T of the rate.
    """

    def __init__(self, experts: int, rounds: int, seed: int = 0):
        super().__init__(experts)
        self.horizon = rounds
        self.eta = math.sqrt(2 * math.log(experts) / (experts * rounds))
        self.seed = seed

    def update(self, losses: ArrayLike, awake: ArrayLike | None = None) -> float:
        """As Hedge.update; the loss of the expert that is played."""
        if awake is not None and not np.all(awake):
            raise ValueError("Exp3 has no sleeping experts")
        p = self.probs()
        # Keyed by the round, so that the state holds no generator.
        played = int(np.random.default_rng((self.seed, self.rounds)).choice(self.experts, p=p))
        loss = np.asarray(losses, dtype=float)
        loss = np.where(np.isfinite(loss), loss, 1.0)
        self._scores = self._scores + np.where(np.arange(self.experts) == played, loss / p[played], 0.0)
        self.losses = self.losses + loss
        self.total += float(loss[played])
        self.rounds += 1
        return float(loss[played])

    def bound(self) -> float:
        """On the expected regret after the horizon."""
        n = math.log(self.experts)
        return min(math.sqrt(2 * self.horizon * self.experts * n), float(self.rounds))


def make_hedge(rate: Rate, experts: int, gamma: float = 0.1, rounds: int = 1, share: float = 0.01) -> Hedge:
    """Hedge by the name of its rate. gamma: of fixed and fixed_share; rounds: of tuned and exp3."""
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
            return Exp3(experts, rounds)


def _soft_min(scores: np.ndarray, eta: float) -> float:
    """-(1/eta) ln sum_i exp(-eta s_i)."""
    least = scores.min()
    return float(least - math.log(np.exp(-eta * (scores - least)).sum()) / eta)
