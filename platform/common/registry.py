"""Registries of classes by name: built-in classes from a table and users' own classes by dotted path."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache, cached_property
from importlib import import_module
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, Union

from pydantic import (
    BaseModel,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    create_model,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.core.own_code import ImportRefusedError, find, home_of, is_own
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.own_code_errors import failure

DOTTED = r"^[^.\s]+(\.[^.\s]+)+$"
"""Pattern of the dotted path of a class."""

OWN = "."
"""Tag of the last branch of a union, for users' own classes. No table contains this name."""

OWN_WORDS = "the dotted path of your own"

WITHOUT_IMPORTS = {"imports": False}
"""Validation context that imports no user code: keys of a user's own section are accepted unchecked."""

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes or objects that one key of an experiment file may name.

    table: name -> "module:Class", as strings, so that names can be listed without imports. base: base class of all of
    them, including users' own. key: key of the experiment file, such as "task.data.name"; its last word is the field
    that selects among sections. own: section of a user's own class, if that class is not a section itself. enter:
    converts the object at a dotted path to an instance of `base`, None if it cannot; without it, a dotted path names a
    subclass of `base`. what: noun phrase for one of them. function: section of a user's own function; None: only
    classes may be named.
    """

    def __init__(
        self,
        table: Mapping[str, str],
        base: type[T],
        key: str,
        own: type[BaseModel] | None = None,
        enter: Callable[[Any], T | None] | None = None,
        what: str | None = None,
        function: Any = None,
    ):
        self.table, self.base, self.key = table, base, key
        self.selector = key.rpartition(".")[2]
        self._own, self._enter, self._what = own, enter, what or described(base)
        self._function = function

    def names(self) -> list[str]:
        """Names of the built-in classes, in the order of the table."""
        return list(self.table)

    def resolve(self, name: str, place: str | None = None) -> type[T]:
        """Returns the class or object of a built-in name or at a dotted path. Imports only its module.

        place: prefix of the error message; None: the key. Raises UserError.
        """
        place = self.key if place is None else place
        if name in self.table:
            module, _, attribute = self.table[name].partition(":")
            target: type[T] = getattr(import_module(module), attribute)
            return target
        what = self._what
        if "." in name and self._enter:
            candidate = import_named(name, place)
            entered: Any = self._enter(candidate)
            if entered is None:
                raise UserError(f"{_beginning(place)}{name!r} is not {what}; name one")
            # A class is of the kind that its key needs, or it could not enter.
            if not isinstance(candidate, self.base | type):
                require_own(candidate, name, what, place)
            target = entered
            return target
        if "." in name:
            return import_object(name, self.base, what, place, self._function)
        raise UserError(
            f"{_beginning(place)}{name!r} is not {what}{nearest(name, self.table)} (allowed: "
            f"{', '.join([*sorted(self.table), f'or {OWN_WORDS}']).removeprefix('or ')})"
        )

    def section(self, name: str, place: str | None = None) -> type[Any]:
        """Returns the section class that a name selects: the settings of its class, whose selector is fixed to the
        name.

        A class that is not a section itself has its settings in `Hyper`. Raises UserError.
        """
        target: Any = self.resolve(name, place)
        return stamped(getattr(target, "Hyper", target), self.selector, name)

    def choice(self) -> Any:
        """Type of a field that takes any of the sections. A value imports only the class that it names."""
        return type(f"Any{self.base.__name__}", (AnySection,), {"registry": self})

    def sections(self, values: Any = None, imports: bool = True) -> list[type[BaseModel]]:
        """The section class that `values` name. If they name none that is known: all, the one of users' own last.

        imports: whether a user's own class may be imported. Otherwise, and if it cannot be, `own_section` stands in.
        """
        name = values.get(self.selector) if isinstance(values, dict) else None
        if not self._knows(name):
            return [*map(self.section, self.table), self.own_section]
        if "." in str(name) and (self._own or not imports):
            return [self.own_section]
        try:
            return [self.section(str(name))]
        except UserError:
            return [self.own_section]

    def read(self, values: Any, info: ValidationInfo) -> BaseModel:
        """Returns the section of plain values, which are validated strictly. Raises pydantic's errors."""
        if self._has(values):
            return values  # type: ignore[no-any-return]
        if not isinstance(values, dict) or self.selector not in values:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": self.selector})
        name = values[self.selector]
        if not self._knows(name):
            context = {"discriminator": self.selector, "tag": str(name), "expected_tags": ", ".join(self.table)}
            raise PydanticKnownError("union_tag_invalid", context)
        if "." in name and (self._own or info.context == WITHOUT_IMPORTS):
            section = self.own_section
        else:
            try:
                section = self.section(name, place="")
            except UserError as error:
                # The location of the pydantic error names the place.
                raise PydanticCustomError("own_class", "{error}", {"error": str(error)}) from None
        return section.model_validate(values, strict=True, context=info.context)

    def _knows(self, name: Any) -> bool:
        """Whether a name may select a section: a built-in one, or a dotted path."""
        return isinstance(name, str) and ("." in name or name in self.table)

    def _has(self, section: Any) -> bool:
        """Whether a value is a section that its name selects, or one of a user's own class."""
        name: Any = getattr(section, self.selector, None) if isinstance(section, self._settings) else None
        return self._knows(name) and ("." in name or isinstance(section, self.section(name)))

    @property
    def _settings(self) -> Any:
        """Base class of all sections."""
        base = self.base if issubclass(self.base, BaseModel) else HyperParameters
        return base | self._own if self._own else base

    @cached_property
    def own_section(self) -> type[BaseModel]:
        """Section of a user's own class: `own`, or one that takes any keys, for a class that is not imported."""
        if self._own:
            return self._own
        base: Any = self._settings
        kind = self.base.__name__
        text = f"Your own subclass of {kind}: `{self.selector}` is its dotted path, other keys are its fields."
        if self._function:
            keys = ", ".join(f"`{key}`" for key in self._function.model_fields if key != self.selector)
            text += f" Or your own function, with the keys {keys}."
        namespace = {
            "__module__": __name__,
            "__doc__": text,
            "__annotations__": {self.selector: str, "dotted_key": ClassVar[str]},
            "dotted_key": self.selector,
        }
        section: type[BaseModel] = type(base)(f"Own{kind}", (base,), namespace, extra="allow")
        return section

    def union(self) -> Any:
        """Union of all sections, from which the JSON schema is made. Imports the modules of all built-in classes."""
        own = "class or function" if self._function else "class"
        selector = {"type": "string", "pattern": DOTTED, "description": f"dotted path of your own {own}"}
        schema = {
            "title": "your own",
            "type": "object",
            "description": self.own_section.__doc__,
            "properties": {self.selector: selector},
            "required": [self.selector],
        }
        last = self._own or Annotated[self.own_section, WithJsonSchema(schema)]
        branches = [Annotated[self.section(name), Tag(name)] for name in self.table]
        branches.append(Annotated[last, Tag(OWN)])
        # The schema does not depend on the discriminator, and nothing is validated by this type.
        return Annotated[Union[tuple(branches)], Discriminator(lambda _: OWN)] if self.table else last  # noqa: UP007


