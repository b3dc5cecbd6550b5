"""ASHA: stops weak trials early."""

from typing import ClassVar

from pydantic import Field
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from hedgerow.searchspaces.hedge.scheduler import ROUND
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup
from hedgerow.searchspaces.tune.searchers.finite_scores import with_finite_scores


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
