"""Tables of the clients' time against the bare loop and of one GPU, from shares.json and gpu.json."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
CARDS = (16, 24, 80)
"""Gigabytes of GPUs whose room the table of memory gives."""


def shares(part: str = "") -> str:
    """One table. part: of gpu.json (shares, defaults, precision, memory), or empty for the ratios on the CPU."""
    if not part:
        lines = ["| workload | as a loop | under the plan that Hedgerow chooses | plan |", "|---|---|---|---|"]
        for one in _workloads(json.loads((RESULTS / "shares.json").read_text())):
            lines.append(f"| {one['title']} | {one['loop']:.2f} | {one['chosen']:.2f} | {_plan(one['plan'])} |")
        return "\n".join(lines) + "\n"
    found = json.loads((RESULTS / "gpu.json").read_text())[part]
    return "\n".join({"precision": _precision, "memory": _memory}.get(part, _ratios)(found)) + "\n"


def _workloads(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in results.values() if isinstance(one, dict) and "title" in one]


def _plan(plan: dict[str, Any]) -> str:
    return f"{plan['chunk']} clients at once" if plan["mode"] == "vmap" else plan["mode"]


def _ratios(found: dict[str, Any]) -> list[str]:
    lines = [
        "| workload | bare loop, ms | its kernels, ms | as a loop | as a graph | under the chosen plan | plan |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in _workloads(found):
        times = [f"{1000 * one['seconds'][name]:.0f}" for name in ("bare", "kernels")]
        ratios = [f"{one[name]:.2f}" for name in ("loop", "graph", "chosen")]
        lines.append(f"| {' | '.join([one['title'], *times, *ratios, _plan(one['plan'])])} |")
    return lines


def _precision(found: dict[str, Any]) -> list[str]:
    lines = ["| workload | data | rounds | precision | ms per round | test accuracy |", "|---|---|---|---|---|---|"]
    for one in _workloads(found):
        for name in ("float32", "tf32", "bfloat16"):
            values = f"{1000 * one[name]['seconds']:.0f} | {100 * one[name]['accuracy']:.1f} %"
            lines.append(f"| {one['title']} | {one['data']} | {one['rounds']} | {name} | {values} |")
    return lines


def _memory(found: dict[str, Any]) -> list[str]:
    cards = " | ".join(f"clients at once in {size} GB" for size in CARDS)
    lines = [f"| workload | MB as a loop | MB per client at once | {cards} |", "|---|---|---|" + "---|" * len(CARDS)]
    for one in _workloads(found):
        loop, each = one["MB as a loop"], one["MB per client at once"]
        rooms = " | ".join(f"{int((1000 * size - loop) / each):,}" for size in CARDS)
        lines.append(f"| {one['title']} | {loop:.0f} | {each:.0f} | {rooms} |")
    return lines
