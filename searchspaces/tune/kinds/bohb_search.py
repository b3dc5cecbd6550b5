"""BOHB: HyperBand whose configurations are proposed by a model of the results."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.searchspaces.hedge.scheduler import ROUND
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup

if TYPE_CHECKING:
    from ray.tune.schedulers.hb_bohb import HyperBandForBOHB
    from ray.tune.search import Searcher

PACKAGES = {"ConfigSpace": "ConfigSpace", "hpbandster": "hpbandster"}
"""Distributions that Tune's BOHB needs, by the module that it imports."""


class BohbSearch(SearchKind):
    """HyperBand with configurations from a density model (Tune's TuneBOHB; Falkner et al. 2018)."""

    treats_trials_alone: ClassVar[bool] = True
    pauses_trials: ClassVar[bool] = True
    proposes: ClassVar[bool] = True

    samples: int = Field(description="number of configurations to try", ge=1)
    reduction: int = Field(3, ge=2, description="one in this many trials of a bracket continues at each halving")
    random: float = Field(1 / 3, ge=0, le=1, description="fraction of the configurations that are drawn at random")

    def build(self, setup: SearchSetup) -> "tuple[Searcher, HyperBandForBOHB]":
        """Returns Tune's BOHB searcher and its scheduler over the rounds of the experiment."""
        # Importing hpbandster takes seconds.
        from ray.tune.schedulers.hb_bohb import HyperBandForBOHB

        from hedgerow.searchspaces.tune.searchers.bohb_searcher import BohbSearcher

        searcher = BohbSearcher(self.space, self.metric, self.mode, self.random, setup)
        scheduler = HyperBandForBOHB(
            time_attr=ROUND,
            max_t=setup.experiment.rounds,
            reduction_factor=self.reduction,
            metric=self.metric,
            mode=self.mode,
            # The milestones are rounded down, so the last one may be far below the rounds of the experiment.
            stop_last_trials=False,
        )
        return searcher, scheduler

    def check(self, experiment: Experiment) -> None:
        """Raises UserError when BOHB's packages are missing, and for keys with conditions."""
        missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
        if missing:
            raise UserError(
                f"search.kind: bohb needs {' and '.join(missing)}, which not every installation has; install the extra "
                "with `pip install 'hedgerow[bohb]'`, or use kind hyperband"
            )
        for key, dimension in self.space.items():
            if dimension.when:
                raise UserError(f"search.space.{key}: kind bohb does not support conditions; remove `when`")
