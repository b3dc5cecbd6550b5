"""An Optuna study as a searcher of Ray Tune, and its pruner as a scheduler."""

import math
import warnings
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.searchspaces.hedge.scheduler import ROUND
from hedgerow.searchspaces.spaces.packing import NUMBER
from hedgerow.searchspaces.spaces.search_section import Overrides, SearchSetup
from hedgerow.searchspaces.spaces.space import Space, holds, ordered

SEARCH, TRIAL = "search", "trial"
"""User attributes of Optuna's trials: the run folder of the search, and the number of its trial.

A study in a database may also have trials of other searches.
"""

SAMPLERS = {
    "tpe": optuna.samplers.TPESampler,
    "gp": optuna.samplers.GPSampler,
    "random": optuna.samplers.RandomSampler,
}


def open_study(name: str, storage: str | None, mode: str) -> optuna.Study:
    """Returns the study of this name in a database, or a new one. Raises UserError when it cannot be used."""
    # Optuna logs every trial, but the live table already shows them.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction: Literal["maximize", "minimize"] = "maximize" if mode == "max" else "minimize"
    try:
        study = optuna.create_study(study_name=name, storage=storage, direction=direction, load_if_exists=True)
    except Exception as error:
        if storage is None:
            raise
        raise UserError(
            f"search.storage: cannot open the study ({type(error).__name__}: {first_line(error)}); check the URL, and "
            "that the driver of the database is installed"
        ) from None
    stored = study.direction.name.lower()
    if stored != direction:
        raise UserError(
            f"search.storage: the study {name!r} exists and its direction is {stored}, but `mode: {mode}` needs "
            f"{direction}; change the `name` of the experiment, or use another database"
        )
    return study


def make_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """Returns Optuna's sampler by its name. seed: below 2^32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return SAMPLERS[name](seed=seed)


def make_pruner(name: str, grace: int, reduction: int, rounds: int) -> optuna.pruners.BasePruner | None:
    """Returns Optuna's pruner by its name, or None. grace: minimum rounds of a trial; rounds: maximum."""
    match name:
        case "median":
            return optuna.pruners.MedianPruner(n_warmup_steps=grace)
        case "halving":
            return optuna.pruners.SuccessiveHalvingPruner(min_resource=grace, reduction_factor=reduction)
        case "hyperband":
            return optuna.pruners.HyperbandPruner(min_resource=grace, max_resource=rounds, reduction_factor=reduction)
    return None


