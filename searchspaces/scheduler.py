"""Hedge as a scheduler of Ray Tune: a trial is an expert, a reported round is one of Hedge's rounds."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import ray
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from hedgerow.platform.errors import UserError
from hedgerow.searchspaces.hedge import AdaHedge, Hedge
from hedgerow.searchspaces.packs import members
from hedgerow.searchspaces.rounds import HedgeRounds, Record

LOG = logging.getLogger(__name__)

ROUND = "round"


class HedgeScheduler(TrialScheduler):
    """Weighs the trials by what they report, round by round (thesis, Algorithm 10), and lets them take turns.

    Works with any trainable that reports its metric:

        tune.Tuner(trainable, tune_config=tune.TuneConfig(scheduler=HedgeScheduler(8, metric="loss", mode="min")), ...)

    experts: how many there will be; as a rule each is a trial. metric, mode, range, missing, averaged, journal, told:
    see HedgeRounds. hedge: the rate; None: `Hedge(experts, gamma)` with gamma 0.1, or, for a metric to be minimised
    without `range` and `gamma`, `AdaHedge(experts)`. ahead: with more trials than the cluster has room for, the rounds
    that one may be ahead of another; then it is paused (with a checkpoint), and the one that is least far takes its
    place, or it waits where it is if no other needs the room. With room for all, no trial ever waits. prune: trials
    whose weight falls below it are stopped; the regret to a stopped trial is bounded no more. time_attr: the key that
    counts rounds; a result may also carry several rounds at once, as a list of dictionaries under "records". A trial
    may train several experts (`packs.members`): then each of its records names its "expert".
    warn: called with a sentence when the search ends and the range clipped more than 1 % of the reports; the default
    logs it.
    """

    def __init__(
        self,
        experts: int,
        metric: str = "loss",
        mode: Literal["max", "min"] = "min",
        gamma: float | None = None,
        hedge: Hedge | None = None,
        range: tuple[float, float] | None = None,
        missing: Literal["penalise", "skip"] = "penalise",
        averaged: tuple[str, ...] = (),
        ahead: int = 20,
        prune: float = 0.0,
        time_attr: str = TRAINING_ITERATION,
        journal: Path | None = None,
        told: Callable[[Record], None] | None = None,
        warn: Callable[[str], None] = LOG.warning,
    ):
        super().__init__()
        self._metric = metric
        self.ahead, self.prune, self.time_attr, self.warn = ahead, prune, time_attr, warn
        if hedge is None:
            scale_free = mode == "min" and range is None and gamma is None
            hedge = AdaHedge(experts) if scale_free else Hedge(experts, 0.1 if gamma is None else gamma)
        self.rounds = HedgeRounds(hedge, metric, mode, range, missing, averaged, journal, told)
        self.error: UserError | None = None
        """What ended the search, if the trials reported nonsense: Tune itself passes on only its traceback."""
        self._unfinished = {expert for expert, _ in enumerate(self.rounds.latest)}
        self._holding: dict[str, Trial] = {}
        self._pausing: set[str] = set()
        self._known: dict[str, set[int]] = {}

    # ---- what Tune tells ----------------------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if max(experts_of(trial)) >= len(self.rounds.latest):
            raise ValueError(f"HedgeScheduler(experts={len(self.rounds.latest)}) was given more trials than that")
        if trial.trial_id not in self._known and trial.status == Trial.PENDING:
            # Paused from the beginning: Tune starts pending trials by itself, but paused ones only when we say so.
            trial.set_status(Trial.PAUSED)
        self._known[trial.trial_id] = set(experts_of(trial))

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Record) -> str:
        self._report(trial, result)
        experts = experts_of(trial)
        if all(expert in self.rounds.retired for expert in experts):
            return TrialScheduler.STOP
        if self.prune and max(self.rounds.hedge.probs()[experts]) < self.prune and len(self._unfinished) > 1:
            self._end(trial, penalised=False)
            return TrialScheduler.STOP
        if self._must_wait(trial):
            # Whether it gives up its process is decided in `choose_trial_to_run`, when it is known who wants it.
            self._holding[trial.trial_id] = trial
            return TrialScheduler.NOOP
        return TrialScheduler.CONTINUE

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: Record) -> None:
        if result:
            self._report(trial, result)
        self._end(trial, penalised=False)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._end(trial, penalised=False)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        # Tune starts it again from its checkpoint as long as its `max_failures` allow.
        self._holding.pop(trial.trial_id, None)
        self._pausing.discard(trial.trial_id)
        if not trial.should_recover():
            self._end(trial, penalised=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The trial that is least far, where there is room, and one more.

        Tune keeps the process of a trial that ends or pauses only if another is waiting for it by then. What does not
        fit yet starts no process of its own. A trial that is being paused counts as gone. One that is too far ahead
        keeps its process, idle, until it may go on or another needs the room: a new process costs seconds.
        """
        trials = tune_controller.get_trials()
        self._pausing -= {trial.trial_id for trial in trials if trial.status == Trial.PAUSED}
        self._release(tune_controller, wanted=any(trial.status == Trial.PENDING for trial in trials))
        waiting = [trial for trial in trials if trial.status == Trial.PAUSED]
        if not waiting:
            return None
        first = min(waiting, key=lambda trial: (int(min(self.rounds.latest[experts_of(trial)])), experts_of(trial)))
        busy = sum(t.status in (Trial.RUNNING, Trial.PENDING) and t.trial_id not in self._pausing for t in trials)
        return first if busy <= self._room(first) and not self._must_wait(first) else None

    def _release(self, tune_controller: Any, wanted: bool) -> None:
        """Let those go on that were too far ahead and are no more; if their room is wanted, pause the others."""
        for trial in list(self._holding.values()):
            if trial.is_saving:
                continue
            if trial.status != Trial.RUNNING:
                del self._holding[trial.trial_id]
            elif not self._must_wait(trial):
                del self._holding[trial.trial_id]
                # Schedulers are handed a wrapper that warns of this method, for which Tune has no public one.
                getattr(tune_controller, "_tune_controller", tune_controller)._schedule_trial_train(trial)
            elif wanted:
                del self._holding[trial.trial_id]
                self._pausing.add(trial.trial_id)
                tune_controller.pause_trial(trial)

    def debug_string(self) -> str:
        hedge = self.rounds.hedge
        return f"Hedge: round {hedge.rounds}, leader {hedge.leader}, regret {hedge.regret:.3g}"

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_text(json.dumps(self.rounds.state_dict()))

    def restore(self, checkpoint_path: str) -> None:
        self.rounds.load_state_dict(json.loads(Path(checkpoint_path).read_text()))

    def _report(self, trial: Trial, result: Record) -> None:
        only = experts_of(trial)[0]
        try:
            for record in result.get("records", [result]):
                round = int(record.get(ROUND, record.get(self.time_attr, 0)))
                self.rounds.report(record.get("expert", only), round, record)
        except UserError as error:
            self.error = error
            raise

    # ---- room ---------------------------------------------------------------------------------------------------

    def _end(self, trial: Trial, penalised: bool) -> None:
        running = bool(self._unfinished)
        for expert in experts_of(trial):
            self._unfinished.discard(expert)
            self.rounds.retire(expert, penalised)
        if running and not self._unfinished and self.rounds.warning:
            self.warn(self.rounds.warning)

    def _must_wait(self, trial: Trial) -> bool:
        """Whether the trial is too far ahead, where the trials have to share what room there is."""
        ahead = min(self.rounds.ahead(expert) for expert in experts_of(trial))
        return ahead >= self.ahead and self._trials_left() > self._room(trial)

    def _trials_left(self) -> int:
        """How many trials have not ended; an expert that no trial has named yet counts as one."""
        running = [experts for experts in self._known.values() if experts & self._unfinished]
        return len(running) + len(self._unfinished.difference(*running))

    def _room(self, trial: Trial) -> int:
        """How many such trials the cluster holds at once."""
        assert trial.placement_group_factory is not None
        wanted = trial.placement_group_factory.required_resources
        has = ray.cluster_resources()
        room = min((int(has.get(kind, 0) / n + 1e-6) for kind, n in wanted.items() if n), default=self._trials_left())
        return max(1, room)


def experts_of(trial: Trial) -> list[int]:
    """The numbers of a trial's experts."""
    return [number for number, _ in members(trial.trial_id, trial.config)]
