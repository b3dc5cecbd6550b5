"""What there is to choose from: algorithms, data sets, partitions, models; as their docstrings and fields say it."""

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from hedgerow.algorithms import ALGORITHMS
from hedgerow.platform.common.section import section_classes, tag
from hedgerow.platform.config.old_spellings import TRANSFORMED
from hedgerow.platform.config.slots_section import TRANSFORM, built_in
from hedgerow.platform.data import DataConfig, PartitionConfig
from hedgerow.platform.models import MODELS


@dataclass(frozen=True)
class Choice:
    """Something to choose by its name."""

    name: str
    what: str
    source: str = ""
    """Where it was published; data sets, partitions and models say it in `what`."""


def algorithms() -> list[Choice]:
    """By the names that `algorithm.name` takes."""
    own = [Choice(name, said(kind), source(kind)) for name, kind in ALGORITHMS.items()]
    transforms = {alias: built_in(TRANSFORM, kind) for alias, (kind, _) in TRANSFORMED.items()}
    return own + [Choice(alias, said(transform), source(transform)) for alias, transform in transforms.items()]


def datasets() -> list[Choice]:
    """By the names that `task.data.name` takes."""
    return _sections(DataConfig)


def partitions() -> list[Choice]:
    """By the names that `task.partition.kind` takes."""
    return _sections(PartitionConfig)


def models() -> list[Choice]:
    """By the names that `task.model.name` takes."""
    return [Choice(name, said(kind)) for name, kind in MODELS.items()]


def said(kind: type) -> str:
    """What a class is: the first paragraph of its docstring, on one line."""
    return paragraph(vars(kind).get("__doc__"))


def source(kind: type) -> str:
    """Where an algorithm or a transform comes from: the first paragraph of its file, on one line."""
    return paragraph(sys.modules[kind.__module__].__doc__)


def _sections(union: Any) -> list[Choice]:
    return [Choice(str(tag(kind)), said(kind)) for kind in section_classes(union)]


def paragraph(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())
