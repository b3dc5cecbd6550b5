"""Comparison of two versions of Hedgerow on this machine: the same experiment files must give the same numbers.

    python benchmarks/versions.py BEFORE [AFTER] [--only algorithms|examples|tables] [--algorithms fedavg,feddyn]

BEFORE and AFTER are git revisions; AFTER defaults to the working tree. Both are unpacked into a temporary folder and
installed there by `make setup`, or both use the packages of one environment (--python).

* Algorithms: every algorithm of BEFORE on a tiny task, in the file that BEFORE's `hedgerow new` writes: with
  `engine.mode: loop`, under vmap, and some of them on two client actors of Ray.
* Examples: BEFORE's examples/*.yaml, shortened, both runs and searches.
* Tables: a row of each published table, shortened, on digits if its own data require a download.

The comparison covers the records without measured times, including those of Hedge, and the final server states: bit for
bit, or up to 1e-6 under vmap and on two client actors. Leaves of the server state other than `w/...` may be renamed.
Versions are used only through `hedgerow.run`, the command line and the files of run folders; everything else may change
between them. The exit code is 1 if a number differs or a file is refused.
"""

import argparse
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

ROOT = Path(__file__).parent.parent
ROUNDS = 2
TOLERANCE = 1e-6

INLINE = {"executor": "inline"}
ON_RAY = {"executor": "ray", "actors": 2, "cpus_per_actor": 0.5}
# The plan is fixed, since the bits depend on it and a measured plan may vary.
LOOP = {"mode": "loop", "chunk": 1, "compile": False}
VMAP = {"mode": "vmap", "chunk": 3, "compile": False}

ALGORITHMS_ON_RAY = ("fedavg", "feddyn", "scaffold", "pfldyn", "fedbio", "feddf")
LOOSE = ("vmap/", "ray/")
"""Prefixes of jobs that need not agree bit for bit."""

EXAMPLES: dict[str, list[str]] = {
    "digits_teacher": ["task.model.channels=[4, 8]"],
    "digits_side": ["task.model.channels=[4, 8]", "task.teacher.run=runs/examples/digits_teacher/digits-teacher"],
    "digits_disk": ["task.teacher.epochs=1", "algorithm.warm_start=1"],
    "digits_moml": [f"task.partition.tasks={ROUNDS}", "search.space={algorithm.alpha: [0.1, 1.0]}"],
}
"""Changes to examples, in addition to the number of rounds. The first example trains the teacher of the second."""

LINES: dict[tuple[str, ...], str] = {
    tuple(entry["sets"]): entry["rows"] for entry in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
}
"""Compared rows of each table, by the changes to them."""

BY_COMMAND = {
    "feddyn/TA.4/synthetic-type1": "FedDyn,SCAFFOLD",
    "pfl/small/digits-acid-3": "PFLDyn Proto,Per-FedAvg",
    "moml/small/digits": "FS",
    "fedhen/T4.1/digits": "FedHeN,NoSide",
}
"""Rows that `hedgerow table` itself runs, with these methods. For all rows, the first and the last method run as
experiments, as `hedgerow table --show` prints them: that takes seconds, while a table takes half a minute."""

STAMP = re.compile(r"-\d{8}-\d{6}(-\d+)?(?=/|$)")
"""The date and time in the name of a run folder."""

KINDS = ("equal", "close", "DIFFERENT", "refused", "not compared")
"""Kinds of verdicts; the last three are failures."""

STRICT = re.compile(r": w/|\.round$")
"""Leaves that both versions must have: the model, and the numbers of the rounds."""

Jobs = dict[str, list[str]]
"""Work of one process: name of a job -> an experiment file, or the words of a command."""


@dataclass(frozen=True)
class Version:
    """An unpacked version of the repository. python: the interpreter of its environment."""

    home: Path
    python: Path

    @classmethod
    def install(cls, home: Path, tree: str, python: Path | None) -> "Version":
        """Unpack the git object `tree` and, unless an interpreter is given, create an environment for it."""
        source = home / "hedgerow"
        source.mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", str(source)], input=git("archive", "--format=tar", tree), check=True)
        if python is None:
            subprocess.run(["make", "--silent", "setup", f"PYTHON={sys.executable}"], cwd=source, check=True)
            python = source / ".venv" / "bin" / "python"
        for script in (source / "examples").glob("*.py"):
            # User code of the examples, imported from the folder where the commands run.
            shutil.copy(script, home)
        return cls(home, python)

    def do(self, jobs: Jobs) -> None:
        """Run jobs in a process of this version, see `work`."""
        file = self.home / "jobs.json"
        file.write_text(json.dumps(jobs))
        own = {"PYTHONPATH": str(self.home), "HEDGEROW_CACHE": str(self.home / "cache")}
        # -P: the scripts of this folder must not hide modules of the same names.
        words = [str(self.python), "-P", __file__, "--work", str(file)]
        subprocess.run(words, cwd=self.home, env=os.environ | own, check=False)

    def folder(self, job: str) -> Path:
        return self.home / "runs" / job

    def printed(self, job: str) -> Any:
        """The document that a job printed."""
        return json.loads((self.folder(job) / "stdout").read_text())

    def refusal(self, job: str) -> str:
        """Reason why a job failed; empty if it did not."""
        file = self.folder(job) / "error"
        return file.read_text() if file.exists() else "it did not run"


