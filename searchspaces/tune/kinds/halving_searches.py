"""ASHA and HyperBand: schedulers of Ray Tune that stop weak trials early, or halve brackets of them."""

import math
from typing import Any, ClassVar

from pydantic import Field
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, TrialScheduler

from hedgerow.platform.storage.history import RoundRecord
from hedgerow.searchspaces.hedge.scheduler import ROUND
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup

WORST = 1e30
"""Size of the score of a trial that diverged: infinities have no percentile."""


class AshaSearch(SearchKind):
    """Random or grid search that stops weak trials early (Tune's ASHAScheduler; Li et al. 2020)."""

    treats_trials_alone: ClassVar[bool] = True

    grace: int = Field(10, ge=1, description="minimum number of rounds of each trial")
    reduction: int = Field(3, ge=2, description="one in this many trials continues at each rung")

    def build(self, setup: SearchSetup) -> tuple[None, TrialScheduler]:
        """Returns no searcher, and Tune's ASHA scheduler over the rounds of the experiment."""
        rounds = setup.experiment.rounds
        return None, with_finite_scores(
            ASHAScheduler,
            self.metric,
            self.mode,
            time_attr=ROUND,
            max_t=rounds,
            grace_period=min(self.grace, rounds),
            reduction_factor=self.reduction,
        )


class HyperbandSearch(SearchKind):
    """Random or grid search that halves brackets of trials (Tune's HyperBandScheduler; Li et al. 2018)."""

    treats_trials_alone: ClassVar[bool] = True
    pauses_trials: ClassVar[bool] = True

    reduction: int = Field(3, ge=2, description="one in this many trials of a bracket continues at each halving")

    def build(self, setup: SearchSetup) -> tuple[None, TrialScheduler]:
        """Returns no searcher, and Tune's HyperBand scheduler over the rounds of the experiment."""
        return None, with_finite_scores(
            HyperBandScheduler,
            self.metric,
            self.mode,
            time_attr=ROUND,
            max_t=setup.experiment.rounds,
            reduction_factor=self.reduction,
            # The milestones are rounded down, so the last one may be far below the rounds of the experiment.
            stop_last_trials=False,
        )


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
