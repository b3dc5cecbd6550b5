"""Processes that are frozen or hang: they are reported, and replaced where the file says so."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from families import POISON
from internals import known_actors
from ray.tune.experiment import Trial
from ray_runs import numbers, same, small
from searches import one_after_the_other, plan

from hedgerow.algorithms.core.own_code import Surroundings
from hedgerow.platform.actors.client_actor import ActorSpec
from hedgerow.platform.actors.coordinator_actor import CoordinatorActor, CoordinatorHandle
from hedgerow.platform.actors.silence import Signs, Silence, Watch
from hedgerow.platform.common import heartbeat
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.executor import IGNORED_IN_PLANS
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import inline_executor
from hedgerow.searchspaces.hedge.scheduler import HedgeScheduler
from hedgerow.searchspaces.tune.callbacks import SearchCallback
from hedgerow.searchspaces.tune.search_runner import search

ROUNDS = 8


@pytest.fixture
def each_round(monkeypatch):
    """The driver hears of every round by itself."""
    monkeypatch.setattr(runner, "BEAT", 0.0)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return run(small(tmp_path_factory.mktemp("calm"), rounds=ROUNDS, resources__executor="inline"))


class Freezer:
    """Stops the process of an actor of such a class once; after some seconds, if given, it goes on."""

    def __init__(self, title: str, at: int = 3, seconds: float | None = None):
        self.title, self.at, self.seconds = title, at, seconds
        self.victim: psutil.Process | None = None

    def __call__(self, record) -> None:
        if self.victim is None and record["round"] >= self.at:
            self.freeze()

    def freeze(self) -> None:
        found = [
            actor for actor in known_actors() if actor["State"] == "ALIVE" and self.title in actor["ActorClassName"]
        ]
        self.victim = psutil.Process(found[0]["Pid"])
        self.victim.send_signal(signal.SIGSTOP)
        if self.seconds:
            threading.Timer(self.seconds, self.victim.send_signal, [signal.SIGCONT]).start()


@pytest.mark.usefixtures("ray_here", "each_round")
class TestAFrozenProcess:
    @pytest.mark.exhaustive("kills")
    def test_a_client_actor_that_goes_on_later_is_reported(self, calm, tmp_path, capsys):
        freeze = Freezer("ClientActor", seconds=5)
        finished = run(small(tmp_path, rounds=ROUNDS, resources__silence=1.5), show=freeze)
        pattern = rf"client actor 0 \(pid {freeze.victim.pid}\) on node [\d.]+ has been silent for \d+ s; still waiting"
        notices = finished.folder.record()["notices"]
        assert any(re.search(pattern, notice) for notice in notices)
        assert finished.warning == "; ".join(notices)
        assert capsys.readouterr().err == "".join(f"hedgerow: {notice}\n" for notice in notices)
        assert same(finished, calm)
        assert not (finished.folder.path / ".signs").exists()

    @pytest.mark.exhaustive("kills")
    @pytest.mark.parametrize("what", ["client actor 0", "the coordinator"])
    def test_one_that_stays_so_is_replaced(self, what, calm, tmp_path):
        freeze = Freezer("ClientActor" if what == "client actor 0" else "CoordinatorActor")
        settings = {"resources__silence": 2, "resources__actor_timeout": 4}
        finished = run(small(tmp_path, rounds=ROUNDS, **settings), show=freeze)
        of_it = rf"{what} \(pid {freeze.victim.pid}\) on node [\d.]+"
        assert re.search(rf"{of_it} has been silent for \d+ s; it will be replaced after 4 s", finished.warning)
        replaced = rf"{of_it} was silent for more than 4 s \(resources.actor_timeout\) and was replaced"
        assert re.search(replaced, finished.warning)
        assert same(finished, calm)
        freeze.victim.wait(60)

    @pytest.mark.exhaustive("kills")
    def test_a_trial_of_a_search_is_replaced(self, tmp_path):
        settings = {"rounds": 12, "search__pack": "off", "resources": {"silence": 2, "actor_timeout": 4}}
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
        pid = Show.freeze.victim.pid
        assert re.search(rf"trial \d \(pid {pid}\) on node [\d.]+ has been silent", done.warning)
        assert re.search(rf"trial \d \(pid {pid}\) on node [\d.]+ was silent .* and was replaced", done.warning)
        assert done.folder.record()["notices"]


@pytest.mark.usefixtures("ray_here")
def test_a_driver_that_cannot_begin_leaves_no_thread_behind_that_ends_this_process(tmp_path, monkeypatch):
    before = {thread for thread in threading.enumerate() if thread.name == "ray-health"}

    def busy(*arguments):
        raise UserError("the cluster is busy")

    monkeypatch.setattr(CoordinatorHandle, "_gather", busy)
    with pytest.raises(UserError, match="the cluster is busy"):
        run(small(tmp_path, resources__executor="ray"))
    for thread in threading.enumerate():
        if thread.name == "ray-health" and thread not in before:
            thread.join(30)
            assert not thread.is_alive()
    assert not list(tmp_path.glob("*/.signs"))


@pytest.mark.exhaustive("kills")
@pytest.mark.usefixtures("ray_here")
def test_a_client_that_hangs_each_time_is_left_out(tmp_path):
    settings = POISON | {"algorithm__hangs": True, "resources": {"actors": 2, "actor_timeout": 3}}
    finished = run(small(tmp_path, **settings))
    assert finished.folder.record()["quarantined"] == {"5": 3}
    assert [record["participants"] for record in numbers(finished)] == [12, 12, 11, 11, 11, 11]
    assert "and was replaced" in finished.warning


def test_automatic_silence_is_ten_times_the_longest_exchange_and_a_minute_at_least():
    silence = Silence(Resources())
    assert not silence.is_notable(59)
    assert silence.is_notable(61)
    silence.ended(20)
    assert not silence.is_notable(199)
    assert silence.is_notable(201)
    assert not silence.is_too_long(1e9)
    silence = Silence(Resources(silence=5, actor_timeout=7))
    assert silence.is_notable(6)
    assert silence.is_too_long(8)


def test_a_trial_that_waits_for_others_is_not_silent(tmp_path):
    resources = {"silence": 0.05, "actor_timeout": 0.1}
    wanted, said = plan(tmp_path, resources=resources), []
    listener = SearchCallback(tmp_path, wanted, None, None, None, said.append, 10)
    listener.health = SimpleNamespace(check=lambda: True)
    scheduler = HedgeScheduler(1)
    listener.is_idle = scheduler.is_holding
    trial = SimpleNamespace(trial_id="a", status=Trial.RUNNING, temporary_state=SimpleNamespace(ray_actor=None))
    silence = Silence(wanted.experiment.resources)
    # To kill it would need its actor.
    watch = Watch("trial 0", None, silence, tmp_path / "signs")
    listener._started["a"], listener._watches["a"] = trial, (watch, Signs(tmp_path / "signs"))
    scheduler._holding["a"] = trial
    for _ in range(2):
        time.sleep(0.2)
        listener._looked = 0.0
        listener.on_step_begin(0, [trial])
    # It goes on: its silence begins now.
    del scheduler._holding["a"]
    assert watch._since > watch._begun + 0.3
    assert not watch.noticed
    assert not said
    # The wait was no exchange, so it does not lengthen the silence that is allowed.
    assert silence.longest == 0.0


def test_hashing_and_writing_a_checkpoint_and_verifying_it_are_signs_of_life(tmp_path):
    experiment = small(tmp_path, resources__executor="inline")
    dataset, partition = check(experiment, None)
    executor = inline_executor([experiment], dataset, partition)
    executor.signs = Signs(tmp_path / "signs")
    executor.signs.begin()
    spec = ActorSpec([experiment], Surroundings.here(), None, None)
    coordinator = object.__new__(CoordinatorActor)

    def gives_a_sign(action: Callable[[], Any]) -> bool:
        executor.signs._last = 0.0
        os.utime(executor.signs.file, (0, 0))
        action()
        return executor.signs.file.stat().st_mtime > 0

    try:
        coordinator.load_run(spec, vars(dataset), vars(partition), executor, tmp_path / "checkpoints", None)
        assert gives_a_sign(coordinator.run_round)
        assert gives_a_sign(coordinator.save)
        assert gives_a_sign(coordinator.reload)
        # A file that is gone must not end the work.
        executor.signs.remove()
        coordinator.reload()
    finally:
        heartbeat.listen(None)


def test_notices_are_read_once(tmp_path):
    signs = Signs(tmp_path / "signs")
    signs.notice("to no one")
    signs.alive()
    assert signs.news() == []
    assert not signs.file.exists()
    signs.begin()
    signs.notice("naïve")
    assert signs.news() == ["naïve"]
    assert signs.news() == []
    signs.notice("second")
    assert signs.news() == ["second"]


def test_they_decide_no_plan():
    assert {"silence", "actor_timeout"} <= IGNORED_IN_PLANS
