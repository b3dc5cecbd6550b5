"""Hedge over any Ray Tune trainable: which learning rate suits an online classifier, found while it learns.

    python examples/hedge_any_trainable.py

Every trial classifies the next batch of handwritten digits before it learns from it; Hedge weighs the trials by their
errors. Nothing here is federated: the scheduler asks only for a number that each trial reports, round by round.
"""

from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from hedgerow import HedgeScheduler

RATES = [0.0001, 0.001, 0.01, 0.1]
BATCH = 20


class OnlineClassifier(tune.Trainable):
    """One expert: logistic regression by stochastic gradient descent at its own learning rate."""

    def setup(self, config: dict[str, Any]) -> None:
        digits = load_digits()
        order = np.random.RandomState(0).permutation(len(digits.target))
        self.x, self.y = digits.data[order] / 16, digits.target[order]
        self.rate, self.round = config["rate"], 0
        self.model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=self.rate, random_state=0)

    def step(self) -> dict[str, Any]:
        x, y = self.batch()
        error = 1.0 if self.round == 0 else float(np.mean(self.model.predict(x) != y))
        self.learn()
        return {"error": error, "done": (self.round + 1) * BATCH > len(self.y)}

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(self.round * BATCH, (self.round + 1) * BATCH)
        return self.x[rows], self.y[rows]

    def learn(self) -> None:
        x, y = self.batch()
        self.model.partial_fit(x, y, classes=np.arange(10))
        self.round += 1

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        # One process serves several trials: with fewer CPUs than trials they take turns.
        self.setup(new_config)
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "round").write_text(str(self.round))

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        # What was learnt follows from the rounds so far, in a moment: nothing has to be pickled.
        self.setup({"rate": self.rate})
        for _ in range(int((Path(checkpoint_dir) / "round").read_text())):
            self.learn()


def main() -> None:
    ray.init("local", log_to_driver=False, logging_level="ERROR")
    scheduler = HedgeScheduler(metric="error", mode="min", range=(0, 1))
    tuner = tune.Tuner(
        OnlineClassifier,
        param_space={"rate": tune.grid_search(RATES)},
        tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=True),
        run_config=tune.RunConfig(verbose=0),
    )
    tuner.fit()
    hedge = scheduler.rounds.hedge
    for rate, weight, errors in zip(RATES, hedge.probs(), hedge.losses, strict=True):
        print(f"rate {rate:<7g} weight {weight:6.1%}  mean error {errors / hedge.rounds:.1%}")
    print(f"Hedge: mean error {hedge.total / hedge.rounds:.1%}, regret {hedge.regret:.2f} (bound {hedge.bound():.2f})")


if __name__ == "__main__":
    main()
