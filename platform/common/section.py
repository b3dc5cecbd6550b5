"""Base class of all sections of an experiment file."""

from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.platform.common.registry import AnySection


class Section(Settings):
    """Section of an experiment file."""

    # Numeric fields reject infinity; arguments of the user's own model may contain it and keep it when serialized.
    model_config = ConfigDict(ser_json_inf_nan="constants")


class NamedSection(Section):
    """Section that its name alone may stand for."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "description": "its name or dotted path"}, handler(core)]}

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


def section_classes(annotation: Any, values: Any = None, imports: bool = True) -> list[type[BaseModel]]:
    """Section classes inside a type annotation.

    values: of the file; they select among the classes of a registry. imports: see `Registry.sections`.
    """
    if isinstance(annotation, type) and issubclass(annotation, AnySection):
        return annotation.registry.sections(values, imports)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in section_classes(part, values, imports)]


def tag(section: type[BaseModel]) -> str | None:
    """Value of `name` or `kind` that selects a section class; None for a user's own class."""
    for key in ("name", "kind"):
        field = section.model_fields.get(key)
        if field is not None and get_origin(field.annotation) is Literal:
            return str(get_args(field.annotation)[0])
    return None
