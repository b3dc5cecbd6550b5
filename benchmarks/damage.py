"""Deliberate damage to runs: no result may differ silently, and no healthy run may be refused.

    python benchmarks/damage.py [--kills 60] [--seed 0] [--only kills] [--executors inline processes Ray]

* Bits: one bit is flipped in a checkpoint of an interrupted run (50 times in a file of tensors, 15 times in
  progress.json, 15 times in the records), or half of server.safetensors is zeroed; then the run is resumed.
* Resumes: two processes resume the same run at the same time (8 times).
* Foreign Ray: a run on Ray next to another Ray on the same machine, and with the address file of a Ray that has ended.
* Kills: runs of FedAvg, SCAFFOLD and FedDyn in one process, in forked processes and on Ray, whose driver, coordinator,
  forked worker or client actor gets a SIGKILL at random moments.

Every run must end with the metrics and the server state of an undisturbed run, bit for bit. Prints the counts, and
writes them to benchmarks/results/damage.json.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml
from measuring import conditions, write_results

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.runner import resume, run
from hedgerow.platform.storage.checkpoint import checkpoints, latest_checkpoint
from hedgerow.platform.tracking.tracker import RunLog

VALUES: dict[str, Any] = {
    "name": "damage",
    "clients_per_round": 10,
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "dirichlet", "clients": 50, "alpha": 0.3},
        "model": {"name": "mlp", "hidden": [32]},
    },
    # Clients have states, which checkpoints contain too.
    "algorithm": {"name": "feddyn", "alpha": 0.1, "epochs": 2, "batch_size": 8},
    # The same plan in every run, since the bits depend on it.
    "engine": {"mode": "vmap", "chunk": 5, "compile": False},
    "tracking": {"enabled": False},
    "evaluation": {"every": 5},
}
ON_RAY = {"executor": "ray", "actors": 2, "cpus_per_actor": 0.5}
EXECUTORS: dict[str, dict[str, Any]] = {
    "inline": {"executor": "inline"},
    "processes": {"executor": "processes", "actors": 2},
    "Ray": ON_RAY,
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg", "epochs": 2, "batch_size": 8},
    "scaffold": {"name": "scaffold", "epochs": 2, "batch_size": 8},
    "feddyn": VALUES["algorithm"],
}
VICTIMS = {"client actor": "ray::ClientActor", "coordinator": "ray::CoordinatorActor", "worker": "", "driver": ""}
VICTIMS_OF = {
    "inline": ["driver"],
    "processes": ["worker", "driver"],
    "ray": ["client actor", "coordinator", "driver"],
}


def experiment(home: Path, rounds: int, every: int, resources: dict[str, Any]) -> dict[str, Any]:
    return VALUES | {
        "rounds": rounds,
        "output": str(home),
        "resources": resources,
        "checkpoints": {"every": every, "keep": 2},
    }


def outcome(folder: Path) -> tuple[list[dict[str, Any]], bytes]:
    """The records without their times, and the last server state."""
    records = RunLog(folder / "metrics.jsonl").read()
    last = checkpoints(folder / "checkpoints")[-1]
    return [{k: v for k, v in one.items() if k != "seconds"} for one in records], (
        last / "server.safetensors"
    ).read_bytes()


class Undisturbed:
    """A finished run, and the same run interrupted in the middle."""

    def __init__(self, home: Path, rounds: int = 12, every: int = 3):
        values = experiment(home, rounds, every, {"executor": "inline"})
        self.expected = outcome(run(parse_experiment(values), show=None).folder.path)

        def stop(record: dict[str, Any]) -> None:
            if record["round"] == rounds - 2:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            run(parse_experiment(values | {"name": "interrupted"}), show=stop)
        self.interrupted = next(home.glob("interrupted-*"))

    def copy(self, target: Path) -> Path:
        shutil.copytree(self.interrupted, target)
        return target


def flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def zero_half(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    half = len(content) // 2
    content[half:] = bytes(len(content) - half)
    file.write_bytes(content)


def resumed(folder: Path, expected: Any) -> str:
    """Outcome of resuming a damaged run."""
    try:
        finished = resume(str(folder))
    except UserError:
        return "refused in one sentence"
    equal = outcome(folder) == expected
    reported = "damaged" in (finished.warning or "")
    return ("equal" if equal else "DIFFERENT") + (", reported" if reported else ", NOT REPORTED")


def damaged_files(home: Path, rng: random.Random) -> dict[str, dict[str, int]]:
    """Damage files, resume, and count the outcomes."""
    base = Undisturbed(home)
    newest = latest_checkpoint(base.interrupted / "checkpoints")
    assert newest is not None
    tensors = sorted(file.name for file in newest[0].glob("*.safetensors"))
    places = {
        "one bit of a file of tensors": (50, lambda: f"{newest[0].name}/{rng.choice(tensors)}", flip),
        "one bit of progress.json": (15, lambda: f"{newest[0].name}/progress.json", flip),
        "half of server.safetensors": (3, lambda: f"{newest[0].name}/server.safetensors", zero_half),
        "one bit of the records": (15, lambda: "../metrics.jsonl", flip),
    }
    counts: dict[str, dict[str, int]] = {}
    for title, (times, place, damage) in places.items():
        outcomes: Counter[str] = Counter()
        for trial in range(times):
            folder = base.copy(home / f"trial-{title.replace(' ', '-')}-{trial}")
            damage(folder / "checkpoints" / place(), rng)
            outcomes[resumed(folder, base.expected)] += 1
            shutil.rmtree(folder)
        counts[title] = dict(outcomes)
    return counts


def command(*words: str, **options: Any) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "hedgerow", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    )


def double_resumes(home: Path) -> dict[str, int]:
    """Resume one run twice at the same time."""
    base = Undisturbed(home, 60, 20)
    outcomes: Counter[str] = Counter()
    for trial in range(8):
        folder = base.copy(home / f"double-{trial}")
        both = [command("resume", str(folder)) for _ in range(2)]
        codes = sorted(process.wait(300) for process in both)
        equal = "equal" if outcome(folder) == base.expected else "DIFFERENT"
        outcomes[f"exit codes {codes}, {equal}"] += 1
    return dict(outcomes)


def foreign_ray(home: Path) -> dict[str, str]:
    """A run on Ray while another Ray is running, and with its address file after it has ended."""
    file = home / "damage.yaml"
    file.write_text(yaml.safe_dump(experiment(home / "runs", 6, 3, ON_RAY)))
    place = os.environ | {"RAY_TMPDIR": str(home / "r")}
    (home / "r").mkdir()
    ray = Path(sys.executable).with_name("ray")
    foreign = subprocess.Popen(
        [ray, "start", "--head", "--port=0", "--num-cpus=1", "--include-dashboard=false", "--block"],
        env=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    outcomes = {}
    try:
        stale = home / "r" / "ray" / "ray_current_cluster"
        while not stale.exists():
            time.sleep(0.2)
        address = stale.read_text()
        outcomes["another Ray is there"] = ending(command("run", str(file), env=place))
    finally:
        os.killpg(foreign.pid, signal.SIGKILL)
        foreign.wait()
    stale.write_text(address)
    outcomes["the address file of a Ray that is gone"] = ending(command("run", str(file), env=place))
    return outcomes


def ending(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=300)
    return "finished" if process.returncode == 0 else f"exit {process.returncode}: {output.strip().splitlines()[-1]}"


def rounds_of(folder: Path) -> int:
    """Number of rounds that a run has recorded."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


