"""Intermediate features of models."""

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.task import Params, Task, with_frozen
from hedgerow.algorithms.core.torch_private import call, submodules


class Features(NamedTuple):
    """Features and logits of samples.

    maps: one feature map (samples, C, H, W) per stage, the last one before pooling; empty if the model exposes none.
    features: inputs of the last layer, (samples, width); width 0 if the model does not expose them.
    """

    maps: list[Tensor]
    features: Tensor
    logits: Tensor


def extract_features(task: Task, w: Params, x: Tensor) -> Features:
    """Computes the features of prepared samples. A module whose attribute `shows_inside` is true returns (maps,
    features, logits) from `forward(x, inside=True)`; if its attribute `rectified` is true, no entry of the maps is
    negative.
    """
    if getattr(task.module, "shows_inside", False):
        return Features(*call(task.module, w, x, inside=True))
    last = head(task.module)
    if last is None:
        logits = task.logits(w, x)
        return Features([], logits[:, :0], logits)
    name = f"{len(task.module) - 1}"  # type: ignore[arg-type]
    features = embedded(task.module, w, x, "features")
    params = with_frozen(task.module, w)
    return Features([], features, F.linear(features, params[f"{name}.weight"], params.get(f"{name}.bias")))


def teacher_features(task: Task, x: Tensor) -> Features:
    """Computes the features of prepared samples with the task's trained teacher."""
    assert task.teacher is not None
    with torch.no_grad():
        return extract_features(task.teacher_task, dict(task.teacher.named_parameters()), x)


def shapes(task: Task) -> Features:
    """Features of two samples of zeros at the initial parameters, used for their shapes."""
    with torch.no_grad():
        raw = torch.zeros(2, *task.sample_shape, device=next(task.module.parameters()).device)
        return extract_features(task, task.init(), raw.long() if task.mean is None else raw)


def embedded(module: nn.Module, w: Params, x: Tensor, layer: str) -> Tensor:
    """Returns a model's output on prepared samples, or its features, which are the inputs of its last layer."""
    if layer == "output":
        return call(module, w, x)
    assert isinstance(module, nn.Sequential)
    # module[:-1] would call the constructor of a subclass.
    body = nn.Sequential(OrderedDict(submodules(module)[:-1]))
    return call(body, w, x)


def head(module: nn.Module) -> nn.Linear | None:
    """Returns the last layer of a torch.nn.Sequential that ends in a linear layer; None for other modules."""
    last = module[-1] if isinstance(module, nn.Sequential) else None
    return last if isinstance(last, nn.Linear) else None
