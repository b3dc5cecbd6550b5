"""Search spaces by name: the grids of the sources, one YAML file per family in `spaces/`; a name is METHOD/DATA_SET."""

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
    """One grid of a source. source: where it stands; space: as under `search.space` of an experiment file."""

    name: str
    family: str
    source: str
    space: dict[str, dict[str, Any]]

    @property
    def size(self) -> int | None:
        """The number of configurations; None when some keys are drawn or conditional."""
        lengths = [len(entry["grid"]) for entry in self.space.values() if entry.keys() == {"grid"}]
        return math.prod(lengths) if len(lengths) == len(self.space) else None


@cache
def named_spaces() -> dict[str, NamedSpace]:
    """All of them, by name, family by family."""
    found: dict[str, NamedSpace] = {}
    for file in sorted(SPACES.glob("*.yaml")):
        for name, entry in yaml.safe_load(file.read_text(encoding="utf-8")).items():
            assert name not in found, f"{name} stands in {found[name].family}.yaml and in {file.name}"
            found[name] = NamedSpace(name, file.stem, entry["source"], entry["space"])
    return found


def named_space(name: str) -> dict[str, dict[str, Any]]:
    """A copy of the space of that name. Raises UserError."""
    known = named_spaces()
    if name not in known:
        raise UserError(
            f"search.space: {name!r} is not a known space{nearest(name, known)} (the files in {SPACES} list them)"
        )
    return deepcopy(known[name].space)
