"""Values that an object keeps outside of the states of server and clients, where no checkpoint finds them."""

import pickle
import random
import sys
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


def kept_values(owner: Any) -> dict[str, Any]:
    """Returns images of an object's attributes, of those of the user's classes that it is of, and of generators in the
    modules of these, by name. A change of a value changes its image. Values that are computed once are left out.
    """
    kinds = [kind for kind in type(owner).__mro__ if not kind.__module__.startswith(("hedgerow.", "builtins"))]
    every: dict[str, Any] = {}
    for kind in reversed(kinds):
        module = getattr(sys.modules.get(kind.__module__), "__dict__", {})
        every |= {name: value for name, value in module.items() if isinstance(value, (*GENERATORS, torch.Generator))}
        every |= {name: value for name, value in vars(kind).items() if not name.startswith("__")}
    every |= vars(owner)
    computed = {name for kind in type(owner).__mro__ for name, one in vars(kind).items() if _is_computed(one)}
    return {name: _image(value) for name, value in every.items() if name not in computed}


def _is_computed(attribute: Any) -> bool:
    return isinstance(attribute, cached_property)


def _image(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _image(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | deque):
        return [_image(one) for one in value]
    if isinstance(value, Tensor):
        return id(value), repr((value.shape, value.sum(), value.flatten()[:1]))
    if isinstance(value, np.ndarray):
        return id(value), value.tobytes()
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, GENERATORS):
        return pickle.dumps(value)
    return repr(value) if isinstance(value, str | int | float | None) else id(value)
