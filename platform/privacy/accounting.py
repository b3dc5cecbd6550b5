"""Privacy loss of rounds with Poisson cohorts and the Gaussian mechanism, by the package dp-accounting.

Neighbouring data sets differ in one client, which is added or removed.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from hedgerow.platform.common.errors import UserError, optional_package

PACKAGE = "privacy: accounting needs the package dp-accounting", "privacy"
"""Arguments of `optional_package`."""

Accountant = Literal["pld", "rdp"]

Mechanism = tuple[float, float, int]
"""Noise multiplier z, sampling probability q, and number of rounds."""

PRECISION = 5e-4
"""Relative precision of a noise multiplier that is solved for."""

EXACT = 4
"""Number of rounds up to which epsilon is computed for each round; it is rounded up to 3 significant bits beyond."""


@lru_cache(maxsize=4096)
def epsilon(multiplier: float, probability: float, rounds: int, delta: float, accountant: Accountant = "pld") -> float:
    """Epsilon at `delta` after that many rounds; infinite without noise. Raises UserError without dp-accounting."""
    return composed(((multiplier, probability, rounds),), delta, accountant)


def composed(mechanisms: Sequence[Mechanism], delta: float, accountant: Accountant = "pld") -> float:
    """Epsilon at `delta` of several mechanisms one after the other, such as the trials of a search."""
    mechanisms = [one for one in mechanisms if one[2]]
    if not mechanisms:
        return 0.0
    if any(multiplier == 0 for multiplier, *_ in mechanisms):
        return math.inf
    if accountant == "rdp":
        return _by_rdp(mechanisms, delta)
    total: Any = None
    for multiplier, probability, rounds in mechanisms:
        losses = _losses(multiplier, probability).self_compose(rounds)
        total = losses if total is None else total.compose(losses)
    return float(total.get_epsilon_for_delta(delta))


def side_by_side(mechanisms: Sequence[Mechanism]) -> list[Mechanism]:
    """Mechanisms with the privacy loss of several ones whose rounds have the same cohorts, and noise of their own.

    A client that takes part in a round takes part in that of all. Their noises z_1, z_2, ... protect it like one z with
    1 / z^2 = 1 / z_1^2 + 1 / z_2^2 + ... Composition would assume that the cohorts are independent, too.
    Cohorts of a smaller probability are parts of those of a larger one.
    """
    joint, before = [], 0
    for last in sorted({rounds for *_, rounds in mechanisms} - {0}):
        active = [(multiplier, probability) for multiplier, probability, rounds in mechanisms if rounds >= last]
        multipliers = [multiplier for multiplier, _ in active]
        multiplier = sum(z**-2 for z in multipliers) ** -0.5 if all(multipliers) else 0.0
        joint.append((multiplier, max(probability for _, probability in active), last - before))
        before = last
    return joint


@dataclass(frozen=True)
class PrivacyAccount:
    """Privacy loss of a run. probability: q, that a client takes part in a round; rounds: of the whole run."""

    noise_multiplier: float
    probability: float
    rounds: int
    delta: float
    accountant: Accountant

    def mechanism(self, rounds: int) -> Mechanism:
        """The mechanism of some rounds of the run."""
        return self.noise_multiplier, self.probability, rounds

    def epsilon(self, rounds: int) -> float:
        """Upper bound of epsilon after some rounds: epsilon of a round that is up to a quarter later.

        It is exact in the first rounds and in the last one. A long run computes it a few dozen times, not in every
        round.
        """
        if rounds > EXACT:
            unit = 2 ** (rounds.bit_length() - 3)
            rounds = max(rounds, min(-(-rounds // unit) * unit, self.rounds))
        return epsilon(*self.mechanism(rounds), self.delta, self.accountant)


@lru_cache(maxsize=64)
def multiplier_for(target: float, probability: float, rounds: int, delta: float, accountant: Accountant) -> float:
    """Smallest noise multiplier, to three digits, whose epsilon at `delta` after all rounds is at most `target`."""
    # Imported here, since most runs do not need it.
    from scipy.optimize import brentq

    def found(multiplier: float) -> float:
        return epsilon(multiplier, probability, rounds, delta, accountant)

    # RDP is quick, and usually needs more noise.
    high = multiplier_for(target, probability, rounds, delta, "rdp") if accountant == "pld" else 0.1
    while found(high) > target:
        high *= 2
        if high > 1e6:
            raise UserError(f"privacy.target_epsilon: no noise reaches {target:g} at this delta; raise it")
    low = 0.8 * high
    while found(low) <= target:
        low, high = low / 2, low
    # Its logarithm is nearly a line, so that a few evaluations suffice, each of which may take a second.
    tolerance = PRECISION * low
    root = brentq(lambda z: math.log(min(max(found(z) / target, 1e-9), 1e9)), low, high, xtol=tolerance)
    return root + tolerance


@lru_cache(maxsize=16)
def _losses(multiplier: float, probability: float) -> Any:
    """Privacy loss distribution of one round."""
    with optional_package(*PACKAGE):
        from dp_accounting.pld import privacy_loss_distribution
    return privacy_loss_distribution.from_gaussian_mechanism(multiplier, sampling_prob=probability)


def _by_rdp(mechanisms: Sequence[Mechanism], delta: float) -> float:
    with optional_package(*PACKAGE):
        import dp_accounting
        from dp_accounting import rdp
    # Orders that do not converge are left out, which only loosens the bound.
    logging.getLogger("absl").setLevel(logging.ERROR)
    accountant = rdp.RdpAccountant()
    for multiplier, probability, rounds in mechanisms:
        round_event = dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(multiplier))
        accountant.compose(round_event, rounds)
    return float(accountant.get_epsilon(delta))