class AnySection:
    """Type of a field that takes any section of a registry."""

    registry: ClassVar[Registry[Any]]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(cls.registry.read)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(TypeAdapter(cls.registry.union()).core_schema)


@cache
def stamped(section: type[BaseModel], selector: str, name: str) -> type[BaseModel]:
    """Subclass of a section whose field `selector` is fixed to `name`.

    Cached, since only instances of the same class compare equal. Instances are pickled by these arguments and their
    state.
    """
    fields: Any = {selector: (Literal[name], name)}
    subclass = create_model(
        section.__name__, __base__=section, __module__=section.__module__, __doc__=section.__doc__, **fields
    )
    subclass.__reduce__ = lambda self: (_restored, (section, selector, name, self.__getstate__()))  # type: ignore[method-assign]
    return subclass


def _restored(section: type[BaseModel], selector: str, name: str, state: Any) -> BaseModel:
    subclass = stamped(section, selector, name)
    instance = subclass.__new__(subclass)
    instance.__setstate__(state)
    return instance


def described(base: type) -> str:
    """Noun phrase for a class derived from `base`, such as "an algorithm" or "a partition scheme"."""
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", base.__name__).lower()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _beginning(place: str) -> str:
    return f"{place}: " if place else ""


def import_object(dotted: str, base: type, what: str, place: str, function: type | None = None) -> type:
    """Imports the user's class at a dotted path such as `my_package.my_module.MyClass`.

    base: class that it must derive from, called `what` in messages. place: key in the file, or empty. function: class
    that is returned if the path names a function; None: functions are refused. Raises UserError.
    """
    candidate = import_named(dotted, place)
    if isinstance(candidate, type) and issubclass(candidate, base):
        return candidate
    if function and callable(candidate) and not isinstance(candidate, type):
        require_own(candidate, dotted, what, place)
        return function
    fix = f"name a class that derives from {base.__name__}{', or a function' if function else ''}"
    raise UserError(f"{_beginning(place)}{dotted!r} is not {what}; {fix}")


