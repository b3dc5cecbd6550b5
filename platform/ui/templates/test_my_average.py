"""Tests of MyAverage: it equals FedAvg if `server_lr` is 1, and a loop and a batch give the same numbers."""

from pathlib import Path
from typing import Any

import numpy as np
from my_average import MyAverage

from hedgerow import parse_experiment, run


def learnt(folder: Path, name: str, mode: str = "vmap", **hyper: Any) -> dict[str, Any]:
    """Parameters after two rounds on handwritten digits, in this process."""
    values = {
        "name": "test",
        "rounds": 2,
        "clients_per_round": 0.5,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "dirichlet", "clients": 10, "alpha": 0.3},
            "model": {"name": "mlp", "hidden": [8]},
        },
        "algorithm": {"name": name, "lr": 0.1, "batch_size": 20, **hyper},
        "engine": {"mode": mode, "chunk": 5, "compile": False},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
        "output": str(folder),
    }
    finished: Any = run(parse_experiment(values))
    return finished.parameters  # type: ignore[no-any-return]


def apart(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Largest absolute difference between the parameters of two models."""
    return max(float(np.abs(np.asarray(a[name]) - np.asarray(b[name])).max()) for name in a)


MINE = f"{MyAverage.__module__}.{MyAverage.__qualname__}"


def test_it_is_fedavg_where_the_server_goes_all_the_way(tmp_path: Path) -> None:
    fedavg = learnt(tmp_path, "fedavg")
    assert apart(learnt(tmp_path, MINE), fedavg) < 1e-5
    assert apart(learnt(tmp_path, MINE, server_lr=0.5), fedavg) > 1e-3


def test_a_loop_and_a_batch_of_clients_give_the_same_numbers(tmp_path: Path) -> None:
    loop, batched = (learnt(tmp_path, MINE, mode, server_lr=0.5) for mode in ("loop", "vmap"))
    assert apart(loop, batched) < 1e-5
