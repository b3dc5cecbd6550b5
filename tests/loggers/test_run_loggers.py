"""Loggers: complete after a resume, and what they decide is recorded; a failure is never the end of a run."""

import math
import random
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml
from families import INLINE
from helpers import without_clock
from ray_runs import small
from searches import plan
from tensorboardX.proto.event_pb2 import Event

from hedgerow import Logger
from hedgerow.platform.common.errors import Interrupted, UserError
from hedgerow.platform.config.loader import dump_experiment, parse_experiment
from hedgerow.platform.loggers.metric_groups import grouped
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.runner import resume, run
from hedgerow.platform.storage.checkpoint import checkpoints, round_of
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.tune.search_runner import search
from hedgerow.searchspaces.tune.trial_loggers import TrialLoggers

CALLS = []


class Meddling(Logger):
    """Changes all that it receives, and every global generator."""

    def __init__(self, name="meddling"):
        self.name = name

    def start(self, run):
        CALLS.append(("start", len(run.history)))
        run.settings.clear()

    def log(self, record):
        CALLS.append(("round", record["round"], record.get("test_accuracy")))
        record.clear()
        torch.manual_seed(1), np.random.seed(1), random.seed(1)

    def stop(self, record):
        record.clear()
        torch.manual_seed(1), np.random.seed(1), random.seed(1)

    def end(self, status, summary):
        CALLS.append(("end", status, summary.get("test_accuracy")))


class Failing(Logger):
    """Fails in its second round."""

    def log(self, record):
        if record["round"] == 2:
            raise RuntimeError("out of ink")
        CALLS.append(("failing", record["round"]))


class Misspelt(Logger):
    def ad_metrics(self, record):
        raise AssertionError("never called")


class Idle(Logger):
    """Has no hook."""


class KeepSecond(Logger):
    """Keeps the checkpoint of round 2."""

    def keep_checkpoint(self, record):
        return record["round"] == 2


class Undefined(Logger):
    """Adds a metric that is not a number from round 2 on."""

    adds = ("undefined",)

    def add_metrics(self, record):
        return {"undefined": 1 if record["round"] == 1 else math.nan}


class Taking(Logger):
    """Adds another value under the name of a metric that the round has."""

    adds = ("train_loss",)

    def add_metrics(self, record):
        return {"train_loss": 0}


class Unreliable(Logger):
    """Adds a value that depends on more than the records, and fails in round 3."""

    adds = ("calls",)
    added = 0

    def add_metrics(self, record):
        Unreliable.added += 1
        return {"calls": Unreliable.added}


class Broken(Logger):
    """Adds a metric up to round 2, and fails then."""

    adds = ("inverse",)

    def add_metrics(self, record):
        return {"inverse": 1 / (3 - record["round"])}


class Total(Logger):
    """Adds the sum of all losses of the record, and what its helper counts."""

    adds = ("total",)

    def send(self, values):
        return sum(values)

    def add_metrics(self, record):
        return {"total": self.send(value for name, value in record.items() if name.endswith(("_loss", "_gap")))}


class Forgetful(Logger):
    """Returns nothing in round 2."""

    adds = ("round_again",)

    def add_metrics(self, record):
        return {"round_again": record["round"]} if record["round"] != 2 else None


class Undeclared(Logger):
    """Does not say which metrics it adds."""

    def add_metrics(self, record):
        return {"one": 1}


class Single(Undeclared):
    """A name without a tuple."""

    adds = "one"


class Odd(Undeclared):
    """Adds a metric with a name that MLflow refuses."""

    def __init__(self, name):
        self.adds = (name,)


class Confused(Logger):
    """Fails with an error of Hedgerow's own."""

    def log(self, record):
        raise UserError("there is no such run")


def experiment(folder, *also, **changes):
    values = yaml.safe_load(dump_experiment(small(folder, **{**INLINE, **changes})))
    values["tracking"] = {"enabled": False, "also": list(also)}
    return parse_experiment(values)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Values in TensorBoard's files (length, checksum, event, checksum), by name."""
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.glob("events.*")):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            at += 16 + length
    return found


@pytest.fixture(autouse=True)
def fresh():
    CALLS.clear()


