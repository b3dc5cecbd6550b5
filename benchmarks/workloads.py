"""Workloads of the contenders in peers.py: eleven tasks, from many small clients to few large ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import DataConfig
from hedgerow.platform.data import Dataset
from hedgerow.platform.data.sources.cache import data_folder, load_dataset

PLACEHOLDER = {"name": "digits"}
"""Placeholder in `task.data` if the data set is passed from Python."""


@dataclass(frozen=True)
class Source:
    """A data set: the section of an experiment file that reads it or, if there is none, the data set itself."""

    told: str
    section: dict[str, Any]
    dataset: Dataset | None = None


@dataclass(frozen=True)
class Workload:
    """One task.

    rounds: just enough for a meaningful median of the steady rounds. checked: settings of the local training while
    contenders are checked for equal work; None: those of `local`.
    """

    title: str
    rounds: int
    clients_per_round: int
    source: Callable[[Path | None], Source]
    partition: dict[str, Any]
    model: dict[str, Any]
    local: dict[str, Any]
    checked: dict[str, Any] | None = None

    def experiment(self, source: Source) -> Experiment:
        """The experiment as a user would write it, without evaluation before the last round and without MLflow."""
        return parse_experiment(
            {
                "name": "peers",
                "rounds": self.rounds,
                "clients_per_round": self.clients_per_round,
                "task": {"data": source.section, "partition": self.partition, "model": self.model},
                "algorithm": {"name": "fedavg", **self.local},
                "evaluation": {"every": 10**6, "clients": 0},
                "resources": {"actors": 2, "threads": 1},
                "checkpoints": {"every": 0},
                "tracking": {"enabled": False},
            }
        )


def digits(data_root: Path | None) -> Source:
    return Source("scikit-learn's digits", {"name": "digits", "test_fraction": 0.1})


def mnist(data_root: Path | None) -> Source:
    """MNIST in torchvision's layout; otherwise noise of the same shape."""
    return _images("MNIST", [{"name": "mnist"}], data_root, (70_000, 1, 28, 28), tests=10_000)


def cifar10(data_root: Path | None) -> Source:
    """CIFAR-10 in torchvision's layout or as a zip of images by class; otherwise noise of the same shape."""
    sections = [{"name": "cifar10"}, {"name": "image_folder", "path": "cifar10_imagefolder.zip"}]
    return _images("CIFAR-10", sections, data_root, (60_000, 3, 32, 32), tests=10_000)


def _images(
    title: str, sections: list[dict[str, Any]], data_root: Path | None, shape: tuple[int, ...], tests: int
) -> Source:
    for section in sections:
        try:
            load_dataset(TypeAdapter(DataConfig).validate_python(section), data_root)
        except UserError:
            continue
        return Source(title, section)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, shape, dtype=np.uint8), rng.integers(0, 10, shape[0])
    mean, std = (np.full((shape[1], 1, 1), value, np.float32) for value in (127.5, 64))
    names = tuple("0123456789")
    noise = Dataset("noise", x[:-tests], y[:-tests], x[-tests:], y[-tests:], 10, mean, std, names)
    return Source(f"noise of {title}'s shape", PLACEHOLDER, noise)