def work(file: Path) -> None:
    """Run jobs one after the other in this process; a failed job does not stop the others."""
    import ray

    import hedgerow

    # A Hedgerow that is installed in the environment would be compared with itself.
    assert Path(hedgerow.__file__).is_relative_to(file.parent), hedgerow.__file__
    jobs: Jobs = json.loads(file.read_text())
    if any(name.startswith(("ray/", "searches/", "commands/")) for name in jobs):
        # Started once: Hedgerow uses the Ray that its process is connected to.
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for name, words in jobs.items():
        folder = file.parent / "runs" / name
        folder.mkdir(parents=True)
        start, error = time.monotonic(), ""
        out, err = (folder / "stdout").open("w"), (folder / "stderr").open("w+")
        with out, err, redirect_stdout(out), redirect_stderr(err):
            try:
                if words[0].endswith(".yaml"):
                    hedgerow.run(words[0], show=False)
                else:
                    sys.argv = ["hedgerow", *words]
                    runpy.run_module("hedgerow", run_name="__main__")
            except SystemExit as ended:
                if ended.code:
                    err.seek(0)
                    error = (err.read().strip().splitlines() or [f"exit code {ended.code}"])[-1]
            except Exception as problem:
                error = f"{type(problem).__name__}: {problem}"
        (folder / "error").write_text(error)
        seconds = time.monotonic() - start
        print(f"{file.parent.name}: {name}, {seconds:.1f} s {error[:100]}".rstrip(), file=sys.stderr, flush=True)


def git(*words: str, **places: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, env=os.environ | places, check=True, stdout=subprocess.PIPE).stdout


def working_tree(index: Path) -> str:
    """The working tree as git stores it, including uncommitted files that are not ignored. index: a file for git."""
    git("read-tree", "HEAD", GIT_INDEX_FILE=str(index))
    git("add", "--all", GIT_INDEX_FILE=str(index))
    return git("write-tree", GIT_INDEX_FILE=str(index)).decode().strip()


def shrunk(values: dict[str, Any], job: str) -> dict[str, Any]:
    """An experiment that `hedgerow new` wrote, small enough to take a second."""
    task = values["task"]
    teacher = task["teacher"] or {}
    teacher.update({"epochs": 1} if teacher else {})
    task["partition"].update({"tasks": ROUNDS} if task["partition"]["kind"] == "stream" else {"clients": 8})
    for model in (task["model"], teacher.get("model", {})):
        model.update({"hidden": [32]} if "hidden" in model else {})
    # If the algorithm permits it, only some clients per round, so that some take part twice.
    values["clients_per_round"] = "all" if values["clients_per_round"] == "all" else 0.5
    return values | {
        "rounds": ROUNDS,
        "output": f"runs/{job}",
        "resources": ON_RAY if job.startswith("ray/") else INLINE,
        "engine": LOOP if job.startswith("loop/") else VMAP,
        "tracking": {"enabled": False},
    }


def algorithm_jobs(before: Version, wanted: str, results: dict[str, str]) -> Iterator[Jobs]:
    """Every algorithm in each form, in files that BEFORE writes. Files that it does not write go to the results."""
    before.do({"list": ["list", "algorithms", "--json"]})
    names = [entry["name"] for entry in before.printed("list")["algorithms"]]
    names = [name for name in names if not wanted or name in wanted.split(",")]
    new = {name: ["new", "experiment", f"runs/new/{name}/{name}", "--algorithm", name, "--all"] for name in names}
    before.do({f"new/{name}": command for name, command in new.items()})
    for form in ("loop", "vmap", "ray"):
        jobs: Jobs = {}
        for name in names if form != "ray" else [name for name in names if name in ALGORITHMS_ON_RAY]:
            job = f"{form}/{name}"
            if sentence := before.refusal(f"new/{name}"):
                results[job] = f"not compared, BEFORE does not write its file: {sentence}"
                print(f"{job}: {results[job]}")
                continue
            values = yaml.safe_load((before.folder(f"new/{name}") / f"{name}.yaml").read_text())
            jobs[job] = [experiment_file(before, job, shrunk(values, job))]
        yield jobs


