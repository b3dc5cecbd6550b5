"""FitNet (Romero et al., "FitNets: Hints for Thin Deep Nets", 2015), with the weights of SimKD's reference code."""

from typing import Any

from pydantic import Field
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import mean_over
from hedgerow.algorithms.core.torch_private import call
from hedgerow.algorithms.distillation.feature_matching import Matching
from hedgerow.algorithms.distillation.student import Lesson
from hedgerow.algorithms.nn.feature_maps import is_rectified
from hedgerow.algorithms.nn.features import extract_features, shapes


class FitNet(Matching):
    """Minimises L_CE + L_KL + beta ||r(f_s) - f_t||^2 on the maps of one stage, where r is a convolution
    [Romero2015].
    """

    class Hyper(Matching.Hyper):
        hint: int = Field(1, ge=1, description="stage of student and teacher whose maps are matched")
        hint_weight: float = Field(100.0, ge=0, description="beta, weight of the matching loss")

    def incompatibility(self) -> str | None:
        if problem := super().incompatibility():
            return problem
        stages = min(len(shapes(self.task).maps), len(shapes(self.teacher_task).maps))
        if self.hyper.hint > stages:
            return f"algorithm.hint: student and teacher have only {stages} stages in common; lower it"
        return None

    def bridge_between(self, student: list[Tensor], teacher: list[Tensor]) -> nn.Module:
        stage = self.hyper.hint - 1
        return regressor(student[stage], teacher[stage], is_rectified(self.teacher_task))

    def lesson(self, hp: Any, down: Tree, batch: Batch) -> Lesson:
        teacher, stage = self.says(down, batch), hp.hint - 1

        def loss(student: Tree, aids: Tree) -> Tensor:
            features = extract_features(self.task, student["w"], batch.x)
            regressed = call(self.bridge, student["bridge"], features.maps[stage])
            distance = mean_over((regressed - teacher.maps[stage]).square().flatten(1).mean(1), batch)
            return self.outputs(hp, features, teacher, batch) + hp.hint_weight * distance

        return loss


def regressor(student: Tensor, teacher: Tensor, rectified: bool = True) -> nn.Module:
    """Maps features of the student's shape to the teacher's. rectified: the teacher's have no negative entries."""
    inputs, outputs, size, target = student.shape[1], teacher.shape[1], student.shape[-1], teacher.shape[-1]
    conv: nn.Module
    if size == 2 * target:
        conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
    elif 2 * size == target:
        conv = nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1)
    elif size >= target:
        conv = nn.Conv2d(inputs, outputs, 1 + size - target)
    else:
        conv = nn.Sequential(nn.Upsample(size=target), nn.Conv2d(inputs, outputs, 1))
    return nn.Sequential(conv, StaticBatchNorm2d(outputs), *([nn.ReLU()] if rectified else []))
