"""Time and peak memory of the aggregation rules on random updates.

    python benchmarks/robust.py [--clients 20] [--numbers 1000000] [--attackers 2] [--repeats 3] [--only krum]

Each rule combines the same stack of updates, float32, in a process of its own. The peak includes the stack and Python
with PyTorch (`base_mb`, without the stack). --clients 100 --numbers 10000000 is a stack of 4 GB.

Prints a table and writes benchmarks/results/robust.json with the command, the versions and the machine.
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

import torch
from measuring import PeakMemory, conditions, write_results

from hedgerow.algorithms.aggregators import AGGREGATORS
from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.platform.config.registries import aggregators

LEAVES = 10
"""Leaves of an update, of equal size."""


def rule_of(kind: str, clients: int, attackers: int) -> Aggregator:
    """A rule that withstands this number of attackers."""
    settings: dict[str, dict[str, Any]] = {
        "trimmed_mean": {"beta": min(attackers / clients, 0.49)},
        "krum": {"f": attackers},
        "multi_krum": {"f": attackers, "m": clients - attackers},
    }
    rule: Aggregator = aggregators.section(kind)(**settings.get(kind, {}))
    if reason := rule.incompatibility(clients):
        sys.exit(reason)
    return rule


def measure(kind: str, clients: int, numbers: int, attackers: int, repeats: int) -> dict[str, float]:
    """Time of a rule and the peak memory of this process."""
    with PeakMemory(every=0.02) as memory:
        time.sleep(0.1)
        base = memory.megabytes
        generator = torch.Generator().manual_seed(0)
        size = numbers // LEAVES
        updates = {"w": {f"leaf{i}": torch.randn(clients, size, generator=generator) for i in range(LEAVES)}}
        weights = torch.ones(clients, dtype=torch.float64)
        rule, seconds = rule_of(kind, clients, attackers), []
        for _ in range(repeats):
            start = time.perf_counter()
            rule.combine(updates, weights)
            seconds.append(time.perf_counter() - start)
    return {"seconds": median(seconds), "peak_mb": memory.megabytes, "base_mb": base}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--numbers", type=int, default=1_000_000, help="numbers of one update")
    parser.add_argument("--attackers", type=int, default=2, help="attackers that the rules withstand")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(AGGREGATORS), default=list(AGGREGATORS))
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        print(json.dumps(measure(chosen.inside, chosen.clients, chosen.numbers, chosen.attackers, chosen.repeats)))
        return
    rules = {}
    for kind in chosen.only:
        command = [sys.executable, __file__, *sys.argv[1:], "--inside", kind]
        rules[kind] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{kind:18} {rules[kind]['seconds']:8.3f} s {rules[kind]['peak_mb']:8.0f} MB", file=sys.stderr)
    stack = 4 * chosen.clients * (chosen.numbers // LEAVES * LEAVES) / 1e6
    write_results("robust", {**conditions(), "clients": chosen.clients, "stack_mb": stack, "rules": rules})


if __name__ == "__main__":
    main()
