"""Population based training on digits, live, for the comparison of searches: weak trials continue from strong ones.

    python benchmarks/tuning_forks.py [--seeds 0 1 2 3 4]

A recording has no copies of models, so that this kind is not replayed. Populations are as large as the budgets of
tuning.py allow with all rounds; data, partition, sampling and training have the seeds of the recordings. Writes
benchmarks/results/tuning-forks.json: by budget, the test score of the choice and the online score of each seed.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import RESULTS, conditions
from tuning import BUDGETS, rounded
from tuning_tasks import TASKS

from hedgerow.platform.actors.session import ray_session
from hedgerow.searchspaces.spaces.search_file import SearchSpec, parse_search
from hedgerow.searchspaces.tune.search_runner import search

TASK = TASKS["digits"]
CONFIGURATIONS = 30
INTERVAL = 6
"""Rounds between two copies."""


def plan_of(seed: int, trials: int, output: str) -> SearchSpec:
    """Search of a population, whose first configurations are drawn from the grid of the task."""
    section = {
        "kind": "pbt",
        "samples": trials,
        "space": {key: {"choice": values} for key, values in TASK.space.items()},
        "interval": INTERVAL,
        "report_every": 1,
    }
    run = {"name": "forks", "seed": seed, "tracking": {"enabled": False}, "output": output}
    return parse_search({**TASK.values, **run, "evaluation": {"test": "every"}, "search": section})


def online_score(reports: Path) -> float:
    """Mean over client rounds of the test accuracy of the trial with the best latest validation accuracy.

    reports: journal of a search.
    """
    latest: dict[int, tuple[float, float]] = {}
    total = spent = 0.0
    for line in reports.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "report":
            result = event["result"]
            latest[event["trial"]] = result["validation_accuracy"], result["test_accuracy"]
            total += result["participants"] * max(latest.values())[1]
            spent += result["participants"]
    return total / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(TASK.recordings)))
    seeds = parser.parse_args().seeds
    budgets: dict[str, dict[str, list[float]]] = {}
    with ray_session(None):
        for budget in BUDGETS:
            scores = budgets.setdefault(str(budget), {"test": [], "online": []})
            for seed in seeds:
                with TemporaryDirectory() as folder:
                    done = search(plan_of(seed, int(budget * CONFIGURATIONS), folder))
                    assert done.winner is not None, "every trial of the grid trains"
                    scores["test"].append(done.winner.records[-1]["test_accuracy"])
                    scores["online"].append(online_score(done.folder.path / "reports.jsonl"))
                print(f"{budget:.0%}, seed {seed}: {scores['test'][-1]:.3f}, {scores['online'][-1]:.3f}", flush=True)
    content = {"seeds": seeds, "interval": INTERVAL, "conditions": conditions(), "budgets": rounded(budgets)}
    (RESULTS / "tuning-forks.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
