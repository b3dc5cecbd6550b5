"""Model of the quadratic bilevel problem: its two variables."""

from math import prod
from typing import ClassVar

from pydantic import Field
from torch import nn

from hedgerow.algorithms.problems.quadratic import Coefficients, QuadraticModel
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.models.model import Model


class QuadraticXY(Model):
    """The two variables of the quadratic bilevel problem, only for `data: {name: quadratic}`."""

    takes: ClassVar[tuple[str, ...]] = ("flat features",)

    upper: int = Field(4, ge=1, description="dimension of x, as in the data")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        p, features = self.upper, prod(shape)
        for d in range(1, features):
            if Coefficients.ends(p, d)["r"] == features:
                return QuadraticModel(p, d)
        raise UserError(
            f"task.model.upper: no quadratic problem in {p} variables fits the data; set it to task.data.upper"
        )
