"""What models make of samples on their way to the logits."""

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.task import Params, Task, with_frozen
from hedgerow.algorithms.core.torch_private import submodules


class Features(NamedTuple):
    """maps: a feature map (samples, C, H, W) per stage, the last one not pooled yet; none of models that show none.
    features: what the last layer is given, (samples, width); of models that do not show it, with width 0.
    """

    maps: list[Tensor]
    features: Tensor
    logits: Tensor


def extract_features(task: Task, w: Params, x: Tensor) -> Features:
    """Of prepared samples. A module shows it where its attribute `shows_inside` is true: `forward(x, inside=True)`
    returns (maps, features, logits); where its attribute `rectified` is true, no entry of the maps is negative.
    """
    if getattr(task.module, "shows_inside", False):
        return Features(*functional_call(task.module, w, (x,), {"inside": True}))
    last = head(task.module)
    if last is None:
        logits = task.logits(w, x)
        return Features([], logits[:, :0], logits)
    name = f"{len(task.module) - 1}"  # type: ignore[arg-type]
    features = embedded(task.module, w, x, "features")
    params = with_frozen(task.module, w)
    return Features([], features, F.linear(features, params[f"{name}.weight"], params.get(f"{name}.bias")))


def teacher_features(task: Task, x: Tensor) -> Features:
    """What the task's teacher, which has learnt already, makes of prepared samples."""
    assert task.teacher is not None
    with torch.no_grad():
        return extract_features(task.teacher_task, dict(task.teacher.named_parameters()), x)


def shapes(task: Task) -> Features:
    """The same of two samples of zeros at the initial parameters, for what is built to fit."""
    with torch.no_grad():
        raw = torch.zeros(2, *task.sample_shape, device=next(task.module.parameters()).device)
        return extract_features(task, task.init(), raw.long() if task.mean is None else raw)


def embedded(module: nn.Module, w: Params, x: Tensor, layer: str) -> Tensor:
    """What a model makes of prepared samples: its output, or its features, which its last layer is given."""
    if layer == "output":
        return functional_call(module, w, (x,))
    assert isinstance(module, nn.Sequential)
    # Not module[:-1], which calls the constructor of a class of its own.
    body = nn.Sequential(OrderedDict(submodules(module)[:-1]))
    return functional_call(body, {name: w[name] for name, _ in body.named_parameters() if name in w}, (x,))


def head(module: nn.Module) -> nn.Linear | None:
    """The last layer, where it is known what it is given: of a torch.nn.Sequential that ends in a linear layer."""
    last = module[-1] if isinstance(module, nn.Sequential) else None
    return last if isinstance(last, nn.Linear) else None
