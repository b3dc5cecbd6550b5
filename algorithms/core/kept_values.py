"""Values that an object keeps outside of the states of server and clients, where no checkpoint finds them."""

import random
import sys
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def kept_values(owner: Any) -> dict[str, Any]:
    """Returns images of an object's attributes, of the attributes of its classes that are the user's, and of the random
    generators in their modules, by name.

    An image changes with a number, a text, an array, a collection of these, or a generator, and where another object
    takes the place of one. Values of `cached_property` are left out.
    """
    kinds = [kind for kind in type(owner).__mro__ if not kind.__module__.startswith(("hedgerow.", "builtins"))]
    every: dict[str, Any] = {}
    for kind in reversed(kinds):
        module = getattr(sys.modules.get(kind.__module__), "__dict__", {})
        every |= {name: value for name, value in module.items() if isinstance(value, GENERATORS)}
        every |= {name: value for name, value in vars(kind).items() if not name.startswith("__")}
    every |= vars(owner)
    attributes = [pair for kind in type(owner).__mro__ for pair in vars(kind).items()]
    computed = {name for name, attribute in attributes if isinstance(attribute, cached_property)}
    return {name: _image(value) for name, value in every.items() if name not in computed}


def _image(value: Any, depth: int = 4) -> Any:
    """depth: of collections within collections that are looked into."""
    if isinstance(value, Mapping) and depth:
        return {str(key): _image(one, depth - 1) for key, one in value.items()}
    if isinstance(value, list | tuple | set | deque) and depth:
        return [_image(one, depth - 1) for one in value]
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return id(value), _digest(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return id(value), _digest(np.ascontiguousarray(value))
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, random.Random):
        return value.getstate()
    return repr(value) if isinstance(value, str | int | float | None) else id(value)


def _digest(array: np.ndarray) -> bytes:
    return sha256(array.data).digest()
