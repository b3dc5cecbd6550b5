"""What there is to choose from: algorithms, data sets, partitions, models; as their docstrings and fields say it."""

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from hedgerow.algorithms import ALIASES
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.platform.common.registry import Registry
from hedgerow.platform.config import registries
from hedgerow.platform.config.old_spellings import TRANSFORMED


@dataclass(frozen=True)
class Choice:
    """Something to choose by its name."""

    name: str
    what: str
    source: str = ""
    """Where it was published; data sets, partitions and models say it in `what`."""


@dataclass(frozen=True)
class AlgorithmChoice(Choice):
    """An algorithm, and what it declares."""

    flags: tuple[str, ...] = ()
    """Its needs and abilities, as the class attributes of `Algorithm` are called that hold for it."""


def algorithms() -> list[Choice]:
    """By the names that `algorithm.name` takes."""
    found: list[Choice] = []
    for name in registries.algorithms.names():
        kind = registries.algorithms.resolve(name)
        found.append(AlgorithmChoice(name, said(kind), source(kind), flags(kind)))
    for alias, (transform, _) in TRANSFORMED.items():
        kind = registries.algorithms.resolve(ALIASES[alias])
        made_by = registries.transforms.resolve(transform)
        found.append(AlgorithmChoice(alias, said(made_by), source(made_by), flags(kind)))
    return found


def datasets() -> list[Choice]:
    """By the names that `task.data.name` takes."""
    return _choices(registries.datasets)


def partitions() -> list[Choice]:
    """By the names that `task.partition.kind` takes."""
    return _choices(registries.partitions)


def models() -> list[Choice]:
    """By the names that `task.model.name` takes."""
    return _choices(registries.models)


def flags(algorithm: type[Algorithm]) -> tuple[str, ...]:
    """The class attributes of `Algorithm` that say yes or no, where this one says yes."""
    return tuple(name for name, value in vars(Algorithm).items() if value is False and getattr(algorithm, name))


def said(kind: type) -> str:
    """What a class is: the first paragraph of its docstring, on one line."""
    return paragraph(vars(kind).get("__doc__"))


def source(kind: type) -> str:
    """Where an algorithm or a transform comes from: the first paragraph of its file, on one line."""
    return paragraph(sys.modules[kind.__module__].__doc__)


def _choices(registry: Registry[Any]) -> list[Choice]:
    return [Choice(name, said(registry.resolve(name))) for name in registry.names()]


def paragraph(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())
