"""A run that begins in the driver's process and ends on Ray has the bits of one that was there all the time."""

import os
import subprocess
import time
from contextlib import contextmanager

import pytest
import yaml
from helpers import blobs, distance, small_task
from processes import hedgerow
from ray_runs import numbers, same, small

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.platform.actors import coordinator_actor
from hedgerow.platform.actors.coordinator_actor import CoordinatorHandle
from hedgerow.platform.actors.session import DeferredStart
from hedgerow.platform.common.errors import RayLost, UserError
from hedgerow.platform.runs.runner import FinishedRun, resume, run
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator, inline_executor
from hedgerow.platform.storage.checkpoint import checkpoints, round_of


@contextmanager
def local_first(experiment, folder, ready, actors=2, kind=CoordinatorHandle):
    """As a run has it that starts Ray, with a Ray that is there when the test says so."""
    dataset, partition = check(experiment, None)
    executor = inline_executor([experiment], dataset, partition, actors)
    local = build_coordinator([experiment], dataset, partition, executor, [folder])
    shares = list(experiment.resources.kinds) * actors
    run = experiment, dataset, partition, folder, shares, actors, pytest.fail, None, ready, local
    with kind(*run) as first:
        try:
            yield first
        finally:
            if not ready.done():
                ready.cancel()


def begun() -> DeferredStart:
    """A Ray that is starting."""
    ready = DeferredStart()
    ready.begin()
    return ready


def finish(driver, records):
    done = False
    while not done:
        news, done = driver.advance(0.0)
        records += news
    return records


@pytest.fixture(scope="module")
def whole(kept, tmp_path_factory) -> FinishedRun:
    """All of it on Ray."""
    return run(small(tmp_path_factory.mktemp("whole"), rounds=6, resources__actors=2))


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("local_rounds", [0, 1, 3, 6])
def test_whoever_runs_a_round_its_bits_are_the_same(local_rounds, whole, tmp_path):
    experiment = whole.experiment
    ready = begun()
    records: list = []
    with local_first(experiment, tmp_path / "checkpoints", ready) as driver:
        for _ in range(local_rounds):
            records += driver.advance(0.0)[0]
        assert len(records) == local_rounds
        ready.set_result(None)
        if local_rounds < 6:
            while not driver.is_ready():
                time.sleep(0.01)
            finish(driver, records)
            assert driver.local is None
        ended = FinishedRun(whole.folder, experiment, records, {}, driver.parameters())
        assert driver.plans() == whole.folder.record()["plans"]
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert numbers(ended) == numbers(whole)
    assert same(ended, whole)


class NeverStarted(DeferredStart):
    """A Ray that must not be needed."""

    def result(self, timeout: float | None = None) -> None:
        pytest.fail("Ray was started")


def test_a_run_that_is_soon_over_does_not_start_ray(tmp_path, monkeypatch):
    """Not even where its plans have to be measured."""
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(coordinator_actor, "SOME", 0.0)
    experiment = small(tmp_path / "runs", resources__actors=2, engine={"mode": "auto"})
    ready = NeverStarted()
    with local_first(experiment, tmp_path / "checkpoints", ready) as driver:
        assert len(finish(driver, [])) == 4
        assert not ready.begun.is_set()
        assert set(driver.plans()) >= {"train/clients"}


@pytest.mark.timeout(60)
def test_a_run_with_much_work_left_starts_ray(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator_actor, "SOME", 0.0)
    experiment = small(tmp_path / "runs", rounds=10**6, resources__actors=2, checkpoints__every=0)
    ready = DeferredStart()
    with local_first(experiment, tmp_path / "checkpoints", ready) as driver:
        driver.advance(0.0)
        assert not ready.begun.is_set()
        driver.advance(0.0)
        assert ready.begun.wait(10)
        ready.set_exception(UserError("no Ray cluster answers"))
        with pytest.raises(UserError, match="no Ray cluster answers"):
            finish(driver, [])


@pytest.mark.timeout(60)
def test_ray_starts_during_a_long_first_round(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator_actor, "UNKNOWN", 0.0)
    experiment = small(tmp_path / "runs", resources__actors=2)
    ready = DeferredStart()
    with local_first(experiment, tmp_path / "checkpoints", ready):
        assert ready.begun.wait(10)


def test_rounds_that_a_lost_coordinator_ran_and_did_not_tell_are_told_by_the_next(tmp_path):
    experiment = small(tmp_path, rounds=6, resources__executor="inline")
    data = check(experiment, None)
    lost = build_coordinator([experiment], *data, None, [tmp_path / "checkpoints"])
    assert [record["round"] for record in lost.advance(0.0, 0)[0]] == [1]
    for _ in range(3):
        lost.run_round()
    following = build_coordinator([experiment], *data, None, [tmp_path / "checkpoints"])
    records, done = following.advance(60.0, 1)
    assert [record["round"] for record in records] == [2, 3, 4, 5, 6]
    assert done


