"""FedSep for communication-efficient learning: models are decoded from sketches by LASSO (Li, Huang, 2023, Eq. 4)."""

from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.compressed.fedsep import FedSep
from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.core.pytree import Tree, add, count, exceeds_size, flat, like, tree_map
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.optim.hypergradient import conjugate_gradient
from hedgerow.algorithms.optim.local_sgd import LocalOptimizer
from hedgerow.algorithms.transforms.random_projection import GaussianRows, HashedRows

DENSE = 5000
"""Maximum number of rows of a sketch for which a p x p system is solved."""


class Decoded(NamedTuple):
    """Trace of a decoding. gamma: step size; active: for each step, 1 where a coordinate was not cut to 0."""

    sketch: GaussianRows
    gamma: Any
    active: list[Tensor]


class FedSepLasso(FedSep):
    """Decodes models from Gaussian sketches: theta = argmin 1/2 ||S theta - omega||^2 + beta ||theta||_1 [Li2023].

    Server and clients generate the same S (p, d) from its seed. omega (p,) is transmitted in both directions. The model
    is theta added to an initial model that all know, or theta alone. If every client has its own sketch S^m, clients
    decode different models from the same omega. The sign of `encode` makes the server's step a descent; Eq. 5 prints
    the other sign.
    """

    class Hyper(LocalOptimizer):
        alternatives = (("decode_lr", "decode_lr_scale"),)

        sketch_size: int = Field(1000, ge=1, description="p, number of transmitted values")
        sketch_seed: int = Field(0, ge=0, description="seed of the sketch")
        sketch: Literal["shared", "own"] = Field(
            "shared", description="shared: one sketch for all; own: one sketch per client, and so one model per client"
        )
        lasso: float = Field(0.0, ge=0, description="beta, weight of the decoder's L1 penalty")
        decode_steps: int = Field(10, ge=1, description="I_dec, number of decoder steps")
        decode_lr: float | None = Field(
            None, gt=0, description="gamma, step size of the decoder; used instead of `decode_lr_scale`"
        )
        decode_lr_scale: float | None = Field(1.0, gt=0, description="gamma times ||S||^2; below 2")
        decoder: Literal["ista", "fista", "linear"] = Field(
            "ista", description="ista; fista: accelerated; linear: the least-norm solution, for `lasso: 0`"
        )
        encoder: Literal["neumann", "unrolled", "exact", "ridge", "cg"] = Field(
            "neumann",
            description="neumann: a series of `encode_steps` terms; unrolled: the derivative of the decoder's steps; "
            "exact, ridge: a p x p system; cg: conjugate gradients. A linear decoder has its own encoder",
        )
        encode_steps: int | None = Field(
            None, ge=1, description="number of terms, or of cg steps; null: same as decode_steps"
        )
        encode_ridge: float = Field(1e-3, gt=0, description="ridge coefficient of the encoders ridge and cg")
        begin: Literal["offset", "project"] = Field(
            "offset",
            description="offset: theta is added to the initial model; project: omega starts as the sketch of that "
            "model",
        )

        rules = (
            Rule(
                lambda hyper: hyper.decoder == "linear" and hyper.lasso,
                "`decoder: linear` needs `lasso: 0`; set lasso to 0 or choose another decoder",
            ),
        )

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        self.is_personal = hyper.sketch == "own"

    @cached_property
    def sketch(self) -> GaussianRows:
        """Sketch shared by all clients."""
        return GaussianRows(self.hyper.sketch_size, count(self.task.init()), self.hyper.sketch_seed)

    def own(self, clients: np.ndarray) -> Tree:
        if not self.is_personal:
            return {}
        words = [np.random.SeedSequence([self.hyper.sketch_seed, 113, int(m)]).generate_state(1)[0] for m in clients]
        return {"seed": torch.tensor([int(word) for word in words], dtype=torch.int64)}

    def _sketch(self, x: Tree) -> GaussianRows:
        shared = self.sketch
        return HashedRows(shared.p, shared.d, x["seed"]) if "seed" in x else shared

    def incompatibility(self) -> str | None:
        hyper = self.hyper
        if too_many := exceeds_size(self.task.init(), "algorithm.sketch_size", hyper.sketch_size):
            return too_many
        solves = hyper.decoder == "linear" or hyper.encoder in ("exact", "ridge")
        if solves and hyper.sketch_size > DENSE:
            return (
                f"algorithm.sketch_size: a system of {hyper.sketch_size} equations is too large; lower it to {DENSE}, "
                "or choose `decoder: ista` with `encoder: neumann`"
            )
        return None

    def start(self) -> Tree:
        if self.hyper.begin == "project":
            return {"omega": self.sketch.apply(flat(self.task.init()))}
        return {"omega": torch.zeros(self.hyper.sketch_size)}

    def evaluate_params(self, server: Tree) -> Tree:
        """Parameters of the common model; of the model of client 0, if every client has its own."""
        seeds = tree_map(lambda leaf: leaf[0], self.own(np.zeros(1, int)))
        return self.decode(self.hyper, {**server["x"], **seeds}, None)[0]

    def learning_loss(self, x: Tree, y: Tree, batch: Batch) -> Tensor:
        return self.task.loss(y, batch)

    # ---- decoder: theta from omega ----------------------------------------------------------------------------------

    def decode(self, hp: Any, x: Tree, data: ClientData | None) -> tuple[Tree, Decoded]:
        """Returns the model and the trace of its decoding."""
        omega, s, initial = x["omega"], self._sketch(x), self.task.init()
        # Gaussian sketches of equal size have nearly the same norm, so one norm is used for all.
        gamma = hp.decode_lr if hp.decode_lr is not None else hp.decode_lr_scale / self.sketch.squared_norm
        if hp.decoder == "linear":
            theta = s.transposed(s.solve(omega))
            active: list[Tensor] = []
        else:
            theta, active = self._proximal(hp, s, omega, gamma)
        model = like(theta, initial)
        return (add(initial, model) if hp.begin == "offset" else model), Decoded(s, gamma, active)

    def _proximal(self, hp: Any, s: GaussianRows, omega: Tensor, gamma: Any) -> tuple[Tensor, list[Tensor]]:
        """(F)ISTA from 0 (Eq. 9, 10; Beck and Teboulle 2009)."""
        theta = z = s.transposed(omega) * 0.0
        active: list[Tensor] = []
        momentum = 1.0
        for _ in range(hp.decode_steps):
            point = z + gamma * s.transposed(omega - s.apply(z))
            before, theta = theta, torch.sign(point) * (point.abs() - gamma * hp.lasso).clamp(min=0.0)
            alive = (point.abs() > gamma * hp.lasso).to(point.dtype)
            # If all coordinates are 0, as at first, all count as active; otherwise the encoder would stay 0.
            active.append(torch.where(alive.any(), alive, torch.ones_like(alive)))
            z = theta
            if hp.decoder == "fista":
                momentum, last = (1 + (1 + 4 * momentum**2) ** 0.5) / 2, momentum
                z = theta + (last - 1) / momentum * (theta - before)
        return theta, active

    # ---- encoder ----------------------------------------------------------------------------------------------------

    def encode(self, hp: Any, x: Tree, y: Tree, trace: Any, moved: Tree, data: ClientData) -> Tree:
        v, s = flat(moved), trace.sketch
        if hp.decoder == "linear":
            return {"omega": -s.solve(s.apply(v))}
        last, steps = trace.active[-1], hp.encode_steps or hp.decode_steps
        if hp.encoder == "unrolled":
            return {"omega": -_series(trace, list(reversed(trace.active)), v)}
        if hp.encoder == "neumann":
            return {"omega": -_series(trace, [last] * steps, v)}
        if hp.encoder == "cg":

            def product(u: Tree) -> Tree:
                return {"v": last * s.transposed(s.apply(last * u["v"])) + hp.encode_ridge * u["v"]}

            solution = conjugate_gradient(product, {"v": last * v}, steps)
            return {"omega": -s.apply(last * solution["v"])}
        ridge = hp.encode_ridge if hp.encoder == "ridge" else 0.0
        return {"omega": -s.solve(s.apply(last * v), last, ridge)}


def _series(decoded: Decoded, active: list[Tensor], v: Tensor) -> Tensor:
    """gamma sum_q S r_q, r_0 = A v, r_(q+1) = A (I - gamma S'S) r_q."""
    s, gamma = decoded.sketch, decoded.gamma
    total, r = s.apply(v) * 0.0, v
    for alive in active:
        r = alive * r
        image = s.apply(r)
        total, r = total + gamma * image, r - gamma * s.transposed(image)
    return total
