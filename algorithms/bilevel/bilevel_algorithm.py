"""Base class of algorithms for bilevel problems min_x f(x, y_x), y_x = argmin_y g(x, y), and their hyperparameters.

f is the mean of the clients' f^m over their validation samples; g is the mean of their g^m over their training samples.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar, Self

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.bilevel.derivatives import Derivatives, MiniBatch
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.core.pytree import Tree, add, dot, scale, zeros_like
from hedgerow.algorithms.optim.descent import clip_factor
from hedgerow.algorithms.problems.bilevel_task import BilevelTask


class BilevelSGD(HyperParameters):
    """Hyperparameters of stochastic gradient steps on both levels."""

    alternatives = (("upper_lr", "upper_lr_factor"),)

    lr: float = Field(0.1, gt=0, description="learning rate of the lower level, gamma")
    upper_lr: float | None = Field(0.1, gt=0, description="learning rate of the upper level, eta")
    upper_lr_factor: float | None = Field(None, gt=0, description="ratio eta / gamma, used instead of `upper_lr`")
    steps: int = Field(5, ge=1, description="I, local steps per round")
    batch_size: int | None = Field(50, ge=1, description="samples of each mini-batch; null: the whole local data")
    clip_norm: float | None = Field(
        None, gt=0, description="largest norm of each variable's direction; null: no clipping"
    )
    ridge: float = Field(1e-3, ge=0, description="lambda of lambda/2 ||y||^2, added to the lower loss")

    def at(self, round: int) -> Self:
        hyper = super().at(round)
        if self.upper_lr_factor is None:
            return hyper
        return hyper.model_copy(update={"upper_lr": self.lr * self.upper_lr_factor, "upper_lr_factor": None})


class DrawnSGD(BilevelSGD):
    """Hyperparameters of methods whose steps take several derivatives each."""

    single_batch: bool = Field(
        False,
        description="take all derivatives of a step on one training mini-batch in a single pass, which is "
        "faster; false: an independent mini-batch for each derivative (the directions of x and u share the "
        "mini-batch of f)",
    )


class LinearSGD(DrawnSGD):
    """Hyperparameters of methods that solve the linear system by gradient steps."""

    u_lr: float = Field(0.1, gt=0, description="learning rate of u, tau; at most 1 / L")


class NeumannSGD(DrawnSGD):
    """Hyperparameters of methods that use the Neumann series."""

    u_lr: float = Field(0.1, gt=0, description="step size of the Neumann series, tau; at most 1 / L")
    neumann_terms: int = Field(5, ge=0, description="Q, number of Hessian products in the series")


RATES = {"x": "upper_lr", "y": "lr", "u": "u_lr"}
"""Name of the learning rate of each variable."""


class Bilevel(Algorithm):
    """Base class of bilevel algorithms, which declare their variables and which of them are shared.

    Clients work on z, a tree of all variables. The server holds the `shared` variables; each client has its own copy of
    the others.
    """

    needs = frozenset({"bilevel", "validation"})

    variables: ClassVar[tuple[str, ...]] = ("x", "y", "u")
    shared: ClassVar[tuple[str, ...]] = ("x", "y", "u")

    task: BilevelTask

    def start(self) -> Tree:
        """Initial values of all variables."""
        z = self.task.start()
        return {name: z[name] if name in z else zeros_like(z["y"]) for name in self.variables}

    def init_server(self) -> Tree:
        return self.common(self.start())

    def init_client(self) -> Tree:
        return self.own(self.start())

    def common(self, z: Tree) -> Tree:
        """Shared variables of z."""
        return {name: z[name] for name in self.shared}

    def own(self, z: Tree) -> Tree:
        """Variables that each client has for itself, taken from all variables or from its state."""
        return {name: z[name] for name in self.variables if name not in self.shared}

    def hessians(self) -> int:
        """Number of Hessian products in one step."""
        return self.hyper.neumann_terms if isinstance(self.hyper, NeumannSGD) else 1

    def batches(self, steps: int, size: int | None = 0) -> dict[str, BatchSpec]:
        """Mini-batches of `steps` steps. size: samples in each; None: all samples; 0: `batch_size`."""
        hyper, count = self.hyper, self.hessians()
        size = hyper.batch_size if size == 0 else size
        one = BatchSpec(size, steps=steps)
        streams = {"upper": replace(one, split="validation"), "lower": one}
        if hyper.single_batch:
            return streams
        return streams | {"cross": one} | ({"hessian": replace(one, steps=steps * count)} if count else {})

    def draws(self, data: ClientData) -> Iterator[MiniBatch]:
        """Yields the mini-batches of a client's steps, in order."""
        hessians = self.hessians()
        pairs = zip(data.batches("upper"), data.batches("lower"), strict=True)
        if "cross" not in data.streams:
            for upper, lower in pairs:
                yield MiniBatch(upper, lower, lower, (lower,) * hessians)
            return
        factors = data.batches("hessian") if hessians else iter(())
        for (upper, lower), cross in zip(pairs, data.batches("cross"), strict=True):
            yield MiniBatch(upper, lower, cross, tuple(islice(factors, hessians)))

    def moved_y(self, hp: Any, oracles: Derivatives, z: Tree, batches: Iterator[Batch]) -> Tree:
        """z after one step on y per mini-batch."""
        for batch in batches:
            z = self.descend(hp, z, {"y": oracles.lower_slope(z, batch)})
        return z

    def train_y(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step: one step on y per mini-batch."""
        oracles = Derivatives(self.task, hp)
        z = self.moved_y(hp, oracles, down, data.batches("lower"))
        return {"y": z["y"]}, state, oracles.metrics([])

    def descend(self, hp: Any, z: Tree, directions: Tree, factor: Any = 1.0) -> Tree:
        """z after one step on each variable that has a direction, which is clipped first.

        factor: multiplies all learning rates.
        """
        values = {
            name: add(z[name], _clipped(hp, direction), -factor * getattr(hp, RATES[name]))
            for name, direction in directions.items()
        }
        if "x" in values:
            values["x"] = self.task.project(values["x"])
        return {**z, **values}

    def directions(self, oracles: Derivatives, z: Tree, draw: MiniBatch) -> tuple[Tree, Tensor]:
        """Directions along which z descends, with the structure of z, and the value of f; without u, each client solves
        its own linear system.
        """
        return oracles.directions(z, draw) if "u" in self.variables else oracles.local_directions(z, draw)

    def project(self, server: Tree) -> Tree:
        return {**server, "x": self.task.project(server["x"])} if "x" in server else server

    def evaluate_params(self, server: Tree) -> Tree:
        """Parameters of the model, with the initial y if clients have their own."""
        return self.task.params(server["x"], server.get("y") or self.task.start()["y"])

    def server_metrics(self, server: Tree) -> dict[str, float]:
        return self.task.report(server["x"], server.get("y"), self.hyper.ridge)

    def histograms(self, server: Tree) -> dict[str, dict[str, Tensor]]:
        return self.task.histograms(server["x"])

    def evaluate_client(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Scores the model with the client's own y, if clients have their own."""
        if "y" in self.shared:
            return super().evaluate_client(hp, down, state, data)
        own = self.task.params({}, self.own(state)["y"])
        return super().evaluate_client(hp, {"w": {**down["w"], **own}}, state, data)


def _clipped(hp: Any, direction: Tree) -> Tree:
    if hp.clip_norm is None:
        return direction
    return scale(direction, clip_factor([dot(direction, direction).sqrt()], hp.clip_norm))
