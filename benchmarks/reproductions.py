"""Claims of the sources at a scale that a laptop reaches, with several seeds.

    python benchmarks/reproductions.py [--only NAME ...] [--data-root FOLDER]

Each line of reproductions.yaml compares methods of one published table on the same seeds. A seed draws the partition,
the initial model and the mini-batches, so that scores are compared in pairs. Settings are those of a row of the table,
and the result names every change. Writes benchmarks/results/reproductions/NAME.json: settings, command, versions,
commit, seconds, and a score for each method and seed. A line continues where it was interrupted, and is skipped if a
result of the same settings is stored. docs/reproductions.md shows the results.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

import hedgerow
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.tracking.run_folder import git_commit, versions
from hedgerow.platform.tracking.summary import first_to
from hedgerow.searchspaces.extra.table_file import find_rows
from hedgerow.searchspaces.extra.table_search import row_searches

RESULTS = Path(__file__).parent / "results" / "reproductions"
STARTED = Path(__file__).parent.parent / "build" / "reproductions"
"""Folder of results that are not complete."""

LAST = 3
"""Number of evaluations whose scores are averaged, so that no single round decides."""

LATE = 50
"""The same for metrics of single tasks."""

ALWAYS = ("resources.executor=inline", "tracking.enabled=false", "checkpoints.every=0", "engine.compile=false")
"""Changes that affect no number of a result."""


@dataclass(frozen=True)
class ReproductionLine:
    """A comparison of methods on a row of a table.

    sets: changes to the row. methods: heading -> further changes for this method. "METHOD: TEXT" is a method of the row
    with changes; any other heading that the row does not have is its first method with changes. score: see `score_of`.
    claims: pairs (better, worse); an empty `worse` stands for 0. compared: further pairs, about which the source claims
    nothing or no difference. more: whether larger scores are better. seeded: keys that are set to the seed. note: what
    differs from the source.
    """

    name: str
    row: str
    score: str
    unit: str
    claims: Sequence[tuple[str, str]]
    methods: Mapping[str, Sequence[str]]
    sets: Sequence[str] = ()
    more: bool = True
    seeds: Sequence[int] = (1, 2, 3, 4, 5)
    seeded: Sequence[str] = ("seed",)
    needs_data: bool = False
    compared: Sequence[tuple[str, str]] = ()
    note: str = ""

    @property
    def command(self) -> str:
        """The command that runs this line."""
        data = " --data-root FOLDER" if self.needs_data else ""
        return f"python benchmarks/reproductions.py --only {self.name}{data}"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that a stored result must share in order to be continued."""
        methods = {heading: list(changes) for heading, changes in self.methods.items()}
        kept = {"row": self.row, "score": self.score, "sets": list(self.sets), "methods": methods}
        return {**kept, "seeds": list(self.seeds), "seeded": list(self.seeded)}


# ---- scores of a run -------------------------------------------------------------------------------------------------


def to_target(run: FinishedRun) -> float:
    """Transmissions, in FedAvg rounds, to the first target; all that were spent if it was not reached."""
    evaluation = run.experiment.evaluation
    first = first_to(run.records, evaluation.targets[0], evaluation.target_metric)
    return float((first or run.records[-1])["transmissions"])


def last(run: FinishedRun, metric: str, number: int = LAST) -> float:
    """Mean of a metric over the last evaluations."""
    return mean([record[metric] for record in run.records if metric in record][-number:])


def end(run: FinishedRun, metric: str) -> float:
    """Last value of a metric."""
    return float(next(record[metric] for record in reversed(run.records) if metric in record))


def within(run: FinishedRun, budget: float, metric: str) -> float:
    """Last value of a metric in rounds up to a number of transmissions."""
    return float([r[metric] for r in run.records if metric in r and r["transmissions"] <= budget][-1])


def score_of(name: str) -> Callable[[FinishedRun], float]:
    """Score by name: transmissions, ltm_minus_ctm, share NAME (of the students), last METRIC, late METRIC, end METRIC
    or at TRANSMISSIONS METRIC."""
    kind, _, metric = name.partition(" ")
    scores: dict[str, Callable[[FinishedRun], float]] = {
        "transmissions": to_target,
        "ltm_minus_ctm": lambda run: end(run, "ltm") - end(run, "ctm"),
        "share": lambda run: end(run, metric) / run.experiment.algorithm.starts,
        "last": lambda run: last(run, metric),
        "late": lambda run: last(run, metric, LATE),
        "end": lambda run: end(run, metric),
        "at": lambda run: within(run, float(metric.split()[0]), metric.split()[1]),
    }
    return scores[kind]


