"""Experiment files that build on others: `base: common.yaml`, `${env:NAME}`, and the origin of every value."""

import os
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.servers import ENVIRONMENT, SECRET, has_credentials, with_environment
from hedgerow.platform.config.validation_errors import Keys, dotted
from hedgerow.platform.config.yaml_reader import Lines, dump_values, parse_yaml

RECORDED: tuple[str, ...] = (
    "base",
    "name",
    "seed",
    "seeds",
    "rounds",
    "clients_per_round",
    "output",
    "algorithm",
)
RECORDED += ("resources", "checkpoints.storage", "task.data", "task.public.data", "task.model", "task.teacher.run")
"""Keys and sections that take `${env:NAME}` and are recorded with its value."""

BY_NAME = ("tracking.uri", "tracking.also")
"""Keys and sections that are recorded with the name of the variable, since its value may be a secret."""

FILES: tuple[str, ...] = ("task.data.path", "task.data.test", "task.public.data.path", "task.public.data.test")
FILES += ("task.model.init", "task.teacher.model.init", "task.teacher.run")
"""Keys that name a file or a folder to read."""

Alternatives = Callable[[dict[str, Any], tuple[str, ...]], tuple[str, ...]]
"""(values, keys) -> keys of the same section that exclude this one."""


def merge(
    base: tuple[dict[str, Any], Lines], own: tuple[dict[str, Any], Lines], alternatives: Alternatives
) -> tuple[dict[str, Any], Lines]:
    """Returns the values of `base`, replaced by those of `own`, and their places.

    Sections are merged key by key. A section of `own` with another `name` or `kind` replaces the whole section, and
    lists are replaced. A key removes the keys of `base` that exclude it.
    """
    lines = dict(base[1])
    algorithm = {**_section(base[0], "algorithm"), **_section(own[0], "algorithm")}

    def merged(old: dict[str, Any], new: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        result = dict(old)
        for key, value in new.items():
            place, before = (*path, key), result.get(key)
            if isinstance(before, dict) and isinstance(value, dict) and not _renames(before, value):
                result[key] = merged(before, value, place)
                continue
            for excluded in alternatives({"algorithm": algorithm}, place) if value is not None else ():
                if excluded not in new:
                    result.pop(excluded, None)
                    _forget(lines, (*path, excluded))
            _forget(lines, place)
            result[key] = value
        return result

    values = merged(base[0], own[0], ())
    return values, lines | own[1]


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def _renames(before: dict[str, Any], section: dict[str, Any]) -> bool:
    return any(key in section and section[key] != before.get(key) for key in ("name", "kind"))


def _forget(lines: Lines, path: Keys) -> None:
    for stale in [entry for entry in lines if entry[: len(path)] == path]:
        del lines[stale]


def fill_in_environment(value: Any, lines: Lines, path: Keys = ()) -> Any:
    """Returns plain values with every `${env:NAME}` replaced, except in `BY_NAME`; notes the variables in `lines`.

    A value that consists of one variable only is read as YAML: numbers remain numbers. Raises UserError for variables
    that are not set, and for those whose value must not be recorded.
    """
    if isinstance(value, dict):
        return {key: fill_in_environment(inner, lines, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill_in_environment(inner, lines, (*path, i)) for i, inner in enumerate(value)]
    names = ENVIRONMENT.findall(value) if isinstance(value, str) else []
    if not names or _is_among(path, BY_NAME):
        return value
    place = next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), dotted(path))
    at = f"{place}: {dotted(path)}"
    if not _is_among(path, RECORDED):
        raise UserError(
            f"{at}: a variable cannot be used here, because its value would be recorded; write the value itself (keys "
            f"that take ${{env:NAME}}: {', '.join([*RECORDED, *BY_NAME])})"
        )
    filled = with_environment(value, at)
    for name in names:
        if SECRET.search(name.lower()) or has_credentials(os.environ[name]):
            raise UserError(
                f"{at}: the value of {name} looks like a secret and would be recorded; secrets may be used in "
                f"{' and '.join(BY_NAME)}, which are recorded with the name of the variable"
            )
    lines[path] = origin = f"{place}, {', '.join(f'${{env:{name}}}' for name in names)}"
    return parse_yaml(filled, lambda line: origin, path)[0] if ENVIRONMENT.fullmatch(value) else filled


def locate_files(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns values whose relative paths are absolute if their files are in a folder, and the same otherwise."""
    for key in FILES:
        section = values
        for part in key.split(".")[:-1]:
            section = section.get(part) if isinstance(section, dict) else None  # type: ignore[assignment]
        # Of this package, `path` is a name on the hub and `test` the name of a split.
        if not (isinstance(section, dict) and section.get("name") == "huggingface"):
            values = _located(values, key.split("."), folder)
    return values


def _located(values: Any, keys: Sequence[str], folder: Path) -> Any:
    if not isinstance(values, dict) or keys[0] not in values:
        return values
    value, rest = values[keys[0]], keys[1:]
    if rest:
        return {**values, keys[0]: _located(value, rest, folder)}
    if not isinstance(value, str) or not value or Path(value).is_absolute():
        return values
    file = folder / value
    # A run may be named without date and time.
    is_run = keys[0] == "run" and any(file.parent.glob(f"{escape(file.name)}-[0-9]*"))
    # Without an error for names that the system does not take.
    is_here = os.path.exists(file) or is_run  # noqa: PTH110
    return {**values, keys[0]: os.path.normpath(file.absolute())} if is_here else values


def _is_among(path: Keys, keys: tuple[str, ...]) -> bool:
    return any(f"{dotted(path)}.".startswith(f"{key}.") for key in keys)


def annotated(resolved: dict[str, Any], values: dict[str, Any], lines: Lines) -> str:
    """Returns a resolved file as YAML, with the place of each value that is not a default as a comment.

    values, lines: the file before defaults were filled in, and its places.
    """
    text = dump_values(resolved).splitlines()
    _, rows = parse_yaml("\n".join(text), str)
    for path, row in rows.items():
        place = _origin(path, values, lines)
        following = [int(other) for entry, other in rows.items() if int(other) > int(row)]
        is_leaf = not any(entry[: len(path)] == path and len(entry) > len(path) for entry in rows)
        ends = min(following, default=len(text) + 1) - 1 == int(row)
        if place and is_leaf and ends and "  # " not in text[int(row) - 1]:
            text[int(row) - 1] += f"  # {place}"
    return "".join(f"{line}\n" for line in text)


def _origin(path: Keys, values: Any, lines: Lines) -> str | None:
    """Place of the value that determines a resolved value; None for a default."""
    at: Any = values
    for depth, key in enumerate(path):
        if not isinstance(at, dict):
            break
        if key not in at:
            return None
        at = at[key]
        path_so_far = path[: depth + 1]
        if not isinstance(at, dict):
            return lines.get(path_so_far)
    return lines.get(path)
