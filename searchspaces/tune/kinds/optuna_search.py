"""Optuna: a sampler proposes one configuration after another."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from hedgerow.searchspaces.spaces.packing import NUMBER
from hedgerow.searchspaces.spaces.search_section import Overrides, SearchKind, SearchSetup
from hedgerow.searchspaces.spaces.space import Space, holds, ordered

if TYPE_CHECKING:
    from ray.tune.search import Searcher


class OptunaSearch(SearchKind):
    """Sequential search: Optuna's TPE sampler proposes one configuration after another."""

    treats_trials_alone: ClassVar[bool] = True
    proposes: ClassVar[bool] = True

    samples: int = Field(description="number of configurations to try", ge=1)

    def build(self, setup: SearchSetup) -> "tuple[Searcher, None]":
        """Returns Tune's Optuna searcher, which first repeats the configurations of an interrupted search."""
        # Importing optuna takes a second.
        import optuna
        from ray.tune.search.optuna import OptunaSearch as OptunaSearcher

        # Optuna logs every trial, but the live table already shows them.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        points = [{f"overrides/{key}": value for key, value in one.items()} for one in setup.configurations]
        searcher = OptunaSearcher(
            Proposal(self.space, setup.values),
            metric=self.metric,
            mode=self.mode,
            points_to_evaluate=points,
            seed=setup.experiment.seed % 2**32,
        )
        return searcher, None


@dataclass(frozen=True)
class Proposal:
    """A space as Optuna's define-by-run function, which checks the conditions while it draws a configuration."""

    space: Space
    values: dict[str, Any]

    def __call__(self, trial: Any) -> dict[str, Any]:
        overrides: Overrides = {}
        for key in ordered(self.space):
            dimension, name = self.space[key], f"overrides/{key}"
            if not holds(dimension.when, self.space, overrides, self.values):
                continue
            match dimension.form:
                case "uniform":
                    overrides[key] = trial.suggest_float(name, *dimension.values)
                case "loguniform":
                    overrides[key] = trial.suggest_float(name, *dimension.values, log=True)
                case "integers":
                    overrides[key] = trial.suggest_int(name, *dimension.values)
                case _:
                    overrides[key] = trial.suggest_categorical(name, dimension.values)
        return {NUMBER: trial.number}
