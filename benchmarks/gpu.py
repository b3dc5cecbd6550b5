"""What one GPU does, in at most nine minutes: tests, seconds against a bare loop and a peer, precision, and memory.

    python benchmarks/gpu.py [--data-root FOLDER] [--only tests shares defaults peers precision memory]
                             [--workloads digits mnist-mlp ...] [--rounds 5]

shares: workloads of workloads.yaml with Hedgerow's defaults, deterministic and in float32. defaults: the same with
PyTorch's default algorithms and TF32, which the bare loop has. peers: pfl-research's own CIFAR-10 benchmark, if it is
installed here (contenders/pfl.txt). precision: seconds and accuracy of float32, tf32 and
bfloat16. memory: what a client adds to the memory of a process. Parts that did not run keep their stored results.
Without a GPU, it prints a message and measures nothing. Writes benchmarks/results/gpu.json.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from jobs import WrittenJob, write_job
from measuring import RESULTS, conditions
from shares import measure
from workloads import WORKLOADS, Workload

from hedgerow.platform.config.loader import load_experiment, parse_experiment
from hedgerow.platform.runtime.coordinator import Coordinator, build_coordinator
from hedgerow.platform.runtime.factory import build_data, build_partition
from hedgerow.platform.runtime.process import peak

TESTS = ("runtime/test_gpu", "runtime/test_gpu_memory", "runtime/test_every_algorithm", "runs/test_compute_choice")
DEFAULTS = ["resources.deterministic=false", "engine.precision=tf32"]
LAST = 3
"""Number of last evaluations over which an accuracy is averaged."""

PRECISION = {"digits": 40, "cnn": 100}
"""Rounds of the workloads that are trained in each precision."""

PEERS = 20
"""Rounds of the comparison with pfl-research."""

Outcome = tuple[dict[str, np.ndarray], list[float]]
"""Final parameters, and seconds of each round."""

MEMORY = ("mnist-mlp", "cnn", "pfl", "lstm", "one-step", "resnet")


def tests() -> dict[str, Any]:
    """Results of the tests that need a GPU, and the algorithms whose steps ran as graphs."""
    root = Path(__file__).parent.parent
    files = [str(root / "tests" / f"{name}.py") for name in TESTS]
    with tempfile.TemporaryDirectory(prefix="hedgerow-gpu-") as scratch:
        report = Path(scratch) / "report.xml"
        which = ["-m", "not exhaustive", "-k", "gpu", "--continue-on-collection-errors"]
        command = [sys.executable, "-m", "pytest", "-q", "-n", "8", *which, f"--junitxml={report}"]
        begun = time.perf_counter()
        subprocess.run([*command, *files], cwd=root, stdout=sys.stderr, check=False)
        cases = list(ET.parse(report).iter("testcase"))
    if not cases:
        raise SystemExit("gpu.py: no test ran")
    kinds = {case: next((child.tag for child in case if child.tag != "properties"), "passed") for case in cases}
    named = {case: re.search(r"\[(.*)\]", case.get("name", "")) for case in cases}
    graphs = {
        named[case][1]: one.get("value")  # type: ignore[index]
        for case in cases
        for one in case.iter("property")
        if one.get("name") == "local steps"
    }
    return {
        **{kind: sum(one == kind for one in kinds.values()) for kind in sorted({"passed", *kinds.values()})},
        "seconds": round(time.perf_counter() - begun),
        "local steps as": {mode: sorted(n for n, one in graphs.items() if one == mode) for mode in ("graph", "loop")},
    }


def shares(names: list[str], rounds: int, data_root: Path | None, settings: list[str]) -> dict[str, Any]:
    """Ratios of the bare loop's time to Hedgerow's, by workload."""
    found = {}
    for name in names:
        one = found[name] = measure(WORKLOADS[name], rounds, data_root, "cuda", settings)
        modes = ", ".join(f"{mode} {one[mode]:.2f}" for mode in ("loop", "graph", "chosen"))
        print(f"{name} {' '.join(settings)}: bare loop / Hedgerow {modes}", file=sys.stderr, flush=True)
    return found


def peers(data_root: Path | None, folder: Path) -> dict[str, Any]:
    """Seconds per round of pfl-research and of Hedgerow, with the same clients and mini-batches, one after the other.

    apart: difference of their parameters after one round, see `peers.ALIKE`.
    """
    job = write_job(folder / "job", replace(WORKLOADS["pfl"], rounds=PEERS), data_root)
    found: dict[str, Any] = {"title": WORKLOADS["pfl"].title, "data": job.source.told, "rounds": PEERS}
    short = job.shortened(1)
    theirs, _ = _of_pfl(short)
    ours, _ = _of_hedgerow(short, data_root, folder / "short", [])
    found["apart"] = job.apart(ours, theirs)
    for name, settings in (("pfl", None), ("hedgerow", []), ("hedgerow, TF32", DEFAULTS)):
        _, seconds = _of_pfl(job) if settings is None else _of_hedgerow(job, data_root, folder / name, settings)
        found[name] = {"seconds": median(seconds[1:])}
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def _of_pfl(job: WrittenJob) -> Outcome:
    out, contenders = job.folder / "out", Path(__file__).parent / "contenders"
    subprocess.run([sys.executable, contenders / "job.py", "pfl_sim:one", job.folder, out], check=True)
    moments = json.loads(out.with_suffix(".json").read_text())["moments"]
    with np.load(out.with_suffix(".npz")) as stored:
        return dict(stored), np.diff(moments).tolist()


def _of_hedgerow(job: WrittenJob, data_root: Path | None, folder: Path, settings: list[str]) -> Outcome:
    own = ["resources.executor=inline", "resources.device=cuda"]
    experiment = load_experiment(job.folder / "experiment.yaml", [*own, *settings])
    own_data = job.source.dataset
    data = (own_data, build_partition(experiment, own_data)) if own_data else build_data(experiment, data_root)
    run, seconds = build_coordinator([experiment], *data, [folder]), []
    while not run.done:
        begun = time.perf_counter()
        run.next_round()
        seconds.append(time.perf_counter() - begun)
    return run.parameters(), seconds


def started(workload: Workload, data_root: Path | None, folder: Path, **changes: Any) -> Coordinator:
    """A run of a workload on the GPU, in this process. changes: to sections of its experiment."""
    source = workload.source(data_root)
    values = workload.experiment(source).model_dump(mode="json")
    changes = {"resources": {"executor": "inline", "device": "cuda"}, **changes}
    experiment = parse_experiment({**values, **{key: {**values[key], **changed} for key, changed in changes.items()}})
    if source.dataset is None:
        return build_coordinator([experiment], *build_data(experiment, data_root), [folder])
    return build_coordinator([experiment], source.dataset, build_partition(experiment, source.dataset), [folder])


def precision(data_root: Path | None, folder: Path) -> dict[str, Any]:
    """Seconds per round and test accuracy of each precision, with the same cohorts and mini-batches."""
    found: dict[str, Any] = {}
    for workload, rounds in PRECISION.items():
        one = WORKLOADS[workload]
        figures = found[workload] = {"title": one.title, "data": one.source(data_root).told, "rounds": rounds}
        for name in ("float32", "tf32", "bfloat16"):
            run = started(
                replace(one, rounds=rounds), data_root, folder / f"{workload}-{name}",
                engine={"precision": name}, evaluation={"every": 5},
            )  # fmt: skip
            seconds = []
            while not run.done:
                begun = time.perf_counter()
                (record,) = run.next_round().values()
                if "test_accuracy" not in record:
                    seconds.append(time.perf_counter() - begun)
            scores = [record["test_accuracy"] for record in run.servers[0].history if "test_accuracy" in record]
            figures[name] = {"seconds": median(seconds[1:]), "accuracy": mean(scores[-LAST:])}
            print(f"{workload}, {name}: {figures[name]}", file=sys.stderr, flush=True)
    return found


def memory(folder: Path) -> dict[str, Any]:
    """MB of tensors in a process: with a loop, and what each further client of a chunk adds."""
    found: dict[str, Any] = {}
    for name in MEMORY:
        peaks = {}
        for chunk in (1, 4, 8):
            plan = {"mode": "vmap", "chunk": chunk} if chunk > 1 else {"mode": "loop"}
            torch.cuda.empty_cache()
            one = replace(WORKLOADS[name], clients_per_round=8)
            run = started(one, None, folder / f"{name}-{chunk}", engine=plan)
            run.next_round()
            peaks[chunk] = peak(torch.device("cuda"))
            run.close()
            del run
        each = (peaks[8] - peaks[4]) / 4
        found[name] = {"title": WORKLOADS[name].title, "MB as a loop": peaks[1], "MB per client at once": each}
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parts = ("tests", "shares", "defaults", "peers", "precision", "memory")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="folder of CIFAR-10; otherwise noise of its shape")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu.py: no GPU on this machine; nothing was measured")
        return
    file = RESULTS / "gpu.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    with tempfile.TemporaryDirectory(prefix="hedgerow-gpu-") as scratch:
        work = {
            "tests": tests,
            "shares": lambda: shares(arguments.workloads, arguments.rounds, arguments.data_root, []),
            "defaults": lambda: shares(arguments.workloads, arguments.rounds, arguments.data_root, DEFAULTS),
            "peers": lambda: peers(arguments.data_root, Path(scratch)),
            "precision": lambda: precision(arguments.data_root, Path(scratch)),
            "memory": lambda: memory(Path(scratch)),
        }
        for part in arguments.only:
            if part == "peers" and not find_spec("pfl"):
                print("gpu.py: peers are skipped: pfl is not installed, see contenders/pfl.txt", file=sys.stderr)
                continue
            results[part] = work[part]() | {"conditions": conditions(), "card": torch.cuda.get_device_name()}
            file.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
