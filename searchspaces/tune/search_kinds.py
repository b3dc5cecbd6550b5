"""Each kind of search as Ray Tune's searcher and scheduler."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining, TrialScheduler

from hedgerow.searchspaces.hedge.async_rounds import Record
from hedgerow.searchspaces.hedge.scheduler import ROUND, HedgeScheduler
from hedgerow.searchspaces.hedge.weights import Hedge, make_hedge
from hedgerow.searchspaces.spaces.packing import NUMBER, PACK
from hedgerow.searchspaces.spaces.search_file import SearchPlan
from hedgerow.searchspaces.spaces.search_section import (
    ACCURACIES,
    LOSSES,
    STREAM,
    AshaSearch,
    Entry,
    HedgeSearch,
    OptunaSearch,
    PbtSearch,
)
from hedgerow.searchspaces.spaces.space import Overrides, Space, domain, holds, ordered


@dataclass(frozen=True)
class Tuning:
    """What `tune.Tuner` is given. space: its parameter space."""

    config: tune.TuneConfig
    space: dict[str, Any] | None


def tuning(
    plan: SearchPlan,
    known: list[Overrides],
    packs: list[list[int]] | None,
    room: int,
    journal: Path,
    told: Callable[[Record], None],
    warn: Callable[[str], None],
) -> Tuning:
    """Searcher and scheduler of a search.

    known: the configurations of the experts, or, when configurations are proposed one by one, of those that an
    interrupted search has tried. packs: which of them share a trial; None: none do. room: trials that the cluster holds
    at once. journal, told, warn: see HedgeScheduler.
    """
    search = plan.search
    limits: dict[str, Any] = {"max_concurrent_trials": room, "reuse_actors": True}
    if isinstance(search, OptunaSearch):
        # optuna takes a second to import.
        import optuna
        from ray.tune.search.optuna import OptunaSearch as Optuna

        # It logs every trial, which the live table shows.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        proposals = Optuna(
            Proposal(search.space, plan.values),
            metric=search.metric,
            mode=search.mode,
            points_to_evaluate=[{f"overrides/{key}": value for key, value in point.items()} for point in known],
            seed=plan.experiment.seed % 2**32,
        )
        return Tuning(tune.TuneConfig(search_alg=proposals, num_samples=search.samples, **limits), None)
    scheduler: TrialScheduler | None = None
    if isinstance(search, HedgeSearch):
        scheduler = hedge_scheduler(plan, search, len(known), journal, told, warn)
        # Paused experts count as running for Tune's limit.
        limits["max_concurrent_trials"] = None
    elif isinstance(search, AshaSearch):
        scheduler = ASHAScheduler(
            time_attr=ROUND,
            max_t=plan.experiment.rounds,
            grace_period=min(search.grace, plan.experiment.rounds),
            reduction_factor=search.reduction,
            metric=search.metric,
            mode=search.mode,
        )
    elif isinstance(search, PbtSearch):
        limits["max_concurrent_trials"] = None
        scheduler = PopulationBasedTraining(
            time_attr=ROUND,
            perturbation_interval=search.interval,
            quantile_fraction=search.quantile,
            resample_probability=search.resample,
            hyperparam_mutations={"overrides": {key: _mutations(entry) for key, entry in search.space.items()}},
            custom_explore_fn=_within(search.space),
            log_config=False,
            metric=search.metric,
            mode=search.mode,
        )
    config = tune.TuneConfig(scheduler=scheduler, **limits)
    if packs is None:
        return Tuning(config, {"overrides": tune.grid_search(known)})
    return Tuning(config, {PACK: tune.grid_search([[(i, known[i]) for i in pack] for pack in packs])})


def hedge_scheduler(
    plan: SearchPlan,
    search: HedgeSearch,
    experts: int,
    journal: Path | None,
    told: Callable[[Record], None] | None,
    warn: Callable[[str], None],
) -> HedgeScheduler:
    """The scheduler that the file asks for."""
    return HedgeScheduler(
        experts,
        search.metric,
        search.mode,
        hedge=hedge_of(plan, search, experts),
        range=(search.range[0], search.range[1]) if search.range else None,
        missing=search.missing,
        averaged=(*ACCURACIES, *LOSSES, *STREAM),
        ahead=search.ahead,
        prune=search.prune,
        time_attr=ROUND,
        journal=journal,
        told=told,
        warn=warn,
    )


def hedge_of(plan: SearchPlan, search: HedgeSearch, experts: int) -> Hedge:
    """Hedge with the rate of the file, over its evaluated rounds; of a stream every round has a loss."""
    stream = plan.experiment.task.partition.is_stream
    rounds = -(-plan.experiment.rounds // (1 if stream else plan.experiment.evaluation.every))
    return make_hedge(search.rate, experts, search.gamma, rounds, search.share)


@dataclass(frozen=True)
class Proposal:
    """A space as optuna's define-by-run function, so that conditions hold as the configuration is drawn."""

    space: Space
    values: dict[str, Any]

    def __call__(self, trial: Any) -> dict[str, Any]:
        chosen: Overrides = {}
        for key in ordered(self.space):
            entry, name = self.space[key], f"overrides/{key}"
            if not holds(entry.when, self.space, chosen, self.values):
                continue
            match entry.form:
                case "uniform":
                    chosen[key] = trial.suggest_float(name, *entry.values)
                case "loguniform":
                    chosen[key] = trial.suggest_float(name, *entry.values, log=True)
                case "integers":
                    chosen[key] = trial.suggest_int(name, *entry.values)
                case _:
                    chosen[key] = trial.suggest_categorical(name, entry.values)
        return {NUMBER: trial.number}


def _mutations(entry: Entry) -> Any:
    return entry.values if entry.form in ("grid", "choice") else domain(entry)


def _within(space: Space) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Population based training multiplies by 0.8 or 1.2: back within the bounds of the file."""

    def clip(config: dict[str, Any]) -> dict[str, Any]:
        for key, entry in space.items():
            if entry.form in ("uniform", "loguniform", "integers"):
                low, high = entry.values
                value = min(max(config["overrides"][key], low), high)
                config["overrides"][key] = round(value) if entry.form == "integers" else value
        return config

    return clip
