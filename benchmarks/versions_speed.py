"""Speed of two versions of Hedgerow in one run: seconds per round, alternating between the versions.

    python benchmarks/versions_speed.py BEFORE [AFTER] --python PYTHON [--data-root DIR] [--repeats 3] [--json FILE]

BEFORE and AFTER are git revisions; AFTER defaults to the working tree. Both run the same experiment files in processes
of their own, under fixed execution plans:

* digits: FedDyn on digits with an MLP, in the loop and under vmap.
* cnn: FedDyn's CNN on MNIST (needs --data-root), in the loop.
* pack: a search of eight configurations that train together.

A run's time is the median of its rounds without the first two. The printed ratio is the median over the repeats of
after / before; its range over the repeats shows the noise.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import yaml
from versions import LOOP, VMAP, Version, working_tree

WARM_UP = 2
MLP = {
    "data": {"name": "digits"},
    "partition": {"kind": "dirichlet", "clients": 20, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [200]},
}
CNN = {
    "data": {"name": "mnist"},
    "partition": {"kind": "iid", "clients": 100},
    "model": {"name": "cnn"},
}
FEDDYN = {"name": "feddyn", "alpha": 0.1, "lr": 0.1, "epochs": 2, "batch_size": 8}
COMMON = {
    "participation": 0.5,
    "checkpoints": {"every": 0},
    "evaluation": {"every": 1000, "clients": 0},
    "tracking": {"enabled": False},
    "resources": {"executor": "inline", "threads": 1},
}


def workloads(data_root: Path | None) -> dict[str, dict]:
    """Experiment files by name."""
    digits = {**COMMON, "rounds": 40, "task": MLP, "algorithm": FEDDYN}
    rates = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5]
    search = {
        "kind": "grid",
        "metric": "train_loss",
        "report_every": 5,
        "concurrency": 1,
        "pack": 8,
        "space": {"algorithm.lr": rates},
    }
    ray = {"executor": "ray", "actors": 1, "cpus_per_actor": 1.0, "threads": 1}
    files = {
        "digits-loop": {**digits, "engine": LOOP},
        "digits-vmap": {**digits, "engine": VMAP | {"chunk": 10}},
        "pack": {**digits, "engine": VMAP | {"chunk": 10}, "resources": ray, "search": search},
    }
    if data_root:
        cnn = {"name": "feddyn", "alpha": 0.1, "lr": 0.1, "steps": 5, "batch_size": 50}
        files["cnn-loop"] = {
            **COMMON,
            "rounds": 8,
            "clients_per_round": 10,
            "participation": None,
            "task": CNN,
            "algorithm": cnn,
            "engine": LOOP,
        }
    return files


def seconds_per_round(folder: Path) -> float:
    """Median over all records below a folder, in seconds."""
    rounds: list[float] = []
    for file in folder.rglob("metrics.jsonl"):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        if all("seconds" in record for record in records):
            ends = [record["seconds"] for record in records]
            rounds += [later - earlier for earlier, later in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False)]
    return statistics.median(rounds)


def run(version: Version, name: str, values: dict, repeat: int, data_root: Path | None) -> float:
    """Run a file in a process of a version; returns its seconds per round."""
    folder = version.home / "out" / f"{name}-{repeat}"
    folder.mkdir(parents=True)
    file = folder / "file.yaml"
    file.write_text(yaml.safe_dump({"name": name, "output": str(folder), **values}))
    words = ["search" if "search" in values else "run", str(file)]
    job = f"{'searches' if 'search' in values else 'runs'}/{name}-{repeat}"
    version.do({job: [*words, *(["--data-root", str(data_root)] if data_root else [])]})
    if refusal := version.refusal(job):
        raise SystemExit(f"{version.home.name}: {name}: {refusal}")
    return seconds_per_round(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE")
    parser.add_argument("after", metavar="AFTER", nargs="?", help="default: the working tree")
    parser.add_argument("--python", type=Path, help="interpreter for both; default: an environment for each")
    parser.add_argument("--data-root", type=Path, help="folder of MNIST in torchvision's layout")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="run only this workload")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to which the numbers are also written")
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="speed-") as top:
        home = Path(top)
        trees = {"before": arguments.before, "after": arguments.after or working_tree(home / "index")}
        versions = [
            Version.install(home / name, tree, arguments.python and arguments.python.absolute())
            for name, tree in trees.items()
        ]
        for name, values in workloads(arguments.data_root).items():
            if arguments.only not in (None, name):
                continue
            times: list[list[float]] = [[], []]
            for repeat in range(arguments.repeats):
                # The order alternates, so that a drift of the machine's speed does not favour one version.
                for which in (0, 1) if repeat % 2 == 0 else (1, 0):
                    times[which].append(run(versions[which], name, values, repeat, arguments.data_root))
            ratios = sorted(after / before for before, after in zip(*times, strict=True))
            results[name] = {"before": times[0], "after": times[1], "ratios": ratios}
            print(
                f"{name}: {1000 * statistics.median(times[0]):.1f} -> {1000 * statistics.median(times[1]):.1f} ms per "
                f"round, ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
