"""One registry per kind of thing: names are aliases of dotted paths, and only the class that is named is imported."""

import pickle
import subprocess
import sys

import pytest
from preloaded import run_python
from pydantic import BaseModel, TypeAdapter, ValidationError, create_model

from hedgerow.algorithms import ALGORITHMS
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import WITHOUT_IMPORTS, Registry, stamped
from hedgerow.platform.config import registries

REGISTRIES = {name: one for name, one in vars(registries).items() if isinstance(one, Registry)}
ENTRIES = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry.names()]


@pytest.mark.parametrize(("kind", "name"), ENTRIES, ids=[f"{kind}-{name}" for kind, name in ENTRIES])
def test_every_entry_is_a_class_of_its_kind_under_its_name(kind, name):
    registry = REGISTRIES[kind]
    found = registry.resolve(name)
    assert issubclass(found, registry.base)
    assert registry.table[name] == f"{found.__module__}:{found.__qualname__}"
    field = registry.section(name).model_fields[registry.selector]
    assert (field.default, field.is_required()) == (name, False)


MODULES = "; import sys; print(*sys.modules)"
"""Prints what a process has imported."""


def test_naming_algorithms_imports_none_of_them():
    code = "import hedgerow.algorithms" + MODULES
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert not {"torch", "numpy", "pydantic"} & found
    assert not {path.partition(":")[0] for path in ALGORITHMS.values()} & found


def test_only_the_algorithm_that_is_named_is_imported():
    code = "from hedgerow.platform.config.loader import algorithm_class; algorithm_class('fedavg')" + MODULES
    found = set(run_python("-c", code).stdout.split())
    methods = {path.partition(":")[0] for path in ALGORITHMS.values()} & found
    assert methods == {"hedgerow.algorithms.federated.fedavg"}
    assert not {"torchvision", "sklearn", "PIL", "pandas", "mlflow", "ray"} & found


class Thing(BaseModel):
    """A thing."""

    kind: str = ""
    size: int = 1


class Large(Thing):
    """A large thing."""

    size: int = 10


TABLE = {"small": f"{__name__}:Thing", "large": f"{__name__}:Large"}
things = Registry(TABLE, Thing, "task.thing.kind")


def test_a_section_has_the_name_that_selects_it_and_only_equal_classes_are_equal():
    small = things.section("small")
    assert small is things.section("small")
    assert small() == small(kind="small", size=1)
    own = things.section(f"{__name__}.Thing")
    assert own().kind == f"{__name__}.Thing"
    assert isinstance(own(), Thing)
    assert own() != small()
    assert (small.__name__, small.__doc__) == ("Thing", "A thing.")


def test_stamped_sections_are_pickled_by_what_they_were_made_of():
    large = things.section("large")(size=3)
    again = pickle.loads(pickle.dumps(large))
    assert again == large
    assert type(again) is type(large) is stamped(Large, "kind", "large")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("smal", "'smal' is not a thing; did you mean 'small'? (allowed: large, small, or the"),
        ("my things.Mine", "'my things.Mine' is not a dotted path; write one such as my_module.MyClass"),
        ("no_such_module.Mine", "no module named 'no_such_module'"),
        (f"{__name__}.Thin", "did you mean 'Thing'?"),
        (f"{__name__}.Registry", "is not a thing; name a class that derives from Thing"),
    ],
)
def test_a_wrong_name_is_refused_in_a_sentence_with_its_place(name, sentence):
    for place in (None, "file.yaml:3: task.thing.kind"):
        with pytest.raises(UserError) as caught:
            things.resolve(name, place)
        assert str(caught.value).startswith(f"{place or 'task.thing.kind'}: ")
        assert sentence in str(caught.value)


def parse(registry: Registry, values: object, context: dict | None = None) -> BaseModel:
    return TypeAdapter(registry.choice()).validate_python(values, strict=True, context=context)


OWN = f"{__name__}.Large"


@pytest.mark.parametrize("registry", [things, Registry({}, Thing, "task.thing.kind")], ids=["table", "no table"])
def test_a_field_takes_the_users_own_with_its_fields(registry):
    made = parse(registry, {"kind": OWN, "size": 3})
    assert type(made) is things.section(OWN)
    assert parse(registry, made) is made
    assert parse(registry, made.model_dump()) == made
    holder = create_model("Holder", thing=(registry.choice(), ...))(thing=made)
    assert holder.model_dump(mode="json") == {"thing": {"kind": OWN, "size": 3}}
    for wrong in ({"size": 3}, {"kind": 3}, {"kind": OWN, "size": "3"}, {"kind": f"{__name__}.Larger"}, "large"):
        with pytest.raises(ValidationError):
            parse(registry, wrong)
    unread = parse(registry, {"kind": "no.such.Thing", "weight": 2}, context=WITHOUT_IMPORTS)
    assert unread.model_dump() == {"kind": "no.such.Thing", "size": 1, "weight": 2}


def test_a_field_takes_each_name_and_its_schema_has_a_branch_for_each():
    assert type(parse(things, {"kind": "small"})) is things.section("small")
    assert parse(things, {"kind": "large", "size": 2}) == things.section("large")(size=2)
    with pytest.raises(ValidationError):
        parse(things, {"size": 2})
    schema = TypeAdapter(things.choice()).json_schema()
    assert [branch.get("$ref", branch.get("title")) for branch in schema["oneOf"]] == [
        "#/$defs/Thing",
        "#/$defs/Large",
        "your own",
    ]