def example_jobs(before: Version) -> Iterator[Jobs]:
    """BEFORE's examples, both runs and searches."""
    kinds: dict[str, Jobs] = {"examples": {}, "searches": {}}
    folder = before.home / "hedgerow" / "examples"
    for name in dict.fromkeys([*EXAMPLES, *sorted(file.stem for file in folder.glob("*.yaml"))]):
        file = folder / f"{name}.yaml"
        kind = "searches" if "search" in yaml.safe_load(file.read_text()) else "examples"
        changes = options(*EXAMPLES.get(name, ()), f"output=runs/{kind}/{name}")
        words = ["search"] if kind == "searches" else ["run", "--set", "resources.executor=inline"]
        kinds[kind][f"{kind}/{name}"] = [*words, str(file), *changes]
    yield from kinds.values()


def table_jobs(version: Version) -> Iterator[Jobs]:
    """Tables as the version defines them: methods of their rows as experiments, and some rows by the command."""
    lines = {line: options(*changed) for changed, some in LINES.items() for line in some.split()}
    show_jobs = {f"show/{line}": ["table", line, "--show", "--json", *words] for line, words in lines.items()}
    version.do({"tables": ["table", "--json"], **show_jobs})
    jobs: Jobs = {}
    for line in lines:
        if version.refusal(f"show/{line}"):
            # Run again as jobs, where the reason is reported.
            jobs |= {f"tables/{line}/{which}": ["table", line, "--show", *lines[line]] for which in ("first", "last")}
            continue
        values = version.printed(f"show/{line}")["files"][0]
        space = values.pop("search")["space"]
        sections = space["algorithm"]["grid"] if "algorithm" in space else [values["algorithm"]]
        for which, section in {"first": sections[0], "last": sections[-1]}.items():
            job = f"tables/{line}/{which}"
            changes = {"output": f"runs/{job}", "resources": INLINE}
            # In a space, an algorithm may carry sections that stand next to it in an experiment file.
            if "objective" in section:
                changes["objective"] = section.pop("objective")
            if "weighting" in section and "aggregation" in values:
                changes["aggregation"] = values["aggregation"] | {"weighting": section.pop("weighting")}
            changes["algorithm"] = section
            jobs[job] = [experiment_file(version, job, values | changes)]
    yield jobs
    yield {
        f"commands/{line}": ["table", line, "--methods", methods, "-o", f"runs/commands/{line}", *lines[line]]
        for line, methods in BY_COMMAND.items()
    }


def experiment_file(version: Version, job: str, values: dict[str, Any]) -> str:
    file = version.home / "files" / f"{job}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return str(file)


def options(*changed: str) -> list[str]:
    """Options of a command that shorten an experiment, and options that apply its other changes."""
    engine = (f"engine.{key}={json.dumps(value)}" for key, value in LOOP.items())
    changes = (f"rounds={ROUNDS}", "tracking.enabled=false", *engine, *changed)
    return [word for change in changes for word in ("--set", change)]


def leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Single values of a record with their paths; numbers become arrays. Measured times are left out."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in ("seconds", "sha256"):
                yield from leaves(part, f"{place}.{key}")
    else:
        yield place, np.asarray(value, np.float64) if isinstance(value, int | float) else value


def outcome(folder: Path) -> dict[str, Any]:
    """Records and final server states of all runs under a folder, by leaf."""
    values: dict[str, Any] = {}
    for file in sorted(folder.rglob("metrics.jsonl")):
        run = STAMP.sub("", file.parent.relative_to(folder).as_posix())
        for number, line in enumerate(file.read_text().splitlines(), 1):
            values |= leaves(json.loads(line), f"{run}: record {number}")
        for state in sorted(file.parent.glob("checkpoints/round-*/server.safetensors"))[-1:]:
            values |= {f"{run}: {name}": leaf for name, leaf in load_file(state).items()}
    return values