class Kills:
    """Runs that are killed at random moments and resumed until they finish."""

    def __init__(self, home: Path, rng: random.Random, resources: dict[str, Any], algorithm: dict[str, Any]):
        self.home, self.rng = home, rng
        self.victims = VICTIMS_OF[resources["executor"]]
        self.values = experiment(home, 400, 20, resources) | {"algorithm": algorithm}
        file = home / "undisturbed.yaml"
        file.write_text(yaml.safe_dump(self.values | {"name": "undisturbed"}))
        # A process of its own: workers cannot be forked from this one, which has several threads.
        if (ended := ending(command("run", str(file)))) != "finished":
            sys.exit(f"the undisturbed run failed: {ended}")
        self.expected = outcome(next(home.glob("undisturbed-*/")))
        self.kills: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()

    def one_run(self, kills: int) -> None:
        """Kill a run `kills` times, then let it finish."""
        file = self.home / "killed.yaml"
        file.write_text(yaml.safe_dump(self.values | {"name": "killed"}))
        before = set(self.home.glob("killed-*/"))
        process, folder = command("run", str(file)), None
        while kills and process.poll() is None:
            folder = folder or next(iter(set(self.home.glob("killed-*/")) - before), None)
            if folder is None or not (folder / "run.json").exists():
                time.sleep(0.05)
                continue
            victim = self.rng.choice(self.victims)
            # One kill in five may hit a starting process; the others hit one that trains.
            if self.rng.random() > 0.2:
                self._wait_for_a_round(process, folder)
            time.sleep(self.rng.uniform(0, 1.5))
            if not self._kill(process, victim):
                continue
            self.kills[f"{victim}, round {rounds_of(folder) // 100 * 100} and later"] += 1
            kills -= 1
            if victim == "driver":
                process.communicate()
                process = command("resume", str(folder))
        output, _ = process.communicate(timeout=600)
        assert folder is not None
        if process.returncode:
            self.endings[f"exit {process.returncode}: {output.strip().splitlines()[-1]}"] += 1
        else:
            self.endings["equal" if outcome(folder) == self.expected else "DIFFERENT"] += 1

    def _wait_for_a_round(self, process: subprocess.Popen, folder: Path) -> None:
        """Wait until one more round is recorded, or the process has ended."""
        before = rounds_of(folder)
        while rounds_of(folder) <= before and process.poll() is None:
            time.sleep(0.05)

    def _kill(self, process: subprocess.Popen, victim: str) -> bool:
        """Returns whether the victim was killed: an actor may take long to start, and the run may end first."""
        if victim == "driver":
            running = process.poll() is None
            process.kill()
            return running
        while process.poll() is None:
            with suppress(psutil.Error):
                driver = psutil.Process(process.pid)
                family = driver.children(recursive=True)
                if victim == "worker":
                    # Its child only forks the workers; without it, the run ends in one sentence.
                    family = [one for one in family if one.ppid() != driver.pid]
                start = VICTIMS[victim] or " ".join(driver.cmdline())
                targets = [one for one in family if " ".join(one.cmdline()).startswith(start)]
                if targets:
                    self.rng.choice(targets).kill()
                    return True
            time.sleep(0.2)
        return False


