"""A Ray of a run's own: next to any other Ray on the machine, private, and gone when the run has ended."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
import ray
import yaml
from paths import SUPPORT
from processes import TOYS
from ray_runs import small

from hedgerow.platform.actors.ray_folder import SETTLED, _sweep, private_folder
from hedgerow.platform.common.ray_private import REACHABLE

RAY = Path(sys.executable).with_name("ray")


@pytest.fixture
def short(monkeypatch):
    """A folder for Ray's files whose path is short enough for sockets, and a home folder without a token."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    (folder / "home").mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setenv("HOME", str(folder / "home"))
    # A Ray of the tests before has set REACHABLE.
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", REACHABLE):
        monkeypatch.delenv(name, raising=False)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


SESSION = (
    "import ray; from hedgerow.platform.actors.session import ray_session\nwith ray_session(): ray.cluster_resources()"
)


COLLECTED = """
import gc, os, threading, time
import ray
from hedgerow.platform.actors.session import ray_session

class Cycle:
    def __init__(self, reference):
        self.itself, self.reference = self, reference

def collect():
    while references:
        Cycle(references.pop())
        time.sleep(0.0005)

with ray_session(prestart=False):
    references = [ray.put(number) for number in range(3000)]
    gc.set_threshold(1)
    threading.Thread(target=collect, daemon=True).start()
print(gc.isenabled(), os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"))
"""
"""Another thread leaves references to Ray objects to the garbage collector while the session ends."""


@pytest.mark.exhaustive("processes")
def test_a_session_ends_while_another_thread_collects_references(short):
    done = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    # No variable is left behind with which a Ray of the user's own would be for this machine only.
    assert done.stdout.split() == ["True", "None"]


@pytest.mark.exhaustive("processes")
@pytest.mark.timeout(600)
def test_ray_starts_next_to_a_foreign_one_or_its_stale_address_and_leaves_nothing(short, tmp_path):
    address = short / "ray" / "ray_current_cluster"
    address.parent.mkdir()
    address.write_text("127.0.0.1:1")
    watched_to_its_end([sys.executable, "-c", SESSION], short)
    address.unlink()
    file = tmp_path / "file.yaml"
    experiment = small(tmp_path / "runs", rounds=1, resources__executor="ray", resources__actors=1)
    file.write_text(yaml.safe_dump(experiment.model_dump(mode="json")))
    foreign = subprocess.Popen(
        [RAY, "start", "--head", "--port=0", "--num-cpus=1", "--include-dashboard=false", "--block"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not address.exists():
            assert foreign.poll() is None
            time.sleep(0.1)
        watched_to_its_end([sys.executable, "-m", "hedgerow", "run", str(file), *TOYS], short)
        assert foreign.poll() is None
    finally:
        os.killpg(foreign.pid, signal.SIGTERM)
        foreign.wait()


MIG = """
import os, ray, time
from hedgerow.platform.actors.session import ray_session
with ray_session():
    print(int(ray.cluster_resources()["GPU"]))
    look = ray.remote(num_cpus=0.5, num_gpus=1)(lambda: time.sleep(3) or os.environ["CUDA_VISIBLE_DEVICES"])
    print(*sorted(ray.get([look.remote(), look.remote()])))
"""


@pytest.mark.exhaustive("processes")
def test_each_mig_slice_is_a_gpu(short):
    ended = subprocess.run(
        [sys.executable, "-c", MIG],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"},
        capture_output=True,
        text=True,
    )
    assert ended.stdout.split() == ["2", "MIG-a", "MIG-b"], ended.stderr


def watched_to_its_end(command, short):
    """What starts Ray here ends well, keeps it to this user, and leaves neither a folder nor a token."""
    ended = subprocess.Popen(command, cwd=SUPPORT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seen = set()
    while ended.poll() is None:
        for folder in short.glob("hr-*"):
            for path in (folder, *folder.glob("token")):
                with suppress(FileNotFoundError):
                    seen.add((path.name[:3], oct(path.stat().st_mode & 0o777)))
        time.sleep(0.05)
    assert ended.returncode == 0, ended.stderr.read()
    assert seen == {("hr-", "0o700"), ("tok", "0o600")}
    assert not list(short.glob("hr-*"))
    assert not list((short / "home").rglob("auth_token"))


@pytest.mark.usefixtures("ray_here")
@pytest.mark.exhaustive("processes")
def test_ray_keeps_no_history_of_calls():
    ray.get([ray.remote(lambda: 1).remote() for _ in range(20)])
    # By default events are sent once per second.
    time.sleep(2.5)
    assert ray.timeline() == []


def test_folders_of_killed_processes_are_removed_and_those_of_living_ones_stay(short):
    hold = (
        "import os, signal, sys\nfrom hedgerow.platform.actors.ray_folder import private_folder\n"
        "with private_folder() as folder:\n    print(folder, flush=True); signal.pause()"
    )
    living, killed = (
        subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) for _ in range(2)
    )
    try:
        folders = [Path(process.stdout.readline().strip()) for process in (living, killed)]
        killed.kill()
        killed.wait()
        _sweep(short)
        assert all(folder.exists() for folder in folders), "too young to be judged"
        for folder in folders:
            os.utime(folder, times=(0, time.time() - 2 * SETTLED))
        with private_folder() as mine:
            assert [folder.exists() for folder in (*folders, mine)] == [True, False, True]
        assert not mine.exists()
    finally:
        for process in (living, killed):
            process.kill()
            process.communicate()


HANGING = """
import threading, time, psutil
from hedgerow.platform.actors.session import ray_session

def raylets():
    family = psutil.Process().children(recursive=True)
    return [one for one in family if one.name() == "raylet" and one.status() != psutil.STATUS_ZOMBIE]

def suspend():
    while not (started := raylets()):
        time.sleep(0.01)
    started[0].suspend()

threading.Thread(target=suspend).start()
with ray_session():
    import ray
    print(len(raylets()), ray.get(ray.put(7)))
"""


@pytest.mark.exhaustive("processes")
@pytest.mark.timeout(600)
def test_a_start_that_takes_longer_than_ray_waits_is_tried_a_second_time_and_leaves_nothing(short):
    output = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True)
    assert output.stdout == "1 7\n", output.stderr
    assert not list(short.glob("hr-*"))
