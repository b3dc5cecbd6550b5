"""Turns a search space into configurations: conditions, grids, and draws from Tune's distributions."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import Override, set_value
from hedgerow.platform.config.slots_section import SLOT_SECTIONS
from hedgerow.platform.config.yaml_reader import Lines
from hedgerow.searchspaces.spaces.search_section import Dimension, Overrides

Space = dict[str, Dimension]

MOST = 100_000
"""Maximum number of configurations of a search. Each one is checked before the search starts."""

_MISSING = object()


def domain(entry: Dimension) -> Any:
    """Tune's distribution of an entry; a grid counts as a choice."""
    # Processes that Ray starts are forked before Ray is imported.
    from ray import tune

    match entry.form:
        case "uniform":
            return tune.uniform(*entry.values)
        case "loguniform":
            return tune.loguniform(*entry.values)
        case "integers":
            return tune.randint(entry.values[0], entry.values[1] + 1)
    return tune.choice(entry.values)


def configurations(space: Space, values: dict[str, Any], samples: int | None, seed: int) -> list[Overrides]:
    """All combinations of the grids, each with `samples` draws of the other keys, in a fixed order, without duplicates.

    values: the experiment file, for conditions on keys that are not searched. seed: seed of the draws. Raises
    UserError.
    """
    total = prod(len(entry.values) for entry in space.values() if entry.form == "grid") * (samples or 1)
    if total > MOST:
        raise UserError(
            f"search.space: {total:,} configurations are more than {MOST:,}; shorten its lists or reduce `samples`"
        )
    random = np.random.RandomState(seed % 2**32)
    random_keys = [key for key, entry in space.items() if entry.form != "grid"]
    grids = {key: entry.values for key, entry in space.items() if entry.form == "grid"}
    domains = {key: domain(space[key]) for key in random_keys}
    configs: dict[Any, Overrides] = {}
    for combination in product(*grids.values()):
        for _ in range(samples or 1):
            full = dict(zip(grids, combination, strict=True))
            full |= {key: _plain(domains[key].sample(random_state=random)) for key in random_keys}
            overrides = active(space, {key: full[key] for key in space}, values)
            configs.setdefault(frozen(overrides), overrides)
    return list(configs.values())


def active(space: Space, full: Overrides, values: dict[str, Any]) -> Overrides:
    """Values of the keys whose conditions hold, in the order of the space."""
    overrides: Overrides = {}
    for key in ordered(space):
        if holds(space[key].when, space, overrides, values):
            overrides[key] = full[key]
    return {key: overrides[key] for key in space if key in overrides}


def holds(when: dict[str, Any], space: Space, chosen: Overrides, values: dict[str, Any]) -> bool:
    """Whether a condition is met. chosen: values of the searched keys that are active so far."""
    for key, condition in when.items():
        # A searched key whose own condition fails has no value, even if the file sets one.
        actual = chosen.get(key, _MISSING) if key in space else value_at(values, key)
        if actual not in (condition if isinstance(condition, list) else [condition]):
            return False
    return True


def may_hold(when: dict[str, Any], space: Space, values: dict[str, Any]) -> bool:
    """Whether every key of a condition has one of its values in the file or among those of the space."""
    for key, condition in when.items():
        known = space[key].grid or space[key].choice if key in space else [value_at(values, key)]
        if known and not any(value in known for value in (condition if isinstance(condition, list) else [condition])):
            return False
    return True


def ordered(space: Space) -> list[str]:
    """Keys, each after the keys that its condition depends on. Raises UserError when conditions are circular."""
    order: list[str] = []

    def visit(key: str, above: tuple[str, ...]) -> None:
        if key in above:
            raise UserError(f"search.space: the conditions of {' and '.join(above)} depend on each other; remove one")
        if key not in order:
            for other in space[key].when:
                if other in space:
                    visit(other, (*above, key))
            order.append(key)

    for key in space:
        visit(key, ())
    return order


def corners(space: Space, values: dict[str, Any]) -> Iterator[Overrides]:
    """Yields configurations with the extreme or listed values of each key, one at a time; all of them must be valid."""
    first = {key: entry.values[0] for key, entry in space.items()}
    for key, entry in space.items():
        for value in entry.values:
            full = {**first, key: value}
            # Make the key's own conditions true, as far as the space allows.
            for other, condition in entry.when.items():
                if other in space:
                    options = condition if isinstance(condition, list) else [condition]
                    full[other] = next((v for v in space[other].values if v in options), full[other])
            yield active(space, full, values)


def value_at(values: dict[str, Any], key: str) -> Any:
    """Value at a dotted key; if there is none, `_MISSING`, which is equal to no other value."""
    node: Any = values
    for part in key.split("."):
        if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict) and part in node:
            node = node[part]
        else:
            return _MISSING
    return node


def frozen(value: Any) -> Any:
    """Hashable copy of a value, so that thousands of configurations are looked up instead of compared in pairs."""
    if isinstance(value, dict):
        return frozenset((key, frozen(part)) for key, part in value.items())
    return tuple(frozen(part) for part in value) if isinstance(value, list) else value


def with_overrides(values: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Copy of the experiment's values with the overrides applied. Raises UserError."""
    out = dict(values)
    if isinstance(section := overrides.get("algorithm"), dict):
        overrides = {**overrides, **without_slots(section)}
    # If two alternatives are both overridden, both are kept, and parsing the experiment rejects them.
    lines: Lines = {tuple(key.split(".")): Override(key) for key in overrides}
    # The algorithm comes first: it decides what the other keys mean.
    for key in sorted(overrides, key=lambda key: key not in ("algorithm", "algorithm.name")):
        set_value(out, lines, tuple(key.split(".")), overrides[key], Override(f"search.space.{key}"))
    return out


def without_slots(section: dict[str, Any]) -> dict[str, Any]:
    """Separates a section `algorithm` from the slots that it may contain if it is one of the values of a search."""
    algorithm = {key: value for key, value in section.items() if key not in SLOT_SECTIONS}
    return {"algorithm": algorithm} | {key: section[key] for key in SLOT_SECTIONS if key in section}


def _plain(value: Any) -> Any:
    """Converts a NumPy scalar to a Python scalar, which the schema of the experiment file requires."""
    return value.item() if isinstance(value, np.generic) else value
