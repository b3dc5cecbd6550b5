"""Small runs for reports."""

from pathlib import Path

from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.runner import run


def small(output: Path, name: str, seed: int, /, tracked: bool = False, fedex: dict | None = None, **algorithm):
    values = {
        "name": name,
        "seed": seed,
        "rounds": 6,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "dirichlet", "clients": 12, "alpha": 0.3, "samples_per_client": 20},
            "model": {"name": "mlp", "hidden": [8]},
            "validation": {"fraction": 0.2, "from": "clients"} if fedex else None,
        },
        "fedex": fedex,
        "clients_per_round": 0.5,
        "algorithm": {"name": "fedavg", "lr": 0.2, **algorithm},
        "evaluation": {"targets": [0.2, 0.99]},
        "resources": {"executor": "inline"},
        "engine": {"mode": "vmap", "chunk": 6},
        "tracking": {"enabled": tracked},
        "output": str(output),
    }
    return run(parse_experiment(values)).folder
