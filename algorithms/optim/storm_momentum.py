"""STORM's momentum (Cutkosky and Orabona, 2019), and its schedule of step sizes."""

from collections.abc import Callable, Iterable
from typing import Any, Self

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.hyperparameters import HyperParameters, Rule
from hedgerow.algorithms.core.pytree import Tree, add, sub

Directions = Callable[[Tree, Any], tuple[Tree, Tensor]]
"""(z, one draw of mini-batches) -> directions along which z descends, and the value at z."""


class Storm(HyperParameters):
    """Hyperparameters of STORM. Step t is scaled by alpha_t = delta / (offset + growth t)^(1/3); the momentum forgets a
    share c alpha_t^2.

    The defaults give alpha_t = (8 / (8 + t))^(1/3). The theorems of FedBiOAcc set delta, offset (their u_0) and growth
    (their sigma^2) by constants of the problem.
    """

    c: float = Field(0.5, ge=0, description="momentum constant; c alpha_1^2 must be at most 1")
    c_x: float | None = Field(None, ge=0, description="momentum constant of the estimate of x, c_nu; null: c")
    alpha_delta: float = Field(2.0, gt=0, description="delta of alpha_t = delta / (offset + growth t)^(1/3)")
    alpha_offset: float = Field(8.0, gt=0, description="offset of alpha_t")
    alpha_growth: float = Field(1.0, ge=0, description="growth of alpha_t; 0: constant alpha_t")
    first_batch_size: int | None = Field(None, ge=1, description="samples of the first estimate; null: all samples")
    sync_init: bool = Field(False, description="also average the clients' first momenta, as in the proof")
    steps: int = Field(5, ge=1, description="I, local steps per round")

    rules = (
        Rule(
            lambda hyper: (share := hyper.share_forgotten) > 1 + 1e-9 and share,
            "`c` times alpha_1 squared is {found:.3g}, more than 1; lower c or alpha_delta",
        ),
    )

    def at(self, round: int) -> Self:
        """Returns the values for a round: t counts from the start of the round, and all constants are filled in."""
        past = self.alpha_growth * self.steps * (round - 1)
        update = {"alpha_offset": self.alpha_offset + past, **self._constants()}
        return super().at(round).model_copy(update=update)

    @property
    def share_forgotten(self) -> float:
        """Largest share of a momentum that the first step forgets."""
        return float(max(self._constants().values()) * alpha(self, 1) ** 2)

    def _constants(self) -> dict[str, float]:
        own = {name: getattr(self, name, None) for name in ("c_x", "c_y", "c_u") if name in type(self).model_fields}
        return {name: self.c if c is None else c for name, c in own.items()}


class StormXY(Storm):
    """Hyperparameters of STORM with estimates of x and y."""

    c_y: float | None = Field(None, ge=0, description="momentum constant of the estimate of y, c_omega; null: c")


class StormXYU(StormXY):
    """Hyperparameters of STORM with estimates of x, y and u."""

    c_u: float | None = Field(None, ge=0, description="momentum constant of the estimate of u; null: c")


def alpha(hp: Any, t: int) -> Any:
    """Scale alpha_t of step t, in (0, 1] for the defaults."""
    return hp.alpha_delta / (hp.alpha_offset + hp.alpha_growth * t) ** (1 / 3)


def estimate_momenta(
    hp: Any, t: int, directions: Directions, draw: Any, new: Tree, old: Tree, momenta: Tree
) -> tuple[Tree, Tensor]:
    """Momenta and value at `new`: d(new) + (1 - c alpha_t^2) (momenta - d(old)); d: directions of one draw."""
    new_directions, value = directions(new, draw)
    old_directions, _ = directions(old, draw)
    forgotten = alpha(hp, t) ** 2
    return {
        name: add(direction, sub(momenta[name], old_directions[name]), 1 - getattr(hp, f"c_{name}") * forgotten)
        for name, direction in new_directions.items()
    }, value


def take_steps(
    hp: Any,
    directions: Directions,
    draws: Iterable[Any],
    step: Callable[[Tree, Tree, Any], Tree],
    z: Tree,
    momenta: Tree,
) -> tuple[Tree, Tree, list[Tensor]]:
    """Takes a step with the momenta before each draw, which then estimates them anew.

    step: (z, momenta, factor of the step sizes) -> the next point. Returns z, its momenta, and the values after each
    step.
    """
    values = []
    for t, draw in enumerate(draws, start=1):
        new = step(z, momenta, alpha(hp, t))
        momenta, value = estimate_momenta(hp, t, directions, draw, new, z, momenta)
        z = new
        values.append(value)
    return z, momenta, values
