"""Optimisers of local training: their names in the experiment file, and any class of torch.optim."""

from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Discriminator, Field, Tag, model_validator
from torch import Tensor

from hedgerow.algorithms.core.hyperparameters import Settings

PREFIX = "torch.optim."


class TorchOptimizer(Settings):
    """An optimiser of torch.optim, which takes the place of the local optimiser where clients run one by one."""

    name: str = Field(description="its dotted path, such as torch.optim.RMSprop")
    args: dict[str, Any] = Field({}, description="keyword arguments of its constructor, without the learning rate")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _takes_a_step(self) -> Self:
        kind = getattr(torch.optim, self.name.removeprefix(PREFIX), None) if self.name.startswith(PREFIX) else None
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise ValueError(
                f"{self.name!r} is not an optimiser; choose sgd, adam, adamw, or one such as {PREFIX}RMSprop"
            )
        if "lr" in self.args:
            raise ValueError("the learning rate is `algorithm.lr`, which has a schedule; remove `lr` from `args`")
        parameters = [torch.zeros(2, 2, requires_grad=True), torch.zeros(2, requires_grad=True)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        try:
            self.build(parameters, 0.1).step()
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{self.name} cannot take a step with these `args` ({reason}); change them, or choose another optimiser"
            ) from None
        return self

    def build(self, parameters: list[Tensor], lr: float) -> torch.optim.Optimizer:
        """Returns the optimiser of these parameters, which takes their gradients from `grad`."""
        optimizer: torch.optim.Optimizer = getattr(torch.optim, self.name.removeprefix(PREFIX))(
            parameters, lr=lr, **self.args
        )
        return optimizer

    def stepper(self, parameters: list[Tensor], lr: float) -> Any:
        """Returns the step of `descent` that this optimiser takes."""
        optimizer = self.build(parameters, lr)

        def update(w: list[Tensor], direction: list[Tensor], rate: float) -> list[Tensor]:
            for parameter, gradient in zip(w, direction, strict=True):
                parameter.grad = gradient
            optimizer.step()
            return w

        return update

    @property
    def no_vmap(self) -> str:
        """Reason why it cannot train several clients at once."""
        return f"{self.name} changes its parameters in place, one client at a time"


def _branch(value: Any) -> str:
    return "built in" if isinstance(value, str) and not value.startswith(PREFIX) else "torch.optim"


Optimizer = Annotated[
    Annotated[Literal["sgd", "adam", "adamw"], Tag("built in")] | Annotated[TorchOptimizer, Tag("torch.optim")],
    Discriminator(_branch),
]
"""Value of the key `optimizer` of a local solver."""
