"""Processes that are frozen or hang: they are replaced where the file says so."""

import re
import signal
import time
from types import SimpleNamespace

import psutil
import pytest
from families import POISON
from internals import known_actors
from ray.tune.experiment import Trial
from ray_runs import numbers, same, small
from searches import one_after_the_other, plan

from hedgerow.platform.runs import runner
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.plans import IGNORED
from hedgerow.searchspaces.tune.callbacks import SearchCallback
from hedgerow.searchspaces.tune.search_runner import search

ROUNDS = 8


class Freezer:
    """Stops the process of an actor of such a class once."""

    def __init__(self, title: str, at: int = 3):
        self.title, self.at = title, at
        self.victim: psutil.Process | None = None

    def __call__(self, record) -> None:
        if self.victim is None and record["round"] >= self.at:
            found = [one for one in known_actors() if one["State"] == "ALIVE" and self.title in one["ActorClassName"]]
            self.victim = psutil.Process(found[0]["Pid"])
            self.victim.send_signal(signal.SIGSTOP)


@pytest.mark.exhaustive("kills")
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize(
    ("title", "name"), [("ClientActor", "client actor 0"), ("CoordinatorActor", "the coordinator")]
)
def test_a_frozen_actor_is_replaced(title, name, tmp_path, monkeypatch):
    # The driver hears of every round by itself.
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    calm = run(small(tmp_path / "calm", rounds=ROUNDS, resources__executor="inline"))
    freeze = Freezer(title)
    settings = {"rounds": ROUNDS, "resources__executor": "ray", "resources__timeout": 4}
    finished = run(small(tmp_path, **settings), show=freeze)
    assert f"{name} did not answer for 4 s (resources.timeout) and was replaced" in finished.warning
    assert same(finished, calm)
    freeze.victim.wait(60)


@pytest.mark.exhaustive("kills")
@pytest.mark.usefixtures("ray_here")
def test_a_frozen_trial_of_a_search_starts_again(tmp_path):
    settings = {"rounds": 12, "search__pack": "off", "resources": {"timeout": 4}}
    expected = one_after_the_other(plan(tmp_path / "alone", **settings))

    class Show:
        labels = [""] * 4
        freeze = Freezer("")

        def trial(self, index, record):
            self.freeze(record)

        def state(self, index, text):
            pass

        def hedge(self, record):
            pass

    done = search(plan(tmp_path / "here", **settings), show=Show())
    assert done.hedge == expected
    assert re.search(r"trial \d did not answer for 4 s \(resources.timeout\) and is started again", done.warning)
    assert done.folder.record()["notices"]


@pytest.mark.exhaustive("kills")
@pytest.mark.usefixtures("ray_here")
def test_a_client_that_hangs_each_time_is_left_out(tmp_path):
    settings = POISON | {"algorithm__hangs": True, "resources": {"executor": "ray", "actors": 2, "timeout": 3}}
    finished = run(small(tmp_path, **settings))
    assert finished.folder.record()["quarantined"] == {"5": 3}
    assert [record["participants"] for record in numbers(finished)] == [12, 12, 11, 11, 11, 11]
    assert "and was replaced" in finished.warning


def test_the_time_of_a_trial_that_waits_for_others_does_not_count(tmp_path):
    wanted, notices = plan(tmp_path, resources={"timeout": 0.1}), []
    listener = SearchCallback(tmp_path, wanted, None, None, None, notices.append, 10)
    waiting = {"a"}
    listener.is_idle = lambda trial: trial.trial_id in waiting
    trial = SimpleNamespace(trial_id="a", status=Trial.RUNNING, config={}, temporary_state=None)
    # To kill it would need its actor.
    trial.temporary_state = SimpleNamespace(ray_actor=object())
    listener._started["a"], listener._alive["a"] = trial, time.monotonic()
    time.sleep(0.2)
    listener._end_silent_trials()
    # It goes on: its time begins now.
    waiting.clear()
    listener._end_silent_trials()
    assert not notices


def test_the_timeout_decides_no_plan():
    assert "timeout" in IGNORED
