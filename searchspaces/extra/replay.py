"""Replays a recorded search with another tuner: which configuration it would have chosen, and at which cost."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from ray.tune.experiment import Trial as TuneTrial

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.numbers import percent
from hedgerow.platform.config.loader import apply_override
from hedgerow.platform.data.validation_noise import ValidationNoise, configuration_key
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import scores_text
from hedgerow.platform.tracking.summary import final_value
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.searchspaces.extra.replay_controller import Curve, OnlineScore, ReplayController
from hedgerow.searchspaces.hedge.promotion_scheduler import PromotionScheduler
from hedgerow.searchspaces.results.recording import COSTS, Recording
from hedgerow.searchspaces.results.trials import Trial, choice, trial_labels, trial_table
from hedgerow.searchspaces.spaces.search_file import SearchSpec, parse_search
from hedgerow.searchspaces.spaces.search_section import KINDS, Overrides, SearchKind, SearchSetup
from hedgerow.searchspaces.spaces.space import Space, frozen

SHARED = ("space", "metric", "mode", "allow_test_selection", "report_every", "smooth")
"""Keys of the section `search` that another kind takes over from the recorded search."""

UNSHARED = ("record", "noise", "concurrency", "pack")
"""Keys that even the same kind does not take over."""


@dataclass(frozen=True)
class ReplayedSearch:
    """Result of a replay.

    trials: in the order of the tuner, with the records that they reached and the status finished, stopped, or
    unfinished (the tuner or the budget ended first). numbers: recorded configuration of each trial. chosen: position of
    the chosen trial. costs: client rounds and sample gradients that were spent. online: mean over client rounds of the
    test accuracy of the deployed model (see `OnlineScore`), up to the budget; None if only last rounds have a test
    score. deployed: (client rounds, position of the trial, round) of each change of the deployed model. hedge: records
    of Hedge's rounds.
    """

    recording: Recording
    spec: SearchSpec
    trials: list[Trial]
    numbers: list[int]
    chosen: int
    costs: dict[str, float]
    online: float | None
    deployed: list[tuple[float, int, int]]
    hedge: list[RoundRecord]

    @property
    def best(self) -> Trial:
        return self.trials[self.chosen]

    @property
    def test_score(self) -> dict[str, float]:
        """Test accuracy and loss of the chosen trial in the last round that it reached: as trained, not retrained."""
        recorded = self.recording.curves[self.numbers[self.chosen]][: len(self.best.records)]
        scores = {name: final_value(recorded, name) for name in ("test_accuracy", "test_loss")}
        return {name: value for name, value in scores.items() if value is not None}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per trial, in the order of the tuner."""
        metric = self.spec.search.metric
        return [
            {
                "trial": trial.name,
                "configuration": label.removeprefix(f"{trial.name} "),
                "recorded": f"{number:03d}",
                "rounds": len(trial.records),
                metric: final_value(trial.records, metric),
                "status": trial.status,
            }
            for trial, number, label in zip(self.trials, self.numbers, trial_labels(self.trials), strict=True)
        ]


