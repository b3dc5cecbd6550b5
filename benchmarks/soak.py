"""A search whose processes are killed at random all the time: nothing may be lost, and memory stay flat.

    python benchmarks/soak.py [--minutes 60] [--every 30] [--rounds N] [--seed 0]

The same search is run twice, on two cores: undisturbed, and with a SIGKILL every so many seconds to a client actor, to
a trial (Tune's actor, which is its coordinator) or to the driver, after which it is resumed. The kills end with the
minutes or with the search. Both must leave the same metrics, models and Hedge's weights, bit for bit. Without
--rounds the search gets as many as two cores train undisturbed in 0.6 times the minutes.

Prints the results, and writes them to benchmarks/results/soak.json and soak.png.
"""

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from matplotlib.figure import Figure
from measuring import RESULTS, PeakMemory, conditions, write_results
from mlflow.tracking import MlflowClient

from hedgerow.platform.checkpoint import checkpoints, latest_checkpoint
from hedgerow.platform.mlflow_store import default_uri
from hedgerow.platform.runs import RunFolder
from hedgerow.platform.tracking import RunLog

VALUES: dict[str, Any] = {
    "name": "soak",
    "clients_per_round": 20,
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.3},
        "model": {"name": "mlp", "hidden": [64]},
    },
    # Its clients have states, so that a lost client actor sends its trial back to the last checkpoint.
    "algorithm": {"name": "feddyn", "alpha": 0.1, "epochs": 5, "batch_size": 8},
    # The same step everywhere: a plan that is measured might be another one in the second search.
    "engine": {"mode": "vmap", "chunk": 10, "compile": False},
    "resources": {"actors": 2, "cpus_per_actor": 0.5},
    "evaluation": {"every": 10},
    "search": {
        "kind": "hedge",
        "space": {"algorithm.lr": [0.01, 0.03, 0.1, 0.3]},
        # Whoever is killed on purpose must not run out of restarts.
        "restarts": 100_000,
    },
}
CALIBRATION = 60
"""Rounds of a first search, which tells how many fit into the time."""

SHARE = 0.6
"""Of the minutes: what the undisturbed search shall take. The disturbed one trains in less than that, and starts."""

KINDS = {"client actor": "ray::ClientActor", "trial": "ray::ResourceTrainable", "driver": ""}
"""What is killed, and how its process is called: Tune wraps a trial's class into one of its own."""

COLOURS = {"client actor": "#56B4E9", "trial": "#009E73", "driver": "#D55E00"}

GONE = 30.0
"""Seconds until the processes of a driver that was killed are to be gone."""


class Search:
    """A search in processes of their own, which can be found by an entry of their environment."""

    def __init__(self, home: Path, rounds: int):
        self.home, self.marker = home, f"HEDGEROW_SOAK={secrets.token_hex(8)}"
        home.mkdir()
        (home / "soak.yaml").write_text(yaml.safe_dump({**VALUES, "rounds": rounds, "output": str(home / "runs")}))
        self.log = (home / "log").open("w")
        self.driver = self._start("search", str(home / "soak.yaml"))

    @property
    def folder(self) -> Path | None:
        return next(iter((self.home / "runs").glob("soak-*")), None)

    @property
    def trained(self) -> dict[str, int]:
        """Rounds of each expert that are written down."""
        files = sorted(self.folder.glob("experts/*/metrics.jsonl")) if self.folder else []
        return {file.parent.name: file.read_bytes().count(b"\n") for file in files}

    def resume(self) -> None:
        self.driver = self._start("resume", str(self.folder))

    def wait(self) -> None:
        """Until it has ended. Raises RuntimeError with its last words where it failed."""
        if code := self.driver.wait():
            raise RuntimeError(f"the search ended with {code}: {(self.home / 'log').read_text()[-2000:]}")

    def at_risk(self, kind: str) -> int:
        """Rounds that are run again at most when such a process dies: those since an expert's last checkpoint, and the
        one at hand; of all experts, if it is the driver."""
        assert self.folder is not None
        lost = []
        for name, trained in self.trained.items():
            saved = checkpoints(self.folder / "experts" / name / "checkpoints")
            lost.append(trained + 1 - (int(saved[-1].name.split("-")[1]) if saved else 0))
        return sum(lost) if kind == "driver" else max(lost, default=0)

    def end(self) -> None:
        """Whatever of it is still there."""
        for process in PeakMemory(marker=self.marker).members():
            if process.pid != os.getpid():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.log.close()

    def _start(self, *arguments: str) -> subprocess.Popen:
        name, _, value = self.marker.partition("=")
        environment = {**os.environ, name: value, "RAY_TMPDIR": str(self.home)}
        command = [sys.executable, "-m", "hedgerow", *arguments]
        return subprocess.Popen(command, cwd=self.home, env=environment, stdout=self.log, stderr=subprocess.STDOUT)