def test_a_callback_follows_the_run_and_cannot_change_it(tmp_path):
    plain = run(experiment(tmp_path / "plain"))
    own = {"name": f"{__name__}.Meddling", "args": {"name": "mine"}}
    followed = run(experiment(tmp_path / "followed", own))
    assert without_clock(followed.records) == without_clock(plain.records)
    rounds = len(plain.records)
    assert CALLS[0] == ("start", 0)
    assert [call[1] for call in CALLS if call[0] == "round"] == list(range(1, rounds + 1))
    assert [call[2] for call in CALLS if call[0] == "round"] == [r.get("test_accuracy") for r in plain.records]
    assert CALLS[-1] == ("end", "finished", plain.summary["test_accuracy"])


def test_a_callback_may_be_named_twice_with_other_arguments(tmp_path):
    also = [{"name": f"{__name__}.Meddling", "args": {"name": name}} for name in ("one", "two")]
    run(experiment(tmp_path, *also, rounds=1))
    assert [call[0] for call in CALLS] == [*["start"] * 2, *["round"] * 2, *["end"] * 2]


def test_a_callback_that_fails_is_reported_and_the_run_goes_on(tmp_path):
    finished = run(experiment(tmp_path, f"{__name__}.Failing"))
    assert CALLS == [("failing", 1)]
    assert "Failing failed in log (RuntimeError: out of ink) and was switched off" in finished.warning
    assert finished.folder.record()["status"] == "finished"


def test_tensorboard_has_every_value_once_also_after_a_resume(tmp_path):
    finished = run(experiment(tmp_path, "tensorboard"))
    folder = finished.folder
    shown = scalars(folder.path / "tensorboard")
    for name in ("test_accuracy", "train_loss", "bytes_up"):
        logged = [(r["round"], np.float32(r[name])) for r in finished.records if name in r]
        assert shown[grouped(name)] == logged
    folder.update(status="interrupted")
    again = resume(str(folder.path))
    assert scalars(folder.path / "tensorboard") == shown
    assert without_clock(again.records) == without_clock(finished.records)


@pytest.mark.exhaustive("processes")
def test_weights_and_biases_receives_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    finished = run(experiment(tmp_path, {"name": "wandb", "args": {"project": "test"}}))
    assert finished.warning is None
    (written,) = finished.folder.path.glob("wandb/offline-run-*/*.wandb")
    assert written.stat().st_size > 0


def interrupted(chosen, at):
    """The run of an experiment that fails after a round, resumed."""

    def fail(record):
        if record["round"] == at:
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        run(chosen, show=fail)
    (folder,) = Path(chosen.output).glob("small-*")
    return resume(str(folder))


