"""Optuna: a sampler proposes one configuration after the other."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from hedgerow.searchspaces.spaces.packing import NUMBER
from hedgerow.searchspaces.spaces.search_section import Overrides, SearchKind, SearchSetup
from hedgerow.searchspaces.spaces.space import Space, holds, ordered

if TYPE_CHECKING:
    from ray.tune.search import Searcher


class OptunaSearch(SearchKind):
    """Optuna's sampler (TPE) proposes the configurations, one after the other."""

    treats_trials_alone: ClassVar[bool] = True
    proposes: ClassVar[bool] = True

    samples: int = Field(description="how many configurations are tried", ge=1)

    def build(self, setup: SearchSetup) -> "tuple[Searcher, None]":
        """Tune's Optuna searcher, which first proposes what an interrupted search has tried."""
        # optuna takes a second to import.
        import optuna
        from ray.tune.search.optuna import OptunaSearch as OptunaSearcher

        # It logs every trial, which the live table shows.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        tried = [{f"overrides/{key}": value for key, value in one.items()} for one in setup.configurations]
        searcher = OptunaSearcher(
            Proposal(self.space, setup.values),
            metric=self.metric,
            mode=self.mode,
            points_to_evaluate=tried,
            seed=setup.experiment.seed % 2**32,
        )
        return searcher, None


@dataclass(frozen=True)
class Proposal:
    """A space as optuna's define-by-run function, so that conditions hold as the configuration is drawn."""

    space: Space
    values: dict[str, Any]

    def __call__(self, trial: Any) -> dict[str, Any]:
        chosen: Overrides = {}
        for key in ordered(self.space):
            dimension, name = self.space[key], f"overrides/{key}"
            if not holds(dimension.when, self.space, chosen, self.values):
                continue
            match dimension.form:
                case "uniform":
                    chosen[key] = trial.suggest_float(name, *dimension.values)
                case "loguniform":
                    chosen[key] = trial.suggest_float(name, *dimension.values, log=True)
                case "integers":
                    chosen[key] = trial.suggest_int(name, *dimension.values)
                case _:
                    chosen[key] = trial.suggest_categorical(name, dimension.values)
        return {NUMBER: trial.number}