def import_named(dotted: str, place: str) -> Any:
    """Imports the user's object at a dotted path. place: key in the file, or empty. Raises UserError."""
    at = _beginning(place)
    module_name, _, attribute = dotted.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in dotted.split(".")):
        raise UserError(f"{at}{dotted!r} is not a dotted path; write one such as my_module.MyClass")
    try:
        candidate = find(dotted)
    except ImportRefusedError as error:
        raise UserError(f"{at}cannot import {dotted!r}: {error}") from None
    except ModuleNotFoundError as error:
        raise UserError(
            f"{at}cannot import {dotted!r}: no module named {error.name!r}; put it into the folder of the experiment "
            "file, or install it"
        ) from None
    except Exception as error:
        raise UserError(f"{at}cannot import {dotted!r}: {failure(error)}; fix it there") from error
    if candidate is None:
        names = dir(sys.modules[module_name])
        raise UserError(f"{at}module {module_name!r} has no {attribute!r}{nearest(attribute, names)}")
    return candidate


def require_own(candidate: Any, dotted: str, what: str, place: str) -> None:
    """Raises UserError if an object is not defined in the user's own code, so that it must not be called."""
    if not is_own(candidate, dotted):
        home = home_of(candidate) or dotted.rpartition(".")[0]
        raise UserError(
            f"{_beginning(place)}{dotted!r} is not {what} of yours, because it is defined in {home!r}; name one in a "
            f"module next to the experiment file, or trust that module with `--import {home}`"
        )


FOREIGN = {
    "learning_rate": "lr",
    "num_rounds": "rounds",
    "num_clients": "clients",
    "n_clients": "clients",
    "fraction_fit": "clients_per_round",
    "fraction": "clients_per_round",
    "fraction_train": "clients_per_round",
    "participation": "clients_per_round",
    "holdout": "client_test_fraction",
    "validation": "upper_level_fraction",
    "local_epochs": "epochs",
    "num_epochs": "epochs",
    "local_steps": "steps",
    "wd": "weight_decay",
    "optimiser": "optimizer",
    "dataset": "data",
    "method": "algorithm",
}
"""Names of keys in other frameworks -> our names."""


def closest(word: str, words: Iterable[str]) -> str | None:
    """Intended word: its translation in `FOREIGN`, or the nearest in spelling, ignoring case; None if there is none."""
    words = list(words)
    if (ours := FOREIGN.get(word.lower().replace("-", "_"))) in words:
        return ours
    spelled = {w.lower(): w for w in words}
    close = get_close_matches(word.lower(), spelled, n=1)
    return spelled[close[0]] if close else None


def nearest(word: str, words: Iterable[str]) -> str:
    """Hint such as `; did you mean 'lr'?` for the word nearest in spelling; empty if there is none."""
    close = closest(word, words)
    return f"; did you mean {close!r}?" if close else ""
