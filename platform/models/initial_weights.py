"""Initial parameters from a file, and frozen parts of a model."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from hashlib import file_digest
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hedgerow.platform.common.errors import UserError

SAFETENSORS = ".safetensors"


def load_weights(module: nn.Module, file: Path) -> str:
    """Loads a state dict into a module, and returns the SHA-256 of the file. Raises UserError if it does not fit."""
    given, wanted = _read(file), module.state_dict()
    kind = type(module).__name__
    if missing := [name for name in wanted if name not in given]:
        raise UserError(f"task.model.init: {file} has no {_first(missing)}, which {kind} has; add what is missing")
    if unexpected := [name for name in given if name not in wanted]:
        raise UserError(f"task.model.init: {file} has {_first(unexpected)}, which {kind} does not have; remove it")
    if misfits := [name for name in wanted if given[name].shape != wanted[name].shape]:
        shapes = f"{tuple(given[misfits[0]].shape)}, not {tuple(wanted[misfits[0]].shape)} as in {kind}"
        raise UserError(f"task.model.init: {file} has {_first(misfits)} of shape {shapes}; give one that fits")
    module.load_state_dict(given)
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def _read(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise UserError(f"task.model.init: there is no file {file}; give the path of a state dict")
    try:
        values = load_file(file) if file.suffix == SAFETENSORS else torch.load(file, "cpu", weights_only=True)
    except Exception:  # damaged files and pickled modules raise errors of many kinds, whose text is no help
        raise UserError(
            f"task.model.init: {file} cannot be read as a dictionary of tensors; save `module.state_dict()` with "
            "torch.save or safetensors"
        ) from None
    if not isinstance(values, dict) or not all(isinstance(value, Tensor) for value in values.values()):
        raise UserError(f"task.model.init: {file} is not a dictionary of tensors; save `module.state_dict()`")
    return values


def freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Freezes the parameters whose names match a pattern. Raises UserError for a pattern that matches none."""
    names = dict(module.named_parameters())
    for pattern in patterns:
        chosen = [name for name in names if fnmatchcase(name, pattern)]
        if not chosen:
            raise UserError(
                f"task.model.freeze: {pattern!r} matches no parameter of {type(module).__name__}, which has "
                f"{_first(list(names))}; correct the pattern"
            )
        for name in chosen:
            names[name].requires_grad_(False)


def _first(names: list[str]) -> str:
    """The first names of a list, and how many others there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more
