"""Pydantic's findings in the words of a researcher: one sentence with the place and the mend."""

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hedgerow.platform.plugins import nearest

Keys = tuple[str | int, ...]

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a section with keys",
    "model_type": "a section with keys",
    "model_attributes_type": "a section with keys",
    "string_pattern_mismatch": "letters, digits, '.', '_' and '-', beginning with a letter or digit",
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


def explain(error: ValidationError, model: type[BaseModel], values: Any, lines: Mapping[Keys, str], source: str) -> str:
    """The first mistake, in the order of the file, and how many more there are."""
    grouped: dict[Keys, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        grouped.setdefault(_path(detail, values), []).append(detail)
    sentences = []
    for path, details in grouped.items():
        place = _place(path, lines, source)
        key = ".".join(str(k) for k in path)
        sentences.append((_line_number(place), f"{place}: {_sentence(key, path, details, model)}"))
    sentences.sort(key=lambda pair: pair[0])
    more = len(sentences) - 1
    return sentences[0][1] + (f" (and {more} more mistake{'s' * (more > 1)} in the file)" if more else "")


def _path(detail: ErrorDetails, values: Any) -> Keys:
    """The keys as the user wrote them: pydantic's location without the names of union branches."""
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
    return tuple(path)


def _place(path: Keys, lines: Mapping[Keys, str], source: str) -> str:
    """Where the key stands, or the nearest section around it."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return source


def _line_number(place: str) -> int:
    number = re.search(r":(\d+)$", place)
    return int(number[1]) if number else 0


def _sentence(key: str, path: Keys, details: list[ErrorDetails], model: type[BaseModel]) -> str:
    first = details[0]
    kind, context = first["type"], first.get("ctx", {})
    if kind == "extra_forbidden":
        allowed = _allowed_keys(model, first["loc"][:-1])
        return f"{key} is not a key here{nearest(str(path[-1]), allowed)} (allowed: {', '.join(allowed)})"
    if kind == "missing":
        section = ".".join(str(k) for k in path[:-1])
        return f"{key} is missing; add `{path[-1]}: ...`" + (f" under {section}" if section else " to the file")
    if kind == "union_tag_not_found":
        tag = context["discriminator"].strip("'()")
        tag = "name" if tag == "_tag" else tag
        return f"{key} lacks its key {tag!r}; add `{tag}: ...`, one of {', '.join(_tags(model, first['loc']))}"
    if kind == "union_tag_invalid":
        tags = _tags(model, first["loc"])
        return f"{key}: {context['tag']!r} is not known{nearest(context['tag'], tags)} (allowed: {', '.join(tags)})"
    if kind == "value_error":
        return f"{key}: {context['error']}".removeprefix(": ")
    wanted = list(dict.fromkeys(_wanted(detail) for detail in details))
    hint = ""
    if kind == "literal_error" or details[-1]["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", details[-1]["ctx"]["expected"])
        hint = nearest(first["input"], choices) if isinstance(first["input"], str) else ""
    return f"{key} must be {' or '.join(wanted)}, not {_shown(first['input'])}{hint}"


def _wanted(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        number = context[bound]
        return words.format(f"{number:g}" if isinstance(number, float) else number)
    if kind == "literal_error":
        return context["expected"].replace("'", "")
    return _KINDS.get(kind, detail["msg"].replace("Input should be ", ""))


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    text = repr(value) if isinstance(value, (str, list)) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _classes(annotation: Any) -> list[type[BaseModel]]:
    """The section classes inside a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _classes(part)]


def _tag(section: type[BaseModel]) -> str | None:
    """The value of `name` or `kind` that selects a section class; None for a class that the user names."""
    for key in ("name", "kind"):
        field = section.model_fields.get(key)
        if field is not None and get_origin(field.annotation) is Literal:
            return str(get_args(field.annotation)[0])
    return None


def _sections(model: type[BaseModel], location: Keys) -> list[type[BaseModel]]:
    """The section classes that may stand at a location."""
    sections: list[type[BaseModel]] = [model]
    for step in location:
        deeper = [c for s in sections if step in s.model_fields for c in _classes(s.model_fields[str(step)].annotation)]
        if deeper:
            sections = deeper
        else:
            sections = [s for s in sections if _tag(s) == step] or [s for s in sections if _tag(s) is None] or sections
    return sections


def _allowed_keys(model: type[BaseModel], location: Keys) -> list[str]:
    return sorted({name for section in _sections(model, location) for name in section.model_fields})


def _tags(model: type[BaseModel], location: Keys) -> list[str]:
    tags = [_tag(section) for section in _sections(model, location)]
    return [tag for tag in tags if tag] + (["the dotted path of your own"] if None in tags else [])
