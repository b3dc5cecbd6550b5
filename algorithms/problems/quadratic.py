"""Quadratic bilevel problem with a closed-form solution: one lower level for all clients, or one per client."""

from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, mean_over
from hedgerow.algorithms.problems.bilevel_task import BilevelTask


class Coefficients(NamedTuple):
    """g = 1/2 y'A y - y'(B x + c), f = 1/2 y'D y - e'y + 1/2 x'P x - r'x. Leading dimensions: several problems."""

    A: Tensor
    B: Tensor
    c: Tensor
    D: Tensor
    e: Tensor
    P: Tensor
    r: Tensor

    @classmethod
    def of(cls, rows: Tensor, p: int, d: int) -> "Coefficients":
        """Splits samples, which hold the coefficients in a row, (..., features)."""
        ends, shapes = cls.ends(p, d), _shapes(p, d)
        starts = [0, *ends.values()]
        pieces = zip(starts, ends.values(), shapes, strict=False)
        return cls(*(rows[..., start:end].reshape(*rows.shape[:-1], *shape) for start, end, shape in pieces))

    @classmethod
    def ends(cls, p: int, d: int) -> dict[str, int]:
        """End of each coefficient in the row."""
        return dict(zip(cls._fields, accumulate(prod(shape) for shape in _shapes(p, d)), strict=True))


def _shapes(p: int, d: int) -> tuple[tuple[int, ...], ...]:
    return (d, d), (d, p), (d,), (d, d), (d,), (p, p), (p,)


class QuadraticModel(nn.Module):
    """Holds x (p,) and y (d,), which start at 0."""

    def __init__(self, p: int, d: int):
        super().__init__()
        self.x, self.y = nn.Parameter(torch.zeros(p)), nn.Parameter(torch.zeros(d))

    def forward(self, rows: Tensor) -> Tensor:
        """f of each sample: (samples, 1)."""
        return upper(Coefficients.of(rows, len(self.x), len(self.y)), self.x, self.y)[:, None]


def upper(q: Coefficients, x: Tensor, y: Tensor) -> Tensor:
    """f of each sample."""
    quadratic = _form(q.D, y, y) + _form(q.P, x, x)
    return 0.5 * quadratic - (q.e * y).sum(-1) - (q.r * x).sum(-1)


def lower(q: Coefficients, x: Tensor, y: Tensor) -> Tensor:
    """g of each sample."""
    return 0.5 * _form(q.A, y, y) - _form(q.B, y, x) - (q.c * y).sum(-1)


def _form(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return ((matrix @ right) * left).sum(-1)


@dataclass(frozen=True)
class Quadratic(BilevelTask):
    """Quadratic problem. Each sample is one problem; a client's problem is the mean over its samples, for f over its
    validation samples.

    clients (m, features): coefficients of every client's problem.
    """

    is_scored = False

    clients: Tensor | None = None

    def start(self) -> Tree:
        w = self.init()
        return {"x": {"x": w["x"]}, "y": {"y": w["y"]}}

    def upper(self, x: Tree, y: Tree, batch: Batch) -> Tensor:
        return mean_over(upper(self._coefficients(batch.x), x["x"], y["y"]), batch)

    def outputs(self, x: Tree, y: Tree, batch: Batch) -> Tensor:
        return y["y"]

    def fit(self, x: Tree, outputs: Tensor, batch: Batch) -> Tensor:
        return mean_over(lower(self._coefficients(batch.x), x["x"], outputs), batch)

    def params(self, x: Tree, y: Tree) -> Params:
        return {**x, **y}

    def _coefficients(self, rows: Tensor) -> Coefficients:
        w = dict(self.module.named_parameters())
        return Coefficients.of(rows, len(w["x"]), len(w["y"]))

    def report(self, x: Tree, y: Tree | None, ridge: float) -> dict[str, float]:
        """`hypergradient`: squared norm of the exact one at x; `x_error`, `y_error`: distances to the solution."""
        solution = self.solution(ridge, local=y is None)
        point = x["x"].double().cpu()
        metrics = {
            "hypergradient": float(self.hypergradient(point, ridge, local=y is None).square().sum()),
            "x_error": float((point - solution["x"]).norm()),
        }
        return metrics if y is None else metrics | {"y_error": float((y["y"].double().cpu() - solution["y"]).norm())}

    def hypergradient(self, x: Tensor, ridge: float = 0.0, local: bool = False) -> Tensor:
        """Exact hypergradient at x (p,), in double precision. local: with one lower level per client."""
        q = self._problems(ridge, local)
        y = torch.linalg.solve(q.A, q.B @ x + q.c)
        u = torch.linalg.solve(q.A, (q.D @ y[..., None])[..., 0] - q.e)
        return ((q.P @ x) - q.r + (q.B.mT @ u[..., None])[..., 0]).mean(0)

    def solution(self, ridge: float = 0.0, local: bool = False) -> dict[str, Tensor]:
        """Returns x*, and y and u there: (d,), or (m, d) with one lower level per client."""
        q = self._problems(ridge, local)
        p = q.P.shape[-1]
        zero = self.hypergradient(torch.zeros(p, dtype=torch.float64), ridge, local)
        hessian = (q.P + q.B.mT @ torch.linalg.solve(q.A, q.D @ torch.linalg.solve(q.A, q.B))).mean(0)
        x = -torch.linalg.solve(hessian, zero)
        y = torch.linalg.solve(q.A, q.B @ x + q.c)
        u = torch.linalg.solve(q.A, (q.D @ y[..., None])[..., 0] - q.e)
        return {"x": x, "y": y if local else y[0], "u": u if local else u[0]}

    def _problems(self, ridge: float, local: bool) -> Coefficients:
        """Returns the problems of all clients, or their mean as the only one."""
        assert self.clients is not None
        rows = self.clients.double().cpu()
        q = self._coefficients(rows if local else rows.mean(0, keepdim=True))
        return q._replace(A=q.A + ridge * torch.eye(q.A.shape[-1], dtype=torch.float64))
