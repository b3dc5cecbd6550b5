"""Population based training: weak trials continue from strong ones with changed settings."""

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import Field
from ray.tune.schedulers import PopulationBasedTraining

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.searchspaces.hedge.scheduler import ROUND
from hedgerow.searchspaces.spaces.search_section import Dimension, SearchKind, SearchSetup
from hedgerow.searchspaces.spaces.space import Space, domain


class PbtSearch(SearchKind):
    """Population based training (Tune's PopulationBasedTraining; Jaderberg et al. 2017)."""

    treats_trials_alone: ClassVar[bool] = True
    pauses_trials: ClassVar[bool] = True

    interval: int = Field(10, ge=1, description="rounds between two perturbations")
    quantile: float = Field(0.25, gt=0, le=0.5, description="fraction of the trials that is replaced by the best")
    resample: float = Field(0.25, ge=0, le=1, description="probability that a key is resampled instead of perturbed")

    def build(self, setup: SearchSetup) -> tuple[None, PopulationBasedTraining]:
        """Returns no searcher, and Tune's scheduler, which mutates the keys of the space."""
        return None, PopulationBasedTraining(
            time_attr=ROUND,
            perturbation_interval=self.interval,
            quantile_fraction=self.quantile,
            resample_probability=self.resample,
            hyperparam_mutations={"overrides": {key: _mutations(entry) for key, entry in self.space.items()}},
            custom_explore_fn=_within(self.space),
            log_config=False,
            metric=self.metric,
            mode=self.mode,
        )

    def check(self, experiment: Experiment) -> None:
        """Raises UserError for private trials, and for keys with conditions."""
        if experiment.privacy:
            raise UserError(
                "search.kind: trials of pbt continue from one another with other settings, which the account of "
                "`privacy` does not cover; choose another kind"
            )
        for key, dimension in self.space.items():
            if dimension.when:
                raise UserError(f"search.space.{key}: kind pbt does not support conditions; remove `when`")


def _mutations(dimension: Dimension) -> Any:
    return dimension.values if dimension.form in ("grid", "choice") else domain(dimension)


def _within(space: Space) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Returns a function that clips values to the bounds of the file, since Tune multiplies them by 0.8 or 1.2."""

    def clip(config: dict[str, Any]) -> dict[str, Any]:
        for key, dimension in space.items():
            if dimension.form in ("uniform", "loguniform", "integers"):
                low, high = dimension.values
                value = min(max(config["overrides"][key], low), high)
                config["overrides"][key] = round(value) if dimension.form == "integers" else value
        return config

    return clip
