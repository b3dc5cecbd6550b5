"""Tables of the page about tuning, from benchmarks/results/tuning.json."""

import json
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from hedgerow.platform.common.numbers import percent, short_percent

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "tuning.json"
REFERENCE = "Hedge"


@cache
def results(name: str = RESULTS.name) -> dict[str, Any]:
    """Contents of a file of results."""
    return json.loads(RESULTS.with_name(name).read_text())


def tuning(part: str) -> str:
    """One of the tables, by its name: that of a task, or one of those below."""
    tables = {
        **{"tasks": tasks, "methods": methods, "ranks": ranks},
        **{
            "noise": noise,
            "promotion": promotion,
            "forks": forks,
            "online": online,
            "one run": one_run,
            "rates": rates,
            "conditions": conditions,
        },
    }
    return tables[part]() if part in tables else scores(part)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
    """Description of each method, and the tasks on which it was measured."""
    found = results()
    rows = []
    for name, method in found["methods"].items():
        where = [task for task, one in found["tasks"].items() if name in one["budgets"][str(found["main"])]]
        slots = "all" if method["slots"] is None else str(method["slots"])
        rows.append(
            [name, method["description"], slots, "all" if len(where) == len(found["tasks"]) else ", ".join(where)]
        )
    return table(["method", "what it does", "trials at once", "tasks"], rows)


def scores(name: str) -> str:
    """Test score by budget, and the comparison with Hedge at the main budget."""
    found = results()
    task, main = found["tasks"][name], str(found["main"])
    budgets = task["budgets"]
    head = ["method", *(f"test, {short_percent(float(share))}" for share in budgets)]
    has_online = bool(budgets[main][REFERENCE]["online"])
    head += ["test, difference from Hedge"]
    head += [f"online, {short_percent(float(main))}", "online, difference from Hedge"] if has_online else []
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
    return "" if found is None else points(*found)


def points(middle: float, low: float | None, high: float | None, p: float) -> str:
    """Difference in percentage points, with its interval and p-value."""
    interval = "" if low is None or high is None else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"{100 * middle:+.1f}{interval}, p = {p:.2g}"


def one_run() -> str:
    """Test score of one run of FedEx, of a run with a random configuration, and of the whole recording."""
    rows = [
        [
            task["title"],
            percent(found["cost"]),
            percent(mean(found["FedEx"])),
            percent(mean(found["random configuration"])),
            points(*found["difference"]) if "difference" in found else "",
            percent(mean(task["best"])),
        ]
        for task in results()["tasks"].values()
        if (found := task["one run"])
    ]
    head = ["task", "cost", "one run of FedEx", "a random configuration", "difference", "whole recording"]
    return table(head, rows)


def ranks() -> str:
    """Mean rank of each method by both scores."""
    found = results()["ranks"]
    methods = list(dict.fromkeys(method for one in found.values() for method in one["ranks"]))
    order = sorted(methods, key=lambda method: [one["ranks"].get(method, len(methods)) for one in found.values()])
    rows = [
        [method, *(f"{one['ranks'][method]:.2f}" if method in one["ranks"] else "-" for one in found.values())]
        for method in order
    ]
    rows.append(["recordings", *(f"{one['blocks']} ({', '.join(one['tasks'])})" for one in found.values())])
    rows.append(["critical distance (Nemenyi, 5 %)", *(f"{one['distance']:.2f}" for one in found.values())])
    rows.append(["p-value of Friedman's test", *(f"{one['friedman_p']:.2g}" for one in found.values())])
    heads = [name.replace("test", "test score").replace("online", "online score") for name in found]
    return table(["method", *heads], rows)


def promotion() -> str:
    """Test and online score of Hedge, promotion and ASHA on the fixed data sets, by budget."""
    rows = []
    for name, task in results()["tasks"].items():
        for method in task["budgets"][str(results()["main"])]:
            if task["deployed"] is None and method.startswith((REFERENCE, "ASHA", "promotion")):
                entries = [budget[method] for budget in task["budgets"].values()]
                cells = [percent(mean(one[score])) for score in ("test", "online") for one in entries]
                rows.append([name, method, *cells])
    return table(["task", "method", *scores_by_budget()], rows)


def forks() -> str:
    """Scores of population based training on digits, live, next to those of other searches on the recordings."""
    live, digits = results("tuning-forks.json")["budgets"], results()["tasks"]["digits"]["budgets"]
    named = ("random", "ASHA from 1, smoothed", "promotion from 1")
    found = {"PBT": live} | {name: {share: of[name] for share, of in digits.items()} for name in named}
    rows = [
        [name, *(percent(mean(of[share][score])) for score in ("test", "online") for share in digits)]
        for name, of in found.items()
    ]
    return table(["search", *scores_by_budget()], rows)


def scores_by_budget() -> list[str]:
    """Heads of the columns of both scores, by budget."""
    shares = results()["tasks"]["digits"]["budgets"]
    return [f"{score}, {short_percent(float(share))}" for score in ("test", "online") for share in shares]


def noise() -> str:
    """Test score on digits at the main budget, by noise."""
    study = next(task["noise"] for task in results()["tasks"].values() if task["noise"])
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
        for task in results()["tasks"].values()
        for rule, found in (task["deployed"] or {}).items()
    ]
    return table(["deployed expert", "accuracy on the next task", "client rounds, share of all experts"], rows)


def rates() -> str:
    """Regret of Hedge by its rate, on synthetic streams: mean and standard deviation over the seeds."""
    streams = json.loads(RESULTS.with_name("hedge_rates.json").read_text())["streams"]
    first = next(iter(streams.values()))
    rows = [
        [f"`{rate}`", *(f"{mean(found[rate]):.1f} ± {stdev(found[rate]):.1f}" for found in streams.values())]
        for rate in first
    ]
    return table(["rate", *streams], rows)


def conditions() -> str:
    """Versions and machine of each task."""
    names = ("python", "torch", "ray", "optuna", "numpy")
    lines: dict[str, list[str]] = {}
    for name, task in results()["tasks"].items():
        found = task["conditions"]
        versions = ", ".join(f"{name} {found['versions'][name]}" for name in names if name in found["versions"])
        lines.setdefault(f"{found['cores']} cores ({found['cpu']}), {versions}.", []).append(name)
    if len(lines) == 1:
        return f"{next(iter(lines))}\n"
    return "".join(f"- {', '.join(tasks)}: {line}\n" for line, tasks in lines.items())
