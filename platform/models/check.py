"""What a module may hold to be trained in a client step."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from hedgerow.algorithms.static_norm import is_static
from hedgerow.platform.errors import UserError

STATISTICS = "batch norm takes the statistics of mini-batches, which are padded under vmap"

RECURRENT = "torch's recurrent kernels have no batching rule: under vmap they fall back to a slow loop"


def check_module(module: nn.Module) -> str | None:
    """Why a module cannot be batched over clients, so that they take turns; None when it can.

    A module says so itself by its attribute `no_vmap`, a reason or None; without it, recurrent layers are the reason.
    Raises UserError for layers that have no place in a client step at all. A step is a pure function of parameters and
    data, so it keeps no running statistics; its mini-batches are padded, so no sample may depend on the others; its
    randomness comes from keyed hashes, never from a global generator.
    """
    for name, layer in module.named_modules():
        place = f"task.model: the {type(layer).__name__}{f' at {name}' if name else ''}"
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.track_running_stats):
            raise UserError(
                f"{place} keeps statistics of batches, which have no place in a client step; use GroupNorm instead"
            )
        if _draws(layer):
            raise UserError(
                f"{place} draws from a global generator, so runs would not repeat; set its probability to 0"
            )
    if hasattr(module, "no_vmap"):
        return module.no_vmap  # type: ignore[return-value]
    if is_static(module):
        return STATISTICS
    return RECURRENT if any(isinstance(layer, nn.RNNBase) for layer in module.modules()) else None


def _draws(layer: nn.Module) -> bool:
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    # These apply their dropout as a function, without a layer for it.
    return isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and layer.dropout > 0