def replay(
    recording: Recording,
    kind: str,
    settings: Sequence[str] = (),
    budget: float | None = None,
    slots: int | None = None,
    seed: int | None = None,
) -> ReplayedSearch:
    """Run a kind of search on recorded curves.

    settings: strings "search.key=value", as for --set. budget: maximum number of client rounds; the replay ends before
    the first report that it does not cover. slots: trials that train at once; None: as many as there are. seed: seed of
    the order of the configurations, of noise and of draws; None: the order of the recording and the seed of its file.
    Raises UserError.
    """
    spec = replay_spec(recording, kind, settings, seed)
    search, experiment, number_of = spec.search, spec.experiment, len(recording.configurations)
    order = np.arange(number_of) if seed is None else np.random.default_rng(seed).permutation(number_of)
    curves = noisy_curves(recording, search, experiment.seed)
    trials = (search.samples or number_of) if search.proposes else number_of
    firsts = [curve[0]["client_rounds"] for curve in curves]
    least = max(firsts) if search.proposes else sum(firsts)
    if budget is not None and budget < least:
        of = "a trial" if search.proposes else f"each of the {number_of} trials"
        raise UserError(f"--budget: {budget:g} client rounds are less than one round of {of}; give at least {least:g}")
    hedge: list[RoundRecord] = []
    # Configurations of a searcher's setup are those that an interrupted search has tried.
    known = [] if search.proposes else [recording.configurations[number] for number in order]
    with TemporaryDirectory() as folder:
        journal = Path(folder) / "losses.jsonl"
        limit = min(slots or trials, trials)
        setup = SearchSetup(experiment, spec.values, known, journal, hedge.append, lambda warning: None, room=limit)
        searcher, scheduler = search.build(setup)
        deployment = OnlineScore(search, scheduler, experiment.task.partition.is_stream)
        every = experiment.evaluation.every
        stride = every * (1 if isinstance(scheduler, PromotionScheduler) else math.ceil(search.report_every / every))
        controller = ReplayController(
            *(scheduler, searcher, limit, experiment.rounds, stride, budget, search),
            on_report=lambda position: deployment.look(controller, position),
        )
        numbers: list[int] = [] if searcher else order.tolist()
        if searcher is None:
            controller.replay([curves[number] for number in numbers])
        else:

            def curve_of(overrides: Overrides) -> Curve:
                numbers.append(nearest(overrides, recording.configurations, search.space))
                return curves[numbers[-1]]

            controller.propose(trials, curve_of, limited=not search.pauses_trials)
    ends = zip(numbers, controller.trials, controller.curves, controller.reached, strict=True)
    ran = [
        Trial(
            f"{i:03d}",
            recording.configurations[number],
            list(curve[:reached]),
            "unfinished"
            if trial.status != TuneTrial.TERMINATED
            else "finished"
            if reached >= experiment.rounds
            else "stopped",
        )
        for i, (number, trial, curve, reached) in enumerate(ends)
    ]
    if all(final_value(trial.records, search.metric) is None for trial in ran):
        raise UserError(
            f"--budget: {budget:g} client rounds end before the first evaluated report; raise it, or lower "
            "search.report_every with --set"
        )
    chosen = choice(ran, search.metric, search.mode, hedge, search.smooth)
    if chosen is None:
        raise UserError(f"{recording.name}: every trial that reports diverges, so {kind} cannot choose any")
    evaluated = (record for curve in curves for record in curve if "validation_accuracy" in record)
    tests_all = all("test_accuracy" in record for record in evaluated)
    return ReplayedSearch(
        *(recording, spec, ran, numbers, ran.index(chosen)),
        costs={cost: float(sum(record[cost] for trial in ran for record in trial.records)) for cost in COSTS},
        online=deployment.score(controller.spent if budget is None else budget) if tests_all else None,
        deployed=deployment.changes,
        hedge=hedge,
    )


def replay_spec(recording: Recording, kind: str, settings: Sequence[str], seed: int | None) -> SearchSpec:
    """The search of a replay: the file of the recording with another section `search`. Raises UserError."""
    if kind == "pbt":
        raise UserError(
            "--kind: pbt copies weights and changes settings during training, which recorded curves do not show; "
            "choose another kind"
        )
    recorded = (values := deepcopy(recording.file)).pop("search")
    chosen, by_task = KINDS.resolve(kind), recorded["metric"] == "test_accuracy"
    is_stream = values["task"]["partition"]["kind"] == "stream" and recorded["mode"] == "max"
    # On a stream, kinds that weigh rounds compare accuracies on each task, and the others their means at the end.
    others = ["metric"] * (is_stream and by_task != chosen.weighs_rounds)
    if recorded["kind"] == kind:
        section = {key: value for key, value in recorded.items() if key not in UNSHARED}
    else:
        section = {key: recorded[key] for key in SHARED if key in recorded} | {"kind": kind}
        section["samples"] = len(recording.configurations) if chosen.proposes else recorded.get("samples")
    if others or any(setting.startswith("search.metric=") for setting in settings):
        # Direction and smoothing of another metric follow from its name.
        section = {key: value for key, value in section.items() if key not in ("mode", "smooth", *others)}
    values["search"] = section
    # The recording has test scores of every round, which its targets may refer to.
    values["evaluation"] = {"test": "every", **(values.get("evaluation") or {})}
    for setting in settings:
        if not setting.startswith("search."):
            raise UserError(
                f"--set {setting}: the curves are recorded, so a replay changes only keys of `search`, as in "
                "--set search.report_every=1"
            )
        apply_override(values, {}, setting)
    spec = parse_search(values | ({} if seed is None else {"seed": seed}), source=recording.name)
    if spec.search.budget:
        raise UserError("search.budget has no effect in a replay; remove it, and give --budget CLIENT_ROUNDS")
    if spec.search.metric not in recording.metrics:
        raise UserError(
            f"search.metric: {spec.search.metric} was not recorded (recorded: {', '.join(recording.metrics)}); choose "
            "one of these"
        )
    if spec.search.noise and spec.search.noise.clients:
        raise UserError(
            "search.noise.clients: a recording has one validation score per round, not one per client; record the "
            "search with this key, or set search.noise.scale"
        )
    return spec


