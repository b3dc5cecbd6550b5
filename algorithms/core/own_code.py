"""The user's own code: modules that a dotted path may import, and functions that it may call.

Importing a module runs it. A dotted path imports a module only if it is in the folder of the experiment file, is named
by the user (`--import`), or is part of `LIBRARIES`. Modules that the program has already imported are looked up. A
function or a class is called only if it is defined in the user's own code, or if it is of the class that its key needs.
"""

import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARIES = ("hedgerow", "torch", "torchvision", "torchmetrics", "timm", "transformers")
"""Packages that have classes for experiments, such as `torchvision.models.ResNet`: they need no `--import`."""

FOR_FILES = ("hedgerow.searchspaces.extra.papers.referee_parts",)
"""Modules of this package with functions that the files of published tables name."""

INSTALLED = {"site-packages", "dist-packages"}
"""Names of the folders of installed packages."""

DEFINED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
"""Types of objects that know the module in which they are defined."""


GIVEN = re.compile(r"given\.(data|source|model|algorithm)\.(\w+)")
"""Names of objects that a Python program has passed to this package, as files of its runs have them."""

GIVEN_DATA = "given.data."
"""Beginning of the names of data; the names of code end in its hash."""


class ImportRefusedError(ValueError):
    """A dotted path that must not be imported; the message is a sentence with the fix."""


@dataclass
class OwnCode:
    """Code that the user has named in this process.

    folders: of the experiment files. modules: named by the user, together with all modules in them. is_program: whether
    the user's own Python program runs, whose import path names code as well. found: folders on this path in which
    modules were found. given: objects that the program has passed, by their names in files.
    """

    folders: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    is_program: bool = True
    found: tuple[str, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)

    def add(self, folders: Iterable[str | Path] = (), modules: Iterable[str] = ()) -> None:
        """Add folders of experiment files, and modules that the user has named."""
        paths = [os.path.normpath(Path(folder).absolute()) for folder in folders]
        self.folders = tuple(dict.fromkeys([*self.folders, *paths]))
        self.modules = tuple(dict.fromkeys([*self.modules, *modules]))

    def names(self, module: str) -> bool:
        """Whether the user has named the module, or a package around it."""
        return any(module == named or module.startswith(f"{named}.") for named in (*self.modules, *FOR_FILES))

    def has(self, place: str) -> bool:
        """Whether a file is the user's: in a folder of an experiment, or on the import path of the user's program."""
        return not is_installed(place) and (self.is_program or any(map(partial(_is_in, place), self.folders)))


_own = OwnCode()
_appended: set[str] = set()
"""Folders of experiments that were added to the import path."""


def own_code() -> OwnCode:
    """Code that the user has named in this process."""
    return _own


def enter_folders(folders: Iterable[str | Path]) -> None:
    """Replace the folders of earlier experiments."""
    _own.folders = _own.found = ()
    _own.add(folders)


@contextmanager
def command_line() -> Iterator[None]:
    """For the duration of a command, its files and options alone name code."""
    before = vars(_own).copy()
    vars(_own).update(vars(OwnCode(is_program=False)))
    try:
        yield
    finally:
        vars(_own).update(before)


def find(dotted: str) -> Any:
    """The object at a dotted path, None if its module has none of this name.

    Raises ImportRefusedError, or what the import of the module raises.
    """
    if GIVEN.fullmatch(dotted):
        return _given(dotted)
    name, _, attribute = dotted.rpartition(".")
    return getattr(_module(name), attribute, None)


def _given(dotted: str) -> Any:
    """An object that the program has passed. Data that are missing here fail where they are loaded."""
    if dotted in _own.given:
        return _own.given[dotted]
    kind, name = GIVEN.fullmatch(dotted).groups()  # type: ignore[union-attr]
    if kind == "data":
        return _missing_data
    key = "data" if kind == "source" else kind
    same = [other for other in _own.given if other.rpartition("_")[0] == dotted.rpartition("_")[0]]
    is_other = "; the one that was passed has other code" if same else ""
    raise ImportRefusedError(
        f"it was passed as `{key}=`{is_other}; pass the same one again, as in "
        f"`hedgerow.resume(folder, {key}={name.rpartition('_')[0]})`"
    )


def _missing_data() -> Any:
    """Stands for data in a process that does not load them."""
    raise ImportRefusedError(
        "the data were passed as `data=`; pass them again, as in `hedgerow.resume(folder, data=...)`"
    )


def is_own(candidate: Any, dotted: str) -> bool:
    """Whether the object at a dotted path is defined in the user's own code, or was passed by the user's program."""
    return bool(GIVEN.fullmatch(dotted)) or _is_own_module(home_of(candidate) or dotted.rpartition(".")[0])


def home_of(candidate: Any) -> str | None:
    """Module in which a function or a class is defined; None for other objects."""
    if isinstance(candidate, partial):
        return home_of(candidate.func)
    if not isinstance(candidate, DEFINED):
        # A function that is wrapped, as by `functools.cache`, has the module of the function.
        return getattr(candidate, "__dict__", {}).get("__module__")
    return getattr(candidate, "__module__", None) or type(getattr(candidate, "__self__", None)).__module__


def _is_own_module(name: str) -> bool:
    """Whether a module that is imported is the user's: only the user's own code can have imported it."""
    if _own.names(name):
        return True
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return module is not None and not all(map(is_installed, _places(name, spec) or _places_of(module)))


def _is_in(place: str, folder: str) -> bool:
    paths = (place, folder), (os.path.realpath(Path(place).parent), os.path.realpath(folder))
    return any(Path(path).is_relative_to(around) for path, around in paths)


