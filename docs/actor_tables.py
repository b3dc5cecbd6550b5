"""Tables of the page about speed with many actors, from benchmarks/results/balance.json and fan_in.json."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _results(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def balance(_: str = "") -> str:
    """Efficiency of the assignment of clients with states to actors, by simulation."""
    head = ["actors", "clients per round", "sizes", "each where its state is", "balanced", "states that travel"]
    rows = [
        [
            *(str(one["actors"]), str(one["clients"])),
            f"lognormal, {one['deviation']:g}" if one["deviation"] else "equal",
            *(f"{100 * one[name]:.0f} %" for name in ("at home", "balanced", "states that travel")),
        ]
        for one in _results("balance")["simulated"]
    ]
    return _table(head, rows)


def balance_on_ray(_: str = "") -> str:
    """Efficiency of the same assignment on Ray, with clients that wait."""
    rows = [
        [str(one["actors"]), str(one["clients"]), f"{one['seconds']:g} s", f"{100 * one['efficiency']:.0f} %"]
        for one in _results("balance")["measured"]
    ]
    return _table(["actors", "clients per round", "time of a client", "efficiency"], rows)


def fan_in(_: str = "") -> str:
    """Peak memory of the coordinator and seconds of a round, with sums to the coordinator or in a tree of actors."""
    head = ["model", "actors", "nodes", "sums", "peak memory of the coordinator", "time per round"]
    rows = [
        [
            *(f"{one['model_mb']:g} MB", str(one["actors"]), str(one["nodes"])),
            "all to the coordinator" if one["sums"] == "flat" else "in pairs by the actors",
            *(f"{one['coordinator_peak_mb'] / 1e3:.2f} GB", f"{one['round_seconds']:.1f} s"),
        ]
        for one in _results("fan_in")["measured"]
    ]
    return _table(head, rows)
