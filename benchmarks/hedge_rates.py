"""Regret of Hedge by its rate and gamma, on synthetic streams of losses.

    python benchmarks/hedge_rates.py

Writes benchmarks/results/hedge_rates.json: the regret after all rounds for each stream, rate and seed. Part of
docs/algorithms/hedge.md.
"""

import json

import numpy as np
from measuring import RESULTS, conditions

from hedgerow.searchspaces.hedge.weights import Hedge, Rate, make_hedge

ROUNDS, EXPERTS, SEEDS = 1000, 24, 20

RATES: dict[str, tuple[Rate, float]] = {
    **{f"gamma {gamma:g}": ("fixed", gamma) for gamma in (0.9, 0.5, 0.1, 0.01)},
    **{rate: (rate, 0.1) for rate in ("tuned", "anytime", "adahedge", "fixed_share", "leader")},
}


def noise(rng: np.random.Generator) -> np.ndarray:
    """Uniform losses, and no expert is better."""
    return rng.random((ROUNDS, EXPERTS))


def one_better(rng: np.random.Generator) -> np.ndarray:
    """Losses of 0 or 1 with chance 0.5, of one expert with chance 0.4."""
    chances = np.full(EXPERTS, 0.5)
    chances[rng.integers(EXPERTS)] = 0.4
    return (rng.random((ROUNDS, EXPERTS)) < chances).astype(float)


def changing(rng: np.random.Generator) -> np.ndarray:
    """The same with a chance of 0.3 for one expert, which is another one in each quarter of the stream."""
    chances = np.full((ROUNDS, EXPERTS), 0.5)
    for quarter, expert in enumerate(rng.choice(EXPERTS, 4, replace=False)):
        chances[quarter * ROUNDS // 4 : (quarter + 1) * ROUNDS // 4, expert] = 0.3
    return (rng.random((ROUNDS, EXPERTS)) < chances).astype(float)


def alternating(rng: np.random.Generator) -> np.ndarray:
    """Two experts have losses of 0 and 1 in turn, after 0 and 0.5, so that the best one so far always loses next."""
    losses = np.ones((ROUNDS, EXPERTS))
    pair = rng.choice(EXPERTS, 2, replace=False)
    losses[0, pair], losses[1::2, pair], losses[2::2, pair] = (0.0, 0.5), (1.0, 0.0), (0.0, 1.0)
    return losses


STREAMS = {
    "no expert is better": noise,
    "one is better": one_better,
    "the best one changes": changing,
    "two alternate": alternating,
}


def regret(hedge: Hedge, losses: np.ndarray) -> float:
    """Regret against the best expert in hindsight."""
    for row in losses:
        hedge.update(row)
    return round(hedge.regret, 3)


def main() -> None:
    streams = {
        title: {
            name: [
                regret(make_hedge(rate, EXPERTS, gamma, ROUNDS), stream(np.random.default_rng(seed)))
                for seed in range(SEEDS)
            ]
            for name, (rate, gamma) in RATES.items()
        }
        for title, stream in STREAMS.items()
    }
    result = {"rounds": ROUNDS, "experts": EXPERTS, "conditions": conditions(), "streams": streams}
    (RESULTS / "hedge_rates.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
