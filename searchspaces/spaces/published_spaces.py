"""Published search spaces by name (METHOD/DATA_SET): grids of the sources, one YAML file per family in `spaces/`."""

import math
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import nearest

SPACES = Path(__file__).parent


@dataclass(frozen=True)
class NamedSpace:
    """A published grid. source: its citation; space: as under `search.space` of an experiment file."""

    name: str
    family: str
    source: str
    space: dict[str, dict[str, Any]]

    @property
    def size(self) -> int | None:
        """Number of configurations; None when some keys are drawn or conditional."""
        lengths = [len(entry["grid"]) for entry in self.space.values() if entry.keys() == {"grid"}]
        return math.prod(lengths) if len(lengths) == len(self.space) else None


@cache
def named_spaces() -> dict[str, NamedSpace]:
    """All published spaces by name, ordered by family."""
    spaces: dict[str, NamedSpace] = {}
    for file in sorted(SPACES.glob("*.yaml")):
        for name, entry in yaml.safe_load(file.read_text(encoding="utf-8")).items():
            assert name not in spaces, f"{name} is in {spaces[name].family}.yaml and in {file.name}"
            spaces[name] = NamedSpace(name, file.stem, entry["source"], entry["space"])
    return spaces


def named_space(name: str) -> dict[str, dict[str, Any]]:
    """Copy of the space with a given name. Raises UserError."""
    known = named_spaces()
    if name not in known:
        raise UserError(
            f"search.space: {name!r} is not a known space{nearest(name, known)} (the files in {SPACES} list them)"
        )
    return deepcopy(known[name].space)
