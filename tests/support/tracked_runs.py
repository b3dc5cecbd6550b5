"""A small run that MLflow records."""

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment


def small(output, **tracking) -> Experiment:
    return parse_experiment(
        {
            "name": "tracked",
            "rounds": 5,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "iid", "clients": 10, "samples_per_client": 20},
                "model": {"name": "mlp", "hidden": [8]},
            },
            "algorithm": {"name": "fedavg", "lr": 0.2},
            "resources": {"executor": "inline"},
            "engine": {"mode": "vmap", "chunk": 2},
            # Long enough for a healthy store on a machine that is busy with other tests.
            "tracking": {"patience": 300, **tracking},
            "output": str(output),
        }
    )
