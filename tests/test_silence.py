"""Processes that are frozen or hang: they are reported, and replaced where the file says so."""

import re
import signal
import threading

import psutil
import pytest
import ray
from test_faults import POISON
from test_ray import numbers, same, small
from test_search import one_after_the_other, plan

from hedgerow.platform import runner
from hedgerow.platform.dispatch import NO_MATTER
from hedgerow.platform.resources import Resources
from hedgerow.platform.runner import run
from hedgerow.platform.silence import Signs, Silence
from hedgerow.searchspaces.runner import search

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
        known = ray._private.state.actors().values()
        found = [actor for actor in known if actor["State"] == "ALIVE" and self.title in actor["ActorClassName"]]
        self.victim = psutil.Process(found[0]["Pid"])
        self.victim.send_signal(signal.SIGSTOP)
        if self.seconds:
            threading.Timer(self.seconds, self.victim.send_signal, [signal.SIGCONT]).start()


@pytest.mark.usefixtures("ray_here", "each_round")
class TestAFrozenProcess:
    def test_a_client_actor_that_goes_on_later_is_reported(self, calm, tmp_path, capsys):
        freeze = Freezer("ClientActor", seconds=5)
        finished = run(small(tmp_path, rounds=ROUNDS, resources__silence=1.5), show=freeze)
        pattern = (
            rf"client actor 0 \(pid {freeze.victim.pid}\) on node [\d.]+ has been silent for \d+ s and is waited for"
        )
        notices = finished.folder.record()["notices"]
        assert any(re.search(pattern, notice) for notice in notices)
        assert finished.warning == "; ".join(notices)
        assert capsys.readouterr().err == "".join(f"hedgerow: {notice}\n" for notice in notices)
        assert same(finished, calm)
        assert not (finished.folder.path / ".signs").exists()

    @pytest.mark.parametrize("what", ["client actor 0", "the coordinator"])
    def test_one_that_stays_so_is_replaced(self, what, calm, tmp_path):
        freeze = Freezer("ClientActor" if what == "client actor 0" else "CoordinatorActor")
        settings = {"resources__silence": 2, "resources__actor_timeout": 4}
        finished = run(small(tmp_path, rounds=ROUNDS, **settings), show=freeze)
        of_it = rf"{what} \(pid {freeze.victim.pid}\) on node [\d.]+"
        assert re.search(rf"{of_it} has been silent for \d+ s and is replaced after 4 s", finished.warning)
        replaced = rf"{of_it} was silent for more than 4 s \(resources.actor_timeout\) and was replaced"
        assert re.search(replaced, finished.warning)
        assert same(finished, calm)
        freeze.victim.wait(60)

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
    assert {"silence", "actor_timeout"} <= NO_MATTER
