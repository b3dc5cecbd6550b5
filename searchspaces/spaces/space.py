"""From a space to configurations: conditions, grids, and draws from Tune's own distributions."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
from ray import tune

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import Override, set_value
from hedgerow.platform.config.old_spellings import SLOTS, modern_key
from hedgerow.platform.config.yaml_reader import Lines
from hedgerow.searchspaces.spaces.search_section import Dimension, Overrides

Space = dict[str, Dimension]

MOST = 100_000
"""Configurations of a search. Each of them is checked before the search starts."""

_MISSING = object()


def domain(entry: Dimension) -> Any:
    """The distribution of an entry, as Tune has it; a grid counts as a choice."""
    match entry.form:
        case "uniform":
            return tune.uniform(*entry.values)
        case "loguniform":
            return tune.loguniform(*entry.values)
        case "integers":
            return tune.randint(entry.values[0], entry.values[1] + 1)
    return tune.choice(entry.values)


def configurations(space: Space, values: dict[str, Any], samples: int | None, seed: int) -> list[Overrides]:
    """All combinations of the grids, each with `samples` draws of the other keys, in a fixed order, none twice.

    values: the experiment file, for conditions on keys that are not searched. seed: decides the draws. Raises
    UserError.
    """
    total = prod(len(entry.values) for entry in space.values() if entry.form == "grid") * (samples or 1)
    if total > MOST:
        raise UserError(
            f"search.space: {total:,} configurations are more than {MOST:,}; shorten its lists or `samples`"
        )
    random = np.random.RandomState(seed % 2**32)
    drawn = [key for key, entry in space.items() if entry.form != "grid"]
    grids = {key: entry.values for key, entry in space.items() if entry.form == "grid"}
    domains = {key: domain(space[key]) for key in drawn}
    found: dict[Any, Overrides] = {}
    for combination in product(*grids.values()):
        for _ in range(samples or 1):
            full = dict(zip(grids, combination, strict=True))
            full |= {key: _plain(domains[key].sample(random_state=random)) for key in drawn}
            overrides = active(space, {key: full[key] for key in space}, values)
            found.setdefault(frozen(overrides), overrides)
    return list(found.values())


def active(space: Space, full: Overrides, values: dict[str, Any]) -> Overrides:
    """The keys whose conditions hold, in the order of the space."""
    kept: Overrides = {}
    for key in ordered(space):
        if holds(space[key].when, space, kept, values):
            kept[key] = full[key]
    return {key: kept[key] for key in space if key in kept}


def holds(when: dict[str, Any], space: Space, chosen: Overrides, values: dict[str, Any]) -> bool:
    """Whether a condition is met. chosen: the searched keys that are in force so far."""
    for key, wanted in when.items():
        # A searched key whose own condition fails has no value at all, whatever the file says.
        actual = chosen.get(key, _MISSING) if key in space else value_at(values, key)
        if actual not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


def ordered(space: Space) -> list[str]:
    """The keys, each after those that its condition asks about. Raises UserError when they ask in a circle."""
    done: list[str] = []

    def visit(key: str, above: tuple[str, ...]) -> None:
        if key in above:
            raise UserError(f"search.space: the conditions of {' and '.join(above)} depend on each other; remove one")
        if key not in done:
            for other in space[key].when:
                if other in space:
                    visit(other, (*above, key))
            done.append(key)

    for key in space:
        visit(key, ())
    return done


def corners(space: Space, values: dict[str, Any]) -> Iterator[Overrides]:
    """For each key its extreme (or listed) values, one at a time: what must be valid before anything starts."""
    first = {key: entry.values[0] for key, entry in space.items()}
    for key, entry in space.items():
        for value in entry.values:
            full = {**first, key: value}
            # The key's own conditions are made true, as far as the space allows.
            for other, wanted in entry.when.items():
                if other in space:
                    options = wanted if isinstance(wanted, list) else [wanted]
                    full[other] = next((v for v in space[other].values if v in options), full[other])
            yield active(space, full, values)


def value_at(values: dict[str, Any], key: str) -> Any:
    """The value at a dotted key, or a value equal to nothing."""
    node: Any = values
    for part in modern_key(tuple(key.split(".")), values):
        if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict) and part in node:
            node = node[part]
        else:
            return _MISSING
    return node


def frozen(value: Any) -> Any:
    """The same, so that it can be looked up: of thousands of configurations, no two are to be compared."""
    if isinstance(value, dict):
        return frozenset((key, frozen(part)) for key, part in value.items())
    return tuple(frozen(part) for part in value) if isinstance(value, list) else value


def with_overrides(values: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """A copy of the experiment's values with the overrides in place. Raises UserError."""
    out = dict(values)
    if isinstance(section := overrides.get("algorithm"), dict):
        overrides = {**overrides, **without_slots(section)}
    # Alternatives that are both overridden stay, and are refused when the experiment is parsed.
    lines: Lines = {modern_key(tuple(key.split(".")), values): Override(key) for key in overrides}
    # The algorithm comes first: it decides what the other keys mean.
    for key in sorted(overrides, key=lambda key: key not in ("algorithm", "algorithm.name")):
        set_value(out, lines, tuple(key.split(".")), overrides[key], Override(f"search.space.{key}"))
    return out


def without_slots(section: dict[str, Any]) -> dict[str, Any]:
    """A section `algorithm` that holds its slots, as one among the values of a search may, apart from them."""
    algorithm = {key: value for key, value in section.items() if key not in SLOTS}
    return {"algorithm": algorithm} | {key: section[key] for key in SLOTS if key in section}


def _plain(value: Any) -> Any:
    """NumPy's scalars as Python's, which the experiment file's schema takes."""
    return value.item() if isinstance(value, np.generic) else value
