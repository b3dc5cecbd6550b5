"""Table of the page about slots, from benchmarks/results/tables/slots-digits/table.json."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "tables" / "slots-digits" / "table.json"
METHODS = ("FedAvg", "FedDyn", "SCAFFOLD")
Scores = dict[str, dict[str, list[float]]]


def scores(file: Path = RESULTS) -> Scores:
    """Best test accuracies over the rounds in per cent: setting without its seed -> method -> one per seed."""
    found: Scores = defaultdict(lambda: defaultdict(list))
    for line in json.loads(file.read_text())["lines"]:
        setting = line["line"].removeprefix("slots/digits/").rpartition("-")[0]
        for method, accuracy in line["best_accuracy"].items():
            found[setting][method].append(100 * accuracy)
    return found


def slots(_: str = "") -> str:
    """Mean and standard deviation over the seeds, by setting and method."""
    lines = [f"| setting | {' | '.join(METHODS)} |", "|---|---|---|---|"]
    for setting, by_method in scores().items():
        cells = [f"{mean(by_method[m]):.1f} ± {stdev(by_method[m]):.1f}" if by_method[m] else "" for m in METHODS]
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
