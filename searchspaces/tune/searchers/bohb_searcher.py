"""BOHB's model of the results, as a searcher of Ray Tune. Needs the extra `bohb`."""

import logging
from typing import Any

from ConfigSpace import ConfigurationSpace
from ConfigSpace.hyperparameters import (
    CategoricalHyperparameter,
    Hyperparameter,
    UniformFloatHyperparameter,
    UniformIntegerHyperparameter,
)
from ray.tune.search.bohb import TuneBOHB

from hedgerow.searchspaces.hedge.scheduler import ROUND
from hedgerow.searchspaces.spaces.packing import NUMBER
from hedgerow.searchspaces.spaces.search_section import Dimension, Overrides, SearchSetup
from hedgerow.searchspaces.spaces.space import Space


class BohbSearcher(TuneBOHB):
    """TuneBOHB over the space of a search; its budgets are rounds.

    Tune's searcher does not pass the last result of a trial to the model, so the model would never learn from trials
    that used all rounds. This class does.

    random: fraction of the configurations that are drawn at random.
    """

    def __init__(self, space: Space, metric: str, mode: str, random: float, setup: SearchSetup):
        # Warns in many lines about every proposal whose expected improvement is infinite, as with few categories.
        logging.getLogger("hpbandster").setLevel(logging.ERROR)
        self.dimensions = space
        self._numbers: dict[str, int] = {}
        self._budgets: dict[str, set[int]] = {}
        configurations = ConfigurationSpace()
        configurations.add([_hyperparameter(key, dimension) for key, dimension in space.items()])
        super().__init__(
            configurations,
            bohb_config={"random_fraction": random},
            metric=metric,
            mode=mode,
            seed=setup.experiment.seed % 2**32,
        )

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        if super().suggest(trial_id) is None:
            return None
        point = self.trial_to_params[trial_id]
        overrides: Overrides = {key: _decoded(dimension, point[key]) for key, dimension in self.dimensions.items()}
        return {"overrides": overrides, NUMBER: self._numbers.setdefault(trial_id, len(self._numbers))}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if self.metric in result:
            super().on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if result and self.metric in result and result[ROUND] not in self._budgets.get(trial_id, ()):
            self.bohber.new_result(self.to_wrapper(trial_id, result))
        super().on_trial_complete(trial_id, result, error)

    def to_wrapper(self, trial_id: str, result: dict[str, Any]) -> Any:
        self._budgets.setdefault(trial_id, set()).add(result[ROUND])
        return super().to_wrapper(trial_id, {**result, "hyperband_info": {"budget": result[ROUND]}})


def _hyperparameter(key: str, dimension: Dimension) -> Hyperparameter:
    match dimension.form:
        case "uniform" | "loguniform":
            low, high = dimension.values
            return UniformFloatHyperparameter(key, low, high, log=dimension.form == "loguniform")
        case "integers":
            return UniformIntegerHyperparameter(key, *dimension.values)
    # Positions instead of values, which may be lists.
    return CategoricalHyperparameter(key, range(len(dimension.values)))


def _decoded(dimension: Dimension, value: Any) -> Any:
    if dimension.form in ("grid", "choice"):
        return dimension.values[int(value)]
    return int(value) if dimension.form == "integers" else float(value)
