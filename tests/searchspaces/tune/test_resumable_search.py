"""Searches that are interrupted after any of their reports decide as undisturbed ones: all kinds with a scheduler."""

import heapq
import math
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.tune import Trainable
from ray.tune.experiment import Experiment, Trial
from searches import plan

from hedgerow.platform.common.errors import UserError
from hedgerow.searchspaces.spaces.packing import COPIES
from hedgerow.searchspaces.spaces.search_section import SearchSetup
from hedgerow.searchspaces.tune.report_journal import ReportJournal
from hedgerow.searchspaces.tune.resumable_search import ResumableScheduler, ResumableSearch, number_of
from hedgerow.searchspaces.tune.simulated_controller import SimulatedController
from hedgerow.searchspaces.tune.tuner_spec import tuner_spec

ROUNDS, STRIDE = 18, 2
LR = {"algorithm.lr": {"uniform": [0.01, 0.5]}}
KINDS = {
    "asha": {"kind": "asha", "samples": 9, "space": LR, "grace": 2},
    "hyperband": {"kind": "hyperband", "samples": 9, "space": LR},
    "pbt": {"kind": "pbt", "samples": 6, "space": LR, "interval": 4},
    "optuna": {"kind": "optuna", "samples": 12, "space": LR, "sampler": "random", "pruner": "median", "grace": 2},
    "promote": {"kind": "hedge", "samples": 9, "space": LR, "allocate": "promote", "deploy_every": 0},
    "halving": {"kind": "optuna", "samples": 9, "space": LR, "sampler": "tpe", "pruner": "halving", "grace": 2},
}


class Nothing(Trainable):
    """A trainable that no process runs."""


def score(lr: float, round: int) -> float:
    """Accuracy of a model in a round: large rates begin well and end badly, so that ranks change between rungs."""
    return 1 - math.exp(-lr * round) - 0.9 * lr * round / ROUNDS + 0.02 * math.sin(37 * lr * round)


class Machine:
    """Slots on which the trials of a search train, one round of each per tick, until the search ends or is killed."""

    def __init__(self, folder: Path, settings: dict, slots: int):
        self.folder, self.slots, self.now, self.order = folder, slots, 0, count()
        self.spec = plan(
            folder, rounds=ROUNDS, evaluation={"every": STRIDE}, search={**settings, "report_every": STRIDE}
        )
        self.models: dict[int, list[float]] = {}
        """The part of a run folder that a kill leaves: rates of the rounds that a trial's model has trained."""
        self.copies: dict[int, int] = {}
        self.training: list[tuple[int, int, int]] = []
        self.reports: list[tuple] = []

    def run(self, kill_after: float = math.inf, crash_after: float = math.inf) -> bool:
        """Begin or resume; returns whether the search ended.

        crash_after: number of reports after which the process of a trial dies and starts again two reports earlier.
        """
        journal = ReportJournal(self.folder / "reports.jsonl")
        known = self.spec.configurations or journal.proposals
        setup = SearchSetup(
            *(self.spec.experiment, self.spec.values, known, self.folder / "run" / "j", lambda record: None, print),
            room=self.slots,
        )
        config, space = tuner_spec(self.spec.search, setup, None, self.slots)
        scheduler = ResumableScheduler(config.scheduler, journal, self.spec.experiment.seed)
        search = ResumableSearch(
            config.search_alg,
            scheduler,
            config.max_concurrent_trials,
            lambda trial, round: SimpleNamespace(model=(number_of(trial), round)),
            lambda number: True,
        )
        experiment = Experiment(
            "sim",
            Nothing,
            config=space or {},
            num_samples=config.num_samples,
            storage_path=str(self.folder),
        )
        search.add_configurations([experiment])
        self.controller = SimulatedController(
            scheduler,
            search,
            train=self.train,
            save=lambda trial, result: SimpleNamespace(model=(number_of(trial), result["round"])),
        )
        before = {number: (time, order) for time, order, number in self.training}
        self.training, self.trials = [], dict[int, Trial]()
        for reports in count():
            while (trial := search.next_trial()) is not None:
                self.trials[number_of(trial)] = trial
                self.controller.add(trial)
            self.start(scheduler, before)
            if not self.training:
                return True
            if reports >= kill_after:
                return False
            self.now, _, number = heapq.heappop(self.training)
            if reports == crash_after:
                self.crash(scheduler, self.trials[number])
            else:
                self.report(self.trials[number])

    def crash(self, scheduler: ResumableScheduler, trial: Trial) -> None:
        """Restart a trial, with the calls that Tune makes for it."""
        scheduler.on_trial_error(self.controller, trial)
        trial.set_status(Trial.PENDING)
        scheduler.on_trial_add(self.controller, trial)
        model = self.models.get(number_of(trial), [])
        del model[max(0, len(model) - 2 * STRIDE) :]

    def start(self, scheduler: ResumableScheduler, before: dict) -> None:
        """Start trials on free slots, as Tune does: the choice of the scheduler, then those that wait."""
        statuses: list[str] = []
        while statuses != (statuses := [trial.status for trial in self.trials.values()]):
            chosen = self.controller.choose()
            waiting = [one for one in [chosen, *self.trials.values()] if one and one.status == Trial.PENDING]
            if not waiting or statuses.count(Trial.RUNNING) >= self.slots:
                continue
            trial, number = waiting[0], number_of(waiting[0])
            trial.set_status(Trial.RUNNING)
            scheduler.on_trial_start(trial)
            latest = trial.latest_checkpoint_result
            if latest and self.copies.get(number, 0) < trial.config.get(COPIES, 0):
                donor, round = latest.checkpoint.model
                self.models[number] = self.models[donor][:round]
                self.copies[number] = trial.config[COPIES]
            if number in before:
                heapq.heappush(self.training, (*before.pop(number), number))
            else:
                self.train(trial)

    def train(self, trial: Trial) -> None:
        heapq.heappush(self.training, (self.now + STRIDE, next(self.order), number_of(trial)))

    def report(self, trial: Trial) -> None:
        number = number_of(trial)
        model = self.models.setdefault(number, [])
        rate = trial.config["overrides"]["algorithm.lr"]
        model += [rate] * STRIDE
        accuracy = sum(score(rate, i) - score(rate, i - 1) for i, rate in enumerate(model, 1))
        done = len(model) >= ROUNDS
        result = {"round": len(model), "validation_accuracy": accuracy, "done": done, "trial_id": trial.trial_id}
        self.controller.report(trial, result)
        if trial.trial_id not in self.controller.scheduler.repeats:
            self.reports.append((number, len(model), rate, accuracy, trial.status))

    @property
    def end(self) -> dict:
        """Configurations, rounds and scores of all trials."""
        last = {number: rest for number, *rest in self.reports}
        return {number: (last[number], self.models[number]) for number in sorted(self.models)}


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.grid
def test_a_search_that_is_killed_after_any_report_decides_as_an_undisturbed_one(tmp_path, name, slots):
    calm = Machine(tmp_path / "calm", KINDS[name], slots)
    assert calm.run()
    if name == "promote":
        # No trial is stopped, and most rest before others.
        assert {len(model) for model in calm.models.values()} == {ROUNDS}
        numbers = [number for number, *_ in calm.reports]
        assert sum(a != b for a, b in pairwise(numbers)) > 2 * len(calm.models)
    elif name == "pbt":
        assert any(calm.copies.values())
    else:
        assert len({len(model) for model in calm.models.values()}) > 1
    for cut in range(0, len(calm.reports), 3):
        killed = Machine(tmp_path / f"cut{cut}", KINDS[name], slots)
        assert not killed.run(kill_after=cut)
        assert killed.run()
        assert killed.reports == calm.reports
        assert killed.end == calm.end


