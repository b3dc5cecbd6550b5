"""Converts old names of keys in experiment files to their current names, on plain values."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from hedgerow.algorithms import ALIASES
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
"""Old key of `algorithm` -> current key, for algorithms that do not have a key of this name themselves."""

WITHOUT_EFFECT: dict[str, tuple[str, ...]] = {
    "focus": ("samples",),
    "fedavg_oracle": ("uniform", "samples"),
    "preprocess": ("uniform", "samples"),
}
"""Algorithm with client weights of its own -> values of `weighting` that its old files have, and that had no effect."""

_WITH_LOGITS = ("robustness", "distillation", "both", "stability", "disk", "simkd_disk")

SIDE_KEYS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "temperature": (3.5, _WITH_LOGITS),
    "detach_target": (False, ("robustness", "both", "stability")),
    "noise": (0.1, ("stability",)),
    "ratio": (1.0, ("synthetic",)),
    "duplicate": (0.5, ("synthetic",)),
    "guide": (None, ()),
}
"""Key of `algorithm.side` -> its default, and the kinds that use it whatever its value. All kinds had all keys."""

TRANSFORMED: dict[str, tuple[str, tuple[str, ...]]] = {
    "fedavg_topk": ("top_k", ("entries", "error_feedback")),
    "fetchsgd": ("sketch", ("rows", "columns", "entries", "server_lr", "server_momentum", "sketch_seed")),
}
"""Alias of an algorithm with a transform -> kind of the transform, and the keys that now belong to the transform."""


def modernize(values: dict[str, Any], lines: Lines | None = None, imports: bool = True) -> None:
    """Rename the old keys of an experiment file, in place; sections are copied before they are changed.

    imports: whether the user's own algorithm may be imported, to check whether a key is its own. Raises UserError if a
    key is given under both names.
    """
    section = values.get("algorithm")
    name = section.get("name") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(name, str):
        return
    lines = {} if lines is None else lines
    own = _fields(name, imports)
    moves = {key: place for key, place in MOVED.items() if key in section and key not in own}
    if name not in TRANSFORMED and not moves:
        return
    section = values["algorithm"] = dict(section)
    for key, place in moves.items():
        value = section.pop(key)
        if key == "side":
            if value is None:
                continue
            value = _used(value)
        if key != "weighting" or value not in WITHOUT_EFFECT.get(name, ()):
            _put(values, lines, ("algorithm", key), place, value)
    if name in TRANSFORMED:
        kind, keys = TRANSFORMED[name]
        before = values.get("transforms")
        before = [] if before is None else before
        transform = {"kind": kind} | {key: section.pop(key) for key in keys if key in section}
        if isinstance(before, list):
            values["transforms"] = [*before, transform]
            for key in keys:
                _relocate(lines, ("algorithm", key), ("transforms", len(before), key))
        section["name"] = ALIASES[name]


def modern_key(keys: tuple[str, ...], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the current name of a dotted key, given the values of its file."""
    section = values.get("algorithm")
    name = section.get("name") if isinstance(section, dict) else None
    if len(keys) < 2 or keys[0] != "algorithm" or not isinstance(name, str) or keys[1] in _fields(name, True):
        return keys
    if keys[1] in MOVED:
        return (*map(str, MOVED[keys[1]]), *keys[2:])
    entries = values.get("transforms")
    transforms = entries if isinstance(entries, list) else []
    if name in TRANSFORMED:
        transforms = [*transforms, {"kind": TRANSFORMED[name][0]}]
    for i, transform in enumerate(transforms):
        kind = transform.get("kind") if isinstance(transform, dict) else None
        if any(kind == slot_kind and keys[1] in slot_keys for slot_kind, slot_keys in TRANSFORMED.values()):
            return ("transforms", str(i), *keys[1:])
    return keys


def is_slot_key(keys: Keys) -> bool:
    """Whether a key belongs to a slot around the algorithm."""
    return bool(keys) and keys[0] in SLOTS


def _used(side: Any) -> Any:
    """Returns a section `side` without the keys that its kind does not use, if they have their old defaults."""
    if not isinstance(side, dict):
        return side
    kind = side.get("kind")
    unused = {key: default for key, (default, kinds) in SIDE_KEYS.items() if kind not in kinds}
    return {key: value for key, value in side.items() if not (key in unused and value == unused[key])}


@cache
def _fields(name: str, imports: bool) -> frozenset[str]:
    """Keys of an algorithm's own section; all old keys if the algorithm is not or cannot be imported."""
    if "." in name and not imports:
        # Old keys are kept as they are: they may be the algorithm's own.
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
    """Give the new key the place of the old one, for messages."""
    for path in [path for path in lines if path[: len(old)] == old]:
        lines[(*new, *path[len(old) :])] = lines.pop(path)