class Disturbance:
    """Kills processes of a search until it is over, and writes down what it did."""

    def __init__(self, search: Search, memory: PeakMemory, every: float, minutes: float, seed: int):
        self.search, self.memory, self.every, self.seconds = search, memory, every, 60 * minutes
        self.dice = random.Random(seed)
        self.begun = time.monotonic()
        self.kills: list[dict[str, Any]] = []
        self.progress: list[tuple[float, int]] = []
        self.minutes = 0.0
        self.orphans: list[str] = []

    @property
    def now(self) -> float:
        """Minutes since it began."""
        return round((time.monotonic() - self.begun) / 60, 3)

    def carry_out(self) -> None:
        """Until the search has come to its end."""
        due = self.every
        while self.search.driver.poll() is None:
            time.sleep(0.5)
            self.progress.append((self.now, sum(self.search.trained.values())))
            if due <= 60 * self.now < self.seconds and self.search.trained:
                self._kill()
                due = 60 * self.now + self.every
        self.search.wait()
        self.minutes = self.now
        self._bury()

    def while_it_trained(self, samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """Those samples of memory: not those of the first start and of the closing figures."""
        most = max(rounds for _, rounds in self.progress)
        moments = [60 * minute for minute, rounds in self.progress if 0 < rounds < most]
        return [sample for sample in samples if min(moments, default=0) <= sample[0] <= max(moments, default=0)]

    def _kill(self) -> None:
        kind = self.dice.choice([kind for kind in KINDS if self._those(kind)])
        victim = self.dice.choice(self._those(kind))
        self.kills.append({"minute": self.now, "what": kind, "rounds run again, at most": self.search.at_risk(kind)})
        with suppress(psutil.NoSuchProcess):
            victim.kill()
        if kind == "driver":
            self.search.driver.wait()
            self._bury()
            if self.search.driver.returncode:
                self.search.resume()

    def _those(self, kind: str) -> list[psutil.Process]:
        if kind == "driver":
            return [psutil.Process(self.search.driver.pid)]
        return sorted((p for p in self._alive() if _title(p).startswith(KINDS[kind])), key=lambda p: p.pid)

    def _alive(self) -> list[psutil.Process]:
        """The search's processes."""
        return [p for p in self.memory.members() if p.pid != os.getpid() and p.is_running()]

    def _bury(self) -> None:
        """Wait for what a driver that is gone leaves behind; what stays is written down, and ended."""
        _, alive = psutil.wait_procs(self._alive(), timeout=GONE)
        self.orphans += [_title(process)[:80] for process in alive]
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def left_behind(search: Search) -> dict[str, Any]:
    """What decides whether anything was lost: every expert's records and last model, and Hedge's own records."""
    assert search.folder is not None
    found: dict[str, Any] = {"hedge": RunLog(search.folder / "metrics.jsonl").read()}
    for expert in sorted((search.folder / "experts").iterdir()):
        records = RunLog(expert / "metrics.jsonl").read()
        found[f"{expert.name} records"] = [{k: v for k, v in one.items() if k != "seconds"} for one in records]
        last = latest_checkpoint(expert / "checkpoints")
        found[f"{expert.name} model"] = (last[0] / "server.safetensors").read_bytes() if last else b""
    return found


def untidy(search: Search) -> dict[str, Any]:
    """What must not be there after the end: half-written files, and MLflow runs that have not ended or miss rounds."""
    assert search.folder is not None
    files = [file for file in search.folder.rglob("*") if file.name.startswith(".") or file.suffix == ".tmp"]
    client = MlflowClient(default_uri(search.home / "runs"))
    runs = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])]
    recorded = [len(client.get_metric_history(run.info.run_id, "transmissions")) for run in runs]
    return {
        "status": RunFolder(search.folder).record()["status"],
        "half-written files": len(files),
        "MLflow runs": dict(Counter(run.info.status for run in runs)),
        "rounds in MLflow": sorted(recorded, reverse=True)[: len(search.trained)],
    }


