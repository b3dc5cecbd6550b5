"""Small samples to write in the formats of users, data sets read from them, and runs on them through YAML."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import hedgerow
from pydantic import TypeAdapter

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.registries import DataConfig
from hedgerow.platform.data import Dataset
from hedgerow.platform.data.sources.cache import load_dataset

RNG = np.random.default_rng(0)
Y = np.arange(60) % 3
X = RNG.normal(size=(3, 5))[Y] * 3 + RNG.normal(size=(60, 5))
IMAGES = (RNG.integers(0, 100, (60, 8, 8)) + 50 * Y[:, None, None]).astype(np.uint8)
CLIENTS = np.array(["anna", "bert", "carl", "dora"])[np.arange(60) // 7 % 4]


def loaded(root: Path | None = None, **data) -> Dataset:
    """Data set that a section `task.data` names."""
    return load_dataset(TypeAdapter(DataConfig).validate_python(data), root)


def refusal(root: Path | None = None, **data) -> str:
    """The sentence about a section `task.data` whose data cannot be used."""
    with pytest.raises(UserError) as caught:
        loaded(root, **data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def experiment(data: dict, partition: dict | None = None, **changes) -> dict:
    return {
        "name": "own",
        "rounds": 3,
        "clients_per_round": "all",
        "task": {
            "data": data,
            "partition": partition or {"kind": "iid", "clients": 3},
            "model": {"name": "logreg"},
        },
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 8},
        "resources": {"executor": "inline"},
        "engine": {"mode": "loop"},
        "checkpoints": {"every": 1},
        "tracking": {"enabled": False},
        **changes,
    }


def accuracy(folder: Path, data: dict, partition: dict | None = None) -> float:
    """Test accuracy after a run of the command line on an experiment file. folder: data root, and place of the run."""
    file = folder / "own.yaml"
    file.write_text(yaml.safe_dump(experiment(data, partition, output=str(folder / "runs"))))
    done = hedgerow("run", file, "--json", "--data-root", folder)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["runs"][0]["summary"]["test_accuracy"]
