"""Claims of the sources at a scale that a laptop reaches, with several seeds.

    python benchmarks/reproductions.py [--only NAME ...] [--data-root FOLDER] [--list]

Each line compares methods of one published table on the same seeds. A seed draws the partition, the initial model and
the mini-batches, so that scores are compared in pairs. Settings are those of a row of the table, and the result names
every change. Writes benchmarks/results/reproductions/NAME.json: settings, command, versions, commit, seconds, and a
score for each method and seed. A line continues where it was interrupted, and is skipped if a result of the same
settings is stored. docs/reproductions.md shows the results.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import hedgerow
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.tracking.run_folder import git_commit, versions
from hedgerow.platform.tracking.summary import first_to
from hedgerow.searchspaces.extra.table_file import find_rows
from hedgerow.searchspaces.extra.table_search import plan_row

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

    sets: changes to the row. methods: heading -> further changes for this method; a heading that the row does not have
    takes the row's first method. score: see `score_of`. claims: pairs (better, worse); an empty `worse` stands for 0.
    compared: further pairs, about which the source claims nothing or no difference. more: whether larger scores are
    better. seeded: keys that are set to the seed. note: what differs from the source.
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


def replication(line: ReproductionLine, seeds: Sequence[int]) -> ReproductionLine:
    """The same line on new seeds, for comparisons that the first ones had decided barely or not at all."""
    return replace(line, name=f"{line.name}-again", seeds=seeds, note=f"the same on new seeds: {line.note}")


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


# ---- lines -----------------------------------------------------------------------------------------------------------

DIGITS = "task.data={name: digits}"
MLP = "task.model={name: mlp, hidden: [50]}"
SEP = "aggregation.server_optimizer.lr=12.5"
SKETCH = "transforms=[{kind: sketch, rows: 5, columns: 20, entries: 1, server_momentum: 0.0}]"
ACCURACY = "last test_accuracy"
SHARE = "% of test samples"
TRANSMISSIONS = "transmissions, in FedAvg rounds"

EXPERT = ("algorithm.adapt_steps=5", "algorithm.adapt_lr=0.1")
STREAM = {
    "MOML": (*EXPERT, "algorithm.steps=20", "algorithm.alpha=1.0"),
    "FTML": (*EXPERT, "algorithm.steps=20"),
    "MOGD": (*EXPERT, "algorithm.steps=10"),
    "TOE": (*EXPERT, "algorithm.steps=20"),
    "FS": EXPERT,
}
SHORT = ("task.partition.tasks=100", "rounds=100", "evaluation.every=100")
FEDHEN = {"FedHeN": (), "Decouple": (), "NoSide": ()}
FEDHEN_CLAIMS = (("FedHeN", "Decouple"), ("FedHeN", "NoSide"))
VARIANTS = ("Iter-topK", "Non-iter")
FEDDYN = {"FedDyn": (), "SCAFFOLD": ("algorithm.steps=50",), "FedAvg": (), "FedProx": ()}
FEDDYN_CLAIMS = tuple(("FedDyn", other) for other in ("SCAFFOLD", "FedAvg", "FedProx"))
TARGET = ("evaluation.targets=[0.93]", "evaluation.stop=true", "rounds=150")

BEST_MINIMUM = "share minimum_D"
STUDENTS = "% of the students in the best minimum"
PLANE_SEEDS = ("seed", "task.data.seed")
PLANE_SEARCH = ("evaluation.every=200", "algorithm.starts=40")
PLANE = {
    "CE": (),
    "KD": ("algorithm.name=kd", "algorithm.tau=1.0"),
    "DiSK": (
        "algorithm.name=disk",
        "algorithm.tau=1.0",
        "algorithm.top_k=2",
        "algorithm.epochs=null",
        "algorithm.steps=3",
        "algorithm.guide_hidden=[8]",
        "algorithm.guide_lr=null",
    ),
}
BATCHES = ("algorithm.batch_size=100",)
ONE_PASS = {"DiSK": ("algorithm.steps=null", "algorithm.epochs=1")}
NARROW = ("task.data.variance=0.0025",)
PLANE_TASKS: dict[str, tuple[Sequence[str], Mapping[str, Sequence[str]]]] = {
    "all samples": ((), {}),
    "batches of 100": (BATCHES, ONE_PASS),
    "all samples, r a deviation": (NARROW, {}),
    "batches of 100, r a deviation": ((*NARROW, *BATCHES), ONE_PASS),
}

MOML_SHORT = ReproductionLine(
    "moml-s-mnist",
    "moml/5.1/s-mnist",
    "end ltm",
    "% LTM",
    [("MOML", "FTML"), ("MOML", "MOGD"), ("MOML", "FS")],
    {name: STREAM[name] for name in ("MOML", "FTML", "MOGD", "FS")},
    SHORT,
    seeds=(1, 2, 3),
    seeded=("seed", "task.partition.seed"),
    needs_data=True,
    note="100 tasks instead of 1000; one expert per method, the best of a run over the grids with seed 0",
)

FEDHEN_IID = ReproductionLine(
    "fedhen-iid",
    "fedhen/T4.1/digits",
    ACCURACY,
    SHARE,
    FEDHEN_CLAIMS,
    FEDHEN,
    seeds=(1, 2, 3),
    note="digits and small networks; accuracy of the complex network after 100 rounds, not rounds to a target",
)

FEDSEP_STEPS = tuple(
    ReproductionLine(
        f"fedsep-steps-{partition}",
        f"fedsep/F4/mnist-{partition}-steps",
        "end test_accuracy",
        SHARE,
        [("I = 10", "I = 2"), *longer],
        {"I = 2": (), "I = 10": (), "I = 50": ()},
        [DIGITS, MLP, "rounds=30", "algorithm.sketch_size=500", "aggregation.server_optimizer.lr=2.5"],
        seeds=(1, 2, 3),
        compared=[] if longer else [("I = 50", "I = 10")],
        note="digits and an MLP of 3,760 parameters, p = 500, 30 rounds; server step d / 3p, as in the row",
    )
    # The source sees a gain up to 50 steps on IID data, and little of it with two classes per client.
    for partition, longer in (("iid", [("I = 50", "I = 10")]), ("2-classes", []))
)


LINES = (
    ReproductionLine(
        "feddyn-tenth",
        "feddyn/T2.3/mnist-dirichlet0.3",
        "transmissions",
        TRANSMISSIONS,
        FEDDYN_CLAIMS,
        FEDDYN,
        [DIGITS, *TARGET],
        more=False,
        note="digits instead of MNIST, 93 % in 150 rounds; SCAFFOLD has as many local steps as FedDyn",
    ),
    ReproductionLine(
        "pfl-proto",
        "pfl/small/digits-alid-3",
        "transmissions",
        TRANSMISSIONS,
        [("PFLDyn Proto", "P-Avg Proto"), ("PFLDyn Proto", "PFLScaf Proto"), ("PFLDyn Proto", "Per-FedAvg")],
        {"PFLDyn Proto": (), "PFLScaf Proto": (), "P-Avg Proto": (), "Per-FedAvg": ()},
        ["evaluation.stop=true", "evaluation.targets=[0.95]"],
        more=False,
        note="digits and 20 devices instead of CIFAR and 100; to 95 % in at most 100 rounds",
    ),
    ReproductionLine(
        "fedsep-both-ways",
        "fedsep/F2/mnist-2-classes-small",
        "at 1.6 test_accuracy",
        SHARE,
        [("FedSep 100", other) for other in ("Top-K 100", "Count-Sketch 100", "uncompressed")],
        {
            "FedSep 100": (SEP, "rounds=60"),
            "Top-K 100": ("rounds=4",),
            "Count-Sketch 100": (SKETCH, "rounds=4"),
            "uncompressed": ("rounds=2",),
        },
        [DIGITS, MLP, "evaluation.every=1"],
        note="digits and an MLP of 3,760 parameters; accuracy when a client has sent and received as many numbers as "
        "in 1.6 rounds of FedAvg, the last round within this budget; Top-K and Count-Sketch receive the whole model; "
        "FedSep's server step is d / 3p, as in the row",
    ),
    ReproductionLine(
        "fedsep-sent",
        "fedsep/F2/mnist-2-classes-small",
        "end test_accuracy",
        SHARE,
        [("FedSep 100", "Top-K 100"), ("FedSep 100", "Count-Sketch 100"), ("FedSep 100, beta 0.01", "FedSep 100")],
        {
            "FedSep 100": (SEP,),
            "FedSep 100, beta 0.01": (
                "algorithm={name: fedsep, sketch_size: 100, lasso: 0.01, lr: 0.1, epochs: null, steps: 5, "
                "batch_size: 32}",
                SEP,
            ),
            "Top-K 100": (),
            "Count-Sketch 100": (SKETCH,),
        },
        [DIGITS, MLP],
        note="digits and an MLP of 3,760 parameters; accuracy after 30 rounds, in each of which a client sends 100 "
        "numbers; FedSep's server step is d / 3p, as in the row; Count-Sketch has no server momentum and recovers one "
        "entry in a round; beta 0.01 was the largest of three values that were tried on seed 0",
    ),
    ReproductionLine(
        "disk-line",
        "disk/searched/intervals",
        "share minimum_C",
        "% of the students in the best minimum",
        [("DiSK", "KD"), ("DiSK", "CE")],
        {"CE": (), "KD": (), "DiSK": ()},
        seeds=(2, 3, 4),
        seeded=("seed", "task.data.seed"),
        sets=["evaluation.every=200", "algorithm.starts=40"],
        note="40 students for each draw of the data; cells of the published grids that were found on another draw",
    ),
    MOML_SHORT,
    ReproductionLine(
        "moml-toe",
        "moml/5.1/s-mnist",
        "ltm_minus_ctm",
        "% LTM minus CTM",
        [("TOE", ""), ("TOE", "MOML")],
        {name: STREAM[name] for name in ("MOML", "TOE")},
        [*SHORT, "task.partition.transforms={rotation: 180.0, flip: 0.5, crop: 0.3, scale: 0.3}"],
        more=False,
        seeds=(1, 2, 3),
        seeded=("seed", "task.partition.seed"),
        needs_data=True,
        note="100 tasks instead of 1000; images turned by up to 180 degrees, cut and scaled by up to 30 %, where the "
        "source prints no extent; experts as in moml-s-mnist",
    ),
    ReproductionLine(
        "fedbio-cleaning-harsh",
        "fedbio/cleaning/digits-harsh",
        ACCURACY,
        SHARE,
        [("FedBiO", "local"), ("FedBiOAcc", "FedBiO"), ("FedBiOAcc", "FedAvg")],
        {"FedBiOAcc": (), "FedBiO": (), "local": (), "FedAvg": ()},
        ["rounds=60"],
        seeds=(1, 2, 3),
        note="digits, 60 rounds; the learning rates of the table, which were searched on MNIST",
    ),
    *FEDSEP_STEPS,
    ReproductionLine(
        "comm-fedbio-noniid",
        "comm_fedbio/F1/digits-noniid",
        ACCURACY,
        SHARE,
        [*((name, "FedAvg") for name in VARIANTS), *(("Iter-topK", name) for name in ("FOCUS", "Preprocess"))],
        dict.fromkeys((*VARIANTS, "FedAvg", "FedAvg-Oracle", "FOCUS", "Preprocess"), ()),
        ["rounds=80"],
        seeds=(1, 2, 3),
        note="digits and an MLP at compression rate 5, instead of MNIST, CIFAR-10 and FEMNIST at 20; 80 rounds",
    ),
    ReproductionLine(
        "comm-fedbio-long",
        "comm_fedbio/F1/digits-noniid",
        ACCURACY,
        SHARE,
        [
            *((name, "FedAvg") for name in (*VARIANTS, "Iter-sketch")),
            ("Iter-topK", "FOCUS"),
            ("Iter-topK", "Preprocess"),
        ],
        dict.fromkeys((*VARIANTS, "Iter-sketch", "FedAvg", "FedAvg-Oracle", "FOCUS", "Preprocess"), ()),
        seeds=(4, 5, 6),
        note="digits and an MLP at compression rate 5, instead of MNIST, CIFAR-10 and FEMNIST at 20; 200 rounds, as in "
        "the row, on new seeds, since the 80 rounds of comm-fedbio-noniid did not separate the methods",
    ),
    ReproductionLine(
        "comm-fedbio-mnist",
        "comm_fedbio/F1/mnist-mlp-noniid",
        ACCURACY,
        SHARE,
        [("Iter-topK", "FedAvg"), ("Iter-topK", "FOCUS")],
        {"Iter-topK": (), "FedAvg": (), "FOCUS": ()},
        ["rounds=100"],
        seeds=(1, 2, 3),
        needs_data=True,
        note="an MLP instead of four convolutions, 100 rounds; compression rate 20, as in the source",
    ),
    *(replication(line, (4, 5, 6, 7, 8, 9)) for line in FEDSEP_STEPS),
    ReproductionLine(
        "pfl-maml",
        "pfl/small/digits-alid-3",
        "last client_accuracy",
        "% of the devices' test samples",
        [("PFLDyn MAML", "Per-FedAvg"), ("PFLDyn MAML", "PFLScaf MAML")],
        {"PFLDyn MAML": (), "PFLScaf MAML": (), "Per-FedAvg": ()},
        ["rounds=50"],
        note="digits and 20 devices instead of CIFAR and 100; accuracy after 50 rounds",
    ),
    FEDHEN_IID,
    replication(FEDHEN_IID, (4, 5, 6, 7, 8, 9)),
    ReproductionLine(
        "side-dirichlet",
        "side/T7.1/digits-iid",
        ACCURACY,
        SHARE,
        [("FedAvg robustness", "FedAvg CE")],
        {"FedAvg CE": (), "FedAvg robustness": ()},
        [
            "task.partition={kind: dirichlet, clients: 100, alpha: 0.3}",
            "task.teacher=null",
            "rounds=40",
            "evaluation.stop=false",
        ],
        seeds=(1, 2, 3),
        note="digits, 14 samples per client, Dirichlet 0.3; accuracy after 40 rounds, not rounds to a target; without "
        "distillation, which needs a teacher's run",
    ),
    ReproductionLine(
        "referee-flute",
        "referee/flute-lr-mnist/two-classes",
        "end test_accuracy",
        SHARE,
        [],
        {"as published": (), "pixels not standardised": ("task.data={name: mnist}",)},
        seeds=(1, 2, 3, 4, 5),
        needs_data=True,
        compared=[("as published", "pixels not standardised")],
        note="accuracy after 100 rounds, with each pixel standardised as LEAF's are, and with one mean and deviation",
    ),
    ReproductionLine(
        "moml-linear",
        "moml/A.10/s-mnist",
        "end ltm",
        "% LTM",
        [("MOML", "MOML-zero")],
        dict.fromkeys(("MOML", "MOML-zero"), STREAM["MOML"]),
        SHORT,
        seeds=(1, 2, 3),
        seeded=("seed", "task.partition.seed"),
        needs_data=True,
        note="100 tasks instead of 1000; MOML's expert of moml-s-mnist for both",
    ),
    ReproductionLine(
        "moml-buffer",
        "moml/5.4/s-mnist",
        "end ltm",
        "% LTM",
        [("B=5", "MOML"), ("B=5", "random B=5")],
        {
            "MOML": (
                "algorithm={name: moml, lr: 0.1, weight_decay: 0.001, batch_size: 10, adapt_steps: 5, adapt_lr: 0.1, "
                "steps: 20, alpha: 1.0}",
            ),
            **dict.fromkeys(("B=5", "random B=5"), STREAM["MOML"]),
        },
        SHORT,
        seeds=(1, 2, 3),
        seeded=("seed", "task.partition.seed"),
        needs_data=True,
        note="100 tasks instead of 1000; MOML's expert of moml-s-mnist for all",
    ),
    ReproductionLine(
        "moml-efficiency",
        "moml/efficiency/s-mnist",
        "late efficiency_points",
        "samples of a new task",
        [("MOML", "FTML"), ("MOML", "FS")],
        {name: STREAM[name] for name in ("MOML", "FTML", "FS")},
        SHORT,
        more=False,
        seeds=(1, 2, 3),
        seeded=("seed", "task.partition.seed"),
        needs_data=True,
        note="100 tasks instead of 1000; mean over the last 50 tasks of the samples that reach 80 %, and 60 where none "
        "do; experts as in moml-s-mnist",
    ),
    ReproductionLine(
        "disk-plane-task",
        "disk/6.1/gaussians",
        BEST_MINIMUM,
        STUDENTS,
        [],
        {
            f"{method}, {title}": (*PLANE[method], *changes, *sizes.get(method, ()))
            for title, (changes, sizes) in PLANE_TASKS.items()
            for method in PLANE
        },
        sets=PLANE_SEARCH,
        seeds=(11, 12),
        seeded=PLANE_SEEDS,
        note="40 students for each of two draws of the data, with the printed defaults; r = 0.05 as a variance or a "
        "standard deviation, and steps on all samples or on mini-batches, where DiSK has one pass for the guide and "
        "one for the student",
    ),
    ReproductionLine(
        "disk-plane",
        "disk/searched/gaussians",
        BEST_MINIMUM,
        STUDENTS,
        [("DiSK", "KD"), ("DiSK", "CE")],
        {"CE": (), "KD": (), "DiSK": ()},
        sets=PLANE_SEARCH,
        seeds=(2, 3, 4, 5, 6),
        seeded=PLANE_SEEDS,
        note="40 students for each draw of the data; cells of the published grids that were found on another draw",
    ),
)


# ---- running ---------------------------------------------------------------------------------------------------------


def experiment_of(line: ReproductionLine, heading: str, seed: int, output: str) -> Experiment:
    """The experiment of one method with one seed."""
    table, (row,) = find_rows(line.row)
    base = heading if heading in row.methods else next(iter(row.methods))
    seeds = [f"{key}={seed}" for key in line.seeded]
    changes = [*line.sets, *line.methods[heading], *seeds, *ALWAYS]
    (plan,) = plan_row(table, row, changes, [base], output=output)
    search = plan.search
    return search.experiment if row.is_stream else search.trial(search.configurations[0])


def run_line(line: ReproductionLine, data_root: Path | None) -> None:
    """Run what is missing of a line. Every score is stored at once."""
    done, started = RESULTS / f"{line.name}.json", STARTED / f"{line.name}.json"
    results = [json.loads(file.read_text()) for file in (done, started) if file.exists()]
    result = next((one for one in results if one["settings"] == line.settings), None) or new_result(line)
    if done.exists() and result == results[0]:
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
    parser.add_argument("--list", action="store_true", help="print the commands of all lines")
    chosen = parser.parse_args()
    for line in LINES:
        if chosen.only and line.name not in chosen.only:
            continue
        if chosen.list:
            print(line.command)
        elif line.needs_data and chosen.data_root is None:
            print(f"{line.name}: skipped; needs --data-root")
        else:
            run_line(line, chosen.data_root)


if __name__ == "__main__":
    main()
