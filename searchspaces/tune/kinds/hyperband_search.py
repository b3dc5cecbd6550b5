"""HyperBand: brackets of successive halving with different trade-offs between trials and rounds."""

from typing import ClassVar

from pydantic import Field
from ray.tune.schedulers import HyperBandScheduler, TrialScheduler

from hedgerow.searchspaces.hedge.scheduler import ROUND
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup
from hedgerow.searchspaces.tune.searchers.finite_scores import with_finite_scores


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
