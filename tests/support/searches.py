"""Small searches, and the results of Hedge on their experts trained one after the other."""

from pathlib import Path
from unittest.mock import ANY

from helpers import set_paths

from hedgerow.platform.runs.runner import run
from hedgerow.searchspaces.hedge.async_rounds import HedgeRounds
from hedgerow.searchspaces.hedge.weights import Hedge
from hedgerow.searchspaces.spaces.search_file import SearchSpec, parse_search

ROUNDS = 6
SPACE = {"algorithm.lr": [0.01, 0.3], "algorithm.pull": [0.0, 0.1], "task.partition.alpha": [0.5]}


def plan(output: Path, **settings) -> SearchSpec:
    """Four experts with client states on digits, two at a time; no plan is measured."""
    values: dict = {
        "name": "small",
        "rounds": ROUNDS,
        "clients_per_round": 0.5,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "dirichlet", "clients": 12, "alpha": 0.5, "samples_per_client": 20},
            "model": {"name": "mlp", "hidden": [8]},
        },
        "algorithm": {"name": "toys.Stateful", "batch_size": 8},
        "engine": {"mode": "loop"},
        "evaluation": {"clients": 5, "targets": [0.2, 0.99]},
        "checkpoints": {"every": 2},
        "tracking": {"enabled": False, "patience": 300},
        "output": str(output),
        "search": {"kind": "hedge", "space": SPACE, "report_every": 2, "ahead": 2, "concurrency": 2},
    }
    return parse_search(set_paths(values, settings))


def one_after_the_other(plan: SearchSpec) -> list[dict]:
    """Train every expert as an ordinary run in this process, and run Hedge over their accuracies."""
    records: list[dict] = []
    n = len(plan.configurations)
    averaged = (
        "validation_accuracy",
        "test_accuracy",
        "client_accuracy",
        "client_accuracy_worst10",
        "validation_loss",
        "test_loss",
        "client_loss",
    )
    buffer = HedgeRounds(
        Hedge(n, 0.1), "validation_accuracy", "max", averaged=averaged, on_round=records.append,
        seed=plan.experiment.seed,
    )  # fmt: skip
    for index, overrides in enumerate(plan.configurations):
        alone = plan.trial(overrides | {"resources.executor": "inline"})
        for record in run(alone).records:
            buffer.report(index, record["round"], record)
    # The records of a run have no predictions, which a mixture needs.
    return [record | {"deployed": record["deployed"] | {"mixture": ANY}} for record in records]
