"""Mean ranks of the methods in the benchmark of searches, and their critical-difference diagrams."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range


def rankings(tasks: dict[str, Any], budget: float) -> dict[str, dict[str, Any]]:
    """Rankings by test score and by online score, of the methods that were measured on every task, and of those that
    were measured on every fixed data set. tasks: results by name.
    """
    entries = {name: task["budgets"][str(budget)] for name, task in tasks.items()}
    fixed = {name: entry for name, entry in entries.items() if not tasks[name]["deployed"]}
    found = {}
    for kind, compared in {"": entries, ", fixed data sets": fixed}.items():
        methods = list(dict.fromkeys(method for entry in compared.values() for method in entry))
        common = [method for method in methods if all(method in entry for entry in compared.values())]
        for value in ("test", "online"):
            if ranks := ranking(compared, common, value):
                found[value + kind] = ranks
    return found


def ranking(entries: dict[str, Any], methods: list[str], value: str) -> dict[str, Any] | None:
    """Mean ranks of methods over the recordings of all tasks on which each of them has the value; Friedman's test, and
    Nemenyi's distance. None: there is no such task.
    """
    complete = {
        name: entry for name, entry in entries.items() if all(entry.get(method, {}).get(value) for method in methods)
    }
    scores = [
        [entry[method][value][i] for method in methods]
        for entry in complete.values()
        for i in range(len(entry[methods[0]][value]))
    ]
    if not scores:
        return None
    ranks = np.array([rankdata([-one for one in line]) for line in scores])
    n, k = ranks.shape
    critical = float(studentized_range.ppf(0.95, k, math.inf)) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n))
    p = float(friedmanchisquare(*np.transpose(scores)).pvalue) if n > 2 else None
    return {
        "tasks": list(complete),
        "blocks": n,
        "friedman_p": p,
        "distance": critical,
        "ranks": dict(zip(methods, ranks.mean(0), strict=True)),
    }


def draw_ranks(rankings: dict[str, dict[str, Any]], file: Path) -> None:
    """Critical-difference diagrams (Demsar 2006): methods that a bar connects do not differ significantly."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.7 * len(rankings)), layout="constrained")
    for axes, (name, found) in zip(figure.subplots(len(rankings), squeeze=False)[:, 0], rankings.items(), strict=True):
        order = sorted(found["ranks"].items(), key=lambda pair: pair[1])
        count, rows = len(order), -(-len(order) // 2)
        value, _, kind = name.partition(",")
        title = {"test": "Test score of the choice", "online": "Online score"}[value] + (kind and f",{kind}")
        where = f"{found['blocks']} recordings ({', '.join(found['tasks'])})"
        axes.set_title(f"{title}\nMean rank over {where}", fontsize=9, loc="left")
        axes.set_xlim(0.4, count + 0.6)
        axes.set_ylim(-rows - 1.6, 1.2)
        axes.axis("off")
        axes.plot([1, count], [0, 0], color="black", linewidth=1)
        for tick in range(1, count + 1):
            axes.plot([tick, tick], [0, 0.15], color="black", linewidth=1)
            axes.text(tick, 0.3, str(tick), ha="center", fontsize=8)
        for i, (method, rank) in enumerate(order):
            left = i < rows
            level = -1.6 - (i if left else count - 1 - i)
            edge = 0.9 if left else count + 0.1
            axes.plot([rank, rank, edge], [0, level, level], color="0.5", linewidth=0.8)
            axes.text(edge, level, f"{method} {rank:.2f}", ha="right" if left else "left", va="center", fontsize=8)
        bar, end = 0, -1
        for i, (_, rank) in enumerate(order):
            j = max(j for j, (_, other) in enumerate(order) if other - rank <= found["distance"])
            if j > max(i, end):
                axes.plot([rank - 0.04, order[j][1] + 0.04], [-0.35 - 0.3 * bar] * 2, color="C2", linewidth=3)
                bar, end = bar + 1, j
    figure.savefig(file, dpi=110)