def apart(before: Any, after: Any) -> float:
    """Largest difference of two leaves, absolute or, for numbers above 1, relative; 0 if all bits agree."""
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray):
        return 0.0 if before == after else np.inf
    if before.shape != after.shape or before.dtype != after.dtype:
        return np.inf
    if before.tobytes() == after.tobytes():
        return 0.0
    a, b = before.astype(np.float64), after.astype(np.float64)
    with np.errstate(invalid="ignore"):
        differences = np.abs(a - b) / np.maximum(1, np.abs(a))
    # 0 and -0 are equal, but not bit for bit. Non-finite values must be the same.
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.where(same, np.finfo(np.float64).tiny, np.nan_to_num(differences, nan=np.inf)).max())


def compare(before: dict[str, Any], after: dict[str, Any], tolerance: float) -> tuple[str, list[str]]:
    """Verdict on the leaves of two outcomes, and notes on renamed leaves, which are matched by their values."""
    new = [leaf for leaf in after if leaf not in before]
    differences = {leaf: apart(before[leaf], after[leaf]) for leaf in before if leaf in after}
    notes = []
    for leaf in before.keys() - after.keys():
        if STRICT.search(leaf):
            differences[leaf] = np.inf
        twins = (name for name in new if np.ndim(after[name]) and apart(before[leaf], after[name]) <= tolerance)
        if twin := next(twins, None):
            new.remove(twin)
        notes.append(f"{leaf} is now {twin.rpartition(': ')[2]}" if twin else f"{leaf} is gone")
    notes = sorted(notes) + [f"{leaf} is new" for leaf in new]
    if not differences:
        return "DIFFERENT nothing in common", notes
    worst = max(differences, key=lambda leaf: differences[leaf])
    if differences[worst] > tolerance:
        return f"DIFFERENT max {differences[worst]:.1e} ({worst})", notes
    return f"close {differences[worst]:.0e}" if differences[worst] else "equal", notes


def judge(both: tuple[Jobs, Jobs], versions: tuple[Version, Version]) -> Iterator[tuple[str, str]]:
    """Run jobs in both versions at the same time; yields the verdict on each job."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Version.do, versions, both))
    before, after = versions
    for job in both[0]:
        if sentence := before.refusal(job):
            yield job, f"not compared, BEFORE refuses it: {sentence}"
        elif sentence := after.refusal(job):
            yield job, f"refused: {sentence}"
        else:
            outcomes = [outcome(version.folder(job)) for version in versions]
            verdict, notes = compare(*outcomes, TOLERANCE if job.startswith(LOOSE) else 0.0)
            yield job, verdict + (f"; {', '.join(notes)}" if notes else "")


def results_of(arguments: argparse.Namespace, home: Path) -> dict[str, str]:
    """Verdict on every job."""
    trees = {"before": arguments.before, "after": arguments.after or working_tree(home / "index")}
    before, after = (Version.install(home / name, tree, arguments.python) for name, tree in trees.items())
    only = "algorithms" if arguments.algorithms else arguments.only
    results: dict[str, str] = {}
    batches: list[Iterable[tuple[Jobs, Jobs]]] = []
    if only in (None, "algorithms"):
        batches.append((jobs, jobs) for jobs in algorithm_jobs(before, arguments.algorithms, results))
    if only in (None, "examples"):
        batches.append((jobs, jobs) for jobs in example_jobs(before))
    if only in (None, "tables"):
        batches.append(zip(table_jobs(before), table_jobs(after), strict=True))
    for both in chain.from_iterable(batches):
        for job, verdict in judge(both, (before, after)) if both[0] else ():
            results[job] = verdict
            print(f"{job}: {verdict}", flush=True)
    if only in (None, "tables"):
        known_tables = {line.rpartition("/")[0] for some in LINES.values() for line in some.split()}
        for table in {table["name"] for table in before.printed("tables")["tables"]} - known_tables:
            results[f"tables/{table}"] = "not compared: this script names none of its rows"
            print(f"tables/{table}: {results[f'tables/{table}']}")
    return results


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE")
    parser.add_argument("after", metavar="AFTER", nargs="?", help="default: the working tree")
    parser.add_argument("--only", choices=["algorithms", "examples", "tables"])
    parser.add_argument("--algorithms", default="", metavar="A,B", help="only these algorithms, no examples or tables")
    parser.add_argument(
        "--python", type=Path, help="interpreter of one environment for both; default: create one for each"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder for versions and runs; must not exist")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to which the verdicts are also written")
    arguments = parser.parse_args()
    if arguments.keep:
        arguments.keep.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="versions-") as top:
        results = results_of(arguments, (arguments.keep or Path(top)).absolute())
    counts = Counter(kind for one in results.values() for kind in KINDS if one.startswith(kind))
    print(", ".join(f"{number} {kind}" for kind, number in counts.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(any(kind in counts for kind in KINDS[2:]))


if __name__ == "__main__":
    main()
