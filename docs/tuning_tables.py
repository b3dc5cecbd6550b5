"""Tables of the page about tuning, from benchmarks/results/tuning.json."""

import json
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "tuning.json"
REFERENCE = "Hedge"


@cache
def results() -> dict[str, Any]:
    """Contents of the file."""
    return json.loads(RESULTS.read_text())


def tuning(part: str) -> str:
    """One of the tables, by its name: a task, or tasks, methods, ranks, noise, conditions."""
    tables = {
        **{"tasks": tasks, "methods": methods, "ranks": ranks},
        **{"noise": noise, "online": online, "conditions": conditions},
    }
    return tables[part]() if part in tables else scores(part)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def percent(value: float | None) -> str:
    """A share in per cent, with one decimal."""
    return "-" if value is None else f"{100 * value:.1f} %"


def tasks() -> str:
    """Size of each recording."""
    rows = [
        [
            task["title"],
            str(task["configurations"]),
            str(task["rounds"]),
            f"{task['client_rounds']:,.0f}",
            f"{task['sample_gradients']:,.0f}",
            str(task["recordings"]),
            percent(mean(task["best"])),
        ]
        for task in results()["tasks"].values()
    ]
    head = ["task", "configurations", "rounds", "client rounds", "sample gradients", "recordings", "whole recording"]
    return table(head, rows)


def methods() -> str:
    """What each method does."""
    found = results()["methods"].items()
    rows = [
        [name, method["description"], "all" if method["slots"] is None else str(method["slots"])]
        for name, method in found
    ]
    return table(["method", "what it does", "trials at once"], rows)


def scores(name: str) -> str:
    """Test score by budget, and the comparison with Hedge at the main budget."""
    found = results()
    task, main = found["tasks"][name], str(found["main"])
    budgets = task["budgets"]
    head = ["method", *(f"test, {100 * float(share):.0f} %" for share in budgets)]
    has_online = bool(budgets[main][REFERENCE]["online"])
    head += ["test, difference from Hedge"]
    head += [f"online, {100 * float(main):.0f} %", "online, difference from Hedge"] if has_online else []
    best = {share: max(mean(method["test"]) for method in budgets[share].values()) for share in budgets}
    rows = []
    for method in budgets[main]:
        cells = []
        for share in budgets:
            value = mean(budgets[share][method]["test"])
            text = percent(value)
            cells.append(f"**{text}**" if value == best[share] else text)
        one = budgets[main][method]
        cells.append(difference(one, "test"))
        cells += [percent(mean(one["online"])), difference(one, "online")] if has_online else []
        rows.append([method, *cells])
    return table(head, rows)


def difference(entry: dict[str, Any], value: str) -> str:
    """Paired difference from Hedge in percentage points, with its 95 % interval and the corrected p-value."""
    found = entry.get(f"{value} minus {REFERENCE}")
    if found is None:
        return ""
    middle, low, high, p = found
    interval = "" if low is None else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"{100 * middle:+.1f}{interval}, p = {p:.2g}"


def ranks() -> str:
    """Mean rank of each method by both scores."""
    found = results()["ranks"]
    order = sorted(found["test"]["ranks"], key=lambda method: found["test"]["ranks"][method])
    rows = [[method, *(f"{found[value]['ranks'][method]:.2f}" for value in ("test", "online"))] for method in order]
    rows.append(
        ["critical distance (Nemenyi, 5 %)", *(f"{found[value]['distance']:.2f}" for value in ("test", "online"))]
    )
    rows.append(["p-value of Friedman's test", *(f"{found[value]['friedman_p']:.2g}" for value in ("test", "online"))])
    return table(["method", "rank by test score", "rank by online score"], rows)


def noise() -> str:
    """Test score on digits at the main budget, by noise."""
    study = results()["noise"]
    order = list(next(iter(study.values())))
    rows = [
        [method, *(f"{percent(mean(study[kind][method]['test']))}" for kind in study)]
        + [percent(mean(study[kind][method]["online"])) for kind in study]
        for method in order
    ]
    head = ["method", *(f"test, {kind}" for kind in study), *(f"online, {kind}" for kind in study)]
    return table(head, rows)


def online() -> str:
    """Accuracy on the tasks of the stream before they are learnt, by the rule that deploys an expert."""
    rows = [
        [rule, percent(mean(found["accuracy"])), percent(mean(found["cost"]))]
        for rule, found in results()["stream"].items()
    ]
    return table(["deployed expert", "accuracy on the next task", "client rounds, share of all experts"], rows)


def conditions() -> str:
    """Versions and machine."""
    found = results()["conditions"]
    names = ("python", "torch", "ray", "optuna", "numpy")
    versions = ", ".join(f"{name} {found['versions'][name]}" for name in names if name in found["versions"])
    return f"{found['cores']} cores ({found['cpu']}), {versions}.\n"