class StudySearcher(Searcher):
    """Asks an Optuna study for configurations, and reports the metric of the trials to it.

    Configurations that an interrupted search has tried come first: as the same trials if the study is in a database,
    otherwise as new ones with the same values.

    study: an open study, whose sampler and pruner are replaced. pruner: None: no trial is stopped.
    """

    def __init__(
        self,
        study: optuna.Study,
        sampler: str,
        pruner: optuna.pruners.BasePruner | None,
        space: Space,
        metric: str,
        mode: str,
        setup: SearchSetup,
    ):
        super().__init__(metric=metric, mode=mode)
        self.study, self.space = study, space
        # With defaults, by which the conditions of other kinds hold, too.
        self.values = setup.experiment.model_dump(mode="json")
        experiment, search = setup.experiment, setup.journal.parent.name
        self.search, self.rounds, self.stops = search, experiment.rounds, experiment.early_end is not None
        self.points = list(setup.configurations)
        self.stored = {one.user_attrs[TRIAL]: one for one in study.get_trials() if one.user_attrs.get(SEARCH) == search}
        self.sampler, self.seed = sampler, experiment.seed
        study.pruner = pruner or optuna.pruners.NopPruner()
        self.prunes = pruner is not None
        self.trials: dict[str, optuna.Trial] = {}
        self.latest: dict[str, int] = {}
        """Latest reported round of each trial whose result the study does not have yet."""
        self.pruned: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any]:
        number = len(self.trials)
        trial, stored = self._trial(number), self.stored.get(number)
        self.trials[trial_id] = trial
        if stored is None or not stored.state.is_finished():
            self.latest[trial_id] = max(stored.intermediate_values, default=0) if stored else 0
        return {"overrides": draw(trial, self.space, self.values), NUMBER: number}

    def on_trial_result(self, trial_id: str, result: RoundRecord) -> None:
        """Report a round, unless the study already has it."""
        value = result.get(self.metric)
        # Pruners end a trial whose values are NaN.
        if value is not None and result[ROUND] > self.latest.get(trial_id, math.inf):
            self.trials[trial_id].report(float(value), result[ROUND])
            self.latest[trial_id] = result[ROUND]

    def on_trial_complete(self, trial_id: str, result: RoundRecord | None = None, error: bool = False) -> None:
        """Report the end of a trial: its latest metric, or that it failed or was pruned."""
        if trial_id not in self.latest:
            return
        result = result or {}
        if ROUND in result:
            self.on_trial_result(trial_id, result)
        del self.latest[trial_id]
        value, trial = _finite(result.get(self.metric)), self.trials[trial_id]
        # A trial that was pruned before the search was interrupted ends early again.
        early = self.prunes and not self.stops and result.get(ROUND, self.rounds) < self.rounds
        if error or value is None:
            self.study.tell(trial, state=TrialState.FAIL)
        elif early or trial_id in self.pruned:
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, value)

    def should_prune(self, trial_id: str) -> bool:
        """Whether the pruner stops a trial after its latest reported round."""
        if self.latest.get(trial_id) and self.trials[trial_id].should_prune():
            self.pruned.add(trial_id)
        return trial_id in self.pruned

    def save(self, checkpoint_path: str) -> None:
        """Write nothing: an interrupted search continues from its run folders."""

    def _trial(self, number: int) -> optuna.Trial:
        """Trial of the study: the stored one of this number or, if there is none, a new one."""
        # Each trial has its own sampler, seeded by its position in the study: its values do not depend on interruptions
        # of the search, and a further search in the same study does not repeat the draws of the first.
        position = self.stored[number].number if number in self.stored else len(self.study.get_trials(deepcopy=False))
        seed = np.random.SeedSequence((self.seed, position)).generate_state(1)
        self.study.sampler = make_sampler(self.sampler, int(seed[0]))
        if number in self.stored:
            return optuna.Trial(self.study, self.stored[number]._trial_id)
        if number < len(self.points):
            self.study.enqueue_trial(self.points[number])
        trial = self.study.ask()
        trial.set_user_attr(SEARCH, self.search)
        trial.set_user_attr(TRIAL, number)
        return trial


class PruningScheduler(FIFOScheduler):
    """Stops a trial when the pruner of a study decides so."""

    def __init__(self, searcher: StudySearcher):
        super().__init__()
        self.searcher = searcher

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: RoundRecord) -> str:
        # Tune reports a result to the searcher only after the scheduler's decision, and not if that is to stop.
        self.searcher.on_trial_result(trial.trial_id, result)
        return TrialScheduler.STOP if self.searcher.should_prune(trial.trial_id) else TrialScheduler.CONTINUE


def draw(trial: optuna.Trial, space: Space, values: dict[str, Any]) -> Overrides:
    """Draws a configuration key by key, so that conditions are checked while it is drawn."""
    overrides: Overrides = {}
    for key in ordered(space):
        dimension = space[key]
        if not holds(dimension.when, space, overrides, values):
            continue
        match dimension.form:
            case "uniform":
                overrides[key] = trial.suggest_float(key, *dimension.values)
            case "loguniform":
                overrides[key] = trial.suggest_float(key, *dimension.values, log=True)
            case "integers":
                overrides[key] = trial.suggest_int(key, *dimension.values)
            case _:
                overrides[key] = trial.suggest_categorical(key, dimension.values)
    return overrides


def check_choices(study: optuna.Study, space: Space) -> None:
    """Raises UserError when the study has other choices for a key: Optuna cannot change them."""
    for trial in study.get_trials(deepcopy=False):
        for key in trial.distributions.keys() & space.keys():
            before, dimension = trial.distributions[key], space[key]
            choices = list(before.choices) if isinstance(before, CategoricalDistribution) else None
            if choices != (dimension.values if dimension.form in ("grid", "choice") else None):
                raise UserError(
                    f"search.storage: the study {study.study_name!r} has other choices for {key}; change the `name` of "
                    "the experiment, or use another database"
                )


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
