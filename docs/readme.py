"""The generated parts of the README, and facts about algorithms for the documentation.

`python docs/readme.py` writes the README again. Each part is stored between `<!-- NAME: written by docs/readme.py -->`
and `<!-- end -->`.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from verdict_pages import in_one_line

from hedgerow.algorithms import ALGORITHMS
from hedgerow.platform.config.choices import Choice, algorithms

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("algorithms", "cluster", "platform", "reports", "searchspaces")
"""Folders of the package in the root of the repository."""
SHOWN = ROOT / "algorithms" / "federated" / "fedavg.py"
"""The algorithm that the README shows."""
PART = re.compile(r"(<!-- (\w+): written by docs/readme.py -->\n).*?(?=<!-- end -->)", re.DOTALL)
METHOD = re.compile(r"^::: algorithm (\w+)$", re.MULTILINE)
FAMILIES = (
    "federated",
    "personalisation",
    "online",
    "bilevel",
    "noisy-labels",
    "compression",
    "heterogeneous",
    "distillation",
)
"""Pages of docs/algorithms with methods, in the order of the menu."""
PEERS = {"bare loop, two processes": "bare PyTorch, two processes", "pfl": "pfl-research", "flower": "Flower"}
"""Contenders in benchmarks/results/peers-*.json, and their names in the table of the README."""


# ---- facts about algorithms ------------------------------------------------------------------------------------------


@cache
def methods() -> dict[str, Choice]:
    """The algorithms by name, in the order of their registry."""
    return {choice.name: choice for choice in algorithms() if choice.name in ALGORITHMS}


def source_file(name: str) -> str:
    """Path of an algorithm's file, from the root of the repository."""
    return f"{ALGORITHMS[name].partition(':')[0].removeprefix('hedgerow.').replace('.', '/')}.py"


def tests(name: str) -> list[str]:
    """Tests of an algorithm, from the root of the repository: those of its family that name it, or that import it."""
    module, kind = ALGORITHMS[name].split(":")
    imported = re.compile(rf"from {re.escape(module)} import [^\n]*\b{kind}\b")
    named = re.compile(rf"{imported.pattern}|\"{name}\"")
    family = ROOT / "tests" / Path(source_file(name)).parent
    files = _matches(sorted(family.glob("test_*.py")), named)
    files = files or _matches(sorted((ROOT / "tests" / "algorithms").rglob("test_*.py")), imported)
    return [file.relative_to(ROOT).as_posix() for file in files]


def _matches(files: list[Path], pattern: re.Pattern[str]) -> list[Path]:
    return [file for file in files if pattern.search(file.read_text())]


def cell(text: str) -> str:
    """Text in a cell of a Markdown table."""
    return text.replace("|", r"\|")


def cells(files: list[str]) -> str:
    """Names of files, as code."""
    return ", ".join(f"`{file}`" for file in files)


# ---- parts of the README ---------------------------------------------------------------------------------------------


def families(folder: str = "docs/algorithms/") -> str:
    """Table of the families of algorithms: link, number of methods, first sentence of the page.

    folder: prefix of the links.
    """
    rows = []
    for family in FAMILIES:
        text = (ROOT / "docs" / "algorithms" / f"{family}.md").read_text()
        title, first = re.findall(r"^# ([^\n]*)\n\n(.*?\.)\s", text, re.DOTALL)[0]
        number = len(METHOD.findall(text))
        rows.append(f"| [{title}]({folder}{family}.md) | {number} | {' '.join(first.split())} |\n")
    return "| family | methods | |\n|---|---|---|\n" + "".join(rows)


def speed() -> str:
    """Table of the peers' time per round as a multiple of Hedgerow's, from benchmarks/results/peers-*.json."""
    rows = []
    for file in sorted(RESULTS.glob("peers-*.json")):
        found = json.loads(file.read_text())
        ratios = [_ratio(found["rows"].get(name)) for name in PEERS]
        rows.append(f"| {cell(found['workload'].partition(':')[0])} | {' | '.join(ratios)} |\n")
    cores = ", ".join(sorted({str(json.loads(file.read_text())["cores"]) for file in RESULTS.glob("peers-*.json")}))
    columns = ["workload", *PEERS.values()]
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    links = "[conditions](benchmarks/README.md), [explanation](docs/performance.md)"
    return (
        "A round of Hedgerow is this many times as fast as one of the others. These are medians of runs in turn, on "
        f"{cores} CPU cores, and all frameworks train the same mini-batches: {links}.\n\n{head}{''.join(rows)}"
    )


def _ratio(row: dict[str, Any] | None) -> str:
    return "not measured" if row is None else f"{row['times hedgerow']:.2f}×"


def algorithm() -> str:
    """Source of the algorithm that the README shows."""
    return f'```python title="{SHOWN.name}"\n{SHOWN.read_text()}```\n'


PARTS: dict[str, Callable[[], str]] = {
    "families": families,
    "speed": speed,
    "algorithm": algorithm,
    "claims": in_one_line,
}


def written() -> str:
    """The README with its parts generated anew."""
    return PART.sub(lambda found: found[1] + PARTS[found[2]](), README.read_text())


if __name__ == "__main__":
    README.write_text(written())
