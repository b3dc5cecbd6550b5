"""Ray's own processes die in the middle of a run or a search."""

import errno
import json
import re
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from processes import hedgerow
from ray_runs import same, small
from searches import one_after_the_other, plan

from hedgerow.platform.actors import ray_health
from hedgerow.platform.actors.ray_health import RayHealth, Server
from hedgerow.platform.common.errors import RayLost
from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.runs.runner import resume, run
from hedgerow.platform.storage.run_lock import RunLock
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.searchspaces.tune.search_runner import resume_search

ENOUGH = 4
"""Rounds after which a process is killed."""


@pytest.fixture
def start():
    """Starts the command on a file in a folder; what is left of it in the end is killed."""
    drivers = []

    def start(command: str, text: str, folder: Path) -> subprocess.Popen:
        folder.mkdir()
        (folder / "file.yaml").write_text(text)
        quietly = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        drivers.append(hedgerow(command, str(folder / "file.yaml"), **quietly))
        return drivers[-1]

    yield start
    for driver in drivers:
        if driver.poll() is None:
            for process in [*psutil.Process(driver.pid).children(recursive=True), driver]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def rounds(folder: Path) -> int:
    return max((file.read_text().count("\n") for file in folder.glob("runs/*/metrics.jsonl")), default=0)


def kill(driver: subprocess.Popen, name: str, folder: Path) -> tuple[list[psutil.Process], Path]:
    """Kill a process of the Ray that a driver has started; returns all processes and the folder of that Ray."""
    deadline = time.monotonic() + 400
    while rounds(folder) < ENOUGH:
        assert driver.poll() is None, driver.stderr.read()
        assert time.monotonic() < deadline, "no rounds"
        time.sleep(0.05)
    started = psutil.Process(driver.pid).children(recursive=True)
    (victim,) = (process for process in started if process.name() == name)
    found = re.search(r"/[^\s=]*/hr-\w+", " ".join(victim.cmdline()))
    assert found
    victim.kill()
    return started, Path(found[0])


def ended(driver: subprocess.Popen, killed: tuple[list[psutil.Process], Path], what: str, folder: Path) -> Path:
    """The run folder of a driver that ends as it should."""
    _, said = driver.communicate(timeout=50)
    (run_folder,) = (folder / "runs").glob("small-*")
    assert said == f"hedgerow: {what} has ended; `hedgerow resume {run_folder}` continues from the last checkpoint\n"
    assert driver.returncode == 2
    assert json.loads((run_folder / "run.json").read_text())["status"] == "interrupted"
    started, session = killed
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive
    assert not session.exists()
    return run_folder


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize(
    ("name", "what"), [("gcs_server", "Ray's control store (GCS)"), ("raylet", "the raylet of this node")]
)
@pytest.mark.exhaustive("kills")
def test_a_run_ends_in_a_sentence_and_resumes(name, what, start, tmp_path):
    slow = tmp_path / "slow"
    slow.touch()
    settings = {"rounds": 60, "engine__mode": "loop", "engine__chunk": "auto", "checkpoints__every": 3}
    resources = {"resources__executor": "ray"}
    experiment = small(tmp_path / "run" / "runs", algorithm__slow_file=str(slow), **resources, **settings)
    driver = start("run", dump_experiment(experiment), tmp_path / "run")
    killed = kill(driver, name, tmp_path / "run")
    folder = ended(driver, killed, what, tmp_path / "run")
    slow.unlink()
    file = folder / "experiment.yaml"
    file.write_text(file.read_text().replace("executor: ray", "executor: inline"))
    assert same(resume(str(folder)), run(small(tmp_path / "calm", resources__executor="inline", **settings)))


@pytest.mark.exhaustive("kills")
def test_a_search_ends_in_a_sentence_and_resumes(ray_here, start, tmp_path):
    slow = tmp_path / "slow"
    slow.touch()
    settings = {"rounds": 40, "search__pack": "off", "algorithm__slow_file": str(slow)}
    text = plan(tmp_path / "search" / "runs", **settings).dump()
    driver = start("search", text, tmp_path / "search")
    killed = kill(driver, "gcs_server", tmp_path / "search")
    folder = ended(driver, killed, "Ray's control store (GCS)", tmp_path / "search")
    slow.unlink()
    assert resume_search(str(folder)).hedge == one_after_the_other(plan(tmp_path / "alone", **settings))


# ---- without a Ray --------------------------------------------------------------------------------------------------


@pytest.fixture
def port():
    """A port that accepts connections until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def failing(monkeypatch):
    """Sets an error number with which every attempt to connect fails; None: none does."""
    connect, number = socket.create_connection, [None]

    def attempt(*arguments, **settings):
        if number[0] is not None:
            raise OSError(number[0], "")
        return connect(*arguments, **settings)

    monkeypatch.setattr(socket, "create_connection", attempt)
    return lambda value: number.__setitem__(0, value)


def test_a_probe_that_fails_on_this_side_or_one_refusal_does_not_end_a_run(port, failing, monkeypatch):
    raylet = Server(port.getsockname(), refusals=3)
    assert raylet.look()
    for number in (errno.EMFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.ETIMEDOUT):
        failing(number)
        assert not any(raylet.look() for _ in range(5))
        assert not raylet.has_ended
    failing(errno.ECONNREFUSED)
    for ended in (False, False):
        assert not raylet.look()
        assert raylet.has_ended == ended
    failing(None)
    assert raylet.look()
    port.close()
    for ended in (False, False, True):
        assert not raylet.look()
        assert raylet.has_ended == ended
    # The control store of a cluster may be started again, but not for ever.
    gcs = Server(raylet.address)
    assert not any(gcs.look() for _ in range(5))
    assert not gcs.has_ended
    monkeypatch.setattr(ray_health, "PATIENCE", 0.0)
    assert gcs.has_ended


@pytest.fixture
def health(tmp_path, monkeypatch):
    """Of a run whose Ray is lost, without its thread; `exits` collects how it ends the process."""
    folder = tmp_path / "run"
    folder.mkdir()
    record = {"name": "run", "status": "running", "created": "", "data_root": None, "versions": {}, "git_commit": None}
    RunFolder(folder).update(**record)
    health = object.__new__(RayHealth)
    health.folder, health.claim, health._node, health.exits = folder, None, None, []
    monkeypatch.setattr(ray_health.os, "_exit", health.exits.append)
    return health


def status(health: RayHealth) -> str:
    return json.loads((health.folder / "run.json").read_text())["status"]


def test_the_process_ends_even_if_the_end_cannot_be_recorded(health, capsys):
    health._end(RayLost("Ray has ended"))
    assert (health.exits, status(health)) == ([2], "interrupted")
    (health.folder / "run.json").write_text("[")
    health._end(RayLost("Ray has ended"))
    assert health.exits == [2, 2]
    assert (health.folder / "run.json").read_text() == "["
    assert capsys.readouterr().err == 2 * "hedgerow: Ray has ended\n"


def test_a_finished_run_stays_finished_and_a_run_of_another_process_is_left_alone(health):
    with RunLock(health.folder) as lock:
        health.claim = lock.claim
        lock.claim.file.rename(health.folder / ".lock" / "other")
    health._end(RayLost("Ray has ended"))
    assert (health.exits, status(health)) == ([2], "running")
    RunFolder(health.folder).update(status="finished")
    health._end(RayLost("Ray has ended"))
    assert (health.exits, status(health)) == ([2], "finished")
