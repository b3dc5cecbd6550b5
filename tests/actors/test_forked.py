"""A command on one machine runs its clients in forked processes, with the bits of Ray's actors and of one process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from families import POISON
from helpers import without_clock
from processes import hedgerow, outcome
from ray_runs import small

from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.tracking.tracker import RunLog


def command(tmp_path: Path, experiment) -> tuple:
    """The command that runs an experiment, and the file of its output."""
    file, log = tmp_path / "file.yaml", tmp_path / "log"
    file.write_text(dump_experiment(experiment))
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with log.open("w") as output:
        return hedgerow("run", str(file), env=environment, stdout=output, stderr=output), log


def in_one_process(tmp_path: Path, experiment, parts: int) -> list[dict]:
    """Records of the experiment with all parts of the work in this process."""
    data = check(experiment, None)
    coordinator = build_coordinator([experiment], *data, [tmp_path / "alone" / "checkpoints"], parts=parts)
    return without_clock(coordinator.advance(1e6)[0])


def folder_of(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "runs").glob("small-*")
    return folder


def until(condition, process, log) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rounds(tmp_path: Path) -> int:
    return max((len(RunLog(file).read()) for file in (tmp_path / "runs").glob("*/metrics.jsonl")), default=0)


def workers(process) -> list[psutil.Process]:
    """The processes of the clients: forked from the one that the command forks."""
    children: list[psutil.Process] = []
    for child in psutil.Process(process.pid).children():
        # Short commands, such as git's, may have ended.
        with suppress(psutil.NoSuchProcess):
            children += child.children()
    return children


@pytest.mark.parametrize("algorithm", ["toys.Stateful", "scaffold"])
def test_bits_are_those_of_one_process_and_ray_is_not_started(algorithm, tmp_path):
    settings = {"algorithm__name": algorithm, "resources": {"actors": 2, "cpus_per_actor": 0.5}, "rounds": 6}
    experiment = small(tmp_path / "runs", **settings)
    process, log = command(tmp_path, experiment)
    assert process.wait() == 0, log.read_text()
    record = json.loads((folder_of(tmp_path) / "run.json").read_text())
    assert record["parts"] == 2
    assert outcome(folder_of(tmp_path))[0] == in_one_process(tmp_path, experiment, 2)


@pytest.mark.exhaustive("kills")
def test_a_process_that_is_killed_is_replaced_with_the_same_bits(tmp_path):
    slow, log_file = tmp_path / "slow", tmp_path / "clients"
    slow.touch()
    settings = {"rounds": 40, "algorithm__slow_file": str(slow), "resources": {"actors": 2, "cpus_per_actor": 0.5}}
    settings |= {"clients_per_round": "all", "engine": {"mode": "loop"}, "checkpoints": {"every": 1000}}
    experiment = small(tmp_path / "runs", **settings, algorithm__log_file=str(log_file))
    process, log = command(tmp_path, experiment)

    until(lambda: rounds(tmp_path) > 3, process, log)
    before = workers(process)
    assert len(before) == 2
    os.kill(before[0].pid, signal.SIGKILL)
    reached = rounds(tmp_path)
    until(lambda: rounds(tmp_path) > reached + 3, process, log)
    assert len(workers(process)) == 2
    slow.unlink()
    assert process.wait() == 0, log.read_text()
    # Only the part in progress ran again.
    ran = Counter(log_file.read_text().split())
    assert sum(ran[str(round)] > 12 for round in range(1, 100)) <= 1
    (notice,) = json.loads((folder_of(tmp_path) / "run.json").read_text())["notices"]
    assert re.fullmatch(
        r"process [01] of this run was lost \(ended by signal SIGKILL, as the system does when memory runs out\) and "
        "replaced; its work runs again",
        notice,
    )
    assert outcome(folder_of(tmp_path))[0] == in_one_process(tmp_path, experiment, 2)


def test_a_run_whose_forking_process_is_killed_is_interrupted_in_one_sentence(tmp_path):
    experiment = small(tmp_path / "runs", rounds=10**6, checkpoints={"every": 1})
    process, log = command(tmp_path, experiment)
    until(lambda: rounds(tmp_path) > 1, process, log)
    os.kill(workers(process)[0].parent().pid, signal.SIGKILL)
    assert process.wait(60) == 2
    folder = folder_of(tmp_path)
    assert log.read_text().splitlines()[-1] == (
        "hedgerow: the process that forks the processes of this run has ended, perhaps out of memory; `hedgerow "
        f"resume {folder}` continues from the last checkpoint"
    )
    assert "Traceback" not in log.read_text()
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"


@pytest.mark.exhaustive("kills")
def test_processes_end_with_the_command(tmp_path):
    slow = tmp_path / "slow"
    slow.touch()
    experiment = small(tmp_path / "runs", rounds=10**6, algorithm__slow_file=str(slow))
    process, log = command(tmp_path, experiment)
    until(lambda: rounds(tmp_path), process, log)
    started = workers(process)
    started += [worker.parent() for worker in started]
    process.kill()
    process.wait()
    assert psutil.wait_procs(started, timeout=30)[1] == []


@pytest.mark.exhaustive("kills")
def test_a_process_that_stays_silent_for_too_long_is_replaced(tmp_path):
    settings = {"rounds": 100, "resources": {"actors": 1, "timeout": 1.5}}
    slow = tmp_path / "slow"
    slow.touch()
    experiment = small(tmp_path / "runs", algorithm__slow_file=str(slow), **settings)
    process, log = command(tmp_path, experiment)
    until(lambda: rounds(tmp_path), process, log)
    (first,) = workers(process)
    first.suspend()
    until(lambda: any(worker.pid != first.pid for worker in workers(process)), process, log)
    slow.unlink()
    assert process.wait() == 0, log.read_text()
    assert "process 0 of this run did not answer for 1.5 s (resources.timeout) and was replaced" in log.read_text()
    assert outcome(folder_of(tmp_path))[0] == in_one_process(tmp_path, experiment, 1)


@pytest.mark.exhaustive("kills")
def test_a_client_that_ends_its_process_each_time_is_left_out(tmp_path):
    experiment = small(tmp_path / "runs", resources={"actors": 2, "cpus_per_actor": 0.5}, **POISON)
    process, log = command(tmp_path, experiment)
    assert process.wait() == 0, log.read_text()
    record = json.loads((folder_of(tmp_path) / "run.json").read_text())
    assert record["quarantined"] == {"5": 3}
    # Three losses are reported; then the client is searched for.
    assert len(record["notices"]) == 3
    assert all("was lost (ended by signal SIGKILL" in notice for notice in record["notices"])


FROZEN = """
import os, signal, sys
import psutil
from hedgerow import run
from hedgerow.platform.actors import forked
from hedgerow.platform.runs import runner

