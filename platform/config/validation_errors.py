"""Translates pydantic's errors into one plain sentence per mistake, with the place and the fix."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hedgerow.platform.common.errors import UserError, mistakes
from hedgerow.platform.common.registry import OWN_WORDS, closest, nearest
from hedgerow.platform.common.section import section_classes, tag

Keys = tuple[str | int, ...]

Sections = Callable[[Keys], list[type[BaseModel]]]
"""Location of an error -> section classes that the location may have."""

_SECTION_KINDS = ("dict_type", "model_type", "model_attributes_type", "union_tag_not_found")
_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    **dict.fromkeys(_SECTION_KINDS, "a section with keys"),
    "string_too_short": "not empty",
}
_BOUNDS = {
    "greater_than": ("gt", "greater than {}"),
    "greater_than_equal": ("ge", "at least {}"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "at most {}"),
    "too_short": ("min_length", "a list of at least {} entries"),
    "too_long": ("max_length", "a list of at most {} entries"),
}
# The user's own algorithm may have hyperparameters of types that are not listed above: "Input should be a ..."
_TYPE_NAME = re.compile(r"^\w+ should (be |have )?")


def dotted(path: Keys) -> str:
    """Key in the form that --set takes, on one line: `task.model.hidden`."""
    return " ".join(".".join(map(str, path)).splitlines())


def explain(
    error: ValidationError,
    model: type[BaseModel],
    values: Any,
    lines: Mapping[Keys, str],
    source: str,
    imports: bool = True,
) -> UserError:
    """Returns a UserError with all mistakes, in the order of `lines`.

    model: section class that rejected `values`; lines: place of each key, in the order of the file; source: place of
    all others; imports: see `Registry.sections`.
    """

    def sections(location: Keys) -> list[type[BaseModel]]:
        return sections_at(model, location, values, imports)

    grouped: dict[Keys, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        grouped.setdefault(_path(detail, values, sections), []).append(detail)
    # A misspelt key is one mistake, although the right key is also missing.
    misspelt = {
        (*path[:-1], closest(str(path[-1]), _allowed_keys(sections, details[0]["loc"][:-1])))
        for path, details in grouped.items()
        if details[0]["type"] == "extra_forbidden"
    }
    faults = {
        path: details for path, details in grouped.items() if details[0]["type"] != "missing" or path not in misspelt
    }
    # A list or section with a mistake inside it was not meant for the other branch of its union, a word or a Boolean.
    faults = {
        path: details
        for path, details in faults.items()
        if details[0]["type"] not in ("literal_error", "bool_type")
        or not any(other[: len(path)] == path != other for other in faults)
    }
    order = {path: position for position, path in enumerate(lines)}

    def position(path: Keys) -> tuple[bool, int]:
        return faults[path][0]["type"] == "missing", order.get(_written(path, lines), -1)

    sentences = [
        f"{lines.get(_written(path, lines), source)}: {_sentence(path, faults[path], sections)}"
        for path in sorted(faults, key=position)
    ]
    return mistakes(source, [" ".join(sentence.splitlines()) for sentence in sentences])


def _path(detail: ErrorDetails, values: Any, sections: Sections) -> Keys:
    """Keys as the user wrote them: pydantic's location without the names of union branches."""
    path: list[str | int] = []
    node = values
    last = len(detail["loc"]) - 1
    for position, step in enumerate(detail["loc"]):
        inside = (isinstance(node, dict) and step in node) or (
            isinstance(node, list) and isinstance(step, int) and step < len(node)
        )
        if inside:
            node = node[step]
            path.append(step)
        elif position == last and detail["type"] in ("missing", "extra_forbidden"):
            path.append(step)
    if detail["type"] in ("union_tag_invalid", "own_class"):
        path.append(_selector(sections(detail["loc"])))
    return tuple(path)


def _written(path: Keys, lines: Mapping[Keys, str]) -> Keys:
    """Returns the key, or the nearest section around it, whose place is known."""
    while path and path not in lines:
        path = path[:-1]
    return path


