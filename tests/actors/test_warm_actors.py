"""The processes of a run, which the next run of the same command goes on with."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest
from ray_runs import same, small
from searches import plan

from hedgerow.platform.actors.ray_coordinator import keep_warm, shutdown_idle
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.runner import run
from hedgerow.searchspaces.tune.search_runner import search


def crew() -> set[int]:
    """The processes of runs on this process's Ray, by number."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            title = "".join(process.cmdline())
        except psutil.Error:
            continue
        if title.startswith(("ray::ClientActor", "ray::CoordinatorActor")):
            found.add(process.pid)
    return found


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def scaffold(output, **settings):
    return small(output, algorithm={"name": "scaffold", "epochs": 1, "batch_size": 5}, **settings)


@contextmanager
def shared() -> Iterator[None]:
    """As in a command whose runs all have others after them."""
    try:
        with keep_warm():
            yield
    finally:
        shutdown_idle()


@pytest.fixture
def free(ray_here):
    """As it should be before and after each test."""

    def all_given_back() -> bool:
        return ray_here.available_resources().get("CPU") == 4 and not crew()

    until(all_given_back, "processes of tests before are still there")
    yield
    until(all_given_back, "the processes are still there")


def test_runs_take_the_processes_of_the_one_before_and_have_the_same_bits(free, tmp_path):
    """Others' states, algorithms and seeds leave no trace."""
    with shared():
        first = run(small(tmp_path / "first"))
        processes = crew()
        assert len(processes) == 2
        kept = [run(scaffold(tmp_path / "other", seed=3)), run(small(tmp_path / "again"))]
        assert crew() == processes
    inline = run(scaffold(tmp_path / "inline", seed=3, resources__executor="inline"))
    assert same(kept[0], inline)
    assert same(kept[1], first)


@pytest.mark.exhaustive("processes")
def test_at_rest_they_hold_none_of_the_data(free, ray_here, tmp_path):
    def stored() -> float:
        kind = "object_store_memory"
        return ray_here.cluster_resources()[kind] - ray_here.available_resources()[kind]

    gc.collect()
    before = stored()
    with shared():
        run(small(tmp_path), show=lambda record: until(lambda: stored() > before, "the data are not seen"))
        until(lambda: stored() <= before, "the data are still there")
        assert len(crew()) == 2


@pytest.mark.exhaustive("processes")
def test_what_does_not_serve_the_next_run_is_let_go(free, tmp_path):
    """Of four CPUs a run takes all, the next one three, and a search has two in each trial."""
    with shared():
        run(small(tmp_path / "four", rounds=1, resources__cpus_per_actor=4))
        processes = crew()
        run(small(tmp_path / "three", rounds=1, resources__cpus_per_actor=3))
        until(lambda: not crew() & processes, "those that took four are still there")
        grid = {"kind": "grid", "space": {"seed": [0, 1]}, "concurrency": 1}
        done = search(plan(tmp_path / "search", rounds=2, resources={"cpus_per_actor": 2}, search=grid))
        assert [trial.status for trial in done.trials] == ["finished"] * 2
        until(lambda: not crew(), "those that took three are still there")


@pytest.mark.exhaustive("kills")
@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("name", ["ClientActor", "CoordinatorActor"])
def test_one_that_died_at_rest_is_replaced(name, free, tmp_path):
    with shared():
        first = run(small(tmp_path / "first"))
        (killed,) = (p for p in map(psutil.Process, crew()) if name in "".join(p.cmdline()))
        killed.kill()
        killed.wait()
        assert same(run(small(tmp_path / name)), first)


@pytest.mark.exhaustive("kills")
def test_one_that_was_replaced_during_a_run_serves_the_next(free, tmp_path, monkeypatch):
    # The driver hears of every round by itself.
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)

    def kill(record):
        if record["round"] == 1:
            (actor,) = (p for p in map(psutil.Process, crew()) if "ClientActor" in "".join(p.cmdline()))
            actor.kill()
            actor.wait()

    with shared():
        first = run(small(tmp_path / "first"), show=kill)
        processes = crew()
        assert len(processes) == 2
        assert same(run(small(tmp_path / "again")), first)
        assert crew() == processes


@pytest.mark.exhaustive("processes")
def test_after_a_run_that_was_broken_off_nothing_rests(free, tmp_path):
    def stop(record):
        raise KeyboardInterrupt

    with shared():
        with pytest.raises(KeyboardInterrupt):
            run(small(tmp_path), show=stop)
        until(lambda: not crew(), "a coordinator in the middle of its work is kept")
