"""Run and resume searches: trials run on Ray Tune, and everything is recorded as for a single run."""

import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayTaskError
from ray.tune import PlacementGroupFactory
from ray.tune.error import TuneError
from ray.tune.experiment import Trial

from hedgerow.platform.actors.placement import cpus_per_trial, trials_that_fit, wait_for_room
from hedgerow.platform.actors.ray_coordinator import shutdown_idle
from hedgerow.platform.actors.ray_health import RayHealth
from hedgerow.platform.actors.ray_transport import LOST, put_dataset
from hedgerow.platform.actors.session import node_resources, ray_session
from hedgerow.platform.actors.shared_folder import check_shared
from hedgerow.platform.actors.surroundings import Surroundings
from hedgerow.platform.common.errors import Unsaved, UserError, is_disk_full
from hedgerow.platform.common.servers import require_named
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.resources import Device
from hedgerow.platform.config.slots_section import SLOT_SECTIONS
from hedgerow.platform.data import Dataset
from hedgerow.platform.privacy.accounting import Mechanism, composed, side_by_side
from hedgerow.platform.runs.compute_choice import check_engine, choose_device, say_device
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runs.run_in_mlflow import PUSHES, save_final_model, save_module
from hedgerow.platform.runs.run_session import Session, Work, resume_work, start
from hedgerow.platform.runs.same_settings import changed_settings, changes_text, decisive_settings
from hedgerow.platform.runtime.factory import Data, build_partition, check, check_task
from hedgerow.platform.storage.checkpoint import checkpoint_of, latest_checkpoint
from hedgerow.platform.tracking.formatting import short_label
from hedgerow.platform.tracking.run_folder import RunFolder, find_run
from hedgerow.platform.tracking.summary import left_out_warnings
from hedgerow.platform.tracking.tracker import MlflowLogger, RunLog
from hedgerow.searchspaces.hedge.deployment import KEPT, LARGEST, DeployedState
from hedgerow.searchspaces.hedge.promotion_scheduler import PromotionScheduler
from hedgerow.searchspaces.hedge.scheduler import HedgeScheduler
from hedgerow.searchspaces.results.deployed_model import DEPLOYED
from hedgerow.searchspaces.results.finished_search import FinishedSearch, read_trials
from hedgerow.searchspaces.results.recording import RECORDING, Recording
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.spaces.packing import COPIES, members, pack_trials
from hedgerow.searchspaces.spaces.search_file import SearchSpec, load_search
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup
from hedgerow.searchspaces.spaces.space import Overrides
from hedgerow.searchspaces.tune.callbacks import SearchCallback, ShowSearch
from hedgerow.searchspaces.tune.report_journal import JOURNAL, ReportJournal
from hedgerow.searchspaces.tune.resumable_search import ResumableScheduler, ResumableSearch
from hedgerow.searchspaces.tune.round_barrier import RoundBarrier
from hedgerow.searchspaces.tune.search_budget import SearchBudget
from hedgerow.searchspaces.tune.trainable import (
    FederatedTrainable,
    SearchSettings,
    Shared,
    barrier_file,
    trial_resources,
    write_tokens,
)
from hedgerow.searchspaces.tune.tuner_spec import tuner_spec
from hedgerow.searchspaces.tune.winner_score import score_winner