def cifar10_few_tests(data_root: Path | None) -> Source:
    """CIFAR-10 with 500 of its test images: evaluating a ResNet on all of them takes minutes and is not measured."""
    source = cifar10(data_root)
    whole = source.dataset or load_dataset(TypeAdapter(DataConfig).validate_python(source.section), data_root)
    few = slice(None, None, len(whole.y_test) // 500)
    return Source(source.told, PLACEHOLDER, replace(whole, x_test=whole.x_test[few], y_test=whole.y_test[few]))


def characters(data_root: Path | None) -> Source:
    """Windows of 80 characters and the character that follows: 100 clients, each with one stretch of the text.

    The text is tiny-Shakespeare if present, otherwise random characters.
    """
    file = data_folder(data_root) / "tinyshakespeare" / "input.txt"
    if file.exists():
        title, text = "tiny-Shakespeare", np.frombuffer(file.read_bytes(), np.uint8)
    else:
        title, text = "random characters", np.random.default_rng(0).integers(0, 65, 1_100_000, dtype=np.uint8)
    letters, tokens = np.unique(text, return_inverse=True)
    windows = tokens[: len(tokens) // 81 * 81].reshape(-1, 81)
    x, y = windows[:, :80].astype(np.uint8), windows[:, 80].astype(np.int64)
    none, owners = np.zeros(0, np.float32), np.repeat(np.arange(100), 100)
    names = tuple(map(str, letters))
    n = len(owners)
    return Source(
        title,
        PLACEHOLDER,
        Dataset(title, x[:n], y[:n], x[n:], y[n:], len(names), none, none, names, owners, is_tokens=True),
    )


WORKLOADS = {
    "digits": Workload(
        "digits, MLP 64-200-10: 100 of 100 clients of 16, batch 8, 2 epochs",
        rounds=40,
        clients_per_round=100,
        source=digits,
        partition={"kind": "iid", "clients": 100, "samples_per_client": 16},
        model={"name": "mlp", "hidden": [200]},
        local={"lr": 0.1, "epochs": 2, "batch_size": 8},
    ),
    "pfl": Workload(
        "pfl-research's CIFAR-10 benchmark: 50 of 1000 clients of 50, batch 10, 1 epoch",
        rounds=4,
        clients_per_round=50,
        source=cifar10,
        partition={"kind": "iid", "clients": 1000, "samples_per_client": 50},
        model={"name": "nets.PflCNN"},
        local={"lr": 0.1, "epochs": 1, "batch_size": 10},
    ),
    "cnn": Workload(
        "FedDyn's CIFAR CNN: 10 of 100 clients of 500, batch 50, 1 epoch",
        rounds=4,
        clients_per_round=10,
        source=cifar10,
        partition={"kind": "iid", "clients": 100, "samples_per_client": 500},
        model={"name": "cnn"},
        local={"lr": 0.1, "epochs": 1, "batch_size": 50},
    ),
    "lstm": Workload(
        "LEAF's character LSTM: 10 of 100 clients of 100 sequences, batch 20, 1 epoch",
        rounds=6,
        clients_per_round=10,
        source=characters,
        partition={"kind": "natural"},
        model={"name": "char_lstm"},
        local={"lr": 0.5, "epochs": 1, "batch_size": 20},
    ),
    "resnet": Workload(
        "ResNet-18 with GroupNorm on CIFAR-10: 4 of 100 clients of 40, batch 20, 1 epoch",
        rounds=3,
        clients_per_round=4,
        source=cifar10_few_tests,
        partition={"kind": "iid", "clients": 100, "samples_per_client": 40},
        model={"name": "resnet18_gn"},
        local={"lr": 0.01, "epochs": 1, "batch_size": 20},
    ),
    "mnist-mlp": Workload(
        "MNIST, MLP 784-200-200-10: 10 of 100 clients of 600, batch 50, 1 epoch",
        rounds=30,
        clients_per_round=10,
        source=mnist,
        partition={"kind": "iid", "clients": 100, "samples_per_client": 600},
        model={"name": "mlp", "hidden": [200, 200]},
        local={"lr": 0.1, "epochs": 1, "batch_size": 50},
    ),
    "mnist-cnn": Workload(
        "MNIST, small CNN: 20 of 1000 clients of 60, batch 20, 1 epoch",
        rounds=20,
        clients_per_round=20,
        source=mnist,
        partition={"kind": "iid", "clients": 1000, "samples_per_client": 60},
        model={"name": "small_cnn"},
        local={"lr": 0.1, "epochs": 1, "batch_size": 20},
    ),
    "mnist-logistic": Workload(
        "MNIST, logistic regression: 10 of 1000 clients of 60, batch 10, 1 epoch",
        rounds=60,
        clients_per_round=10,
        source=mnist,
        partition={"kind": "iid", "clients": 1000, "samples_per_client": 60},
        model={"name": "logreg"},
        local={"lr": 0.1, "epochs": 1, "batch_size": 10},
    ),
    "gru": Workload(
        "character GRU: 10 of 100 clients of 100 sequences, batch 20, 1 epoch",
        rounds=6,
        clients_per_round=10,
        source=characters,
        partition={"kind": "natural"},
        model={"name": "nets.CharGRU"},
        local={"lr": 0.5, "epochs": 1, "batch_size": 20},
    ),
    "batchnorm": Workload(
        "ResNet of 8 layers with BatchNorm on CIFAR-10: 10 of 100 clients of 100, batch 20, 1 epoch",
        rounds=4,
        clients_per_round=10,
        source=cifar10_few_tests,
        partition={"kind": "iid", "clients": 100, "samples_per_client": 100},
        model={"name": "nets.NormResNet"},
        local={"lr": 0.05, "epochs": 1, "batch_size": 20},
        # After a few steps, rounding alone decides which of millions of values ReLU cuts off: after five, the bare loop
        # of one client in float32 is 0.004 away from that in float64.
        checked={"lr": 0.05, "steps": 2, "epochs": None, "batch_size": 20},
    ),
    "wide": Workload(
        "MNIST, MLP 784-1000-1000-10: 10 of 100 clients of 200, batch 20, 1 epoch",
        rounds=10,
        clients_per_round=10,
        source=mnist,
        partition={"kind": "iid", "clients": 100, "samples_per_client": 200},
        model={"name": "mlp", "hidden": [1000, 1000]},
        local={"lr": 0.05, "epochs": 1, "batch_size": 20},
    ),
}
