"""The base of every section of an experiment file."""

from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from hedgerow.algorithms.core.hyperparameters import Settings


class Section(Settings):
    """A part of an experiment file."""

    # Infinity is refused where a number is wanted; in the arguments of the user's own model it stays what it is.
    model_config = ConfigDict(ser_json_inf_nan="constants")


def section_classes(annotation: Any) -> list[type[BaseModel]]:
    """The section classes inside a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in section_classes(part)]


def tag(section: type[BaseModel]) -> str | None:
    """The value of `name` or `kind` that selects a section class; None for a class that the user names."""
    for key in ("name", "kind"):
        field = section.model_fields.get(key)
        if field is not None and get_origin(field.annotation) is Literal:
            return str(get_args(field.annotation)[0])
    return None
