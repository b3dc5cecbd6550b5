"""One trial of one contender: its environment, its command, its time, its memory and its results."""

import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np
import psutil
from jobs import WrittenJob
from measuring import PeakMemory

from hedgerow.platform.common.user_cache import cache_folder
from hedgerow.platform.storage.checkpoint import latest_checkpoint, parse_tree

HERE = Path(__file__).parent / "contenders"

MARKER = "HEDGEROW_BENCH"
"""Environment variable that identifies the processes of a trial, even if they leave their parent."""

PATIENCE = 1800
"""Maximum seconds of a trial."""

Outcome = dict[str, Any]


class Failed(Exception):  # noqa: N818
    """A contender failed; the message is the end of its log."""


@dataclass(frozen=True)
class Contender:
    """A script under contenders/ that runs a job: target is its MODULE:FUNCTION."""

    name: str
    target: str
    requirements: str | None = None
    """Requirements file of its own environment; None: it runs in Hedgerow's environment."""
    executor: str | None = None
    """Hedgerow's `resources.executor`."""


OURS = "hedgerow"
"""Hedgerow with its defaults."""

CONTENDERS = [
    Contender("bare loop", "bare:one"),
    Contender("bare loop, two processes", "bare:two"),
    Contender("pfl, one process", "pfl_sim:one", "pfl.txt"),
    Contender("pfl", "pfl_sim:two", "pfl.txt"),
    Contender("flower", "flower_sim:run", "flower.txt"),
    Contender(OURS, "hedgerow_api:main", executor="auto"),
    Contender("hedgerow, on Ray", "hedgerow_api:main", executor="ray"),
]


def run_trial(
    contender: Contender, python: Path, job: WrittenJob, data_root: Path | None, folder: Path
) -> tuple[Outcome, dict[str, np.ndarray]]:
    """Run a contender in an empty folder; returns the measurements and the final parameters. Raises Failed.

    "seconds" has one entry per round; the first one is not steady.
    """
    folder.mkdir(parents=True)
    mark = uuid4().hex
    environment = os.environ | {
        MARKER: mark,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HEDGEROW_BENCH_EXECUTOR": contender.executor or "",
    }
    if contender.executor and job.source.dataset is None:
        command = [str(python), "-m", "hedgerow", "run", str(job.folder / "experiment.yaml")]
        command += ["--set", f"resources.executor={contender.executor}", "--import", "nets"]
        command += ["--data-root", str(data_root)] if data_root else []
    else:
        command = [str(python), str(HERE / "job.py"), contender.target, str(job.folder), str(folder / "out")]
    with (folder / "log").open("wb") as log:
        start = time.time()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        with PeakMemory(every=0.5, marker=f"{MARKER}={mark}") as peak:
            first = _watch(process, folder, start)
        whole = time.time() - start
    _clear(mark)
    if process.returncode:
        raise Failed((folder / "log").read_text(errors="replace")[-3000:])
    seconds, parameters, extra = _hedgerow(folder) if contender.executor else _scripted(folder)
    first = extra.pop("first", first)
    return {
        "seconds": [round(s, 5) for s in seconds],
        "s to round 1": round(first - start, 2),
        "s in all": round(whole, 2),
        "peak MB": round(peak.megabytes),
        **extra,
    }, parameters


def steady_ms(run: Outcome) -> float:
    """Milliseconds per round: the median of the steady rounds."""
    return 1e3 * median(run["seconds"][1:])


def _scripted(folder: Path) -> tuple[list[float], dict[str, np.ndarray], Outcome]:
    """Results that contenders/job.py wrote."""
    moments = json.loads((folder / "out.json").read_text())["moments"]
    with np.load(folder / "out.npz") as stored:
        parameters = dict(stored)
    return list(np.diff(moments)), parameters, {"first": moments[1]}


def _hedgerow(folder: Path) -> tuple[list[float], dict[str, np.ndarray], Outcome]:
    """Results in a run folder. The last round, which evaluates the model, is left out of the seconds."""
    (run,) = (folder / "runs").iterdir()
    clock = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    parameters = {
        name: p.numpy() for name, p in parse_tree((checkpoint[0] / "server.safetensors").read_bytes())["w"].items()
    }
    plan = json.loads((run / "run.json").read_text())["plans"]["train/clients"]
    return list(np.diff([0.0, *clock]))[:-1], parameters, {"plan": plan}


def _watch(process: subprocess.Popen, folder: Path, start: float) -> float:
    """Wait for a process to end; returns when its first round was reported in a run folder, if it has one."""
    first = 0.0
    while process.poll() is None:
        if time.time() - start > PATIENCE:
            process.kill()
        if not first and any(file.stat().st_size for file in folder.glob("runs/*/metrics.jsonl")):
            first = time.time()
        time.sleep(0.05)
    return first


def _clear(mark: str) -> None:
    """Wait until all processes of a trial are gone, and kill those that remain: the next trial needs the machine."""
    deadline = time.time() + 15
    while processes := [process for process in psutil.process_iter() if _has(process, mark)]:
        if time.time() > deadline:
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
        time.sleep(0.1)


def _has(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error):
        return process.environ().get(MARKER) == mark
    return False


# ---- environments of the peers ---------------------------------------------------------------------------------------

UV = [sys.executable, "-m", "uv", "--quiet"]


def python_of(requirements: Path) -> Path:
    """Interpreter of an environment with the requirements of the file and Hedgerow itself, created once in the user's
    cache: the requirements of the peers conflict with Hedgerow's.
    """
    key = hashlib.sha256(f"{requirements.read_text()} {sys.version} {HERE.parent.parent}".encode()).hexdigest()[:12]
    folder = cache_folder() / "peers" / f"{requirements.stem}-{key}"
    python = folder / "bin" / "python"
    marker = folder / "installed"
    if not marker.exists():
        print(f"installing {requirements.name} into {folder}", flush=True)
        subprocess.run([*UV, "venv", "--clear", "--python", sys.executable, str(folder)], check=True)
        # Compiled now, so that the first trial does not pay for it.
        options = ["--compile-bytecode", "--python", str(python), "-r", str(requirements)]
        subprocess.run([*UV, "pip", "install", *options], check=True)
        # For Hedgerow's models; without its requirements, which would conflict.
        options = ["--no-deps", "--python", str(python), "--editable", str(HERE.parent.parent)]
        subprocess.run([*UV, "pip", "install", *options], check=True)
        marker.touch()
    return python


def installed(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Versions of the given packages that are installed in an interpreter's environment."""
    command = [*UV, "pip", "list", "--format", "json", "--python", str(python)]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {entry["name"]: entry["version"] for entry in packages if entry["name"] in names}
