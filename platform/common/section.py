"""Base class of all sections of an experiment file."""

from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from hedgerow.algorithms.core.hyperparameters import Settings


class Section(Settings):
    """Section of an experiment file."""

    # Numeric fields reject infinity; arguments of the user's own model may contain it and keep it when serialized.
    model_config = ConfigDict(ser_json_inf_nan="constants")


def section_classes(annotation: Any) -> list[type[BaseModel]]:
    """Section classes inside a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in section_classes(part)]


def tag(section: type[BaseModel]) -> str | None:
    """Value of `name` or `kind` that selects a section class; None for a user's own class."""
    for key in ("name", "kind"):
        field = section.model_fields.get(key)
        if field is not None and get_origin(field.annotation) is Literal:
            return str(get_args(field.annotation)[0])
    return None
