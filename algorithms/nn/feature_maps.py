"""Feature maps of two models: matching their sizes, their distance, models that reuse another's last layer."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d, is_static
from hedgerow.algorithms.core.task import Params, Task, drawn
from hedgerow.algorithms.nn.features import Features, shapes

Norm = Callable[[int], nn.Module]


def feature_map_incompatibility(name: str, student: Task, teacher: Task) -> str | None:
    """Returns an error message if the feature maps of the models cannot be matched, else None."""
    if isinstance(student.module, ReusedClassifier) or (shapes(student).maps and shapes(teacher).maps):
        return None
    return (
        f"task.model: {name} matches feature maps, which student or teacher does not expose; choose resnet, "
        "preact_resnet, shufflenet_v2 or mobilenet_v2 for both"
    )


def is_rectified(task: Task) -> bool:
    """Whether all entries of a model's feature maps are non-negative because they are outputs of a ReLU, as declared by
    its attribute `rectified`; without the attribute, False.
    """
    return getattr(task.module, "rectified", False)


def convolution(
    inputs: int, outputs: int, kernel: int = 1, padding: int = 0, norm: Norm = StaticBatchNorm2d
) -> list[nn.Module]:
    """Convolution, norm and ReLU."""
    return [nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False), norm(outputs), nn.ReLU()]


def norm_of(module: nn.Module) -> Norm:
    """Norm of a model: static batch norm, or GroupNorm with its number of groups if that divides the channels."""
    if is_static(module):
        return StaticBatchNorm2d
    groups = next((layer.num_groups for layer in module.modules() if isinstance(layer, nn.GroupNorm)), 1)
    return lambda channels: nn.GroupNorm(math.gcd(groups, channels), channels)


def match_resolution(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Averages both maps down to the smaller resolution."""
    size = min(student.shape[-1], teacher.shape[-1])
    return tuple(F.adaptive_avg_pool2d(one, size) for one in (student, teacher))  # type: ignore[return-value]


# ---- a student with its teacher's last layer -------------------------------------------------------------------------

STUDENT, HEAD = "student.", "head."
"""Prefixes of the parameter names of the student and of the last layer."""


class Fixed(nn.Module):
    """A linear layer that is not trained."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.register_buffer("weight", torch.zeros(outputs, inputs))
        self.register_buffer("bias", torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)  # type: ignore[arg-type]


class ReusedClassifier(nn.Module):
    """A student's last map, averaged down to the teacher's size, a projector, the mean over the image, and the
    teacher's last layer. (batch, C, H, W) -> (batch, classes).

    The projector uses the student's norm and ends in norm and ReLU. For a teacher whose maps are not rectified it ends
    in a plain convolution, whose output is unrestricted. The projector is uninitialised, and the last layer is 0.
    """

    shows_inside = True

    def __init__(self, student: Task, teacher: Task):
        super().__init__()
        student_map, teacher_shapes, norm = shapes(student).maps[-1], shapes(teacher), norm_of(student.module)
        teacher_map = teacher_shapes.maps[-1]
        inner, outputs = teacher_map.shape[1] // 2, teacher_map.shape[1]
        self.student, self.size = student.module, min(student_map.shape[-1], teacher_map.shape[-1])
        self.no_vmap = getattr(student.module, "no_vmap", None)
        # Drawing values here would advance torch's generator.
        with torch.device("meta"):
            layers = [
                *convolution(student_map.shape[1], inner, norm=norm),
                *convolution(inner, inner, 3, padding=1, norm=norm),
                *(convolution(inner, outputs, norm=norm) if is_rectified(teacher) else [nn.Conv2d(inner, outputs, 1)]),
            ]
            self.projector = nn.Sequential(*layers)
        self.projector.to_empty(device="cpu")
        self.head = Fixed(outputs, teacher_shapes.logits.shape[-1])

    def forward(self, x: Tensor, inside: bool = False) -> Any:
        last = self.student(x, inside=True)[0][-1]
        projected = self.projector(F.adaptive_avg_pool2d(last, self.size))
        features = projected.mean((2, 3))
        logits = self.head(features)
        return ([projected], features, logits) if inside else logits


def with_teacher_classifier(task: Task) -> Task:
    """Returns a task whose model ends in the last layer of its trained teacher; projectors start equal."""
    master = task.teacher_task
    module = ReusedClassifier(task, master)
    last = last_layer(master.module, dict(master.module.named_parameters()))
    module.head.load_state_dict({name.removeprefix(HEAD): p for name, p in last.items()}, strict=False)
    module.projector.load_state_dict(drawn(module.projector, torch.Generator().manual_seed(0)), strict=False)
    return replace(task, module=module, build=None)


def last_layer(module: nn.Module, w: Params) -> Params:
    """Parameters of a model's last linear layer, with the names of `ReusedClassifier`."""
    name = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)][-1]
    return {f"{HEAD}{part}": w[f"{name}.{part}"] for part in ("weight", "bias") if f"{name}.{part}" in w}


def student_parameters(w: Params) -> Params:
    """Selects the student's parameters from those of a `ReusedClassifier`, with the student's own names."""
    return {name.removeprefix(STUDENT): p for name, p in w.items() if name.startswith(STUDENT)}


def feature_distance(mine: Features, teacher: Features) -> Tensor:
    """Mean squared distance of each sample's last maps, (samples,): ||Psi(f_s) - f_t||^2 of SimKD."""
    projected = mine.maps[-1]
    target = F.adaptive_avg_pool2d(teacher.maps[-1], projected.shape[-1])
    return (projected - target).square().flatten(1).mean(1)
