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
    "Algorithm": "hedgerow.algorithms.core.algorithm",
    "BatchSpec": "hedgerow.algorithms.core.algorithm",
    "ClientData": "hedgerow.algorithms.core.algorithm",
    "Cohort": "hedgerow.algorithms.core.algorithm",
    "Exchange": "hedgerow.algorithms.core.algorithm",
    "HyperParameters": "hedgerow.algorithms.core.hyperparameters",
    "RunLogger": "hedgerow.platform.loggers.run_logger",
    "UserError": "hedgerow.platform.common.errors",
    "Interrupted": "hedgerow.platform.common.errors",
    "load_experiment": "hedgerow.platform.config.loader",
    "parse_experiment": "hedgerow.platform.config.loader",
    "run": "hedgerow.api",
    "search": "hedgerow.api",
    "resume": "hedgerow.api",
    "load": "hedgerow.api",
    "Hedge": "hedgerow.searchspaces.hedge.weights",
    "HedgeScheduler": "hedgerow.searchspaces.hedge.scheduler",
    "SearchKind": "hedgerow.searchspaces.spaces.search_section",
    "SearchSetup": "hedgerow.searchspaces.spaces.search_section",
    "load_search": "hedgerow.searchspaces.spaces.search_file",
    "parse_search": "hedgerow.searchspaces.spaces.search_file",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `import hedgerow` alone stays fast."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hedgerow' has no attribute {name!r}")
