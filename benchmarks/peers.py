"""Hedgerow beside Flower, pfl-research and a bare loop: the same arithmetic, in turn, on the same machine.

    python benchmarks/peers.py [--repeats 5] [--data-root FOLDER] [--only digits pfl cnn lstm resnet]
                               [--contenders "bare loop" pfl flower hedgerow ...]

Writes benchmarks/results/peers.json, .md and two figures; with --only or --contenders the names of those are added.
Ends with exit code 1 when a contender failed or did other work than the bare loop.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from environments import installed, python_of
from jobs import write_job
from measuring import RESULTS, conditions
from tables import draw, table
from trials import CONTENDERS, HERE, Contender, Failed, run_trial
from workloads import WORKLOADS, Workload

ALIKE = 1e-3
"""Final parameters that differ by more of the way they went were not reached by the same arithmetic."""

NAMED = ("flwr", "pfl", "ray", "torch", "numpy")


def compare(
    workload: Workload, contenders: dict[Contender, Path], data_root: Path | None, repeats: int, scratch: Path
) -> dict[str, Any]:
    """All contenders in turn, `repeats` times over."""
    job = write_job(scratch / "job", workload, data_root)
    runs: dict[str, list[dict[str, Any] | None]] = {contender.name: [] for contender in contenders}
    problems: dict[str, str] = {}
    for repeat in range(repeats):
        reference = None
        for contender, python in contenders.items():
            name = contender.name
            if name in problems:
                runs[name].append(None)
                continue
            try:
                run, parameters = run_trial(contender, python, job, data_root, scratch / f"{repeat}" / name)
            except Failed as error:
                problems[name] = f"failed: {error}"
                runs[name].append(None)
                continue
            reference = parameters if reference is None else reference
            run["apart"] = job.apart(parameters, reference)
            if not run["apart"] < ALIKE:
                problems[name] = f"not doing the same work: its parameters are {run['apart']:.2g} apart"
            runs[name].append(run)
            print(f"  {repeat + 1}/{repeats} {name}: " + ", ".join(f"{k} {run[k]}" for k in list(run)[1:]), flush=True)
    base = runs.get("hedgerow", [None] * repeats)
    return {
        "workload": workload.title,
        "rounds": workload.rounds,
        "data": job.source.told,
        "rows": {name: _row(mine, base) for name, mine in runs.items() if any(mine)},
        "problems": problems,
        "runs": runs,
    }


def _row(mine: list[dict[str, Any] | None], base: list[dict[str, Any] | None]) -> dict[str, Any]:
    """Medians over the repeats, [median, least, most] where the spread matters."""
    done = [run for run in mine if run]
    row: dict[str, Any] = {
        key: [median(run[key] for run in done), min(run[key] for run in done), max(run[key] for run in done)]
        for key in ("ms per round", "s to round 1")
    }
    for key in ("s in all", "peak MB", "accuracy"):
        row[key] = median(run[key] for run in done)
    row["apart"] = max(run["apart"] for run in done)
    both = [(run, other) for run, other in zip(mine, base, strict=True) if run and other]
    if both:
        ratios = [run["ms per round"] / other["ms per round"] for run, other in both]
        row["times hedgerow"] = round(median(ratios), 2)
    return row | {key: done[-1][key] for key in ("plan",) if key in done[-1]}


def main() -> None:
    names = [contender.name for contender in CONTENDERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--data-root", type=Path, help="folder of CIFAR-10 and tinyshakespeare/input.txt, where present"
    )
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--contenders", nargs="+", choices=names, default=names)
    arguments = parser.parse_args()
    chosen = [contender for contender in CONTENDERS if contender.name in arguments.contenders]
    contenders = {c: python_of(HERE / c.requirements) if c.requirements else Path(sys.executable) for c in chosen}
    results = conditions()
    results["peers"] = {c.name: installed(python, NAMED) for c, python in contenders.items() if c.requirements}
    results["workloads"] = {}
    parts = [*(arguments.only if len(arguments.only) < len(WORKLOADS) else [])]
    parts += [c.target.partition(":")[0] for c in chosen] if len(chosen) < len(CONTENDERS) else []
    file = RESULTS / "-".join(["peers", *parts])
    RESULTS.mkdir(exist_ok=True)
    sys.path.insert(0, str(HERE))
    for name in arguments.only:
        print(f"{name}: {WORKLOADS[name].title}", flush=True)
        with tempfile.TemporaryDirectory(prefix="hedgerow-peers-") as scratch:
            # A cache of its own: Hedgerow's plan is measured here and now, in the first repeat.
            os.environ["HEDGEROW_CACHE"] = str(Path(scratch) / "cache")
            data_root = arguments.data_root and arguments.data_root.absolute()
            found = compare(WORKLOADS[name], contenders, data_root, arguments.repeats, Path(scratch))
        results["workloads"][name] = found
        # After every workload: a run that is cut short keeps what it has.
        file.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")
        file.with_suffix(".md").write_text(table(results["workloads"]))
        draw(results["workloads"], file)
    print(table(results["workloads"]))
    problems = [(w, c, p) for w, found in results["workloads"].items() for c, p in found["problems"].items()]
    for workload, contender, problem in problems:
        print(f"{workload}: {contender} {problem}", file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