def random_kills(home: Path, rng: random.Random, wanted: int, executors: list[str]) -> dict[str, Any]:
    """Every executor with every algorithm gets the same number of kills, up to 5 in one run."""
    outcomes: dict[str, Any] = {}
    each = -(-wanted // (len(EXECUTORS) * len(ALGORITHMS)))
    for executor in executors:
        for algorithm, values in ALGORITHMS.items():
            place = home / f"{executor}-{algorithm}"
            place.mkdir()
            trials = Kills(place, rng, EXECUTORS[executor], values)
            while (remaining := each - sum(trials.kills.values())) > 0:
                trials.one_run(min(5, remaining))
            outcomes[place.name] = {"kills": dict(trials.kills), "runs": dict(trials.endings)}
            print(place.name, outcomes[place.name], flush=True)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("kills",), help="only the kills")
    parser.add_argument("--executors", nargs="*", default=list(EXECUTORS), choices=list(EXECUTORS))
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    results = conditions()
    with tempfile.TemporaryDirectory(prefix="damage-", dir="/tmp") as top:
        homes = {name: Path(top) / name for name in ("bits", "resumes", "ray", "kills")}
        for home in homes.values():
            home.mkdir()
        if not arguments.only:
            results["damaged files"] = damaged_files(homes["bits"], rng)
            results["two resumes at once"] = double_resumes(homes["resumes"])
            results["foreign Ray"] = foreign_ray(homes["ray"])
        results["kills"] = random_kills(homes["kills"], rng, arguments.kills, arguments.executors)
    write_results("damage", results)
    text = json.dumps(results)
    sys.exit("DIFFERENT" in text or "NOT REPORTED" in text or "exit " in text.replace("exit codes [0, 2], equal", ""))


if __name__ == "__main__":
    main()
