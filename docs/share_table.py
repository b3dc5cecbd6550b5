"""Tables of the clients' time against the bare loop, from benchmarks/results/shares.json and shares-cuda.json."""

import json
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def shares(device: str = "") -> str:
    """Ratios of the bare loop's time to Hedgerow's, by workload. device: cuda, or empty for the CPU."""
    file = RESULTS / (f"shares-{device}.json" if device else "shares.json")
    lines = ["| workload | as a loop | under the plan that Hedgerow chooses | plan |", "|---|---|---|---|"]
    for one in json.loads(file.read_text()).values():
        if isinstance(one, dict) and "loop" in one:
            plan = one["plan"]
            chosen = f"{plan['chunk']} clients at once" if plan["mode"] == "vmap" else "loop"
            lines.append(f"| {one['title']} | {one['loop']:.2f} | {one['chosen']:.2f} | {chosen} |")
    return "\n".join(lines) + "\n"
