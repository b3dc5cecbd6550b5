"""FedSep for any decoder that minimises a strongly convex g(x, y) (Li, Huang, 2023, Algorithm 1, Eq. 2 and 3)."""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.compressed.fedsep import FedSep
from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.pytree import Tree, add, dot
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.optim.hypergradient import (
    Objective,
    conjugate_gradient,
    cross_product,
    dense_hessian,
    hessian_product,
    lower_slope,
    neumann,
    solve,
)
from hedgerow.algorithms.optim.local_sgd import LocalOptimizer
from hedgerow.algorithms.problems.bilevel_task import BilevelTask


class FedSepBilevel(FedSep):
    """FedSep whose decoder takes gradient steps on the lower level of a bilevel problem; every client has its own y
    [Li2023].

    x is decoded on the client's training samples, and learnt from on the upper level with its validation samples. The
    encoder is grad_xy g (grad_yy g)^-1 at the decoded y.
    """

    needs = frozenset({"bilevel", "validation"})
    is_personal = True

    class Hyper(LocalOptimizer):
        decode_steps: int = Field(10, ge=1, description="I_dec, number of decoder steps")
        decode_lr: float = Field(0.1, gt=0, description="gamma, step size of the decoder; at most 1 / L")
        encoder: Literal["neumann", "cg", "exact", "unrolled"] = Field(
            "neumann",
            description="neumann: the series of Eq. 3; cg: conjugate gradients; exact: a dense Hessian, for a few "
            "hundred parameters; unrolled: the derivative of the decoder's steps",
        )
        encode_steps: int = Field(
            10, ge=0, description="Q, number of Hessian products in the series or in conjugate gradients"
        )
        encode_lr: float = Field(0.1, gt=0, description="tau, step size of the series; at most 1 / L")
        encode_batch: Literal["same", "fresh"] = Field(
            "same",
            description="same: one mini-batch for the whole series; fresh: one per factor, which makes the series "
            "unbiased",
        )
        encode_batch_size: int | None = Field(
            None, ge=1, description="b_x, samples per mini-batch of the encoder; null: all"
        )
        ridge: float = Field(0.0, ge=0, description="lambda of lambda/2 ||y||^2, added to the lower loss")

    task: BilevelTask

    @property
    def batches(self) -> dict[str, BatchSpec]:
        hyper = self.hyper
        several = hyper.encoder == "neumann" and hyper.encode_batch == "fresh"
        return {
            **{name: replace(spec, split="validation") for name, spec in hyper.batches.items()},
            "decode": BatchSpec(hyper.batch_size, steps=hyper.decode_steps),
            "encode": BatchSpec(hyper.encode_batch_size, steps=hyper.encode_steps + 1 if several else 1),
        }

    @property
    def decoded_from(self) -> dict[str, BatchSpec]:
        return {"decode": self.batches["decode"]}

    def start(self) -> Tree:
        return self.task.start()["x"]

    def model(self, x: Tree, y: Tree) -> Tree:
        return self.task.params(x, y)

    def learning_loss(self, x: Tree, y: Tree, batch: Batch) -> Tensor:
        return self.task.upper(x, y, batch)

    def decode(self, hp: Any, x: Tree, data: ClientData) -> tuple[Tree, list[Objective]]:
        """Returns y and the lower loss of each step."""
        losses = [self._lower(hp, batch) for batch in data.batches("decode")]
        return self._descended(hp, x, losses), losses

    def encode(self, hp: Any, x: Tree, y: Tree, trace: Any, moved: Tree, data: ClientData) -> Tree:
        if hp.encoder == "unrolled":
            return gradient_and_value(lambda x: -dot(self._descended(hp, x, trace, differentiable=True), moved))(x)[0]
        losses = [self._lower(hp, batch) for batch in data.batches("encode")]
        first = losses[0]
        if hp.encoder == "neumann":
            several = losses[1:] if hp.encode_batch == "fresh" else [first] * hp.encode_steps
            u = neumann([partial(hessian_product, g, x, y) for g in several], moved, hp.encode_lr)
        elif hp.encoder == "cg":
            u = conjugate_gradient(partial(hessian_product, first, x, y), moved, hp.encode_steps)
        else:
            u = solve(dense_hessian(first, x, y), moved)
        return cross_product(first, x, y, u)

    def _descended(self, hp: Any, x: Tree, losses: list[Objective], differentiable: bool = False) -> Tree:
        y = self.task.start()["y"]
        for g in losses:
            y = add(y, lower_slope(g, x, y, differentiable), -hp.decode_lr)
        return y

    def _lower(self, hp: Any, batch: Batch) -> Objective:
        return lambda x, y: self.task.lower(x, y, batch) + 0.5 * hp.ridge * dot(y, y)

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def evaluate_params(self, server: Tree) -> Tree:
        """Parameters of the model with the initial y."""
        return self.model(server["x"], self.task.start()["y"])

    def server_metrics(self, server: Tree) -> dict[str, float]:
        return self.task.report(server["x"], None, self.hyper.ridge)