def steady(samples: list[tuple[float, float]], every: float) -> list[tuple[float, float]]:
    """The most memory of each interval between two kills, with its moment: in between some processes are missing."""
    parts: dict[int, list[tuple[float, float]]] = {}
    for second, megabytes in samples:
        parts.setdefault(int(second / every), []).append((second, megabytes))
    return [max(part, key=lambda sample: sample[1]) for part in parts.values()]


def slope(points: list[tuple[float, float]]) -> dict[str, float]:
    """MB per hour by least squares, with its standard error; nothing for fewer than three points."""
    if len(points) < 3:
        return {}
    hours, megabytes = np.array(points).T
    hours = hours / 3600
    centred = hours - hours.mean()
    per_hour = float(centred @ megabytes / (centred @ centred))
    rest = megabytes - megabytes.mean() - per_hour * centred
    error = float(np.sqrt(rest @ rest / (len(rest) - 2) / (centred @ centred)))
    return {"MB": round(float(megabytes.mean())), "MB per hour": round(per_hour), "standard error": round(error)}


def draw(disturbance: Disturbance, samples: list[tuple[float, float]], every: float, file: Path) -> None:
    """Memory and rounds by time, with a line for each kill."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for points, style in ((samples, {"color": "0.75", "linewidth": 0.8}), (steady(samples, every), {"color": "black"})):
        above.plot([second / 60 for second, _ in points], [megabytes for _, megabytes in points], **style)
    below.plot(*zip(*disturbance.progress, strict=True), color="black")
    for kill in disturbance.kills:
        for panel in (above, below):
            panel.axvline(kill["minute"], color=COLOURS[kill["what"]], linewidth=0.8, alpha=0.6, zorder=0)
    for kind, colour in COLOURS.items():
        above.plot([], [], color=colour, label=f"{kind} killed")
    above.set_ylim(bottom=0)
    above.set_ylabel("MB of all processes\n(black: most between kills)")
    below.set_ylabel("rounds of all experts")
    below.set_xlabel("minutes")
    above.legend(fontsize=8, loc="lower right")
    figure.savefig(file, dpi=150)


def affordable(search: Search, minutes: float) -> int:
    """Rounds that an undisturbed search takes SHARE of the minutes for, from a short one."""
    search.wait()
    assert search.folder is not None
    clocks = [RunLog(file).read() for file in search.folder.glob("experts/*/metrics.jsonl")]
    per_round = max((c[-1]["seconds"] - c[9]["seconds"]) / (len(c) - 10) for c in clocks)
    return max(2, round(SHARE * 60 * minutes / per_round / 10)) * 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=30)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # SIGTERM ends it like Ctrl-C: no search goes on by itself.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        # Paths of Ray's sockets must be short.
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp")))

        def start(name: str, rounds: int) -> Search:
            search = Search(home / name, rounds)
            stack.callback(search.end)
            return search

        rounds = arguments.rounds or affordable(start("a", CALIBRATION), arguments.minutes)
        begun = time.monotonic()
        calm = start("b", rounds)
        calm.wait()
        undisturbed = (time.monotonic() - begun) / 60
        search = start("c", rounds)
        with PeakMemory(every=1.0, marker=search.marker) as memory:
            disturbance = Disturbance(search, memory, arguments.every, arguments.minutes, arguments.seed)
            disturbance.carry_out()
        expected, found = left_behind(calm), left_behind(search)
        draw(disturbance, memory.samples, arguments.every, RESULTS / "soak.png")
        results = conditions() | {
            "experts": len(calm.trained),
            "rounds": rounds,
            "minutes undisturbed": round(undisturbed, 1),
            "minutes disturbed": round(disturbance.minutes, 1),
            "kills": dict(Counter(kill["what"] for kill in disturbance.kills)),
            "rounds run again, at most": sum(kill["rounds run again, at most"] for kill in disturbance.kills),
            "equal": {name: found.get(name) == value for name, value in expected.items()},
            "memory": slope(steady(disturbance.while_it_trained(memory.samples), arguments.every))
            | {"most": round(memory.megabytes)},
            "processes left behind": disturbance.orphans,
            **untidy(search),
            "each kill": disturbance.kills,
        }
        write_results("soak", results)
    sys.exit(0 if all(results["equal"].values()) and found.keys() == expected.keys() else 1)


if __name__ == "__main__":
    main()