def is_installed(place: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    if INSTALLED & set(Path(place).parts):
        return True
    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    return any(os.path.realpath(place).startswith(folder + os.sep) for folder in standard)


def _places(name: str, spec: ModuleSpec | None) -> list[str]:
    """File of a module that may be the user's, or the folders of a package without `__init__`."""
    if spec is None or name.partition(".")[0] in {*LIBRARIES, *sys.stdlib_module_names}:
        return []
    if spec.has_location and spec.origin:
        return [str(Path(spec.origin).absolute())]
    return [str(Path(place).absolute()) for place in spec.submodule_search_locations or ()]


def _places_of(module: ModuleType) -> list[str]:
    """File of a module without a specification, such as a script or a notebook."""
    is_script = module.__name__ == "__main__" and getattr(module, "__spec__", None) is None
    return [str(Path(getattr(module, "__file__", None) or "notebook").absolute())] if is_script else []


def _module(name: str) -> ModuleType:
    top = name.partition(".")[0]
    if "__main__" in name.split(".")[1:]:
        raise ImportRefusedError(f"{name!r} is a program; name a module without `__main__`")
    spec = _spec(top)
    searched = [*_own.folders, *([str(Path.cwd())] if _own.names(name) else [])]
    files = {folder: file for folder in searched if (file := _file(top, folder) or _file(name, folder))}
    home = next(iter(files), None)
    is_new = home not in sys.path and (spec is None or spec.origin is None)
    if home and name not in sys.modules and (is_new or home in _appended):
        # Last, so that no module of the folder takes the place of an installed one, but before other experiments.
        earlier = [folder for folder in sys.path if folder in _appended and folder != home]
        sys.path[:] = [*(folder for folder in sys.path if folder not in {home, *earlier}), home, *earlier]
        _appended.add(home)
        spec = _spec(top)
    if spec is None and top not in sys.modules:
        if _file(top, str(Path.cwd())) or _file(name, str(Path.cwd())):
            raise ImportRefusedError(_refusal(name))
        raise ModuleNotFoundError(f"No module named {top!r}", name=top)
    _refuse_two(top, spec, [file for folder in files if (file := _file(top, folder))])
    for folder in files:
        _refuse_borrowed(name, folder)
    _note_folder(top, spec)
    if name in sys.modules:
        return sys.modules[name]
    if _own.names(name) or top in LIBRARIES:
        return import_module(name)
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        prefix = ".".join(parts[:end])
        found = spec if end == 1 else find_spec(prefix)
        if found is None:
            raise ModuleNotFoundError(f"No module named {prefix!r}", name=prefix)
        if not any(map(_own.has, _places(prefix, found))):
            raise ImportRefusedError(_refusal(name))
        import_module(prefix)
    return sys.modules[name]


def _note_folder(top: str, spec: ModuleSpec | None) -> None:
    """Note where a module of the user's program is, for a command that resumes its run."""
    for place in filter(_own.has, _places(top, spec)):
        is_package = Path(place).name == "__init__.py"
        folder = str(Path(place).parents[1 if is_package else 0])
        _own.found = tuple(dict.fromkeys([*_own.found, folder]))


def _file(name: str, folder: str) -> str | None:
    """File of a module in a folder, also in folders without `__init__`."""
    *packages, last = name.split(".")
    spec = PathFinder.find_spec(last, [str(Path(folder, *packages))])
    return spec.origin if spec and spec.has_location else None


def _spec(top: str) -> ModuleSpec | None:
    """Where Python finds a module of the top level, without importing it; None also for a script."""
    try:
        return find_spec(top)
    except ValueError:
        return None


def _refuse_two(top: str, spec: ModuleSpec | None, files: list[str]) -> None:
    """Raises ImportRefusedError if Python imports another module under the name of one next to an experiment file."""
    if not files:
        return
    # A script has no specification, a module that is built in has no file.
    actual = spec.origin if spec and spec.has_location and spec.origin else f"Python's own {top!r}"
    is_earlier = any(_is_in(actual, folder) for folder in _appended - set(_own.folders))
    both = [*files, actual] if is_earlier or not _own.has(actual) else files
    others = [one for one in both if os.path.realpath(one) != os.path.realpath(files[0])]
    if others:
        raise ImportRefusedError(f"there are two modules {top!r}, {files[0]} and {others[0]}; rename the first one")


def _refuse_borrowed(name: str, folder: str) -> None:
    """Raises ImportRefusedError if the code of an experiment would get a module next to another experiment under the
    name of one in its own folder. name: of the module to import; one that was imported before has its own modules.
    """
    tops = {entry.stem for entry in Path(folder).iterdir()}
    # A copy: another thread may import something meanwhile, as MLflow.
    loaded_names = [name] if name in sys.modules else list(sys.modules)
    for one in (one for one in loaded_names if one.partition(".")[0] in tops):
        mine, loaded = _file(one, folder), getattr(sys.modules.get(one), "__file__", None)
        if not mine or not loaded or os.path.realpath(mine) == os.path.realpath(loaded):
            continue
        if any(_is_in(loaded, other) for other in _appended - {folder}):
            raise ImportRefusedError(f"there are two modules {one!r}, {mine} and {loaded}; rename the first one")


def _refusal(name: str) -> str:
    folders = " or ".join(_own.folders) or "the folder of an experiment file"
    return (
        f"{name!r} is not a module in {folders}, and importing it would run it; if you trust it, name it with "
        f"`--import {name}`"
    )
