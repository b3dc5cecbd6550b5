"""DiSK's tables (thesis, chapter 6 and appendix A.1.5), and studies of this project. These are its toys at settings
that a search of the published grids found, and ablations.

Searched were parts of the grids, on another draw of the data (seed 1, up to 500 samples), by the test accuracy there:
51 and 42 settings of DiSK drawn at random, then 16 on the line and 24 in the plane around the best of these; of KD all.

An ablation has a line for each part, of a pair of models from table 6.3 and of digits: DiSK beside itself with that
part changed. What is swept lies around what the tables use: the budget within 0.2 of the student's error, K over the
published grid, lambda at values of its grid.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from hedgerow.searchspaces.reproductions.papers.disk_tables import disk_tables
from hedgerow.searchspaces.reproductions.published import Line, Table

Section = dict[str, Any]

FOUND: dict[str, dict[str, Section]] = {
    "intervals": {
        "KD": {"alpha": 0.9, "tau": 1.0},
        "DiSK": {"alpha": 0.5, "tau": 4.0, "top_k": 1, "lambda_min": 1.0, "lambda_max": 5.0},
    },
    "gaussians": {
        "KD": {"alpha": 0.0, "tau": 4.0},
        "DiSK": {"alpha": 0.1, "tau": 4.0, "student_tau": 2.0, "top_k": 1, "lambda_max": 20.0, "delta": 0.05},
    },
}
FOUND_REMARK = (
    "alpha, tau, tau_s, K, lambda and delta are of the source's grids, found by a search of a part of them on another "
    "draw of the data; KD's best on the line is alpha 1, which is CE, and the next is shown; otherwise as disk/6.1"
)

VARIED = (("6.3", "cifar100-resnet10-l-resnet10-m", "cifar100", 100), ("small", "digits", "digits", 10))
"""The table and line that are varied, how the ablations' names begin, and the number of classes."""

PUBLISHED_K = (1, 3, 5, 10, 20, 50)
REMARK = (
    "the first column is DiSK as its tables have it; the others differ from it in what their headings say; this "
    "project's, not the source's"
)


@cache
def disk_family() -> dict[str, Table]:
    """By name: the tables of the source, and the studies."""
    tables = disk_tables()
    searched = [_searched(line) for line in tables["6.1"].lines]
    ablations = []
    for table, name, short, classes in VARIED:
        (line,) = (line for line in tables[table].lines if line.name == name)
        ablations += [_ablation(line, short, *part) for part in _parts(line.methods["DiSK"], classes).items()]
    return {
        **tables,
        "searched": Table("disk/searched", "the toys of 6.1 at settings that a search of the grids found", searched),
        "ablations": Table("disk/ablations", "DiSK with one part changed, not in the source", ablations),
    }


def _searched(line: Line) -> Line:
    found = FOUND[line.name]
    methods = {heading: {**section, **found.get(heading, {})} for heading, section in line.methods.items()}
    return replace(line, methods=methods, grids={}, remark=FOUND_REMARK)


def _parts(own: Section, classes: int) -> dict[str, dict[str, Section]]:
    """Part -> heading -> how it differs from `own`, DiSK's section."""
    deltas = [round(own["delta"] + step, 4) for step in (-0.2, -0.1, 0.1, 0.2)]
    tops = [k for k in PUBLISHED_K if k <= classes and k != own.get("top_k", 20)]
    return {
        "warm-start": {"no warm start": {"warm_start": 0}},
        "budget": {"no budget": {"lambda_min": 0.0, "lambda_max": 0.0}},
        "delta": {f"delta {delta:.2g}": {"delta": delta} for delta in deltas if delta >= 0},
        "classes": {f"K {k}": {"top_k": k} for k in tops},
        "lambda": {f"lambda {value:g}": {"lambda_min": value, "lambda_max": value} for value in (1.0, 10.0, 50.0)},
        "count": {"n all": {"budget_over": "all"}, "wrong alone": {"budget_of": "wrong"}},
        "epochs": {"3 epochs": {"epochs": 3}},
        "temperature": {"tau_s 1": {"student_tau": 1.0}, "tau_s fit": {"student_tau": "fit"}},
    }


def _ablation(line: Line, short: str, part: str, changes: dict[str, Section]) -> Line:
    own = line.methods["DiSK"]
    methods = {"DiSK": own} | {heading: {**own, **changed} for heading, changed in changes.items()}
    return Line(f"{short}-{part}", f"{line.title}: {part}", line.values, methods, remark=REMARK)
