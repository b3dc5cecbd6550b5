"""Table of the clients' processor time against the bare loop, from benchmarks/results/shares.json."""

import json
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "shares.json"


def shares(_: str = "") -> str:
    """Ratios of the bare loop's time to Hedgerow's, by workload."""
    lines = ["| workload | as a loop | under the plan that Hedgerow chooses | plan |", "|---|---|---|---|"]
    for one in json.loads(RESULTS.read_text()).values():
        if isinstance(one, dict) and "loop" in one:
            plan = one["plan"]
            chosen = f"{plan['chunk']} clients at once" if plan["mode"] == "vmap" else "loop"
            lines.append(f"| {one['title']} | {one['loop']:.2f} | {one['chosen']:.2f} | {chosen} |")
    return "\n".join(lines) + "\n"
