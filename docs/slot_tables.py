"""Table of the page about slots, from benchmarks/results/tables/slots-digits/table.json."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "tables" / "slots-digits" / "table.json"
METHODS = ("FedAvg", "FedDyn", "SCAFFOLD")
TARGET = "after 40 rounds"

Scores = dict[str, dict[str, list[float]]]


def scores(file: Path = RESULTS) -> Scores:
    """Test accuracies in per cent after the last round: setting without its seed -> method -> one per seed."""
    found: Scores = defaultdict(lambda: defaultdict(list))
    for line in json.loads(file.read_text())["lines"]:
        row = line["standing"][TARGET]
        setting = row["setting"].rstrip("* ").partition(", seed")[0]
        for method in METHODS:
            if row.get(method):
                found[setting][method].append(float(row[method].rstrip("%*+ ")))
    return found


def slots(_: str = "") -> str:
    """Mean and standard deviation over the seeds, by setting and method."""
    lines = [f"| setting | {' | '.join(METHODS)} |", "|---|---|---|---|"]
    for setting, by_method in scores().items():
        cells = [f"{mean(by_method[m]):.1f} ± {stdev(by_method[m]):.1f}" if by_method[m] else "" for m in METHODS]
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
