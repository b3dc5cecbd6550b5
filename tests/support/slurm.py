"""A Slurm cluster on this machine: munged, slurmctld and one slurmd per node, with their files in a folder."""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from processes import free_port

DAEMONS = ("munged", "slurmctld", "slurmd")
READY = 60
"""Seconds that the daemons have to start."""


def program(name: str) -> str | None:
    """Path of a daemon, which is often outside a user's PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Slurm:
    """Commands of a running cluster. env: their environment."""

    def __init__(self, env: Mapping[str, str]):
        self.env = env

    def __call__(self, *command: object, **more: str) -> str:
        """Output of a command. Raises AssertionError with its errors if it fails."""
        words = [str(word) for word in command]
        done = subprocess.run(words, env={**self.env, **more}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Fields of a job, such as JobState, Restarts and ExitCode."""
        words = self("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, number: str, *states: str, seconds: float) -> dict[str, str]:
        """Fields of a job once it has one of the states. Raises AssertionError after `seconds`."""
        end = time.monotonic() + seconds
        while (job := self.job(number))["JobState"] not in states:
            assert time.monotonic() < end, job
            time.sleep(0.2)
        return job


def cluster_conf(folder: Path, nodes: int, cpus: int, ports: list[int], lines: str) -> str:
    """Text of slurm.conf: no cgroups, no accounting, and nothing that needs another user."""
    ctld, *slurmds = ports
    text = f"""\
ClusterName=test
SlurmctldHost={socket.gethostname()}(127.0.0.1)
SlurmctldPort={ctld}
SlurmUser={getpass.getuser()}
SlurmdUser={getpass.getuser()}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SchedulerParameters=sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
FirstJobId={1000 + os.getpid() % 800 * 10}
ReturnToService=2
OverTimeLimit=0
KillWait=10
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
{lines}
"""
    for number, port in enumerate(slurmds[:nodes], 1):
        text += f"NodeName=n{number} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}\n"
    return text


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 1, cpus: int = 2, lines: str = "") -> Iterator[Slurm]:
    """Start a Slurm cluster, and end all of its processes and those of its jobs. lines: added to slurm.conf."""
    folder.mkdir(mode=0o700)
    (folder / "state").mkdir()
    key, conf = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o400)
    conf.write_text(cluster_conf(folder, nodes, cpus, [free_port() for _ in range(nodes + 1)], lines))
    env = {**os.environ, "SLURM_CONF": str(conf)}
    munged = [program("munged"), "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--{name}-file={folder}/munged.{name}" for name in ("log", "pid", "seed")]
    commands = [munged, [program("slurmctld"), "-D", "-f", conf]]
    commands += [[program("slurmd"), "-D", "-f", conf, "-N", f"n{number}"] for number in range(1, nodes + 1)]
    with ExitStack() as opened, (folder / "output.log").open("w") as log:
        for command in commands:
            process = subprocess.Popen(
                list(map(str, command)), env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
            opened.callback(end, process)
            if command is munged:
                time.sleep(0.5)
        opened.callback(end_steps, folder)
        slurm = Slurm(env)
        limit = time.monotonic() + READY
        while True:
            try:
                states = slurm("sinfo", "--noheader", "--Node", "--format=%T").split()
            except AssertionError:
                states = []
            if len(states) >= nodes and set(states) == {"idle"}:
                break
            assert time.monotonic() < limit, (states, (folder / "output.log").read_text())
            time.sleep(0.2)
        yield slurm


def end(process: subprocess.Popen) -> None:
    """End a daemon."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_steps(folder: Path) -> None:
    """Kill the steps of jobs that are left, which have slurm.conf of this folder in their environment or arguments."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("SLURM_CONF") == str(folder / "slurm.conf") and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue
