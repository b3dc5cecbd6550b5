"""Data, models and algorithms that a Python program passes as objects: they get names, which files of runs can have.

The name of code ends in its hash, so that a resumed run and other processes find the same code under its name, or none.
Data have no hash in their names: run.json has one of their content.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.own_code import GIVEN_DATA, own_code
from hedgerow.platform.common.code_hash import code_hash
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data import Partition
from hedgerow.platform.data.sources.data_function import has_clients
from hedgerow.platform.data.sources.source import Source

Sections = dict[str, dict[str, Any]]
"""Sections of an experiment file that name passed objects: `data`, `model` and `algorithm`, and `partition`."""


def passed_sections(data: Any = None, model: Any = None, algorithm: Any = None) -> Sections:
    """Give passed objects their names in this process; None: not passed. Forgets earlier data. Raises UserError.

    Forgets earlier code, too, that is no longer the code of its name: a global variable that it reads has changed.
    """
    sections: Sections = {}
    code = {name: one for name, one in own_code().given.items() if not name.startswith(GIVEN_DATA)}
    own_code().given = {name: one for name, one in code.items() if name.rpartition("_")[2] == code_hash(one)}
    if data is not None:
        sections["data"] = {"name": _name_of_data(data)}
        if has_clients(data):
            sections["partition"] = {"kind": "natural"}
    if model is not None:
        if isinstance(model, nn.Module) or not callable(model):
            raise UserError(
                f"model=: {type(model).__name__} is an object; pass a class, or a function that builds the module, "
                "such as `model=lambda: Net(width=4)`: each process builds it anew, with parameters from the seed"
            )
        sections["model"] = {"name": _enter("model", model)}
    if algorithm is not None:
        kind = algorithm if isinstance(algorithm, type) else type(algorithm)
        if not issubclass(kind, Algorithm):
            raise UserError(
                f"algorithm=: {_label(algorithm)} is not an algorithm; pass a class that derives from Algorithm"
            )
        built_in = {path: name for name, path in ALGORITHMS.items()}.get(f"{kind.__module__}:{kind.__qualname__}")
        values = {} if kind is algorithm else algorithm.hyper.model_dump(mode="json")
        sections["algorithm"] = {**values, "name": built_in or _enter("algorithm", kind)}
    return sections


def with_passed(values: dict[str, Any], sections: Sections) -> dict[str, Any]:
    """Values of an experiment file that name the passed objects. A section that names something else is replaced."""

    def merged(before: Any, entry: dict[str, Any]) -> dict[str, Any]:
        keeps = isinstance(before, Mapping) and before.get("name", entry["name"]) == entry["name"]
        return {**(before if keeps else {}), **entry}

    task = values.get("task") or {}
    if not isinstance(task, Mapping):
        return values
    task = {key: sections[key] for key in ("partition",) if key in sections} | dict(task)
    for key in sections.keys() & {"data", "model"}:
        task[key] = merged(task.get(key), sections[key])
    others = {key: merged(values.get(key), entry) for key, entry in sections.items() if key == "algorithm"}
    return {**values, "task": task, **others}


def _name_of_data(data: Any) -> str:
    """Name of data: of a function, a class, or arrays in any form that a data function may return."""
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Partition):
        data = data[0]
    if isinstance(data, type):
        if not issubclass(data, Source):
            raise UserError(f"data=: {data.__name__} is not a source; pass arrays, a torch Dataset, or a function")
        return _enter("source", data)
    is_function = callable(data) and not hasattr(data, "__getitem__")
    name = f"{GIVEN_DATA}{_label(data) if is_function else 'arrays'}"
    own_code().given[name] = data if is_function else lambda: data
    return name


def _enter(kind: str, code: Any) -> str:
    name = f"given.{kind}.{_label(code)}_{code_hash(code)}"
    own_code().given[name] = code
    return name


def _label(code: Any) -> str:
    """Name of a class or a function, `function` for one without a name."""
    name = getattr(code, "__name__", type(code).__name__)
    return name if name.isidentifier() else "function"
