"""Lines of published tables at full size, on a machine that is lent for some minutes, such as one with a GPU.

    python benchmarks/full_size.py LINE ... --output FOLDER [--data-root FOLDER] [--device cuda] [--minutes 9]
                                   [--seeds 0 1 2] [--set KEY=VALUE ...]

LINE is a name of `hedgerow table`, such as feddyn/T2.3/cifar10-iid. Every method of every line and seed is a process of
its own, and all run side by side. Each line and seed has a run folder with curves, like those of `hedgerow table`, and
`hedgerow table LINE --report --output FOLDER/SEED` prints its table. After --minutes each method saves its state, and
the status of each is printed; the same command continues from there. --seeds 0 is the line's own seed. Neither Ray nor
MLflow is used.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runs.compute_choice import choose_device
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.tracking.run_folder import RunFolder, new_run, now
from hedgerow.platform.ui.plots import draw_curves
from hedgerow.searchspaces.extra.table_file import find_rows
from hedgerow.searchspaces.extra.table_search import RowSearch, row_searches
from hedgerow.searchspaces.results.finished_search import read_trials
from hedgerow.searchspaces.results.trials import expert_folder

ALWAYS = ("resources.executor=inline", "tracking.enabled=false")
"""Changes that affect no number of a result."""

CLOSING_SECONDS = 15
"""Time before the end in which the last round ends and is saved."""

Line = tuple[str, int]
"""Name of a line, and its seed."""


def search_of(line: Line, changes: Sequence[str], output: Path) -> RowSearch:
    """The methods of a line with a seed. Raises UserError for a name that is not that of one line, or of a stream."""
    name, seed = line
    table, rows = find_rows(name)
    if len(rows) != 1 or rows[0].is_stream:
        raise UserError(f"{name}: name one line of fixed data, as `hedgerow table` lists them")
    other = [f"seed={seed}"] if seed else []
    (search,) = row_searches(table, rows[0], [*changes, *other], output=str(output / str(seed)))
    return search


def folder_of(search: RowSearch) -> RunFolder:
    """Folder of a line and its seed."""
    experiment = search.search.experiment
    return RunFolder(Path(experiment.output) / experiment.name)


def start(search: RowSearch, data_root: Path | None) -> None:
    """Create the run folders of a line and of its methods, unless they exist.

    Raises UserError if they exist with other settings.
    """
    folder, spec = folder_of(search), search.search
    if not folder.exists:
        with new_run(spec.experiment, data_root, spec.dump(), name=folder.name):
            folder.update(kind="search", table=search.note)
    for number, overrides in enumerate(spec.configurations):
        trial, file = expert_folder(folder.path, number), dump_experiment(spec.trial(overrides))
        if not trial.exists:
            trial.path.mkdir(parents=True, exist_ok=True)
            trial.experiment.write_text(file)
            trial.update(name=trial.name, status="interrupted", created=now(), overrides=overrides)
        elif trial.experiment.read_text() != file:
            raise UserError(f"{trial} was started with other settings; repeat them, or choose another --output")


def train(search: RowSearch, number: int, data_root: Path | None, until: float) -> None:
    """Run a method until it ends, or until a time."""
    trial = expert_folder(folder_of(search).path, number)
    experiment = search.search.trial(search.search.configurations[number])
    run = build_coordinator([experiment], *check(experiment, data_root), [trial.checkpoints])
    while not run.done and time.time() < until:
        run.run_round()
    if not run.done:
        run.save()
    trial.update(status="finished" if run.done else "interrupted", finished=now(), plans=run.plans())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="+", metavar="LINE")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--method", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = choose_device(Resources(executor="inline", device=arguments.device), None)
    changes = [*arguments.changes, *ALWAYS, f"resources.device={device}"]
    lines = [(name, seed) for name in arguments.lines for seed in arguments.seeds]
    searches = {line: search_of(line, changes, arguments.output) for line in lines}
    if arguments.method is not None:
        (search,) = searches.values()
        train(search, arguments.method, arguments.data_root, arguments.until)
        return
    until = time.time() + 60 * arguments.minutes - CLOSING_SECONDS
    processes = {}
    for line, search in searches.items():
        # Converts the data set once for all processes.
        check(search.search.experiment, arguments.data_root)
        start(search, arguments.data_root)
        command = [sys.executable, *sys.argv[:1], line[0], "--seeds", str(line[1]), "--output", str(arguments.output)]
        command += ["--device", device, "--until", str(until)]
        command += ["--data-root", str(arguments.data_root)] if arguments.data_root else []
        command += [word for change in arguments.changes for word in ("--set", change)]
        for number, heading in enumerate(search.headings):
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen([*command, "--method", str(number)], env=environment)
            processes[line, number, heading] = process
    failed = [key for key, process in processes.items() if process.wait()]
    for line, number, _ in failed:
        expert_folder(folder_of(searches[line]).path, number).update(status="failed", finished=now())
    for line, search in searches.items():
        folder = folder_of(search)
        ends = [RunFolder(path).record()["status"] for path in sorted(folder.path.glob("experts/*"))]
        folder.update(status="finished" if set(ends) == {"finished"} else "interrupted", finished=now())
        trials = read_trials(folder)
        curves = {search.headings[int(trial.name)]: [trial.records] for trial in trials if trial.records}
        draw_curves(curves, folder.figures, search.search.experiment.evaluation.accuracies)
        for heading, end in zip(search.headings, ends, strict=True):
            print(f"{line[0]}, seed {line[1]}, {heading}: {end}")
    for line, number, heading in failed:
        print(f"{line[0]}, seed {line[1]}, {heading} (method {number}) failed", file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"full_size.py: {error}", file=sys.stderr)
        sys.exit(2)