@pytest.mark.parametrize("name", ["asha", "hyperband", "optuna", "halving", "promote"])
def test_a_trial_whose_process_starts_again_is_judged_once_by_each_report(tmp_path, name):
    calm = Machine(tmp_path / "calm", KINDS[name], 1)
    assert calm.run()
    for cut in range(0, len(calm.reports), 5):
        disturbed = Machine(tmp_path / f"cut{cut}", KINDS[name], 1)
        assert disturbed.run(crash_after=cut)
        # Another trial may have gone on first.
        assert sorted(one[:4] for one in disturbed.reports) == sorted(one[:4] for one in calm.reports)
        assert disturbed.models == calm.models


def test_a_journal_without_its_last_line_goes_on_and_one_without_another_line_is_refused(tmp_path):
    file = tmp_path / "reports.jsonl"
    journal = ReportJournal(file)
    journal.append("add", trial=0)
    journal.append("report", trial=0, result={"round": 2, "validation_accuracy": 0.5}, decision="CONTINUE", ends=[])
    journal.append("report", trial=0, result={"round": 4, "validation_accuracy": 0.7}, decision="STOP", ends=[])
    whole = file.read_text()
    file.write_text(whole[:-20])
    again = ReportJournal(file)
    assert (again.rounds, again.ends) == ({0: 2}, {})
    again.append("report", trial=0, result={"round": 4, "validation_accuracy": 0.7}, decision="STOP", ends=[])
    assert file.read_text() == whole
    assert ReportJournal(file).ends == {0: "stopped"}
    lines = whole.splitlines(keepends=True)
    for damaged, sentence in (
        (lines[0] + lines[2], "event 1 is missing.* restore it from a copy"),
        (whole.replace("0.5", "0.6"), "reports.jsonl:2 is damaged .*checksum"),
    ):
        file.write_text(damaged)
        with pytest.raises(UserError, match=sentence):
            ReportJournal(file)


@pytest.mark.parametrize("kind", ["asha", "hyperband"])
@pytest.mark.parametrize("metric", ["validation_loss", "validation_accuracy"])
def test_a_trial_that_diverges_ends_and_the_best_one_goes_on(tmp_path, kind, metric):
    rates = {"algorithm.lr": [0.1, 0.2, 0.3]}
    own = {"kind": kind, "space": rates, "reduction": 3, "metric": metric} | ({"grace": 1} if kind == "asha" else {})
    spec = plan(tmp_path, rounds=3, evaluation={"every": 1}, search=own)
    setup = SearchSetup(spec.experiment, spec.values, spec.configurations, tmp_path, lambda record: None, print)
    _, scheduler = spec.search.build(setup)
    controller = SimulatedController(scheduler)
    # HyperBand's first bracket has two trials and stops none.
    earlier = 2 if kind == "hyperband" else 0
    trials = [Trial("t", trial_id=name, stub=True) for name in "xyabc"[2 - earlier :]]
    scores = [0.1, math.nan, 5.0] if metric == "validation_loss" else [0.9, math.nan, 0.2]
    for trial in trials:
        controller.trials.append(trial)
        scheduler.on_trial_add(controller, trial)
        trial.set_status(Trial.RUNNING)
    del trials[:earlier]
    for trial, value in zip(trials, scores, strict=True):
        result = {"round": 1, metric: value, "done": False}
        trial.run_metadata.last_result = result
        controller.report(trial, result)
    assert trials[0].status != Trial.TERMINATED
    assert trials[1].status == Trial.TERMINATED
