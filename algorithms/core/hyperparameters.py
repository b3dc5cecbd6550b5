"""Base classes of all sections of an experiment file, including the hyperparameters of algorithms."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema

LARGEST: dict[str, Any] = {"int": 2**31 - 1, "float": 3.4e38}
"""Default upper bounds of numbers: beyond them sizes overflow, and float32 is infinite."""


def _parts(schema: Any, section: type[BaseModel]) -> Iterator[dict[str, Any]]:
    """Yields all dictionaries inside the core schema of a section but for those of sections inside it."""
    if isinstance(schema, dict):
        if schema.get("type") == "model" and schema["cls"] is not section:
            return
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list | tuple) else ():
        yield from _parts(inner, section)


class _Filled:
    """Values that fill the braces of a sentence: the attributes of a subject, and what was found."""

    def __init__(self, subject: Any, found: Any):
        self.subject, self.found = subject, found

    def __getitem__(self, name: str) -> Any:
        return self.found if name == "found" else getattr(self.subject, name)


@dataclass(frozen=True)
class Rule:
    """One thing that a section must not say.

    when(section): what breaks the rule; false if nothing does. says: what is wrong and, after a semicolon, what to do
    instead; `{key}` stands for the value of a key, `{found}` for the value of `when`.
    """

    when: Callable[[Any], Any]
    says: str

    def objection(self, subject: Any) -> str | None:
        """Returns the sentence if a section breaks the rule, else None."""
        found = self.when(subject)
        return self.says.format_map(_Filled(subject, found)) if found else None


class Settings(BaseModel):
    """Base class of sections. Unknown keys are refused, values are immutable after validation, numbers are bounded."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    alternatives: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs of keys: exactly one has a value and the other is null. Pairs of base classes apply too.

    Setting one of them sets the other to null, whatever its default, unless it is given as well."""

    rivals: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Pairs of keys: at most one may be given. An override of one of them removes the other."""

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules on the values of several keys, in the order in which they are checked. Those of base classes apply too."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        for part in _parts(schema, cls):
            bound = LARGEST.get(part.get("type", ""))
            if bound and part.keys().isdisjoint({"le", "lt"}):
                part["le"] = bound
        return schema

    @classmethod
    def exclusive_keys(cls) -> list[tuple[str, str]]:
        """Returns the `alternatives` of this class and of its bases."""
        return [pair for kind in cls.__mro__ for pair in vars(kind).get("alternatives", ())]

    @model_validator(mode="before")
    @classmethod
    def _one_replaces_the_other(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        pairs = [pair for a, b in cls.exclusive_keys() for pair in ((a, b), (b, a))]
        nulls = {other: None for one, other in pairs if values.get(one) is not None and other not in values}
        return values | nulls

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for a, b in self.exclusive_keys():
            if (getattr(self, a) is None) == (getattr(self, b) is None):
                raise ValueError(f"give either `{a}` or `{b}`, and set the other to null")
        return self

    @classmethod
    def all_rules(cls) -> list[Rule]:
        """Returns the `rules` of the bases of this class, then its own."""
        return [rule for kind in reversed(cls.__mro__) for rule in vars(kind).get("rules", ())]

    @model_validator(mode="after")
    def _breaks_no_rule(self) -> Self:
        for rule in self.all_rules():
            if objection := rule.objection(self):
                raise ValueError(objection)
        return self


class HyperParameters(Settings):
    """Typed, bounded and documented hyperparameters: an algorithm's section of the experiment file.

    A client step receives their values as attributes: as plain numbers (loop), or with floats as 0-d tensors where they
    differ between clients (batched). A step may therefore compute with floats but must not branch on them.
    """

    name: str = ""
    """Name in the experiment file. It is set by `platform/common/registry`, not by the subclasses."""

    def at(self, round: int) -> Self:
        """Returns the hyperparameters in effect in `round` (counted from 1); schedules override this."""
        return self

    def floats(self) -> dict[str, Any]:
        """Returns every float by its dotted path, including nested sections and lists of sections
        (`transforms.0.norm`). These values may be batched over experts.
        """
        return _floats(self)

    def with_floats(self, values: Mapping[str, Any]) -> Self:
        """Returns a copy with some floats replaced, by dotted path; values are not validated."""
        return _with_floats(self, values)


def _floats(section: BaseModel) -> dict[str, Any]:
    floats: dict[str, Any] = {}
    for name, value in section:
        if isinstance(value, float):
            floats[name] = value
            continue
        numbered = enumerate(value) if isinstance(value, list | tuple) else ()
        inner = {name: value} | {f"{name}.{i}": one for i, one in numbered}
        for place, one in inner.items():
            if isinstance(one, BaseModel):
                floats |= {f"{place}.{path}": number for path, number in _floats(one).items()}
    return floats


def _with_floats(section: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(section, list | tuple):
        return [_with_floats(one, _below(values, str(i))) for i, one in enumerate(section)]
    update: dict[str, Any] = {path: value for path, value in values.items() if "." not in path}
    for name in {path.partition(".")[0] for path in values if "." in path}:
        update[name] = _with_floats(getattr(section, name), _below(values, name))
    return section.model_copy(update=update) if update else section


def _below(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Selects the entries of `values` (by dotted path) under `name`, and strips that prefix."""
    return {path.partition(".")[2]: value for path, value in values.items() if path.startswith(f"{name}.")}


def enabled(value: Any) -> bool:
    """Whether a hyperparameter that is off at 0 is on; safe for the tensors of the batched form."""
    return not isinstance(value, int | float) or value != 0