TUNE_SETTINGS = {
    # Trials log to their run folders, and continue from there.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Ctrl-C stops a search like a run: it is saved and can be resumed.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}
"""Environment variables that disable bookkeeping of Ray Tune that a search does not need."""

WAITING = "TUNE_MAX_PENDING_TRIALS_PG", "200"
"""Environment variable with the number of trials that may wait for room. `ResumableSearch` has a limit of its own; for
a class that is not its own, Tune's default is 1.
"""

TUNE_LOGGERS = {"mlflow": "ray.air.integrations.mlflow", "wandb": "ray.air.integrations.wandb"}
"""Modules of Ray Tune's own loggers, by the library that each imports."""

TUNE_LOG = "ray.tune.execution.tune_controller"
"""Name of the logger to which Ray Tune reports failed trials."""

Begun = Mapping[int, RunFolder]
"""Runs of the same training, by the number of the trial that continues from a copy."""

TOGETHER = 1.0
"""Seconds of lock-step rounds that a trial reports together: a report costs milliseconds, and may be this old."""


def _filter_errors(record: logging.LogRecord) -> bool:
    """Log filter that removes the traceback of a trial whose process or node was lost: it is Ray's own.

    Raises the error of a trial that cannot write its files: the search ends before the scheduler hears of a failure,
    from which a resumed search could not go on. So it does with a report that a scheduler refuses, if it is the last
    one of a trial. Tune passes such an error on only to its log.
    """
    error = record.exc_info[1] if record.exc_info else None
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(error, UserError) and not isinstance(error, RayTaskError):
        raise error
    if isinstance(cause, Unsaved) or is_disk_full(cause):
        raise cause
    if isinstance(error, LOST):
        record.exc_info = None
    return True


def search(
    spec: SearchSpec,
    data_root: Path | None = None,
    show: ShowSearch | None = None,
    address: str | None = None,
    data: Data | None = None,
    note: dict[str, Any] | None = None,
    own: bool = False,
    begun: Begun | None = None,
    name: str | None = None,
) -> FinishedSearch:
    """Run a new search.

    data_root: folder of the data sets. show: observer of the search. address: address of a Ray cluster; None: the one
    that this process is connected to, or a new one on this machine. data: return value of `check_search`, if it was
    called. note: further entries of run.json. own: whether the data are the caller's arrays instead of the data set
    that the file names. name: of its folder; None: a new one. Raises UserError before any work when a setting is
    invalid.
    """
    data = data or check_search(spec, data_root)
    work = _work(spec, None, show, address, begun)
    return start(work, data, data_root, own, {"kind": "search", **(note or {})}, name=name)


def resume_search(
    name: str,
    show: ShowSearch | None = None,
    address: str | None = None,
    data: Data | None = None,
    changed: bool = False,
) -> FinishedSearch:
    """Continue a search: its trials from their checkpoints, Hedge from its journal; see `run_session.resume_work`."""
    return resume_work(name, lambda one: _work(load_search(one.experiment), one, show, address), data, changed)


def _work(
    spec: SearchSpec,
    started: RunFolder | None,
    show: ShowSearch | None,
    address: str | None,
    begun: Begun | None = None,
) -> Work[FinishedSearch]:
    """started: folder of a search that is resumed. begun: see `search`. Raises UserError."""
    if started:
        _check_started(spec, started)
    device = choose_device(spec.experiment.resources, address, started, on_ray=True)
    check_engine(spec.experiment.engine, device)
    return Work(
        spec.experiment,
        decisive_settings(spec.experiment, device, spec.search.model_dump(mode="json")),
        partial(_carry_out, spec, device, show, address, begun),
        lambda session: logger_of_search(session.folder, spec, session.data, show, session.warnings),
        text=spec.dump(),
        check=lambda data: _check_trials(spec, data[0]),
    )


def check_search(spec: SearchSpec, data_root: Path | None, given: Data | None = None) -> Data:
    """Check all settings before any work starts; returns the data set and the partition of the file.

    given: data set and partition that replace those of the file. Raises UserError when a configuration does not fit
    the data.
    """
    data = check(spec.experiment, data_root, given)
    _check_trials(spec, data[0])
    if spec.search.budget and spec.search.budget.client_rounds is not None:
        # Those that a searcher proposes follow one another. A round on a stream trains one learner.
        first = [spec.trial(overrides) for overrides in spec.configurations] or [spec.experiment]
        stream = spec.experiment.task.partition.is_stream
        least = sum(1 if stream else experiment.cohort_size(len(data[1])) for experiment in first)
        if (limit := spec.search.budget.client_rounds) < least:
            trials = "a trial" if len(first) == 1 else f"each of the {len(first)} trials"
            raise UserError(
                f"search.budget.client_rounds: {limit} is less than one round of {trials}; set it to at least {least}"
            )
    return data


def _check_started(spec: SearchSpec, folder: RunFolder) -> None:
    """Raises UserError if a search that continues has a setting that determines records of rounds that have run, or if
    a trial of it has started with another configuration.
    """
    record, search = folder.record(), spec.search.model_dump(mode="json")
    known, kept = record.get("settings", {}), {f"search.{key}": search[key] for key in spec.search.fixed}
    if changes := changed_settings({key: known.get(key, value) for key, value in kept.items()}, kept):
        raise UserError(
            f"{folder.experiment}: {changes_text(changes)} cannot change during a search of kind {spec.search.kind}, "
            "since the records of all its rounds follow from it; restore the file, or start a new search"
        )
    packs = record.get("packs")
    if packs and spec.configurations and sum(map(len, packs)) != len(spec.configurations):
        raise UserError(
            f"{folder.experiment}: search.space has {len(spec.configurations)} configurations, and the search has "
            f"started with {sum(map(len, packs))}; restore it, or start a new search"
        )
    # A searcher proposes configurations.
    for trial in read_trials(folder) if spec.configurations else []:
        # Population based training changes the configuration of a trial that takes over a model.
        has_copies = expert_folder(folder.path, int(trial.name)).record().get(COPIES, 0)
        if not has_copies and [trial.overrides] != spec.configurations[int(trial.name) :][:1]:
            raise UserError(
                f"{folder.experiment}: search.space no longer has the configuration with which trial {trial.name} has "
                f"started ({short_label(trial.overrides)}) in its place; restore it, or start a new search"
            )


def _check_trials(spec: SearchSpec, dataset: Dataset) -> None:
    shapes = {_shape(spec.experiment)}
    for overrides in spec.configurations:
        trial = spec.trial(overrides)
        if _shape(trial) not in shapes:
            shapes.add(_shape(trial))
            check_task(trial, dataset, build_partition(trial, dataset))


def _shape(experiment: Experiment) -> str:
    """Fingerprint of the settings that decide whether an experiment fits its data."""
    keys = {"task", "seed", "clients_per_round", "fedex", "simulation", "schedule", "privacy"}
    values = experiment.model_dump(mode="json", include=keys) | {"algorithm": experiment.algorithm.name}
    hyper = experiment.hyper
    blank = hyper.with_floats(dict.fromkeys(hyper.floats())).model_dump(mode="json", warnings=False)
    values |= {key: blank[key] for key in SLOT_SECTIONS}
    return json.dumps(values, sort_keys=True)


def _carry_out(
    spec: SearchSpec,
    device: Device,
    show: ShowSearch | None,
    address: str | None,
    begun: Begun | None,
    session: Session,
) -> FinishedSearch:
    """Run all trials, and record their results. device: of all clients. begun: see `search`."""
    say_device(device, address)
    folder, warnings = session.folder, session.warnings
    for number, run in (begun or {}).items():
        # A trial's process continues from the checkpoints in its folder; its record is written when it starts.
        copy = expert_folder(folder.path, number)
        shutil.copytree(run.checkpoints, copy.checkpoints)
        shutil.copyfile(run.metrics, copy.metrics)
    classes = session.data[0].classes if spec.experiment.task.loss.name == "cross_entropy" else 1
    listener = SearchCallback(folder.path.absolute(), spec, session.lock, show, session.mlflow, session.notify, classes)
    if show:
        # A resumed search starts with the rounds that its trials have already completed.
        for trial in read_trials(folder):
            for record in trial.records:
                show.trial(int(trial.name), record)
            show.state(int(trial.name), "waiting")
    with ray_session(address, prestart=False):
        listener.termination, session.termination.saves = session.termination, True
        try:
            warnings += _tune(spec.with_device(device), folder, session.data, listener)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and session.termination.came:
                listener.save_trials()
            listener.interrupt()
            raise
    # Without Ray, whose processes end while MLflow is imported in another thread.
    warnings[:] = dict.fromkeys([*warnings, *listener.warnings])
    warnings += _privacy_warnings(spec, folder, len(session.data[1]))
    finished = FinishedSearch(folder, spec, read_trials(folder), RunLog(folder.metrics).read())
    for trial in finished.trials:
        run_record = expert_folder(folder.path, int(trial.name)).record()
        warnings += [
            f"trial {trial.name}: {sentence}" for sentence in left_out_warnings(run_record.get("quarantined", {}))
        ]
    warnings += finished.divergence_warnings + finished.fedex_warnings
    # Before the winner is scored: that cannot lose the results.
    finished.write()
    warnings += score_winner(finished, session.data)
    finished.write()
    warnings += _record(finished)
    session.finish(finished.summary, finished.draw)
    return finished


LITTLE_NOISE = 0.5
"""Noise multiplier of all trials together below which epsilon is that of Renyi differential privacy."""


def _privacy_warnings(spec: SearchSpec, folder: RunFolder, population: int) -> list[str]:
    """Keep epsilon of all trials together, and return a sentence on it; nothing without `privacy`."""
    trials = read_trials(folder)
    experiments = [spec.trial(trial.overrides) for trial in trials]
    accounts = [experiment.privacy_account(population) for experiment in experiments]
    private = [account for account in accounts if account]
    if not private:
        return []
    if len(private) < len(trials):
        return ["privacy: some trials are not private, so the search as a whole is not"]
    # Trials with one seed have the same cohorts.
    by_seed: dict[int, list[Mechanism]] = {}
    for experiment, account, trial in zip(experiments, private, trials, strict=True):
        by_seed.setdefault(experiment.seed, []).append(account.mechanism(len(trial.records)))
    mechanisms = [one for group in by_seed.values() for one in side_by_side(group)]
    delta = min(account.delta for account in private)
    # Both accountants give upper bounds. With little noise, distributions of the privacy loss take long.
    least = min((multiplier for multiplier, *_ in mechanisms), default=math.inf)
    is_rdp = least < LITTLE_NOISE or all(one.accountant == "rdp" for one in private)
    total = composed(mechanisms, delta, "rdp" if is_rdp else "pld")
    folder.update(privacy={"epsilon": total, "delta": delta, "trials": len(trials)})
    return [
        f"privacy: all {len(trials)} trials together have epsilon {total:.4g} at delta {delta:g}; the winner was "
        "chosen among all of them, which costs this sum, by scores without noise"
    ]


def _tune(spec: SearchSpec, folder: RunFolder, data: Data, listener: SearchCallback) -> list[str]:
    """Run all trials to completion; returns warnings about clipped losses and failed trials.

    Raises UserError when trials report invalid metrics or do not fit on the cluster.
    """
    for name, value in TUNE_SETTINGS.items():
        os.environ.setdefault(name, value)
    # Whatever the user has set: see `_filter_errors`.
    os.environ["TUNE_PRINT_ALL_TRIAL_ERRORS"] = "1"
    shutdown_idle()
    here, search, warnings = folder.path.absolute(), spec.search, list[str]()
    room, request = _room(spec, here)
    reports = ReportJournal(here / JOURNAL)
    # Of those that a searcher proposes, the ones that an interrupted search has tried.
    configurations = list(spec.configurations) or list(reports.proposals)
    packs = packs_of(folder, spec, configurations, room)
    settings = _search_settings(spec, folder, configurations, data, len(packs or configurations), room)
    if settings.together is not None:
        RoundBarrier.create(barrier_file(here), len(configurations))
        listener.on_end = lambda number: RoundBarrier(barrier_file(here), [number]).leave()
    setup = SearchSetup(
        *(spec.experiment, spec.values, configurations, here / "losses.jsonl", listener.hedge, warnings.append),
        *(here / "deployed", lambda number: expert_folder(here, number).path, settings.predictions, room),
        on_block=listener.blocks.append,
    )
    config, space = tuner_spec(search, setup, packs, room)
    # Removes Tune's files of an interrupted search: trials continue from their run folders.
    shutil.rmtree(here / "tune", ignore_errors=True)
    scheduler = config.scheduler
    # Hedge has a journal of its own. Without scheduler and searcher, no trial depends on reports.
    resumes = not isinstance(scheduler, HedgeScheduler) and (scheduler or config.search_alg) is not None
    complete: list[int] = []
    if resumes:
        config, complete = _resumable(config, reports, spec.experiment.seed, here, listener)
    references = put_dataset(data[0]), ray.put(vars(data[1]))
    rounds = dict(reports.rounds) if resumes else None
    budget = SearchBudget(search.budget, folder, listener) if search.budget else None
    shared = Shared(
        *(spec.values, here, Surroundings.here(spec.experiment), settings, *references, listener.lock.claim, rounds),
        purse=budget.purse if budget else None,
    )
    trainable = tune.with_resources(tune.with_parameters(FederatedTrainable, shared=shared), request)
    run_config = _run_config(search, here, listener, budget)
    tuner = tune.Tuner(trainable, param_space=space, tune_config=config, run_config=run_config)
    total = len(packs or configurations) if space is not None else config.num_samples
    listener.health = RayHealth(folder.path, listener.lock.claim)
    try:
        # Tune needs a trial to run.
        results = _fit(tuner, scheduler, resumes, listener) if len(complete) < total else []
        ended = budget and budget.close(total if packs is None else len(configurations))
        if ended and isinstance(scheduler, HedgeScheduler | PromotionScheduler):
            scheduler.end_early()
    finally:
        listener.health.close()
        barrier_file(here).unlink(missing_ok=True)
    errors = [str(one.error).strip().splitlines()[-1] for one in results if one.error]
    failed = len(errors) + [reports.ends[number] for number in complete].count("failed")
    first, ran = f"; first error: {errors[0]}" if errors else "", len(complete) + len(results)
    if failed == ran:
        # The next attempt begins anew, from the checkpoints.
        (here / JOURNAL).unlink(missing_ok=True)
        raise RuntimeError(f"every trial failed{first}")
    for left in (here / "tune", *here.glob(f"experts/*/{KEPT}")):
        shutil.rmtree(left, ignore_errors=True)
    return warnings + ([f"{failed} of {ran} trials failed{first}"] if failed else [])


def _room(spec: SearchSpec, folder: Path) -> tuple[int, PlacementGroupFactory]:
    """Trials that train at once, and the resources that each requests. Raises UserError if none fits.

    folder: of the search, which all nodes must see.
    """
    resources, limit = spec.experiment.resources, spec.search.concurrency
    wait_for_room(resources, resources.own_actors)
    room = trials_that_fit(resources, resources.own_actors)
    check_shared(folder, resources)
    if limit and limit < room:
        # Limits trials by reserving CPUs instead of counting: a paused trial must leave no room for another process.
        return limit, trial_resources(resources, cpus_per_trial(limit))
    return room, trial_resources(resources)


def _search_settings(
    spec: SearchSpec, folder: RunFolder, configurations: list[Overrides], data: Data, trials: int, room: int
) -> SearchSettings:
    """Settings that the trials follow. trials: number of them. room: trials that train at once."""
    search, kept = spec.search, spec.search.kept_rounds(spec.experiment)
    mixes = kept is not None and kept.predictions
    obstacle = mixture_obstacle(spec, configurations, data) if mixes else None
    if obstacle:
        folder.update(no_mixture=obstacle)
    # Trials that take turns, or run on several machines, do not see each other's rounds.
    meets = trials == 1 or (trials <= room and len(node_resources()) == 1)
    together = TOGETHER if meets and search.reports_together(spec.experiment) else None
    return SearchSettings(
        *(search.rounds_per_report(spec.experiment), search.record is not None, search.metric, search.noise),
        *(search.report_smooth, kept, mixes and obstacle is None, together),
    )


def _run_config(
    search: SearchKind, folder: Path, listener: SearchCallback, budget: SearchBudget | None
) -> tune.RunConfig:
    return tune.RunConfig(
        name="tune",
        storage_path=str(folder),
        failure_config=tune.FailureConfig(max_failures=search.restarts),
        stop=budget,
        callbacks=[listener],
        verbose=0,
        # In a notebook, Tune's default reporter would occupy the cell even when silent.
        progress_reporter=tune.CLIReporter(),
    )


def _fit(tuner: tune.Tuner, scheduler: Any, resumes: bool, listener: SearchCallback) -> list[tune.Result]:
    """Run the trials; returns their results. Raises the error that ended them."""
    if isinstance(scheduler, HedgeScheduler):
        listener.is_idle = scheduler.is_holding
    log = logging.getLogger(TUNE_LOG)
    level = log.level
    # A filter sees only what is logged.
    log.setLevel(min(log.getEffectiveLevel(), logging.ERROR))
    log.addFilter(_filter_errors)
    # Written again as the reports are repeated.
    listener.blocks.path.unlink(missing_ok=True)
    try:
        with _without_loggers(), _environment(*WAITING) if resumes else nullcontext():
            grid = tuner.fit()
            return [grid[i] for i in range(len(grid))]
    except KeyboardInterrupt:
        if listener.lost:
            raise listener.lost from None
        raise
    except TuneError as error:
        # Tune puts the traceback of another error into the text of its own.
        reason: BaseException | None = error
        while isinstance(reason, TuneError):
            reason = reason.__cause__ or reason.__context__
        raise (reason or error) from None
    finally:
        log.removeFilter(_filter_errors)
        log.setLevel(level)


@contextmanager
def _without_loggers() -> Iterator[None]:
    """Tune runs without the libraries of its own loggers: it imports them, for seconds, to count who uses them."""
    # Not those that are loaded, which cost nothing; others may be loading in another thread.
    names = [library for library, logger in TUNE_LOGGERS.items() if not {library, logger} & set(sys.modules)]
    for library in names:
        modules: dict[str, Any] = sys.modules
        # Python's way to say that a module does not exist.
        modules[library] = None
        try:
            import_module(TUNE_LOGGERS[library])
        finally:
            del modules[library]
    try:
        yield
    finally:
        # Who uses Tune after this search has them with their libraries.
        for library in names:
            package, _, name = TUNE_LOGGERS[library].rpartition(".")
            sys.modules.pop(TUNE_LOGGERS[library], None)
            vars(sys.modules[package]).pop(name, None)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """An environment variable has a value in this context, unless it is set."""
    before = os.environ.get(name)
    os.environ.setdefault(name, value)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def _resumable(
    config: tune.TuneConfig, reports: ReportJournal, seed: int, folder: Path, listener: SearchCallback
) -> tuple[tune.TuneConfig, list[int]]:
    """Configuration of a tuner whose scheduler and searcher continue from a journal, and the trials that have ended.

    folder: of the search.
    """
    scheduler = ResumableScheduler(config.scheduler, reports, seed)

    def save(trial: Trial, round: int) -> Any:
        numbers = [number for number, _ in members(trial.trial_id, trial.config)]
        target = folder / "tune" / "known" / f"{numbers[0]:03d}-{round}"
        target.mkdir(parents=True, exist_ok=True)
        runs = [expert_folder(folder, number) for number in numbers]
        saved = [checkpoint_of(run.checkpoints, round) for run in runs]
        write_tokens(target, runs, saved, [round] * len(runs))
        return tune.Checkpoint.from_directory(target)

    def is_complete(number: int) -> bool:
        records = RunLog(expert_folder(folder, number).metrics).read()
        return reports.ends[number] == "failed" or len(records) >= reports.rounds.get(number, 0)

    complete = [number for number in reports.ends if is_complete(number)]
    for number in complete:
        listener.take_over(number, reports.ends[number])
    listener.on_start = scheduler.on_trial_start
    limit = config.max_concurrent_trials
    searcher: Any = config.search_alg
    search = ResumableSearch(searcher, scheduler, limit, save, lambda number: number in complete)
    return replace(config, search_alg=search, scheduler=scheduler, max_concurrent_trials=None), complete


def mixture_obstacle(spec: SearchSpec, configurations: list[Overrides], data: Data) -> str | None:
    """Reason why the experts' predictions cannot be mixed, as the end of a sentence; None: they can.

    On a fixed data set, the mixture is scored on the validation samples.
    """
    experiment, (dataset, partition) = spec.experiment, data
    splits = {
        json.dumps(
            {key: value for key, value in overrides.items() if key == "seed" or key.startswith("task.partition")}
        )
        for overrides in configurations
    }
    if len(splits) > 1:
        return "the experts are not scored on the same samples, because the search changes the partition or the seed"
    algorithms = {
        json.dumps([overrides.get(key) for key in ("algorithm", "algorithm.name", "algorithm.starts")]): overrides
        for overrides in configurations
    }
    for algorithm in (spec.trial(overrides).algorithm for overrides in algorithms.values()):
        if getattr(algorithm, "starts", 1) > 1:
            return f"{algorithm.name} scores several models at once"
    if dataset.targets != "classes" or experiment.task.loss.name != "cross_entropy":
        return "the models do not predict probabilities of classes"
    if experiment.task.partition.is_stream:
        samples = int(partition.splits()["held_out"].sizes.max())
    elif not spec.search.metric.startswith("validation_"):
        return f"`metric: {spec.search.metric}` does not use the validation samples, on which it would be scored"
    elif partition.server_validation is not None:
        samples = len(partition.server_validation)
    else:
        samples = 0 if partition.selection_sizes is None else int(partition.selection_sizes.sum())
    size = 4 * samples * dataset.classes
    if size > LARGEST:
        return (
            f"the predictions of an expert would take {size / 2**20:.0f} MB per round, more than {LARGEST // 2**20} MB "
            f"({samples} samples, {dataset.classes} classes)"
        )
    return None


def _record(finished: FinishedSearch) -> list[str]:
    """Write the recording if the search asks for it; returns a warning if not all trials have all rounds."""
    if finished.spec.search.record is None:
        return []
    try:
        recording = Recording.of(finished.folder.name, finished.spec, finished.trials)
    except ValueError as error:
        return [f"{RECORDING} was not written: {error}, and a replay needs every round of every configuration"]
    recording.write(finished.folder.path / RECORDING)
    return []


def packs_of(folder: RunFolder, spec: SearchSpec, known: list[Overrides], room: int) -> list[list[int]] | None:
    """Numbers of the experts in each trial; a resumed search keeps its packs, so that experts keep their numbers."""
    if spec.search.packed is None:
        return None
    record = folder.record()
    if "packs" not in record:
        size = None if spec.search.packed == "auto" else spec.search.packed
        folder.update(packs=pack_trials([spec.trial(overrides) for overrides in known], room, size))
    return folder.record()["packs"]


def push(name: str, show: object = None) -> list[str]:
    """Send a search's local record to MLflow; see `MlflowLogger.push`."""
    folder = find_run(name)
    spec = load_search(folder.experiment)
    require_named(spec.experiment.tracking.uri, str(folder))
    hedge = [{"expert": None, **record} for record in RunLog(folder.metrics).read()]
    trials = [{"expert": int(trial.name), **record} for trial in read_trials(folder) for record in trial.records]
    return logger_of_search(folder, spec, None, show, [], PUSHES).push([*hedge, *trials])


def logger_of_search(
    folder: RunFolder, spec: SearchSpec, data: Data | None, show: object, warnings: list[str], times: int = 1
) -> MlflowLogger:
    """Logger of a search and all its trials; for the arguments see `run_in_mlflow.logger_of_run`."""

    def open_store() -> Any:
        # Importing mlflow takes seconds: done only here, in the tracker's thread.
        from hedgerow.searchspaces.results.mlflow_search import SearchStore

        return SearchStore(folder, spec)

    def save(target: Path) -> None:
        """Write the best trial's model, if there is one with a checkpoint, and the deployed one, if there is one."""
        best, is_deployed = FinishedSearch.read(folder).winner, DeployedState.read(folder.path / DEPLOYED) is not None
        trial = expert_folder(folder.path, int(best.name)) if best else folder
        has_model = best is not None and latest_checkpoint(trial.checkpoints) is not None
        if not has_model and not is_deployed:
            return
        known = data or same_data(folder, spec.experiment, None, fix="load")
        if best and has_model:
            save_final_model(trial, spec.trial(best.overrides), known, target)
        if is_deployed:
            save_module(FinishedSearch.read(folder, known).deployed.module, known[0], target.with_name(DEPLOYED))

    return MlflowLogger(folder, open_store, save, times * spec.experiment.tracking.patience, show, warnings)
