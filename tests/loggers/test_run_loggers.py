"""Loggers next to MLflow: complete after a resume, without an effect on the numbers, and never the end of a run."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from families import INLINE
from ray_runs import small
from tensorboardX.proto.event_pb2 import Event

from hedgerow import RunLogger
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import dump_experiment, parse_experiment
from hedgerow.platform.loggers.metric_groups import grouped
from hedgerow.platform.runs.runner import resume, run

CALLS = []


class Meddling(RunLogger):
    """Changes all that it receives, and every global generator."""

    def __init__(self, name="meddling"):
        self.name = name

    def on_start(self, run):
        CALLS.append(("start", len(run.history)))
        run.settings.clear()

    def on_round(self, record):
        CALLS.append(("round", record["round"]))
        record.clear()
        torch.manual_seed(1), np.random.seed(1), random.seed(1)

    def on_evaluation(self, record):
        CALLS.append(("evaluation", record["round"], record["test_accuracy"]))

    def on_end(self, status, summary):
        CALLS.append(("end", status, summary.get("test_accuracy")))


class Failing(RunLogger):
    """Fails in its second round."""

    def on_round(self, record):
        if record["round"] == 2:
            raise RuntimeError("out of ink")
        CALLS.append(("failing", record["round"]))


class Misspelt(RunLogger):
    def on_rond(self, record):
        raise AssertionError("never called")


def experiment(folder, *also, **changes):
    values = yaml.safe_load(dump_experiment(small(folder, **INLINE, **changes)))
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


def without_clock(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def test_a_callback_follows_the_run_and_cannot_change_it(tmp_path):
    plain = run(experiment(tmp_path / "plain"))
    own = {"name": f"{__name__}.Meddling", "args": {"name": "mine"}}
    followed = run(experiment(tmp_path / "followed", own))
    assert without_clock(followed.records) == without_clock(plain.records)
    rounds = len(plain.records)
    assert CALLS[0] == ("start", 0)
    assert [call[1] for call in CALLS if call[0] == "round"] == list(range(1, rounds + 1))
    scores = [call[1:] for call in CALLS if call[0] == "evaluation"]
    assert scores == [(r["round"], r["test_accuracy"]) for r in plain.records if "test_accuracy" in r]
    assert CALLS[-1] == ("end", "finished", plain.summary["test_accuracy"])


def test_a_callback_may_be_named_twice_with_other_arguments(tmp_path):
    also = [{"name": f"{__name__}.Meddling", "args": {"name": name}} for name in ("one", "two")]
    run(experiment(tmp_path, *also, rounds=1))
    assert [call[0] for call in CALLS] == [*["start"] * 2, *["round", "evaluation"] * 2, *["end"] * 2]


def test_a_callback_that_fails_is_reported_and_the_run_goes_on(tmp_path):
    finished = run(experiment(tmp_path, f"{__name__}.Failing"))
    assert CALLS == [("failing", 1)]
    assert "Failing failed in on_round (RuntimeError: out of ink) and was switched off" in finished.warning
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


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ("tensorbord", "tracking.also.0.*'tensorbord' is not a run logger; did you mean 'tensorboard'"),
        ({"name": f"{__name__}.Meddling", "args": {"colour": 1}}, "cannot be created from its args"),
        (f"{__name__}.Misspelt", "has a method on_rond, which is never called; did you mean 'on_round'"),
        (f"{__name__}.fresh", "is not a run logger; name a class that derives from RunLogger"),
    ],
)
def test_a_wrong_logger_ends_before_any_work(tmp_path, also, said):
    with pytest.raises(UserError, match=said):
        run(experiment(tmp_path, also))
    assert not list(tmp_path.glob("runs/*"))