def test_added_metrics_are_recorded_once_and_change_no_other_number(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    plain = run(experiment(tmp_path / "plain"))
    chosen = experiment(tmp_path / "added", "deciding_loggers.Gap", checkpoints__every=1)
    added = run(chosen)
    losses = [record["train_loss"] for record in plain.records]
    pairs = zip(without_clock(plain.records), without_clock(added.records), strict=True)
    for number, (record, mine) in enumerate(pairs, start=1):
        assert mine.pop("mean_train_loss") == sum(losses[:number]) / number
        if "test_loss" in record:
            assert mine.pop("loss_gap") == record["test_loss"] - record["train_loss"]
        assert mine == record
    again = interrupted(experiment(tmp_path / "resumed", "deciding_loggers.Gap", checkpoints__every=1), 3)
    assert without_clock(again.records) == without_clock(added.records)
    assert added.summary["report"].keys() == {"mean_train_loss", "loss_gap"}


@pytest.mark.parametrize("executor", ["inline", pytest.param("ray", marks=pytest.mark.exhaustive("processes"))])
def test_a_logger_ends_the_run_and_a_resume_ends_it_in_the_same_round(executor, tmp_path, monkeypatch, request):
    if executor == "ray":
        request.getfixturevalue("ray_here")
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    plain = run(experiment(tmp_path / "plain"))
    third = plain.records[2]["test_accuracy"]
    assert max(record["test_accuracy"] for record in plain.records[:2]) < third
    stopping = {"name": "deciding_loggers.StopAt", "args": {"metric": "test_accuracy", "target": third}}

    def chosen(folder):
        return experiment(tmp_path / folder, stopping, resources__executor=executor, checkpoints__every=1)

    ended = run(chosen("ended"))
    assert without_clock(ended.records) == without_clock(plain.records[:3])
    reason = f"test_accuracy is {third:g} (deciding_loggers.StopAt)"
    assert (ended.status, ended.ended, ended.folder.record()["ended"]) == ("finished", reason, reason)
    for at in (2, 3):
        again = interrupted(chosen(f"resumed{at}"), at)
        assert (again.status, again.ended) == ("finished", reason)
        assert without_clock(again.records) == without_clock(ended.records)


def test_a_metric_that_is_not_a_number_ends_the_run_also_one_that_a_later_logger_adds(tmp_path):
    stopping = {"name": "deciding_loggers.StopAt", "args": {"metric": "undefined", "target": math.inf}}
    ended = run(experiment(tmp_path, stopping, f"{__name__}.Undefined"))
    assert ended.ended == "undefined is nan (deciding_loggers.StopAt)"
    first, second = (record["undefined"] for record in ended.records)
    assert first == 1
    assert math.isnan(second)


def test_a_logger_keeps_the_checkpoint_of_a_round(tmp_path):
    kept = run(experiment(tmp_path, f"{__name__}.KeepSecond", checkpoints={"every": 1, "keep": 1}))
    assert [round_of(folder) for folder in checkpoints(kept.folder.checkpoints)] == [2, 4]


def test_a_deciding_logger_that_fails_is_reported_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    for finished in (
        run(experiment(tmp_path / "one", f"{__name__}.Broken")),
        interrupted(experiment(tmp_path / "two", f"{__name__}.Broken", checkpoints__every=1), 4),
    ):
        assert [record.get("inverse") for record in finished.records] == [0.5, 1.0, None, None]
        said = "Broken failed in add_metrics (ZeroDivisionError: division by zero) and was switched off"
        assert finished.warning.count(said) == 1
        assert finished.status == "finished"


def test_added_metrics_are_not_in_the_records_that_add_metrics_receives_also_after_a_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    also = ("deciding_loggers.Gap", f"{__name__}.Total")
    calm = run(experiment(tmp_path / "calm", *also))
    resumed = interrupted(experiment(tmp_path / "two", *also, checkpoints__every=1), 3)
    for one in (calm, resumed):
        for record in one.records:
            measured = [record[name] for name in record if name.endswith("_loss") and name != "mean_train_loss"]
            assert record["total"] == pytest.approx(sum(measured), rel=1e-12)
    assert [record["total"] for record in resumed.records] == [record["total"] for record in calm.records]


def test_a_logger_that_returns_something_else_or_fails_with_an_error_of_ours_is_switched_off(tmp_path):
    done = run(experiment(tmp_path, f"{__name__}.Forgetful", f"{__name__}.Confused"))
    assert [record.get("round_again") for record in done.records] == [1, None, None, None]
    assert "Forgetful failed in add_metrics" in done.warning
    assert "Confused failed in log (UserError: there is no such run)" in done.warning
    assert done.status == "finished"


class Ends(Logger):
    """Notes how often it has ended, and how."""

    said: ClassVar[list] = []

    def end(self, status, summary):
        self.said.append((status, summary["test_accuracy"]))


def test_a_signal_while_figures_are_drawn_leaves_no_logger_open(tmp_path, monkeypatch):
    def signal(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "draw_curves", signal)
    Ends.said.clear()
    with pytest.raises(Interrupted):
        run(experiment(tmp_path, f"{__name__}.Ends"))
    ((status, accuracy),) = Ends.said
    assert status == "finished"
    assert 0 < accuracy < 1


def test_a_metric_under_the_name_of_another_one_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"Taking adds train_loss = 0.0 to round 1, which has .*another name"):
        run(experiment(tmp_path, f"{__name__}.Taking"))


