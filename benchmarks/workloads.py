"""Workloads of the contenders in peers.py: the tasks of workloads.yaml."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from measuring import noise
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
    return Source(f"noise of {title}'s shape", PLACEHOLDER, noise(shape[1:], shape[0] - tests, 10, tests))


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


SOURCES = {source.__name__: source for source in (digits, mnist, cifar10, cifar10_few_tests, characters)}
WORKLOADS = {
    name: Workload(**entry | {"source": SOURCES[entry["source"]]})
    for name, entry in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
}
