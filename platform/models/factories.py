"""Functions of model libraries that an experiment file may call by their dotted path."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hedgerow.platform.common.registry import require_own

FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Variable that makes `torch.load` refuse pickled objects, whatever its caller wants."""


def require_factory(candidate: Any, dotted: str, place: str) -> None:
    """Raises UserError if an object that is not the user's own is not a function that torchvision or timm lists."""
    if not _is_listed(candidate):
        require_own(candidate, dotted, "a model", place)


def _is_listed(candidate: Any) -> bool:
    """Whether an object is a function that torchvision or timm lists as a model, or timm's `create_model`."""
    name = getattr(candidate, "__name__", "")
    known: list[Any] = []
    if (models := sys.modules.get("torchvision.models")) is not None:
        known += [models.get_model_builder(one) for one in models.list_models() if one.endswith(name)]
    if (timm := sys.modules.get("timm")) is not None:
        known += [timm.create_model, *([timm.model_entrypoint(name)] if timm.is_model(name) else [])]
    return any(candidate is one for one in known)


@contextmanager
def safe_weights() -> Iterator[None]:
    """Files with pickled objects are not loaded: the arguments of a model may name files of weights."""
    before = os.environ.get(FORCED)
    os.environ[FORCED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FORCED]
        else:
            os.environ[FORCED] = before
