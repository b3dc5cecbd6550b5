"""Optuna: a sampler proposes one configuration after another, and a pruner stops weak trials."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import Searcher


class OptunaSearch(SearchKind):
    """Sequential search: Optuna's sampler proposes one configuration after another."""

    treats_trials_alone: ClassVar[bool] = True
    proposes: ClassVar[bool] = True

    samples: int = Field(description="number of configurations to try", ge=1)
    sampler: Literal["tpe", "gp", "random"] = Field("tpe", description="Optuna's sampler of configurations")
    pruner: Literal["none", "median", "halving", "hyperband"] = Field(
        "none", description="Optuna's pruner, which stops weak trials early by their reported metric"
    )
    grace: int = Field(10, ge=1, description="minimum number of rounds of each trial (with a pruner)")
    reduction: int = Field(
        3, ge=2, description="one in this many trials continues at each rung (pruner: halving, hyperband)"
    )
    storage: str | None = Field(
        None, description="URL of a database that keeps the study, such as sqlite:///study.db; null: in memory"
    )

    def build(self, setup: SearchSetup) -> "tuple[Searcher, TrialScheduler | None]":
        """Returns a searcher over Optuna's study and, with a pruner, a scheduler that stops trials."""
        # Importing optuna takes a second.
        from hedgerow.searchspaces.tune.kinds import optuna_study as studies

        study = studies.open_study(setup.experiment.name, self.storage, self.mode)
        studies.check_choices(study, self.space)
        rounds = setup.experiment.rounds
        pruner = studies.make_pruner(self.pruner, min(self.grace, rounds), self.reduction, rounds)
        searcher = studies.StudySearcher(study, self.sampler, pruner, self.space, self.metric, self.mode, setup)
        return searcher, studies.PruningScheduler(searcher) if pruner else None

    def check(self, experiment: Experiment) -> None:
        """Raises UserError when a storage is no URL."""
        if self.storage is not None and "://" not in self.storage:
            raise UserError(
                f"search.storage: {self.storage!r} is not the URL of a database; write it as in "
                f"sqlite:///{self.storage.removesuffix('.db')}.db"
            )
