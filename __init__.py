"""Hedgerow: federated-learning experiments on Ray.

import hedgerow

finished = hedgerow.run("examples/digits_fedavg.yaml", rounds=20, algorithm__lr=0.05)
finished.frame["test_accuracy"].plot()
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("hedgerow")

_HOMES = {
    "Algorithm": "hedgerow.algorithms.base",
    "Batches": "hedgerow.algorithms.base",
    "ClientData": "hedgerow.algorithms.base",
    "Cohort": "hedgerow.algorithms.base",
    "Exchange": "hedgerow.algorithms.base",
    "HyperParameters": "hedgerow.algorithms.settings",
    "UserError": "hedgerow.platform.errors",
    "Interrupted": "hedgerow.platform.errors",
    "load_experiment": "hedgerow.platform.experiment_file",
    "parse_experiment": "hedgerow.platform.experiment_file",
    "run": "hedgerow.api",
    "search": "hedgerow.api",
    "resume": "hedgerow.api",
    "load": "hedgerow.api",
    "Hedge": "hedgerow.searchspaces.hedge",
    "HedgeScheduler": "hedgerow.searchspaces.scheduler",
    "load_search": "hedgerow.searchspaces.search_file",
    "parse_search": "hedgerow.searchspaces.search_file",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Public names, imported on first use: `import hedgerow` alone stays fast."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hedgerow' has no attribute {name!r}")
