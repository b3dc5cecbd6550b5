"""Checks that a module can be trained in a client step."""

import json
from collections.abc import Iterable
from hashlib import sha256

import torch
from torch import Tensor, nn

from hedgerow.algorithms.core.static_batch_norm import is_static
from hedgerow.algorithms.core.torch_private import BATCH_NORMS, DROPOUTS, TRACKING_NORMS
from hedgerow.platform.common.errors import UserError

STATISTICS = "batch norm uses statistics of mini-batches, which are padded under vmap"

RECURRENT = "torch's recurrent kernels have no batching rule: under vmap they fall back to a slow loop"


def check_module(module: nn.Module) -> str | None:
    """Reason why a module cannot be batched over clients, so that they take turns; None if it can.

    A module may state it by its attribute `no_vmap`, a reason or None; without it, static batch norm and recurrent
    layers are reasons. Raises UserError for layers that are not possible in any client step. A step is a pure function
    of parameters and data, so it keeps no running statistics; its mini-batches are padded, so no sample may depend on
    the others; its randomness comes from keyed hashes, never from a global generator.
    """
    for name, layer in module.named_modules():
        place = f"task.model: the {type(layer).__name__}{f' at {name}' if name else ''}"
        if isinstance(layer, BATCH_NORMS) or (isinstance(layer, TRACKING_NORMS) and layer.track_running_stats):
            raise UserError(
                f"{place} keeps statistics of batches, which a client step cannot have; use GroupNorm instead"
            )
        if _draws(layer):
            raise UserError(
                f"{place} draws from a global generator, so runs would not be reproducible; set its probability to 0"
            )
    if hasattr(module, "no_vmap"):
        return module.no_vmap  # type: ignore[return-value]
    if is_static(module):
        return STATISTICS
    return RECURRENT if any(isinstance(layer, nn.RNNBase) for layer in module.modules()) else None


def _draws(layer: nn.Module) -> bool:
    if isinstance(layer, DROPOUTS):
        return bool(layer.p)
    # These layers apply dropout as a function, without a layer for it.
    return isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and layer.dropout > 0


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """SHA-256 of the names, types, shapes and bytes of tensors; None if there are none."""
    digest, has_tensors = sha256(), False
    for name, tensor in tensors:
        has_tensors = True
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest() if has_tensors else None


def constants(module: nn.Module) -> str | None:
    """Fingerprint of the frozen parameters and buffers of a module; None if it has none."""
    frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
    return fingerprint([*frozen, *module.named_buffers()])


def compare_constants(module: nn.Module, expected: str | None) -> None:
    """Compares the constants of a newly built model with those of its run. expected: None if they are unknown.

    A module that a problem wraps around the model has none to compare. Raises UserError if they differ.
    """
    if expected and getattr(module, "constants", expected) != expected:
        raise UserError(
            f"task.model: the frozen parameters or buffers of {type(module).__name__} differ from those at the "
            "start of the run; draw them from torch's generator, which is seeded, or load them from a file that "
            "does not change"
        )
