"""The task in mathematical form: a functional model and its loss."""

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from hedgerow.algorithms.core.layer_context import TrainMode
from hedgerow.algorithms.core.measures import Scoring, Targets
from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.precision import run_model
from hedgerow.algorithms.core.static_batch_norm import is_static, statistics
from hedgerow.algorithms.core.torch_private import call, is_in_graph, set_parameters

if TYPE_CHECKING:
    from hedgerow.algorithms.core.client_data import Batch, ClientData


Params = dict[str, Tensor]


class FixedParameters(ExitStack):
    """Context in which the parameters of many calls of `Task.logits` are the same tensors, which may change in place.

    They are set in the module at its first call and reset at the end of the context; `call` does both in every call.
    """

    def __init__(self, w: Params):
        super().__init__()
        self.w = w
        self._modules: list[nn.Module] = []

    def __enter__(self) -> Self:
        token = _fixed.set(self)
        self.callback(lambda: _fixed.reset(token))
        return super().__enter__()

    def set_in(self, module: nn.Module) -> None:
        """Sets the parameters in a module, unless they are set."""
        if not any(known is module for known in self._modules):
            self.enter_context(set_parameters(module, self.w))
            self._modules.append(module)


_fixed: ContextVar[FixedParameters | None] = ContextVar("fixed", default=None)


