"""A trial of a user's module before the first round: whether it fits the data, its training mode, and vmap."""

import random
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.layer_context import BufferPolicy, LayerContext, TrainMode, in_train_mode
from hedgerow.algorithms.core.measures import Targets
from hedgerow.algorithms.core.task import trainable
from hedgerow.algorithms.core.torch_private import BATCH_NORMS, TRACKING_NORMS, call
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.platform.common.errors import UserError, one_line

CLIENTS, SAMPLES = 2, 3
"""Clients, and samples of each, in the trial under vmap."""

DRAWS = "some of its layers draw from torch's generator by a function that has no keyed form"


def materialize(module: nn.Module, name: str, shape: tuple[int, ...], is_tokens: bool) -> None:
    """Gives lazy layers, such as `LazyLinear`, the sizes that follow from the samples. Raises UserError."""
    if any(is_lazy(tensor) for tensor in [*module.parameters(), *module.buffers()]):
        _called(module.eval(), name, _samples(2, shape, is_tokens))
        module.train()


def _called(module: Callable[[Tensor], Tensor], name: str, samples: Tensor) -> Tensor:
    """Output of a module; UserError if it fails, or changes the samples, which other models may also read."""
    before = samples.clone()
    try:
        with torch.no_grad():
            output = module(samples)
    except Exception as error:
        raise UserError(
            f"task.model: {name} fails on {_described(samples)} ({one_line(error)}); fix its forward"
        ) from error
    if not torch.equal(samples, before):
        raise UserError(
            f"task.model: {name} changes its input in place, and other models may read the same samples; let its first "
            "layer return a new tensor, such as nn.ReLU(inplace=False)"
        )
    return output


def _described(samples: Tensor) -> str:
    return f"a batch of shape {tuple(samples.shape)}"


class Expected(NamedTuple):
    """Output that a task expects of a model. shapes: possible shapes of one sample's output."""

    targets: Targets
    shapes: tuple[tuple[int, ...], ...]

    def check(self, outputs: Any, name: str, samples: Tensor) -> None:
        """Raises UserError if the outputs of a model for some samples have another shape."""
        output = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        if output not in [(len(samples), *shape) for shape in self.shapes]:
            what = "outputs" if self.targets == "numbers" else "logits"
            raise UserError(
                f"task.model: {name} returns {output} for {_described(samples)}; {what} of shape "
                f"{(len(samples), *self.shapes[0])} are expected"
            )


def try_out(module: nn.Module, name: str, shape: tuple[int, ...], expected: Expected, is_tokens: bool) -> None:
    """Runs a module on two samples. Raises UserError where it does not fit the data."""
    samples = _samples(2, shape, is_tokens)
    expected.check(_called(module, name, samples), name, samples)


def find_train_mode(
    module: nn.Module, name: str, shape: tuple[int, ...], expected: Expected, is_tokens: bool, policy: BufferPolicy
) -> TrainMode | None:
    """Runs a module on two samples, and returns how it differs in training mode; None if it needs no such mode.

    If it does, the module is put into evaluation mode. Raises UserError where the module does not fit the data.
    """
    samples = _samples(2, shape, is_tokens)
    modes = [(layer, layer.training) for layer in module.modules()]
    before = {key: buffer.detach().clone() for key, buffer in module.named_buffers()}
    trial = TrainMode(module.train(), tuple(before))
    context = LayerContext(trial, True, before, torch.zeros(2, dtype=torch.int64))
    torch_state, others = torch.get_rng_state(), _other_generators()
    expected.check(_called(partial(context.call, module, {}), name, samples), name, samples)
    if _other_generators() != others:
        raise UserError(
            f"task.model: {name} draws from NumPy or Python's random in its forward, so runs would not be "
            "reproducible; draw from torch, whose random numbers are keyed here"
        )
    seeds_torch = not torch.equal(torch.get_rng_state(), torch_state)
    changed = _tracked(module) | {key for key, value in context.buffers.items() if not _equal(value, before[key])}
    if not (changed or context.is_random or context.uses_batches or seeds_torch):
        for layer, was_training in modes:
            layer.training = was_training
        return None
    try:
        copy = in_train_mode(module)
    except Exception as error:
        raise UserError(f"task.model: {name} cannot be copied ({one_line(error)}), as its layers need") from error
    module.eval()
    names = tuple(key for key in before if key in changed)
    return TrainMode(copy, names, context.is_random or seeds_torch, seeds_torch, policy)


def vmap_objection(module: nn.Module, mode: TrainMode | None, shape: tuple[int, ...], is_tokens: bool) -> str | None:
    """Reason why a module cannot be trained for several clients at once, found in a trial; None if it can."""
    if mode is not None and mode.seeds_torch:
        return DRAWS
    if mode is not None and (own := sorted(set(mode.buffers) - _tracked(module))):
        return f"padding of mini-batches would enter {own[0]!r}, which the model itself updates"
    w = {name: p.detach() for name, p in trainable(module).items()}
    x = _samples(CLIENTS * SAMPLES, shape, is_tokens).unflatten(0, (CLIENTS, SAMPLES))
    keys = torch.arange(2 * CLIENTS).view(CLIENTS, 2)

    def one(x: Tensor, mask: Tensor, key: Tensor) -> Any:
        def loss(w: dict[str, Tensor]) -> Tensor:
            if mode is None:
                return call(module, w, x).logsumexp(-1).mean()
            context = LayerContext(mode, True, mode.initial(module), key)
            context.note("train", 0, Batch(x, mask, mask, mask.any().float()))
            return context.call(module, w, x).logsumexp(-1).mean()

        return gradient_and_value(loss)(w)[0]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.func.vmap(one, randomness="error")(x, torch.ones(CLIENTS, SAMPLES), keys)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
        return f"it fails for several clients at once under torch.func.vmap: {reason.rstrip('.')}"
    return None


def _samples(number: int, shape: tuple[int, ...], is_tokens: bool) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if is_tokens:
        return torch.zeros(number, *shape, dtype=torch.long)
    return 2 * torch.rand(number, *shape, generator=generator) - 1


def _tracked(module: nn.Module) -> set[str]:
    """Names of running statistics, which a trial may leave as they are: a mean of zeros is 0."""
    return {
        f"{name}.{key}".removeprefix(".")
        for name, layer in module.named_modules()
        if isinstance(layer, (*BATCH_NORMS, *TRACKING_NORMS))
        for key, _ in module.get_submodule(name).named_buffers()
    }


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _other_generators() -> Any:
    """States of the generators of Python and NumPy."""
    kind, words, *rest = np.random.get_state(legacy=True)
    return random.getstate(), kind, bytes(words), tuple(rest)  # type: ignore[arg-type]
