"""Choices of algorithms, data sets, partitions and models for experiment files, described by their docstrings."""

import inspect
import sys
from dataclasses import dataclass, field
from typing import Any

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.slots.support import supported_slots
from hedgerow.platform.common.registry import Registry
from hedgerow.platform.config import registries


@dataclass(frozen=True)
class Choice:
    """Something that an experiment file can name, with its description."""

    name: str
    what: str
    source: str = ""
    """Publication of an algorithm; data sets, partitions and models cite theirs in `what`."""


@dataclass(frozen=True)
class AlgorithmChoice(Choice):
    """An algorithm with its declared flags."""

    family: str = ""
    """The algorithms that it belongs to: first sentence of their package."""
    flags: tuple[str, ...] = ()
    """Words of its `needs`, where it trains unless on clients, and names of class attributes that are True for it."""
    slots: dict[str, bool] = field(default_factory=dict)
    """Slot of an experiment file -> whether the algorithm supports it, as far as its declarations say."""


def algorithms() -> list[Choice]:
    """Choices for `algorithm.name`."""
    choices: list[Choice] = []
    for name in registries.algorithms.names():
        kind = registries.algorithms.resolve(name)
        choices.append(
            AlgorithmChoice(name, said(kind), source(kind), family(kind), flags(kind), supported_slots(kind))
        )
    return choices


def flags(algorithm: type[Algorithm]) -> tuple[str, ...]:
    """Words of `needs`, where the algorithm trains unless on clients, and names of its attributes that are True."""
    place = [] if algorithm.trains_on == "clients" else [algorithm.trains_on]
    attributes = [name for name, value in vars(Algorithm).items() if value is False and getattr(algorithm, name)]
    return *sorted(algorithm.needs), *place, *attributes


def said(kind: type) -> str:
    """Description of a class: the first paragraph of its docstring, on one line."""
    return paragraph(vars(kind).get("__doc__"))


def source(kind: type) -> str:
    """Source of an algorithm or a transform: the first paragraph of its module's docstring, on one line."""
    return paragraph(sys.modules[kind.__module__].__doc__)


def family(kind: type) -> str:
    """Family of an algorithm: what the docstring of its package says, without the full stop."""
    return paragraph(sys.modules[kind.__module__.rpartition(".")[0]].__doc__).removesuffix(".")


def choices_of(registry: Registry[Any]) -> list[Choice]:
    return [Choice(name, said(registry.resolve(name))) for name in registry.names()]


def paragraph(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())
