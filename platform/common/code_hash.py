"""Hash of the code of a class or a function, by which a later process finds the same one again.

It covers the bytecode, the default values, the variables that the code refers to, and the user's own functions and
classes among them. It covers neither the file, the lines and the comments, nor the code of installed packages.
"""

import dis
import functools
import hashlib
import logging
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hedgerow.algorithms.core.own_code import is_installed

LENGTH = 8
"""Number of hexadecimal digits."""

PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))

GENERATED = re.compile(r"__(module|qualname|dict|weakref|doc|firstlineno|static_attributes|pydantic_\w+)__")
"""Names of class attributes that Python or pydantic makes."""


def code_hash(code: Any) -> str:
    """Returns a short SHA-256 of a class, a function, or an object with a function, such as a `functools.partial`."""
    digest = hashlib.sha256()
    for token in _tokens(code, {}):
        digest.update(token + b"\0")
    return digest.hexdigest()[:LENGTH]


def _tokens(value: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[bytes]:
    """Parts of the hash. seen: number of each object that is covered already, and the object, by its identity."""
    if isinstance(value, PLAIN):
        yield f"{type(value).__name__} {value!r}".encode()
        return
    if id(value) in seen:
        yield f"again {seen[id(value)][0]}".encode()
        return
    # Python may or may not share equal constants.
    if not isinstance(value, tuple | frozenset):
        seen[id(value)] = len(seen), value
    yield type(value).__name__.encode()
    for part in _parts(value):
        yield from _tokens(part, seen)
    yield b"end"


def _parts(value: Any) -> Iterator[Any]:
    """Values that determine an object."""
    if isinstance(value, types.CodeType):
        yield from (value.co_code, value.co_names, value.co_varnames, value.co_freevars, value.co_consts)
    elif isinstance(value, types.FunctionType | types.BuiltinFunctionType | type) and _is_foreign(value):
        yield from (value.__module__, value.__qualname__)
    elif isinstance(value, types.FunctionType):
        yield from (value.__code__, value.__defaults__, value.__kwdefaults__)
        # A cell is empty where a function refers to a name that is not bound yet.
        yield [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        yield {name: value.__globals__[name] for name in _globals(value.__code__) if name in value.__globals__}
    elif isinstance(value, type):
        yield from (value.__name__, value.__bases__, getattr(value, "model_fields", None))
        yield {name: one for name, one in vars(value).items() if not GENERATED.fullmatch(name)}
    elif isinstance(value, types.ModuleType):
        yield value.__name__
    elif isinstance(value, np.ndarray) or hasattr(value, "detach"):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        yield from (str(array.dtype), array.shape, array.tobytes())
    elif isinstance(value, Mapping):
        yield from (part for key in sorted(value, key=repr) for part in (key, value[key]))
    elif isinstance(value, set | frozenset):
        yield from sorted(value, key=repr)
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, logging.Logger):
        yield value.name
    else:
        yield type(value)
        # Without addresses.
        yield getattr(value, "__dict__", None) or re.sub(r"0x[0-9a-fA-F]+", "", repr(value))


def _is_foreign(code: Any) -> bool:
    """Whether a class or a function is part of Python, of this package or of an installed one."""
    module = str(code.__module__)
    # A script, a notebook or an interactive session.
    if module == "__main__":
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return module.partition(".")[0] in ("hedgerow", *sys.stdlib_module_names) or (
        file is not None and is_installed(file)
    )


def _globals(code: types.CodeType) -> set[str]:
    """Names of the global variables that a function reads, in its inner functions and classes, too."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_globals(one) for one in code.co_consts if isinstance(one, types.CodeType)))
