"""The task as the mathematics sees it: a functional model and its loss."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from hedgerow.algorithms.base import Batch

Params = dict[str, Tensor]


@dataclass(frozen=True)
class Task:
    """A model, without a state of its own, and the cross-entropy loss on its logits.

    module: maps a batch of samples to logits (samples, classes).
    mean, std: normalisation, broadcast against one raw sample; None leaves samples as they are (tokens).
    build: makes the same module with the initial parameters that a seed decides.
    """

    module: nn.Module
    mean: Tensor | None = None
    std: Tensor | None = None
    build: Callable[[int], nn.Module] | None = None

    is_scored: ClassVar[bool] = True
    """Whether there are predictions to be scored."""

    def init(self, seed: int | None = None) -> Params:
        """The initial parameters: those that the module was built with, or, with a seed, those of another one."""
        if seed is not None and self.build is None:
            raise ValueError("this task was made without `build`, which makes other initial parameters")
        module = self.module if seed is None or self.build is None else self.build(seed)
        return {name: p.detach().clone() for name, p in module.named_parameters()}

    def prepare(self, x: Tensor) -> Tensor:
        """Raw samples, as stored, to the model's input."""
        if self.mean is None or self.std is None:
            return x.long()
        return (x.float() - self.mean) / self.std

    def to(self, device: torch.device) -> Self:
        """The same on another device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors: Any = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, module=self.module.to(device), **tensors)

    def logits(self, w: Params, x: Tensor) -> Tensor:
        """Logits (samples, classes) of prepared samples `x` at parameters `w`."""
        return functional_call(self.module, w, (x,))

    def loss(self, w: Params, batch: "Batch") -> Tensor:
        """Mean cross-entropy over the real samples of a batch; a 0-d tensor."""
        logits = self.logits(w, batch.x)
        if batch.mask is None:
            return F.cross_entropy(logits, batch.y)
        return (cross_entropies(logits, batch.y) * batch.mask).sum() / batch.mask.sum().clamp(min=1.0)

    def score(self, w: Params, batch: "Batch") -> Tensor:
        """(summed loss, correct predictions, samples) of a batch, as a tensor of shape (3,)."""
        logits = self.logits(w, batch.x)
        mask = torch.ones_like(batch.y, dtype=logits.dtype) if batch.mask is None else batch.mask
        losses = cross_entropies(logits, batch.y)
        hits = (logits.argmax(-1) == batch.y).to(logits.dtype)
        return torch.stack([(losses * mask).sum(), (hits * mask).sum(), mask.sum()])


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each sample: logits (samples, classes), y (samples,) -> (samples,).

    F.cross_entropy falls back to Python under vmap, which imports torch's compiler: seconds in every process.
    """
    return logits.logsumexp(-1) - logits.gather(-1, y[:, None])[:, 0]