def _sentence(path: Keys, details: list[ErrorDetails], sections: Sections) -> str:
    first = details[0]
    key, value, kind, context = dotted(path), first["input"], first["type"], first.get("ctx", {})
    if kind == "extra_forbidden":
        allowed = _allowed_keys(sections, first["loc"][:-1])
        return f"{key} is not a key here{nearest(str(path[-1]), allowed)} (allowed: {', '.join(allowed)})"
    if kind == "missing":
        section = dotted(path[:-1])
        meaning = _description(sections, first["loc"])
        return (
            f"{key} is missing; add `{path[-1]}: ...`"
            + (f" under {section}" if section else " to the file")
            + (f" ({meaning})" if meaning else "")
        )
    if kind == "union_tag_not_found" and isinstance(value, dict):
        choices = sections(first["loc"])
        selector = _selector(choices)
        return f"{key} is missing its key {selector!r}; add `{selector}: ...`, one of {', '.join(_tags(choices))}"
    if kind == "union_tag_invalid":
        tags = _tags(sections(first["loc"]))
        tag = value[path[-1]]
        return f"{key}: {_shown(tag)} is not known{nearest(str(tag), tags)} (allowed: {', '.join(tags)})"
    if kind in ("value_error", "assertion_error", "own_class"):
        return f"{key}: {context['error']}".removeprefix(": ")
    if kind == "invalid_key":
        return f"{key}: a key must be text; put it in quotes"
    types = list(dict.fromkeys(_wanted(detail) for detail in details))
    return f"{key} must be {' or '.join(types)}, not {_shown(value)}{_fix(details, sections)}"


def _fix(details: list[ErrorDetails], sections: Sections) -> str:
    first, last = details[0], details[-1]
    value = first["input"]
    if last["type"] == "literal_error" and isinstance(value, str):
        return nearest(value, re.findall(r"'([^']*)'", last["ctx"]["expected"]))
    if first["type"] == "string_type" and isinstance(value, (bool, int, float)):
        return "; put it in quotes"
    if first["type"] in _SECTION_KINDS and isinstance(value, str):
        selector = _selector(sections(first["loc"]))
        return f"; write `{first['loc'][-1]}: {{{selector}: {value}}}`" if selector else ""
    return ""


def _wanted(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        number = context[bound]
        return words.format(f"{number:g}" if isinstance(number, float) else number)
    if kind == "string_pattern_mismatch":
        # The experiment's own name is the only text of the schema with a pattern; others are in the user's algorithms.
        if detail["loc"] == ("name",):
            return "letters, digits, '.', '_' and '-', beginning with a letter or digit"
        return f"text that matches {context['pattern']}"
    if kind == "literal_error":
        return context["expected"].replace("'", "")
    return _KINDS.get(kind, _TYPE_NAME.sub("", detail["msg"]))


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    text = repr(value) if isinstance(value, (str, list)) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def sections_at(
    model: type[BaseModel], location: Keys, values: Any = None, imports: bool = True
) -> list[type[BaseModel]]:
    """Section classes that a location may have.

    values: values of the file; they select among the sections of a registry. imports: see `Registry.sections`.
    """
    sections: list[type[BaseModel]] = [model]
    fields: list[FieldInfo] = []
    for step in location:
        if isinstance(step, int):
            values = values[step] if isinstance(values, list) and step < len(values) else None
        elif any(step in section.model_fields for section in sections):
            fields = [section.model_fields[step] for section in sections if step in section.model_fields]
            values = values.get(step) if isinstance(values, dict) else None
        else:
            # A key that the user has chosen, or the name of a branch.
            values = values[step] if isinstance(values, dict) and step in values else values
            sections = [s for s in sections if tag(s) == step] or [s for s in sections if tag(s) is None] or sections
            continue
        chosen = [section_classes(field.annotation, values, imports) for field in fields]
        sections = [section for classes in chosen for section in classes] or sections
    return sections


def _allowed_keys(sections: Sections, location: Keys) -> list[str]:
    return sorted({name for section in sections(location) for name in section.model_fields})


def _description(sections: Sections, location: Keys) -> str | None:
    """Description of the key at a location, from the schema."""
    fields = [section.model_fields.get(str(location[-1])) for section in sections(location[:-1])]
    return next((field.description for field in fields if field is not None), None)


def _selector(choices: list[type[BaseModel]]) -> str:
    """Key, `name` or `kind`, that selects among sections; empty if there is none."""
    return next((key for key in ("kind", "name") if any(key in section.model_fields for section in choices)), "")


def _tags(choices: list[type[BaseModel]]) -> list[str]:
    tags = [tag(section) for section in choices]
    return sorted(filter(None, tags)) + ([f"or {OWN_WORDS}"] if None in tags else [])