@dataclass(frozen=True)
class Task:
    """A stateless model with a loss on its outputs, by default the cross-entropy of one class per sample.

    module: maps a batch of samples to outputs, such as logits (samples, classes). Its frozen parameters are part of the
    model, but of no tree of parameters.
    mean, std: normalisation, broadcast against one raw sample; None leaves samples as they are (tokens).
    build: creates the same module with the initial parameters of a seed.
    sample_shape: shape of one sample, without the batch dimension.
    augment: augmentation of stored training samples: (samples, key, rows) -> samples; None: no augmentation.
    teacher: another model for the same classes, which is not trained here.
    teacher_training: how the teacher is trained before the first round, a `TeacherTraining`; None: it is already
    trained.
    guide: network of a client's guide in DiSK, without values: its parameters are client state; None: no guide.
    scored: list that receives the logits and the batch of every call of `rate`; None: they are not needed.
    train_mode: how the module differs in training mode, for layers such as batch norm and dropout; None: not at all.
    scoring: the loss and the metrics. targets: kind of the targets.
    """

    module: nn.Module
    mean: Tensor | None = None
    std: Tensor | None = None
    build: Callable[[int], nn.Module] | None = None
    sample_shape: tuple[int, ...] = ()
    augment: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    teacher: nn.Module | None = None
    teacher_training: Any = None
    guide: nn.Module | None = None
    scored: "list[tuple[Tensor, Batch]] | None" = None
    train_mode: TrainMode | None = None
    scoring: Scoring = field(default_factory=Scoring)
    targets: Targets = "classes"

    is_scored: ClassVar[bool] = True
    """Whether there are predictions to score."""

    @property
    def teacher_task(self) -> "Task":
        """The task with the teacher as its model."""
        assert self.teacher is not None
        # A teacher stays in evaluation mode.
        return replace(self, module=self.teacher, build=None, teacher=None, train_mode=None)

    def init(self, seed: int | None = None) -> Params:
        """Returns initial parameters: those of the module, or, with a seed, those of a newly built module.

        Frozen parameters (`requires_grad=False`) are not included: they stay in `module` and are used from there.
        """
        if seed is not None and self.build is None:
            raise ValueError("Task.init: this task has no `build` to create other initial parameters; omit `seed`")
        module = self.module if seed is None or self.build is None else self.build(seed)
        return {name: p.detach().clone() for name, p in trainable(module).items()}

    def prepare(self, x: Tensor) -> Tensor:
        """Converts raw samples, as stored, to the input of the model."""
        if self.mean is None or self.std is None:
            return x.long()
        # One of the two operations needs no memory of its own.
        return (x.float() - self.mean).div_(self.std)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the task, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to(self, device: torch.device) -> Self:
        """Returns a copy on a GPU, while this task stays on the CPU; on the CPU, returns this task."""
        if device.type == "cpu":
            return self
        tensors: Any = {name: value.to(device) for name, value in self.fields.items() if isinstance(value, Tensor)}
        # In one copy, since a module and its copy in training mode have the same parameters.
        module, teacher, train_mode = deepcopy((self.module, self.teacher, self.train_mode))
        teacher = None if teacher is None else teacher.to(device)
        train_mode = None if train_mode is None else train_mode.to(device)
        return replace(self, module=module.to(device), teacher=teacher, train_mode=train_mode, **tensors)

    @property
    def is_static(self) -> bool:
        """Whether the model uses static batch normalisation, whose statistics must be in `w` for scoring."""
        return is_static(self.module)

    def statistics(self, w: Params, batch: "Batch") -> Params:
        """Statistics of static batch normalisation over one mini-batch."""
        return statistics(self.module, w, batch.x)

    def logits(self, w: Params, x: Tensor) -> Tensor:
        """Logits (samples, classes) of prepared samples `x` at parameters `w`."""
        if self.train_mode is not None:
            return self.train_mode.logits(self.module, w, x)
        fixed = _fixed.get()
        if fixed is not None and fixed.w is w:
            fixed.set_in(self.module)
            return run_model(self.module, x)
        if vars(self.module).get("reads_again") and torch.is_grad_enabled() and any(map(is_in_graph, w.values())):
            raise ContractError(
                "it differentiates `task.logits` outside `minimize`, and the backward pass of the model reads "
                "parameters again, as gradient checkpointing does; call `minimize`, or turn checkpointing off"
            )
        return call(self.module, w, x)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Predictions for outputs of the model: probabilities of classes, tokens or labels; numbers as they are."""
        if self.targets == "numbers":
            return outputs
        return outputs.sigmoid() if self.targets == "labels" else outputs.softmax(-1)

    def teacher_logits(self, x: Tensor) -> Tensor:
        """Logits (samples, classes) of the teacher for prepared samples."""
        assert self.teacher is not None
        return call(self.teacher, with_frozen(self.teacher, {}), x)

    def loss(self, w: Params, batch: "Batch") -> Tensor:
        """Mean loss over the real samples of a batch; a 0-d tensor."""
        return self.criterion(self.logits(w, batch.x), batch)

    def with_loss(self, loss: Callable[[Params, "Batch"], Tensor]) -> Self:
        """Returns a copy of the task with another loss function."""
        other = copy(self)
        object.__setattr__(other, "loss", loss)
        return other

    def with_scored(self, scored: "list[tuple[Tensor, Batch]]") -> Self:
        """Returns a copy of the task whose `scored` is this list."""
        other = copy(self)
        object.__setattr__(other, "scored", scored)
        return other

    def criterion(self, logits: Tensor, batch: "Batch") -> Tensor:
        """Mean loss over the real samples of a batch, from its outputs, such as logits (samples, classes); 0-d."""
        return self.scoring.loss.mean(logits, batch.y, batch.mask)

    def score(self, w: Params, batch: "Batch") -> Tensor:
        """Returns the sums and counts of a batch that `scoring.names` lists, by default (summed loss, correct
        predictions, samples).
        """
        return self.rate(self.logits(w, batch.x), batch)

    def rate(self, logits: Tensor, batch: "Batch") -> Tensor:
        """Returns the same as `score`, from the batch's outputs, such as logits (samples, classes)."""
        if self.scored is not None:
            self.scored.append((logits, batch))
        mask = torch.ones(len(batch.y), dtype=logits.dtype, device=logits.device) if batch.mask is None else batch.mask
        return self.scoring.sums(logits, batch.y, mask)

    def tally(self, score: Callable[["Batch"], Tensor], data: "ClientData", stream: str = "test") -> Params:
        """Returns the sums of `score` over all batches of a stream, as the metrics of a client step."""
        totals = torch.zeros(len(self.scoring.names), device=data.x.device)
        for batch in data.batches(stream):
            totals = totals + score(batch)
        return self.by_name(totals)

    @property
    def with_accuracy(self) -> Self:
        """The task with its loss and the accuracy alone, for models that are scored next to the trained one."""
        return replace(self, scoring=Scoring(self.scoring.loss))

    def by_name(self, totals: Tensor) -> Params:
        """Returns sums of `score` as the metrics of a client step."""
        return dict(zip(self.scoring.names, totals.unbind(-1), strict=True))


def trainable(module: nn.Module) -> Params:
    """Returns the parameters that are trained and transmitted: those with `requires_grad`."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def with_frozen(module: nn.Module, w: Params) -> Params:
    """Returns all parameters of a module: `w` and the frozen ones, which `w` does not contain."""
    return {name: p.detach() for name, p in module.named_parameters() if name not in w} | w


def drawn(module: nn.Module, generator: torch.Generator) -> Params:
    """Draws initial parameters of a module: weights by He initialisation, biases 0, scales 1."""
    return {name: _drawn(name, p, generator) for name, p in module.named_parameters()}


def _drawn(name: str, p: Tensor, generator: torch.Generator) -> Tensor:
    if p.dim() < 2:
        return torch.ones(p.shape) if name.endswith("weight") else torch.zeros(p.shape)
    return torch.randn(p.shape, generator=generator) * (2 / p[0].numel()) ** 0.5


def mean_over(values: Tensor, batch: "Batch") -> Tensor:
    """Mean of one value per sample, (samples,), over a batch's real samples; 0 if there are none."""
    return values.mean() if batch.mask is None else (values * batch.mask).sum() / batch.mask.sum().clamp(min=1.0)
