"""SemCKD (Chen et al., "Cross-Layer Distillation with Semantic Calibration", 2021)."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import mean_over
from hedgerow.algorithms.core.torch_private import call
from hedgerow.algorithms.distillation.feature_matching import Matching
from hedgerow.algorithms.distillation.student import Lesson
from hedgerow.algorithms.nn.feature_maps import convolution, match_resolution
from hedgerow.algorithms.nn.features import extract_features


class SemCKD(Matching):
    """Matches every student stage to all teacher stages: L_CE + L_KL + beta sum_ij a_ij ||p_ij(f_s,i) - f_t,j||^2
    [Chen2021].

    The weights a_ij express, for each sample, how similarly two stages relate it to the mini-batch.
    """

    class Hyper(Matching.Hyper):
        match_weight: float = Field(400.0, ge=0, description="beta, weight of the matching loss")
        batch_size: int = Field(50, ge=4, description="batch size, fixed for the attention")  # type: ignore[assignment]

    def bridge_between(self, student: list[Tensor], teacher: list[Tensor]) -> nn.Module:
        return Calibration([f.shape[1] for f in student], [f.shape[1] for f in teacher], self.hyper.batch_size)

    def lesson(self, hp: Any, down: Tree, batch: Batch) -> Lesson:
        teacher = self.says(down, batch)

        def loss(student: Tree, aids: Tree) -> Tensor:
            features = extract_features(self.task, student["w"], batch.x)
            distance = call(self.bridge, student["bridge"], features.maps, teacher.maps)
            return self.outputs(hp, features, teacher, batch) + hp.match_weight * mean_over(distance, batch)

        return loss


class Calibration(nn.Module):
    """Attention and projections between the stages of a student and a teacher, given their numbers of channels."""

    def __init__(self, student: list[int], teacher: list[int], batch_size: int):
        super().__init__()
        self.batch_size = batch_size
        self.queries = nn.ModuleList(_embedding(batch_size) for _ in student)
        self.keys = nn.ModuleList(_embedding(batch_size) for _ in teacher)
        self.projections = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(
                    *convolution(inputs, 2 * outputs),
                    *convolution(2 * outputs, 2 * outputs, 3, padding=1),
                    nn.Conv2d(2 * outputs, outputs, 1),
                )
                for outputs in teacher
            )
            for inputs in student
        )

    def forward(self, student: list[Tensor], teacher: list[Tensor]) -> Tensor:
        """Weighted squared distance of each sample, averaged over the student's stages: (samples,)."""
        keys = torch.stack([self._look(k, f) for k, f in zip(self.keys, teacher, strict=True)], 1)
        total = torch.zeros(len(teacher[0]), device=teacher[0].device)
        for query, projections, f in zip(self.queries, self.projections, student, strict=True):
            weights = (self._look(query, f)[:, None] * keys).sum(-1).softmax(-1)
            for j, (project, g) in enumerate(zip(projections, teacher, strict=True)):  # type: ignore[call-overload]
                student_map, teacher_map = match_resolution(f, g)
                total = total + weights[:, j] * (project(student_map) - teacher_map).square().flatten(1).mean(1)
        return total / len(student)

    def _look(self, embedding: nn.Module, f: Tensor) -> Tensor:
        """Embeds each sample by its similarity to the mini-batch's samples; a shorter batch is padded with zeros."""
        flat = f.flatten(1)
        similarity = F.pad(flat @ flat.T, (0, self.batch_size - len(flat)))
        return F.normalize(embedding(F.normalize(similarity, dim=1)), dim=1)


def _embedding(batch_size: int) -> nn.Module:
    width = max(1, batch_size // 4)
    return nn.Sequential(nn.Linear(batch_size, width), nn.ReLU(), nn.Linear(width, width))
