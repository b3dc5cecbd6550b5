"""Scores that are not finite, for the schedulers of Ray Tune that compare trials."""

import math
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from hedgerow.platform.storage.history import RoundRecord

WORST = 1e30
"""Size of the score of a trial that diverged: infinities have no percentile."""


def with_finite_scores(scheduler: type[TrialScheduler], metric: str, mode: str, **settings: Any) -> TrialScheduler:
    """Returns a scheduler of Tune to which a score that is NaN or infinite is the worst one.

    By itself it compares numbers with NaN, which is false both ways: a trial that diverged would not be stopped, and
    others might be stopped in its place.
    """

    def comparable(result: RoundRecord) -> RoundRecord:
        score = result.get(metric)
        if score is None or math.isfinite(score):
            return result
        return {**result, metric: -WORST if mode == "max" else WORST}

    class FiniteScores(scheduler):  # type: ignore[misc, valid-type]
        def on_trial_result(self, controller: Any, trial: Trial, result: RoundRecord) -> str:
            return super().on_trial_result(controller, trial, comparable(result))

        def on_trial_complete(self, controller: Any, trial: Trial, result: RoundRecord) -> None:
            super().on_trial_complete(controller, trial, comparable(result))

    return FiniteScores(metric=metric, mode=mode, **settings)