FILE = Path(__file__).with_suffix(".yaml")
LINES = [ReproductionLine(name, **entry) for name, entry in yaml.safe_load(FILE.read_text()).items()]


# ---- running ---------------------------------------------------------------------------------------------------------


def experiment_of(line: ReproductionLine, heading: str, seed: int, output: str) -> Experiment:
    """The experiment of one method with one seed."""
    table, (row,) = find_rows(line.row)
    method = heading.partition(": ")[0]
    first = next(iter(line.methods))
    if method not in row.methods and heading != first and not line.methods[heading]:
        raise ValueError(f"{line.name}: {line.row} has no method {heading}, and nothing is changed; name one of it")
    base = method if method in row.methods else next(iter(row.methods))
    seeds = [f"{key}={seed}" for key in line.seeded]
    changes = [*line.sets, *line.methods[heading], *seeds, *ALWAYS]
    (plan,) = row_searches(table, row, changes, [base], output=output)
    search = plan.search
    return search.experiment if row.is_stream else search.trial(search.configurations[0])


def run_line(line: ReproductionLine, data_root: Path | None) -> None:
    """Run what is missing of a line. Every score is stored at once."""
    done, started = RESULTS / f"{line.name}.json", STARTED / f"{line.name}.json"
    results = [json.loads(file.read_text()) for file in (done, started) if file.exists()]
    new = new_result(line)
    result = next((one for one in results if one["settings"] == line.settings), new)
    if done.exists() and result is results[0]:
        # Its scores are kept; what they are compared with may have changed.
        comparison = {key: new[key] for key in ("command", "note", "unit", "more_is_better", "claims", "compared")}
        if (renewed := result | comparison) != result:
            done.write_text(json.dumps(renewed, indent=1) + "\n")
        print(f"{line.name}: stored")
        return
    STARTED.mkdir(parents=True, exist_ok=True)
    for seed in line.seeds:
        for heading in line.methods:
            scores = result["scores"].setdefault(heading, {})
            if str(seed) not in scores:
                start = time.monotonic()
                scores[str(seed)] = one_score(line, heading, seed, data_root)
                result["seconds"] += time.monotonic() - start
                print(f"{line.name}, seed {seed}, {heading}: {scores[str(seed)]:.4g}", flush=True)
                started.write_text(json.dumps(result, indent=1) + "\n")
    RESULTS.mkdir(parents=True, exist_ok=True)
    done.write_text(json.dumps(result, indent=1) + "\n")
    started.unlink(missing_ok=True)


def one_score(line: ReproductionLine, heading: str, seed: int, data_root: Path | None) -> float:
    """Score of one run."""
    with tempfile.TemporaryDirectory() as output:
        run = hedgerow.run(experiment_of(line, heading, seed, output), data_root=data_root, show=False)
        assert isinstance(run, FinishedRun)
        return score_of(line.score)(run)


def new_result(line: ReproductionLine) -> dict[str, Any]:
    """Result of a line without scores."""
    return {
        "name": line.name,
        "command": line.command,
        "versions": versions(),
        "commit": git_commit(),
        "seconds": 0.0,
        "note": line.note,
        "unit": line.unit,
        "more_is_better": line.more,
        "claims": [list(claim) for claim in line.claims],
        "compared": [list(pair) for pair in line.compared],
        "settings": line.settings,
        "scores": {},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", choices=[line.name for line in LINES])
    parser.add_argument(
        "--data-root", type=Path, help="folder of the data sets; lines that need it are skipped without"
    )
    chosen = parser.parse_args()
    for line in LINES:
        if chosen.only and line.name not in chosen.only:
            continue
        if line.needs_data and chosen.data_root is None:
            print(f"{line.name}: skipped; needs --data-root")
        else:
            run_line(line, chosen.data_root)


if __name__ == "__main__":
    main()