runner.ADVANCE_SECONDS, forked.BUFFER = 0.0, 2**12


def freeze(record):
    if record["round"] == 1:
        (forks,) = psutil.Process().children()
        forks.children()[0].send_signal(signal.SIGSTOP)


finished = run(sys.argv[1], show=freeze)
print(finished.warning)
"""


@pytest.mark.exhaustive("kills")
def test_a_process_that_takes_no_message_is_replaced(tmp_path):
    """The model is larger than the buffer of a socket."""
    settings = {
        "rounds": 3,
        "resources": {"actors": 2, "timeout": 3},
        "task__model": {"name": "mlp", "hidden": [1000]},
    }
    experiment = small(tmp_path / "runs", **settings)
    file = tmp_path / "file.yaml"
    file.write_text(dump_experiment(experiment))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FROZEN, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert "was lost (it moved no data for 3 s, see resources.timeout) and replaced" in done.stdout, done.stderr
    assert outcome(folder_of(tmp_path))[0] == in_one_process(tmp_path, experiment, 2)


MANY = """
import time
from hedgerow.platform.actors import forked

forked.prepare()
pids = []
for _ in range(4):
    worker = forked.ForkedWorker()
    pids.append(worker.pid)
    worker.close()
    time.sleep(0.2)
forked.ForkedWorker()
print(all(pid in forked._ended for pid in pids))
"""


def test_ends_of_earlier_workers_are_read_before_the_next_one_starts():
    """A process with many runs would otherwise not learn how a later worker has ended."""
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True", done.stderr


def test_a_log_that_the_program_has_opened_takes_the_lines_of_its_processes(tmp_path):
    # Its number, were it free, would be that of the processes' own connection.
    script = f"""
import logging, os
import hedgerow

class Logged(hedgerow.FedAvg):
    def train(self, hp, down, state, data):
        logging.info("process %d", os.getpid())
        return super().train(hp, down, state, data)

logging.basicConfig(filename={str(tmp_path / "lines")!r}, level=logging.INFO)
values = {{
    "name": "logged", "rounds": 3, "clients_per_round": "all", "output": {str(tmp_path)!r},
    "task": {{
        "data": {{"name": "digits"}}, "model": {{"name": "logreg"}}, "partition": {{"kind": "iid", "clients": 4}}
    }},
    "algorithm": {{"lr": 0.1}}, "tracking": {{"enabled": False}}, "engine": {{"mode": "loop"}},
    "resources": {{"executor": "processes", "actors": 2}},
}}
hedgerow.run(values, algorithm=Logged, show=False)
print(os.getpid())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    steps = Counter(re.findall(r"process (\d+)$", (tmp_path / "lines").read_text(), re.MULTILINE))
    # Those of the check before the run.
    steps.pop(done.stdout.strip())
    assert steps.total() == 3 * 4
    assert len(steps) == 2
