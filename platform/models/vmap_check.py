"""Whether a module can be batched over clients, and whether it stays the same during a run."""

import json
from collections.abc import Iterable
from hashlib import sha256

import torch
from torch import Tensor, nn

from hedgerow.algorithms.core.static_batch_norm import is_static
from hedgerow.platform.common.errors import UserError

STATISTICS = "batch norm uses statistics of mini-batches, which are padded under vmap"

SCRIPTED = "it is not known whether the functions in TorchScript have the right gradients for several clients at once"

FREQUENCIES = "the frequencies of an embedding with scale_grad_by_freq would contain the padding of mini-batches"

RECURRENT = "torch's recurrent kernels have no batching rule: under vmap they fall back to a slow loop"


def vmap_reason(module: nn.Module) -> str | None:
    """Reason why a module cannot be batched over clients, so that they take turns; None if it can, as far as is known.

    A module may state it by its attribute `no_vmap`, a reason or None; without it, static batch norm,
    TorchScript, frequencies of an embedding and recurrent layers are reasons.
    """
    if hasattr(module, "no_vmap"):
        return module.no_vmap  # type: ignore[return-value]
    if is_static(module):
        return STATISTICS
    if any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules()):
        return SCRIPTED
    if any(getattr(layer, "scale_grad_by_freq", False) for layer in module.modules()):
        return FREQUENCIES
    return RECURRENT if any(isinstance(layer, nn.RNNBase) for layer in module.modules()) else None


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """SHA-256 of the names, types, shapes and bytes of tensors; None if there are none."""
    digest, has_tensors = sha256(), False
    for name, tensor in tensors:
        has_tensors = True
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest() if has_tensors else None


def constants(module: nn.Module, digest: str | None = None) -> str | None:
    """Fingerprint of the frozen parameters and buffers of a module; None if it has none.

    digest: hash of the file of its initial parameters, which is then part of the fingerprint.
    """
    frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
    file = [("init", torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8))] if digest else []
    return fingerprint([*frozen, *module.named_buffers(), *file])


def compare_constants(module: nn.Module, expected: str | None) -> None:
    """Compares the constants of a newly built model with those of its run. expected: None if they are unknown.

    A module that a problem wraps around the model has none to compare. Raises UserError if they differ.
    """
    if expected and getattr(module, "constants", expected) != expected:
        raise UserError(
            f"task.model: the frozen parameters or buffers of {type(module).__name__} differ from those at the "
            "start of the run, or the file of `init` does; draw them from torch's generator, which is seeded, or load "
            "them from a file that does not change"
        )
