"""Hedgerow compared with Flower, pfl-research and a bare loop: the same arithmetic, in turn, on the same machine.

    python benchmarks/peers.py [--repeats 5] [--data-root FOLDER] [--only digits mnist-mlp ...]
                               [--contenders "bare loop" pfl flower hedgerow ...]

Writes benchmarks/results/peers-WORKLOAD.json, and peers.md of all workloads with stored results.
The exit code is 1 if a contender fails or does different work than the bare loop.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from jobs import write_job
from measuring import RESULTS, conditions
from trials import CONTENDERS, HERE, OURS, Contender, Failed, installed, python_of, run_trial, steady_ms
from workloads import WORKLOADS, Workload

from hedgerow.platform.common.numbers import percent

CHECKED = 1
"""Rounds before parameters are compared. Later rounds prove less: rounding errors grow tenfold or more in each."""

ALIKE = 5e-3
"""Largest relative difference of parameters that counts as the same arithmetic.

The difference is relative to the change from the initial values. Rounding alone gives up to 0.001 (the ResNet, by the
layout of convolutions); the same mini-batches in another order give 0.02 (digits) to 1.3 (the ResNet).
"""

NAMED = ("flwr", "pfl", "ray", "torch", "numpy")


def compare(
    workload: Workload, contenders: dict[Contender, Path], data_root: Path | None, repeats: int, scratch: Path
) -> dict[str, Any]:
    """Run all contenders in turn: once to check that they do the same work, then `repeats` times with timing."""
    job = write_job(scratch / "job", workload, data_root)
    short = job.shortened(CHECKED)
    if workload.checked is not None:
        brief = replace(workload, rounds=CHECKED, local=workload.checked)
        short = write_job(scratch / "checked", brief, data_root)
    checks: dict[str, dict[str, Any]] = {}
    runs: dict[str, list[dict[str, Any]]] = {}
    problems: dict[str, str] = {}
    first = None
    for repeat in range(repeats + 1):
        for contender, python in contenders.items():
            name = contender.name
            if name in problems:
                continue
            try:
                where = scratch / str(repeat) / name
                run, parameters = run_trial(contender, python, job if repeat else short, data_root, where)
            except Failed as error:
                problems[name] = f"failed: {error}"
                continue
            if repeat:
                if repeat == 1:
                    # The other repeats end with the same parameters.
                    checks[name]["accuracy"] = job.accuracy(parameters)
                runs.setdefault(name, []).append(run)
                status = f"{steady_ms(run):.1f} ms per round"
            else:
                first = first or parameters
                run["apart"] = job.apart(parameters, first)
                if not run["apart"] < ALIKE:
                    problems[name] = f"not doing the same work: its parameters differ by {run['apart']:.2g}"
                checks[name] = run
                status = f"{run['apart']:.1g} apart"
            print(f"  {repeat}/{repeats} {name}: {status}, {run['s to round 1']} s to round 1", flush=True)
    ours = [steady_ms(run) for run in runs.get(OURS, [])]
    # A contender that failed later has no complete set of repeats to compare.
    rows = {name: _row(checks[name], mine, ours) for name, mine in runs.items() if name not in problems}
    return {
        "workload": workload.title,
        "rounds": workload.rounds,
        "data": job.source.told,
        "rows": rows,
        "problems": problems,
        "checks": checks,
        "runs": runs,
    }


def _row(check: dict[str, Any], mine: list[dict[str, Any]], ours: list[float]) -> dict[str, Any]:
    """Medians over the repeats; [median, least, most] where the spread matters. ours: times of Hedgerow."""
    spent, starts = [steady_ms(run) for run in mine], [run["s to round 1"] for run in mine]
    row: dict[str, Any] = {
        key: [round(number, 2) for number in (median(numbers), min(numbers), max(numbers))]
        for key, numbers in (("ms per round", spent), ("s to round 1", starts))
    }
    for key in ("s in all", "peak MB"):
        row[key] = median(run[key] for run in mine)
    if len(ours) == len(spent):
        row["times hedgerow"] = round(median(a / b for a, b in zip(spent, ours, strict=True)), 2)
    row |= {"accuracy": check["accuracy"], "apart": check["apart"], "s to round 1, first time": check["s to round 1"]}
    return row | {key: mine[-1][key] for key in ("plan",) if key in mine[-1]}


def report() -> None:
    """Write the table of all stored results."""
    files = {name: RESULTS / f"peers-{name}.json" for name in WORKLOADS}
    results = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    (RESULTS / "peers.md").write_text(table(results))
    print(table(results))


def table(workloads: dict[str, Any]) -> str:
    """One row per contender, under a heading row for each workload."""
    lines = [
        "| contender | time per round | times Hedgerow | first round after | memory | accuracy | apart |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in workloads.values():
        lines.append(f"| **{result['workload']}** ({result['data']}, {result['rounds']} rounds) | | | | | | |")
        for name, row in result["rows"].items():
            cells = [
                name,
                "{} ({} to {})".format(*map(_seconds, (1e-3 * ms for ms in row["ms per round"]))),
                f"{row['times hedgerow']:.2f}" if "times hedgerow" in row else "",
                "{:.1f} s ({:.1f} to {:.1f})".format(*row["s to round 1"]),
                f"{row['peak MB']:.0f} MB",
                percent(row["accuracy"]),
                f"{row['apart']:.0e}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
        lines += [f"| {name} | {_first_line(p)} | | | | | |" for name, p in result["problems"].items()]
    return "\n".join(lines) + "\n"


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _first_line(text: str) -> str:
    return " ".join(text.split())[:200].replace("|", "/")


def main() -> None:
    names = [contender.name for contender in CONTENDERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="0: only check that all do the same work")
    parser.add_argument("--data-root", type=Path, help="folder with CIFAR-10 and tinyshakespeare/input.txt, if present")
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--contenders", nargs="+", choices=names, default=names)
    arguments = parser.parse_args()
    selection = [contender for contender in CONTENDERS if contender.name in arguments.contenders]
    contenders = {c: python_of(HERE / c.requirements) if c.requirements else Path(sys.executable) for c in selection}
    record = conditions()
    record["peers"] = {c.name: installed(python, NAMED) for c, python in contenders.items() if c.requirements}
    problems = []
    RESULTS.mkdir(exist_ok=True)
    sys.path.insert(0, str(HERE))
    data_root = arguments.data_root and arguments.data_root.absolute()
    cache = tempfile.TemporaryDirectory(prefix="hedgerow-peers-cache-")
    # A separate cache, so that Hedgerow's plans are measured now, while the contenders are checked.
    os.environ["HEDGEROW_CACHE"] = cache.name
    for name in arguments.only:
        print(f"{name}: {WORKLOADS[name].title}", flush=True)
        with tempfile.TemporaryDirectory(prefix="hedgerow-peers-") as scratch:
            result = compare(WORKLOADS[name], contenders, data_root, arguments.repeats, Path(scratch))
        problems += [(name, contender, problem) for contender, problem in result["problems"].items()]
        if arguments.repeats:
            # After every workload, so that an interrupted run keeps its results.
            (RESULTS / f"peers-{name}.json").write_text(json.dumps(record | result, indent=2) + "\n")
            report()
    for workload, contender, problem in problems:
        print(f"{workload}: {contender} {problem}", file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