@pytest.mark.timeout(60)
def test_a_run_that_ends_before_ray_is_there_leaves_nothing_behind(tmp_path):
    experiment = small(tmp_path / "runs", resources__actors=2)
    ready = begun()
    with local_first(experiment, tmp_path / "checkpoints", ready) as driver:
        assert len(finish(driver, [])) == 4
        assert set(driver.parameters()) == {"1.weight", "1.bias", "3.weight", "3.bias"}
        # Ray comes up only now; its actors are no longer needed.
        driver._is_needed = False
        ready.set_result(None)
    assert not driver._is_started


@pytest.mark.timeout(60)
def test_a_ray_that_does_not_start_is_told(tmp_path):
    experiment = small(tmp_path / "runs", rounds=10**6, resources__actors=2, checkpoints__every=0)
    ready = begun()
    with local_first(experiment, tmp_path / "checkpoints", ready) as driver:
        driver.advance(0.0)
        ready.set_exception(UserError("no Ray cluster answers"))
        with pytest.raises(UserError, match="no Ray cluster answers"):
            finish(driver, [])
        # The rounds that were run here are not lost.
        assert rounds_saved(tmp_path) == driver.local.round > 0


def rounds_saved(tmp_path) -> int:
    return round_of(checkpoints(tmp_path / "checkpoints")[-1])


@pytest.mark.parametrize("seen_by", ["the driver", "the thread of its health"])
def test_rounds_that_were_run_here_are_saved_when_ray_is_lost(seen_by, tmp_path):
    class Lost(CoordinatorHandle):
        def _start_actors(self) -> None:
            self._ready.result()

        def is_ready(self) -> bool:
            if not self._ready.done():
                return False
            if seen_by == "the driver":
                raise RayLost("Ray has ended")
            # The local coordinator is not at work now.
            assert self._works_without_ray(RayLost("Ray has ended")) is False
            return super().is_ready()

    experiment = small(tmp_path / "runs", rounds=10**6, resources__actors=2, checkpoints__every=0)
    ready = begun()
    with local_first(experiment, tmp_path / "checkpoints", ready, kind=Lost) as driver:
        driver.advance(0.0)
        ready.set_result(None)
        with pytest.raises(RayLost, match="Ray has ended"):
            finish(driver, [])
        assert rounds_saved(tmp_path) == driver.local.round > 0


def test_the_loss_of_ray_does_not_end_a_process_that_runs_rounds_itself(tmp_path):
    experiment = small(tmp_path / "runs", resources__actors=2)
    ready = begun()
    with local_first(experiment, tmp_path / "checkpoints", ready) as driver:
        answers = []
        advance = driver.local.advance

        def meddle(*arguments):
            answers.append(driver._works_without_ray(RayLost("Ray has ended")))
            return advance(*arguments)

        driver.local.advance = meddle
        driver.advance(0.0)
        assert answers == [True]
        assert driver._works_without_ray(RayLost("Ray has ended")) is False


@pytest.mark.exhaustive("processes")
def test_a_ray_that_cannot_start_ends_in_a_sentence_and_the_run_resumes(ray_here, tmp_path):
    taken = tmp_path / "file"
    taken.touch()
    file = tmp_path / "file.yaml"
    experiment = small(tmp_path / "runs", resources__executor="ray")
    file.write_text(yaml.safe_dump(experiment.model_dump(mode="json")))
    ended = hedgerow("run", str(file), env=os.environ | {"RAY_TMPDIR": str(taken)}, stderr=subprocess.PIPE, text=True)
    _, told = ended.communicate()
    assert ended.returncode == 2
    assert told.startswith("hedgerow: Ray failed to start on this machine (")
    assert told.count("\n") == 1
    assert "Not a directory" in told
    assert "resources.executor" in told
    (folder,) = (tmp_path / "runs").glob("small-*")
    assert len(resume(str(folder)).records) == experiment.rounds


def test_the_first_derivative_is_that_of_torch():
    import torch

    data = blobs()
    task = small_task(data)
    w = task.init()
    mask = (torch.arange(12) < 9).float()
    batch = Batch(torch.from_numpy(data.x_train[:12]), torch.from_numpy(data.y_train[:12]), mask)
    ours, value = gradient_and_value(task.loss)(w, batch)
    theirs, expected = torch.func.grad_and_value(task.loss)(w, batch)
    assert distance(ours, theirs) == 0
    assert value == expected
    assert not value.requires_grad

    def scaled(scale):
        return gradient_and_value(lambda w, batch: scale * task.loss(w, batch))(w, batch)[0]

    stacked = torch.func.vmap(scaled)(torch.tensor([1.0, 3.0]))
    assert distance({k: g[1] for k, g in stacked.items()}, {k: 3 * g for k, g in ours.items()}) < 1e-6
