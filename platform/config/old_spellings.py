"""Keys of experiment files under the names that they had before: moved to where they stand now, as plain values."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from hedgerow.algorithms import ALIASES
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.config.validation_errors import Keys, dotted
from hedgerow.platform.config.yaml_reader import Lines

SLOTS = ("aggregation", "transforms", "objective")

MOVED: dict[str, Keys] = {
    "server": ("aggregation", "server_optimizer"),
    "weighting": ("aggregation", "weighting"),
    "side": ("objective",),
}
"""Key of `algorithm` -> where it stands now, of algorithms that have no such key of their own."""

_WITH_LOGITS = ("robustness", "distillation", "both", "stability", "disk", "simkd_disk")

SIDE_KEYS: dict[str, tuple[str, ...]] = {
    "temperature": _WITH_LOGITS,
    "detach_target": ("robustness", "both", "stability"),
    "noise": ("stability",),
    "ratio": ("synthetic",),
    "duplicate": ("synthetic",),
}
"""Key of `algorithm.side` -> the kinds that use it. All kinds had all keys; `guide` was null where it was not used."""

TRANSFORMED: dict[str, tuple[str, tuple[str, ...]]] = {
    "fedavg_topk": ("top_k", ("entries", "error_feedback")),
    "fetchsgd": ("sketch", ("rows", "columns", "entries", "server_lr", "server_momentum", "sketch_seed")),
}
"""Alias of an algorithm -> the transform that makes it of the algorithm, and the keys that are now that transform's."""


def modernize(values: dict[str, Any], lines: Lines | None = None, imports: bool = True) -> None:
    """Move the old keys of an experiment file, in place; sections are copied before they are changed.

    imports: whether the user's own algorithm may be imported, to see whether a key is its own. Raises UserError where a
    key is given under both names.
    """
    section = values.get("algorithm")
    name = section.get("name") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(name, str):
        return
    lines = {} if lines is None else lines
    own = _fields(name, imports)
    wanted = {key: place for key, place in MOVED.items() if key in section and key not in own}
    if name not in TRANSFORMED and not wanted:
        return
    section = values["algorithm"] = dict(section)
    for key, place in wanted.items():
        value = section.pop(key)
        if key == "side":
            if value is None:
                continue
            value = _used(value)
        # `weighting: samples` was the only value that FOCUS took, and every file of a run has it.
        if not (name == "focus" and key == "weighting"):
            _put(values, lines, ("algorithm", key), place, value)
    if name in TRANSFORMED:
        kind, keys = TRANSFORMED[name]
        before = values.get("transforms") or []
        transform = {"kind": kind} | {key: section.pop(key) for key in keys if key in section}
        values["transforms"] = [*before, transform]
        for key in keys:
            _relocate(lines, ("algorithm", key), ("transforms", len(before), key))
        section["name"] = ALIASES[name]


def modern_key(keys: tuple[str, ...], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Where a dotted key stands now, given the values of its file."""
    section = values.get("algorithm")
    name = section.get("name") if isinstance(section, dict) else None
    if len(keys) < 2 or keys[0] != "algorithm" or not isinstance(name, str) or keys[1] in _fields(name, True):
        return keys
    if keys[1] in MOVED:
        return (*map(str, MOVED[keys[1]]), *keys[2:])
    given = values.get("transforms")
    transforms = given if isinstance(given, list) else []
    if name in TRANSFORMED:
        transforms = [*transforms, {"kind": TRANSFORMED[name][0]}]
    for i, transform in enumerate(transforms):
        kind = transform.get("kind") if isinstance(transform, dict) else None
        if any(kind == made and keys[1] in moved for made, moved in TRANSFORMED.values()):
            return ("transforms", str(i), *keys[1:])
    return keys


def is_slot_key(keys: Keys) -> bool:
    """Whether a key stands in a slot around the algorithm."""
    return bool(keys) and keys[0] in SLOTS


def current_states(states: Tree, initial: Tree) -> Tree:
    """Client states of a checkpoint; those of objectives stood between the algorithm's. initial: a first state."""
    objective = initial.get("objective", {})
    if not objective or not objective.keys() <= states.keys():
        return states
    others = {key: branch for key, branch in states.items() if key not in objective}
    return {**others, "objective": {key: states[key] for key in objective}}


def _used(side: Any) -> Any:
    """A section `side` without the keys that its kind does not use."""
    if not isinstance(side, dict):
        return side
    kind = side.get("kind")
    unused = {key for key, kinds in SIDE_KEYS.items() if kind not in kinds}
    return {key: value for key, value in side.items() if key not in unused and (key, value) != ("guide", None)}


@cache
def _fields(name: str, imports: bool) -> frozenset[str]:
    """The keys of an algorithm's own section, as far as they are known."""
    if "." in name and not imports:
        # What it has is taken as it stands.
        return frozenset(MOVED)
    with suppress(UserError):
        return frozenset(algorithm_class(name).Hyper.model_fields)
    return frozenset(MOVED)


def _put(values: dict[str, Any], lines: Lines, old: Keys, new: Keys, value: Any) -> None:
    node = values
    for depth, key in enumerate(new[:-1], start=1):
        inner = node.get(str(key))
        if inner is not None and not isinstance(inner, dict):
            return
        node[str(key)] = node = dict(inner or {})
        lines.setdefault(new[:depth], lines.get(old, "experiment"))
    if str(new[-1]) in node:
        raise UserError(
            f"{lines.get(old, 'experiment')}: {dotted(old)} is the old name of {dotted(new)}, which is given too; "
            "remove one of them"
        )
    node[str(new[-1])] = value
    _relocate(lines, old, new)


def _relocate(lines: Lines, old: Keys, new: Keys) -> None:
    """Let messages about the new key name the place of the old one."""
    for known in [known for known in lines if known[: len(old)] == old]:
        lines[(*new, *known[len(old) :])] = lines.pop(known)
