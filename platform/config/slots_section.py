"""The sections of an experiment file that stand around the algorithm: `aggregation`, `transforms`, `objective`.

Which classes a `kind` may name stands in a table of strings in each package; the user's own enter by a dotted path.
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union

from pydantic import BaseModel, Discriminator, Field, Tag, create_model
from pydantic.fields import FieldInfo

from hedgerow.algorithms.aggregators import AGGREGATORS
from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.slots import Aggregation
from hedgerow.algorithms.objectives import OBJECTIVES
from hedgerow.algorithms.objectives.objective import Objective
from hedgerow.algorithms.transforms import TRANSFORMS
from hedgerow.algorithms.transforms.transform import Transform
from hedgerow.platform.common.registry import import_object


class Slot(NamedTuple):
    """What may stand in a slot. table: name -> "module:Class"; base: of all of them, `what` in messages."""

    table: dict[str, str]
    base: type[Settings]
    what: str


TRANSFORM = Slot(TRANSFORMS, Transform, "a transform")
AGGREGATOR = Slot(AGGREGATORS, Aggregator, "an aggregation rule")
OBJECTIVE = Slot(OBJECTIVES, Objective, "an objective")


class OwnTransform(Transform, extra="allow"):
    """Your own subclass of Transform: `kind` is its dotted path, the other keys are its fields."""


class OwnAggregator(Aggregator, extra="allow"):
    """Your own subclass of Aggregator: `kind` is its dotted path, the other keys are its fields."""


class OwnObjective(Objective, extra="allow"):
    """Your own subclass of Objective: `kind` is its dotted path, the other keys are its fields."""


_OWN: dict[type[Settings], type[Settings]] = {
    Transform: OwnTransform,
    Aggregator: OwnAggregator,
    Objective: OwnObjective,
}


def built_in(slot: Slot, kind: str) -> type[Settings]:
    """The class of a name in the slot's table."""
    module, _, name = slot.table[kind].partition(":")
    found: type[Settings] = getattr(import_module(module), name)
    return found


@cache
def section_of(found: type[Settings], kind: str) -> type[Settings]:
    """The class as a section that `kind` selects. Cached, since only equal classes compare equal."""
    fields: dict[str, Any] = {"kind": (Literal[kind], kind)}
    return create_model(found.__name__, __base__=found, __module__=found.__module__, __doc__=found.__doc__, **fields)


def union(slot: Slot, own: dict[str, type[Settings]] | None = None) -> Any:
    """The type of a section in a slot. own: the user's classes by their dotted paths; others are taken as they come."""
    own = own or {}
    known = {kind: section_of(built_in(slot, kind), kind) for kind in slot.table}
    known |= {kind: section_of(found, kind) for kind, found in own.items()}
    if not known:
        return _OWN[slot.base]

    def tag(values: Any) -> Any:
        kind = values.get("kind") if isinstance(values, dict) else getattr(values, "kind", None)
        return "own" if isinstance(kind, str) and "." in kind and kind not in own else kind

    members = [Annotated[section, Tag(kind)] for kind, section in known.items()]
    members.append(Annotated[_OWN[slot.base], Tag("own")])
    return Annotated[Union[tuple(members)], Discriminator(tag)]  # noqa: UP007


if TYPE_CHECKING:
    TransformConfig = Transform
    AggregatorConfig = Aggregator
    ObjectiveConfig = Objective
else:
    TransformConfig, AggregatorConfig, ObjectiveConfig = union(TRANSFORM), union(AGGREGATOR), union(OBJECTIVE)

MEAN: Any = section_of(built_in(AGGREGATOR, "mean"), "mean")


class AggregationConfig(Aggregation):
    """How the server combines what clients send, and the step that it takes."""

    rule: AggregatorConfig = Field(MEAN(), description="how the clients' updates are combined")


def own_sections(values: dict[str, Any], places: Any) -> dict[str, dict[str, type[Settings]]]:
    """The user's own classes that an experiment file names, by slot and by dotted path.

    values: of the file. places: key -> where it stands. Raises UserError.
    """
    aggregation = values.get("aggregation")
    transforms = values.get("transforms")
    given: list[tuple[str, Slot, tuple[str | int, ...], Any]] = [
        ("transforms", TRANSFORM, ("transforms", i), section)
        for i, section in enumerate(transforms if isinstance(transforms, list) else ())
    ]
    if isinstance(aggregation, dict):
        given.append(("aggregation", AGGREGATOR, ("aggregation", "rule"), aggregation.get("rule")))
    given.append(("objective", OBJECTIVE, ("objective",), values.get("objective")))
    found: dict[str, dict[str, type[Settings]]] = {}
    for key, slot, path, section in given:
        kind = section.get("kind") if isinstance(section, dict) else None
        if isinstance(kind, str) and "." in kind:
            place = f"{places((*path, 'kind'))}: {'.'.join(map(str, path))}.kind"
            found.setdefault(key, {})[kind] = import_object(kind, slot.base, slot.what, place)
    return found


def with_own_sections(model: type[BaseModel], own: dict[str, dict[str, type[Settings]]]) -> type[BaseModel]:
    """The schema of a file that names the user's own classes in its slots."""
    return _with_own_sections(model, tuple((key, tuple(classes.items())) for key, classes in own.items()))


@cache
def _with_own_sections(model: type[BaseModel], own: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for key, classes in own:
        if key == "transforms":
            kind: Any = list[union(TRANSFORM, dict(classes))]  # type: ignore[misc]
        elif key == "objective":
            kind = union(OBJECTIVE, dict(classes)) | None
        else:
            rule = _field(union(AGGREGATOR, dict(classes)), AggregationConfig.model_fields["rule"])
            kind = create_model("AggregationConfig", __base__=AggregationConfig, rule=rule)
        fields[key] = _field(kind, model.model_fields[key])
    return create_model(model.__name__, __base__=model, **fields)


def _field(kind: Any, info: FieldInfo) -> Any:
    """A field like another one, of another type."""
    return kind, Field(info.default, description=info.description)