def test_a_metric_that_depends_on_more_than_the_records_ends_a_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    with pytest.raises(UserError, match=r"Unreliable adds calls = .* to round 1, which has calls = .*records alone"):
        interrupted(experiment(tmp_path, f"{__name__}.Unreliable", checkpoints__every=1), 2)


def test_hedge_refuses_a_logger_that_ends_runs(tmp_path):
    stopping = {"name": "deciding_loggers.StopAt", "args": {"metric": "round", "target": 2}}
    with pytest.raises(UserError, match=r"tracking.also \(.*StopAt\) cannot be used with kind hedge"):
        plan(tmp_path, tracking__also=[stopping])


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_loggers_decide_in_each_trial_of_a_search(tmp_path):
    stopping = {"name": "deciding_loggers.StopAt", "args": {"metric": "round", "target": 2}}
    grid = {"kind": "grid", "space": {"algorithm.lr": [0.01, 0.3]}}
    done = search(plan(tmp_path, tracking__also=["deciding_loggers.Gap", stopping], search=grid))
    assert [trial.status for trial in done.trials] == ["finished"] * 2
    for trial in done.trials:
        assert [record["round"] for record in trial.records] == [1, 2]
        losses = [record["train_loss"] for record in trial.records]
        assert [record["mean_train_loss"] for record in trial.records] == [losses[0], sum(losses) / 2]


class Rate(Logger):
    """Learning rate of the run."""

    def start(self, run):
        CALLS.append((run.name, run.settings["algorithm"]["lr"]))


def test_the_settings_of_a_trial_have_its_configuration(tmp_path):
    spec = plan(tmp_path, tracking__also=[f"{__name__}.Rate"])
    loggers = TrialLoggers(tmp_path / "search", spec, CALLS.append)
    for index, rate in enumerate((0.01, 0.3)):
        folder = expert_folder(tmp_path / "search", index)
        folder.path.mkdir(parents=True)
        folder.update(status="running", overrides={"algorithm.lr": rate})
        loggers.round(index, {"expert": index, "round": 1})
    assert CALLS == [("search/000", 0.01), ("search/001", 0.3)]


def test_a_logger_of_a_resumed_trial_receives_the_rounds_before_as_its_history(tmp_path):
    """A resumed trial reports them again, for the scheduler. A copy of another trial's model begins with round 1."""
    trial = expert_folder(tmp_path / "search", 0).path
    trial.parent.mkdir(parents=True)
    alone = run(experiment(tmp_path, rounds=2))
    alone.folder.update(overrides={})
    alone.folder.path.rename(trial)
    loggers = TrialLoggers(trial.parents[1], plan(tmp_path, tracking__also=["deciding_loggers.Diary"]), CALLS.append)
    for record in [*alone.records, {"round": 3}]:
        loggers.round(0, record)
    loggers.end(0, "stopped")
    loggers.round(0, {"round": 1})
    assert (trial / "diary.txt").read_text().splitlines() == ["start 1 2", "log 3", "end stopped", "start", "log 1"]
    assert CALLS == []


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ("tensorbord", "tracking.also.0.*'tensorbord' is not a logger; did you mean 'tensorboard'"),
        ({"name": f"{__name__}.Meddling", "args": {"colour": 1}}, "cannot be created from its args"),
        (f"{__name__}.Misspelt", "has a method ad_metrics, which is never called; did you mean 'add_metrics'"),
        (f"{__name__}.Idle", "has no hook"),
        (f"{__name__}.Undeclared", r"has add_metrics, and its `adds` is \(\); set it to a tuple"),
        (f"{__name__}.Single", "has add_metrics, and its `adds` is 'one'; set it to a tuple of their names"),
        ({"name": f"{__name__}.Odd", "args": {"name": "top@5"}}, "adds the metric 'top@5'; name it by letters, digits"),
        ({"name": f"{__name__}.Odd", "args": {"name": 3}}, "adds the metric 3; name it by letters, digits, spaces"),
        (f"{__name__}.fresh", "is not a logger; name a class that derives from Logger"),
    ],
)
def test_a_wrong_logger_ends_before_any_work(tmp_path, also, said):
    with pytest.raises(UserError, match=said):
        run(experiment(tmp_path, also))
    assert not list(tmp_path.glob("runs/*"))
