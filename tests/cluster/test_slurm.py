"""Jobs of slurm.sh on a real Slurm: at their time limit, preempted and cancelled, they lose no round."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from paths import ROOT, SUPPORT
from processes import FILE, ROUNDS, TOYS, hedgerow, outcome
from slurm import DAEMONS, program, slurm_cluster

from hedgerow.platform.tracking.tracker import RunLog

SCRIPT = ROOT / "cluster" / "files" / "slurm.sh"
PARTITIONS = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF"""
# The script's own lines are for another cluster.
HERE = ("--parsable", "--nodes=1", "--cpus-per-task=2", "--gpus-per-node=0", "--output=%x-%j.log")
MISSING = [name for name in DAEMONS if program(name) is None]

pytestmark = [
    pytest.mark.exhaustive("processes"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason=f"missing: {', '.join(MISSING)} (apt-get install slurm-wlm munge)"),
    pytest.mark.skipif(not Path(sys.prefix, "bin", "activate").exists(), reason="not a virtual environment"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of the jobs, with an experiment that is slow while the file `slow` exists, and `calm` without jobs."""
    folder = tmp_path_factory.mktemp("jobs")
    values = {**FILE, "output": str(folder / "runs")}
    values["algorithm"] = {**values["algorithm"], "slow_file": str(folder / "slow")}
    (folder / "slowed.yaml").write_text(yaml.safe_dump({**values, "name": "slowed"}))
    (folder / "calm.yaml").write_text(yaml.safe_dump({**values, "name": "calm"}))
    calm = hedgerow("run", folder / "calm.yaml", "--set", "resources.executor=inline", stdout=subprocess.DEVNULL)
    assert calm.wait(300) == 0
    return folder


@pytest.fixture(scope="module")
def slurm(folder, tmp_path_factory):
    """A cluster of one node, which runs one job at a time."""
    with slurm_cluster(tmp_path_factory.mktemp("cluster") / "slurm", lines=PARTITIONS) as slurm:
        slurm.env |= {
            "HEDGEROW_ENV": sys.prefix,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(SUPPORT), str(folder), os.environ.get("PYTHONPATH")))),
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        }
        (folder / "token").write_text(secrets.token_hex(32))
        yield slurm


def submit(slurm, folder: Path, *words: object) -> str:
    """Submit slurm.sh. words: options of sbatch, the script and a command. Returns the number of the job."""
    return slurm("sbatch", *HERE, f"--chdir={folder}", *words)


def until(look: Callable[[], bool], slurm, job: str, log: Path) -> None:
    """Wait for something that a job does. Raises AssertionError with the job's output if the job ends before."""
    end = time.monotonic() + 200
    while not look():
        over = time.monotonic() > end or slurm.job(job)["JobState"] in ("COMPLETED", "FAILED", "TIMEOUT")
        assert not over or look(), log.read_text() if log.exists() else "the job has not started"
        time.sleep(0.2)


def rounds(run: Path) -> int:
    return len(RunLog(run / "metrics.jsonl").read()) if (run / "metrics.jsonl").exists() else 0


def status(run: Path) -> str:
    return json.loads((run / "run.json").read_text())["status"] if (run / "run.json").exists() else ""


def check_same(folder: Path, run: Path) -> None:
    """The run is finished, with the numbers and the model of the run without jobs, bit for bit."""
    (calm,) = (folder / "runs").glob("calm-*")
    records, parameters = outcome(run)
    expected_records, expected_parameters = outcome(calm)
    assert status(run) == "finished"
    assert len(records) == ROUNDS
    assert records == expected_records
    assert all(torch.equal(parameters[name], expected_parameters[name]) for name in expected_parameters)


def test_a_job_too_short_for_its_run_is_requeued_until_the_run_is_finished(slurm, folder):
    # Slowed down, 400 rounds take more than two minutes. One minute is too short for a start on a slow machine.
    (folder / "slow").write_text("0.2")
    limits = ("--time=2", "--signal=B:USR1@5")
    job = submit(slurm, folder, *limits, SCRIPT, "run", "slowed.yaml", *TOYS)
    run, log = folder / "runs" / f"slowed-{job}", folder / f"hedgerow-{job}.log"
    until(lambda: status(run) == "interrupted", slurm, job, log)
    assert 0 < rounds(run) < ROUNDS
    (folder / "slow").unlink()
    ended = slurm.wait(job, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", seconds=400)
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), log.read_text()
    assert int(ended["Restarts"]) >= 1
    assert list((folder / "runs").glob("slowed-*")) == [run]
    check_same(folder, run)


def test_a_job_that_saves_no_new_round_twice_in_a_row_is_not_requeued(slurm, folder):
    # Slurm sends USR1 while the module of the model is imported.
    (folder / "late.py").write_text("import time\n\ntime.sleep(200)\n")
    (folder / "late.yaml").write_text(yaml.safe_dump({**FILE, "task": {**FILE["task"], "model": {"name": "late.Net"}}}))
    job = submit(slurm, folder, "--time=1", "--signal=B:USR1@59", SCRIPT, "run", "late.yaml", *TOYS)
    ended = slurm.wait(job, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", seconds=400)
    log = (folder / f"hedgerow-{job}.log").read_text()
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "1:0"), log
    assert log.count("the job is requeued\n") == int(ended["Restarts"]) >= 1
    assert log.endswith("the job is not requeued, since two starts in a row saved no new round; raise --time\n")
    assert not list(folder.glob(".slurm-*"))


@pytest.mark.parametrize("way", ["preempted", "requeued"])
def test_a_job_that_slurm_stops_saves_its_run_and_continues_it(way, slurm, folder):
    (folder / "slow").touch()
    job = submit(slurm, folder, "--partition=low", SCRIPT, "run", "slowed.yaml", *TOYS)
    run, log = folder / "runs" / f"slowed-{job}", folder / f"hedgerow-{job}.log"
    until(lambda: rounds(run) >= 3, slurm, job, log)
    if way == "preempted":
        # In the grace time, Slurm sends SIGTERM to the steps of the job, but not to its script.
        slurm("sbatch", "--partition=high", "--exclusive", "--output=/dev/null", f"--chdir={folder}", "--wrap=sleep 1")
    else:
        slurm("scontrol", "requeue", job)
    until(lambda: status(run) == "interrupted", slurm, job, log)
    (folder / "slow").unlink()
    ended = slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED", seconds=300)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log.read_text()
    check_same(folder, run)


def test_a_cancelled_job_saves_its_run_and_another_job_resumes_it(slurm, folder):
    (folder / "slow").touch()
    job = submit(slurm, folder, SCRIPT, "run", "slowed.yaml", *TOYS)
    run, log = folder / "runs" / f"slowed-{job}", folder / f"hedgerow-{job}.log"
    until(lambda: rounds(run) >= 3, slurm, job, log)
    slurm("scancel", job)
    ended = slurm.wait(job, "CANCELLED", "PENDING", "COMPLETED", "FAILED", seconds=60)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0"), log.read_text()
    assert status(run) == "interrupted"
    assert f"hedgerow resume runs/{run.name}`" in log.read_text().replace(f"{folder}/", "")
    (folder / "slow").unlink()
    resumed = submit(slurm, folder, SCRIPT, "resume", run, *TOYS)
    ended = slurm.wait(resumed, "COMPLETED", "FAILED", seconds=200)
    assert ended["JobState"] == "COMPLETED", (folder / f"hedgerow-{resumed}.log").read_text()
    check_same(folder, run)
