"""What every section of an experiment file is, an algorithm's too."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema
from torch import Tensor

LARGEST: dict[str, Any] = {"int": 2**31 - 1, "float": 3.4e38}
"""Upper bounds of numbers whose field has none of its own: beyond them sizes overflow, and float32 is infinite."""


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """All dictionaries inside a core schema, itself included."""
    if isinstance(schema, dict):
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list | tuple) else ():
        yield from _parts(inner)


class Settings(BaseModel):
    """Unknown keys are refused, values never change after validation, numbers are bounded."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    alternatives: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Keys of which one has a value and the other is null; those that base classes name hold too.

    Who gives one need not write null for the other, whatever its default.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        for part in _parts(schema):
            largest = LARGEST.get(part.get("type", ""))
            if largest and part.keys().isdisjoint({"le", "lt"}):
                part["le"] = largest
        return schema

    @classmethod
    def exclusive_keys(cls) -> list[tuple[str, str]]:
        """`alternatives` of this class and of its bases."""
        return [pair for kind in cls.__mro__ for pair in vars(kind).get("alternatives", ())]

    @model_validator(mode="before")
    @classmethod
    def _one_replaces_the_other(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        pairs = [pair for a, b in cls.exclusive_keys() for pair in ((a, b), (b, a))]
        absent = {other: None for one, other in pairs if values.get(one) is not None and other not in values}
        return values | absent

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for a, b in self.exclusive_keys():
            if (getattr(self, a) is None) == (getattr(self, b) is None):
                raise ValueError(f"give either `{a}` or `{b}`, and set the other to null")
        return self


class HyperParameters(Settings):
    """Typed, bounded and documented hyperparameters: an algorithm's section of the experiment file.

    A client step receives their values as attributes: as plain numbers (loop), or with floats as 0-d tensors where they
    differ from client to client (batched). So a step computes with them but never branches on a float.
    """

    name: str = ""
    """As in the experiment file, which stamps it on (see `platform/common/registry`): no class says it."""

    def at(self, round: int) -> Self:
        """The values in force in `round` (counted from 1); schedules override this."""
        return self

    def floats(self) -> dict[str, Any]:
        """Every float by its dotted path, those of nested sections and of lists of sections too (`transforms.0.norm`):
        what may be batched over experts.
        """
        return _floats(self)

    def with_floats(self, values: Mapping[str, Any]) -> Self:
        """The same with some floats replaced, by dotted path; values are not validated."""
        return _with_floats(self, values)


def _floats(section: BaseModel) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in section:
        if isinstance(value, float):
            found[name] = value
            continue
        numbered = enumerate(value) if isinstance(value, list | tuple) else ()
        inner = {name: value} | {f"{name}.{i}": one for i, one in numbered}
        for place, one in inner.items():
            if isinstance(one, BaseModel):
                found |= {f"{place}.{path}": number for path, number in _floats(one).items()}
    return found


def _with_floats(section: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(section, list | tuple):
        return [_with_floats(one, _below(values, str(i))) for i, one in enumerate(section)]
    update: dict[str, Any] = {path: value for path, value in values.items() if "." not in path}
    for name in {path.partition(".")[0] for path in values if "." in path}:
        update[name] = _with_floats(getattr(section, name), _below(values, name))
    return section.model_copy(update=update) if update else section


def _below(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Of values by dotted path, those under `name`."""
    return {path.partition(".")[2]: value for path, value in values.items() if path.startswith(f"{name}.")}


def enabled(value: Any) -> bool:
    """Whether a hyperparameter that is off at 0 is on; safe for the tensors of the batched form."""
    return isinstance(value, Tensor) or value != 0