def noisy_curves(recording: Recording, search: SearchKind, seed: int) -> list[Curve]:
    """Recorded curves, with the Gaussian noise on the metric that a search with this seed would have."""
    if search.noise is None:
        return list(recording.curves)
    curves: list[Curve] = []
    for overrides, curve in zip(recording.configurations, recording.curves, strict=True):
        noise = ValidationNoise(seed, configuration_key(overrides), search.metric, search.noise.scale)
        curves.append([noise.apply(record, record["round"]) for record in curve])
    return curves


def nearest(overrides: Overrides, configurations: Sequence[Overrides], space: Space) -> int:
    """Number of the recorded configuration that is nearest to a proposal.

    Distance: sum over the keys of the difference as a share of the range (in the logarithm for `loguniform`), or of 1
    if a value from a list differs or only one of them has the key. The first one on ties.
    """

    def distance(configuration: Overrides) -> float:
        keys = overrides.keys() | configuration.keys()
        return sum(
            _apart(overrides[key], configuration[key], space, key) if key in overrides.keys() & configuration else 1.0
            for key in sorted(keys)
        )

    return min(range(len(configurations)), key=lambda number: distance(configurations[number]))


def _apart(a: Any, b: Any, space: Space, key: str) -> float:
    dimension = space[key]
    if dimension.form in ("grid", "choice"):
        return float(frozen(a) != frozen(b))
    low, high = dimension.values
    if dimension.form == "loguniform":
        return abs(math.log(a / b)) / math.log(high / low)
    return abs(a - b) / (high - low)


def replay_recording(
    name: str, kind: str, settings: Sequence[str], budget: float | None, slots: int | None, seed: int | None
) -> CommandOutput:
    """Body of the command `replay`: shows the choice of another tuner, and its cost. Raises UserError."""
    recording = Recording.read(name)
    found = replay(recording, kind, settings, budget, slots, seed)
    rows, chosen = found.rows, found.rows[found.chosen]
    whole = {cost: float(recording.cost(cost).sum()) for cost in COSTS}

    def render() -> None:
        shown = [row for row in rows if row["rounds"]]
        if shown:
            trial_table(shown, f"{kind} on {recording.name}").print()
        if len(shown) < len(rows):
            click.echo(f"{len(rows) - len(shown)} trials did not report.")
        score = scores_text({found.spec.search.metric: chosen[found.spec.search.metric]})
        choice = f"{chosen['configuration']} (recorded {chosen['recorded']})"
        click.echo(f"Choice: {choice}, {score} in round {chosen['rounds']}.")
        if found.test_score:
            click.echo(f"Test score of the choice, as trained: {scores_text(found.test_score)}.")
        if found.online is not None:
            click.echo(f"Online score, the mean test accuracy of the deployed model: {percent(found.online)}.")
        spent = [
            f"{found.costs[cost]:,.0f} {cost.replace('_', ' ')} ({percent(found.costs[cost] / whole[cost])} of the "
            "recording)"
            for cost in COSTS
            if whole[cost]
        ]
        click.echo(f"Cost: {', '.join(spent)}.")

    return CommandOutput(
        {
            "recording": recording.name,
            "kind": kind,
            "choice": chosen,
            "test": found.test_score,
            "online": found.online,
            "costs": found.costs,
            "trials": rows,
        },
        render,
    )
