"""A trial of a user's module before the first round: whether it fits the data, its training mode, and vmap."""

import io
import random
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pickle import Pickler
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.layer_context import (
    Attribute,
    BufferPolicy,
    LayerContext,
    TrainMode,
    copied,
    in_train_mode,
)
from hedgerow.algorithms.core.measures import Targets
from hedgerow.algorithms.core.task import trainable
from hedgerow.algorithms.core.torch_private import BATCH_NORMS, TRACKING_NORMS, call, plain_attributes
from hedgerow.algorithms.optim.gradient import direct_gradients, gradient_and_value
from hedgerow.platform.common.errors import UserError, one_line
from hedgerow.platform.common.own_code_errors import failure
from hedgerow.platform.models.vmap_check import fingerprint

CLIENTS, SAMPLES, REAL = 2, 4, 2
"""Clients, samples of each, and those of the second one that are not padding, in the trial under vmap."""

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
            f"task.model: {name} fails on {_described(samples)} ({failure(error)}); fix its forward"
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
    module: nn.Module,
    name: str,
    shape: tuple[int, ...],
    expected: Expected,
    is_tokens: bool,
    policy: BufferPolicy,
    attributes: Mapping[tuple[str, str], Any],
) -> TrainMode | None:
    """Runs a module on two samples and on one, and returns how it differs in training mode; None if it needs no such
    mode.

    If it does, the module is put into evaluation mode. attributes: initial values, see `plain_attributes_of`. Raises
    UserError where the module does not fit the data.
    """
    samples = _samples(2, shape, is_tokens)
    modes = [(layer, layer.training) for layer in module.modules()]
    before = {key: buffer.detach().clone() for key, buffer in module.named_buffers()}
    images = _images(module)
    # Copies: a call may change them in place.
    w = {key: p.detach().clone() for key, p in module.named_parameters()}
    trial = TrainMode(module.train(), tuple(before))
    context = LayerContext(trial, True, before, torch.zeros(2, dtype=torch.int64))
    torch_state, others = torch.get_rng_state(), _other_generators()
    expected.check(_called(partial(context.call, module, w), name, samples), name, samples)
    if _other_generators() != others:
        raise UserError(
            f"task.model: {name} draws from NumPy or Python's random in its forward, so runs would not be "
            "reproducible; draw from torch, whose random numbers are keyed here"
        )
    seeds_torch = not torch.equal(torch.get_rng_state(), torch_state)
    changed = _tracked(module) | {key for key, value in context.buffers.items() if not _equal(value, before[key])}
    with torch.random.fork_rng(devices=[]):
        # The last mini-batch of a client may have one sample.
        single = samples[:1]
        expected.check(_called(partial(context.call, module, w), name, single), name, single)
        changes_parameters = _changes_parameters(context, module, samples)
        context.training, module = False, module.eval()
        expected.check(_called(partial(context.call, module, w), name, samples), name, samples)
    kept = tuple(
        Attribute(layer, key, (attributes[layer, key],) if (layer, key) in attributes else ())
        for layer, key in _differing(images, _images(module))
    )
    for attribute in kept:
        try:
            attribute.reset(module)
        except Exception as error:
            raise UserError(
                f"task.model: {name} changes its attribute {str(attribute)!r} in a call, which would pass from one "
                f"client to the next, and it cannot be copied ({one_line(error)}); do not change it in forward"
            ) from error
    is_random = context.is_random or seeds_torch
    if not (changed or is_random or context.uses_batches or kept or changes_parameters):
        for layer, was_training in modes:
            layer.training = was_training
        return None
    try:
        copy = in_train_mode(module)
    except Exception as error:
        raise UserError(f"task.model: {name} cannot be copied ({one_line(error)}), as its layers need") from error
    module.eval()
    names = tuple(key for key in before if key in changed)
    return TrainMode(copy, names, is_random, seeds_torch, policy, kept, changes_parameters)


LARGE = 1e3
"""Value of parameters that a constraint on their size changes."""


def _changes_parameters(context: LayerContext, module: nn.Module, samples: Tensor) -> bool:
    """Whether a call changes parameters in place, as a constraint on their norm does."""
    w = {key: torch.full_like(p, LARGE) for key, p in module.named_parameters()}
    # The values mean nothing to the model, which may refuse their results.
    with torch.no_grad(), suppress(Exception):
        context.call(module, w, samples)
    return any(not (p == LARGE).all() for p in w.values())


def plain_attributes_of(module: nn.Module) -> dict[tuple[str, str], Any]:
    """Copies of the plain attributes of all layers, by layer and name. Those that cannot be copied are themselves."""

    def copy_of(value: Any) -> Any:
        try:
            return copied(value, module)
        except Exception:  # objects raise errors of any kind
            return value

    return {
        (layer, name): copy_of(value)
        for layer, part in module.named_modules()
        for name, value in plain_attributes(part).items()
    }


class _Image(Pickler):
    """Writes what determines the value of an attribute: other modules, parameters and functions are only named."""

    def __init__(self, file: io.BytesIO, own: set[int]):
        super().__init__(file)
        self.own = own

    def persistent_id(self, value: Any) -> Any:
        if id(value) in self.own or isinstance(value, (type, FunctionType)):
            return id(value)
        return fingerprint([("", value)]) if isinstance(value, Tensor) else None


def _images(module: nn.Module) -> dict[tuple[str, str], tuple[Any, Any]]:
    """The plain attributes of all layers and their images, by layer and name."""
    own = {id(one) for one in (*module.parameters(), *module.buffers(), *module.modules())}
    images: dict[tuple[str, str], tuple[Any, Any]] = {}
    for layer, part in module.named_modules():
        for name, value in plain_attributes(part).items():
            file = io.BytesIO()
            try:
                _Image(file, own).dump(value)
            except Exception:  # objects raise errors of any kind
                images[layer, name] = value, id(value)
            else:
                images[layer, name] = value, file.getvalue()
    return images


def _differing(before: Mapping[Any, tuple[Any, Any]], after: Mapping[Any, tuple[Any, Any]]) -> list[Any]:
    """Keys whose images differ, or that only one of the two has."""
    return [
        key for key in {**before, **after} if key not in before or key not in after or before[key][1] != after[key][1]
    ]


def vmap_objection(module: nn.Module, mode: TrainMode | None, shape: tuple[int, ...], is_tokens: bool) -> str | None:
    """Reason why a module cannot be trained for several clients at once, found in a trial; None if it can.

    In the trial, two clients have their own samples, and one of them a padded mini-batch. They have their own
    parameters and buffers, or share them, as in their first step and in evaluation. Their gradients and outputs must be
    those of one client after the other, without padding.
    """
    if mode is not None and mode.seeds_torch:
        return DRAWS
    if mode is not None and mode.attributes:
        return f"a call changes its attribute {str(mode.attributes[0])!r}, with which each client begins anew"
    if mode is not None and mode.changes_parameters:
        return "a call changes its parameters in place"
    if mode is not None and (own := sorted(set(mode.buffers) - _tracked(module))):
        return f"padding of mini-batches would enter {own[0]!r}, which the model itself updates"
    shared = {name: p.detach() for name, p in trainable(module).items()}
    initial = {} if mode is None else mode.initial(module)
    # Slightly different ones, since a client may be given those of another.
    w = {name: torch.stack([p, 1.01 * p]) for name, p in shared.items()}
    buffers = {name: torch.stack([buffer] * CLIENTS) for name, buffer in initial.items()}
    x = _samples(CLIENTS * SAMPLES, shape, is_tokens).unflatten(0, (CLIENTS, SAMPLES))
    x[1, REAL:] = x[1, 0]
    mask = torch.ones(CLIENTS, SAMPLES)
    mask[1, REAL:] = 0
    keys = torch.arange(2 * CLIENTS).view(CLIENTS, 2)

    def outputs(w: Any, buffers: Any, x: Tensor, key: Any = None, mask: Any = None, training: bool = False) -> Tensor:
        if mode is None:
            return call(module, w, x)
        context = LayerContext(mode, training, buffers, key)
        context.note("train", 0, Batch(x, x, mask, 1.0 if mask is None else mask.any().float()))
        return context.call(module, w, x)

    def slopes(w: Any, buffers: Any, x: Tensor, key: Tensor, mask: Any = None, is_direct: bool = False) -> Any:
        def loss(w: dict[str, Tensor]) -> Tensor:
            values = outputs(w, buffers, x, key, mask, training=True).reshape(len(x), -1).logsumexp(-1)
            return values.mean() if mask is None else (values * mask).sum() / mask.sum()

        with direct_gradients() if is_direct else nullcontext():
            return gradient_and_value(loss)(w)[0]

    def both(function: Callable[..., Any]) -> tuple[Any, Any]:
        own = torch.func.vmap(function, randomness="error")(w, buffers, x, keys, mask)
        shares = torch.func.vmap(function, (None, None, 0, 0, 0), randomness="error")
        return own, shares(shared, initial, x, keys, mask)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # As in a client step.
            try:
                found = both(partial(slopes, is_direct=True))
            except Exception:
                found = both(slopes)
            evaluated = both(outputs)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
        return f"it fails for several clients at once under torch.func.vmap: {reason.rstrip('.')}"
    for client, real in enumerate(mask.bool()):
        mine, kept = ({name: value[client] for name, value in tree.items()} for tree in (w, buffers))
        for i, (values, state) in enumerate(((mine, kept), (shared, initial))):
            expected = slopes(values, state, x[client][real], keys[client])
            size = max(float(slope.abs().max()) for slope in expected.values() if slope.numel())
            with torch.no_grad():
                scores = outputs(values, state, x[client][real])
            others = [
                f"the gradient of {name!r}"
                for name, slope in expected.items()
                if not _close(found[i][name][client], slope, size)
            ]
            if not _close(evaluated[i][client][real], scores, float(scores.nan_to_num().abs().max())):
                others.append("the output")
            if others:
                return f"with padded mini-batches, {others[0]} for several clients at once is another one"
    return None


def _close(found: Tensor, expected: Tensor, size: float) -> bool:
    return torch.allclose(found, expected, rtol=0, atol=TOLERANCE * size, equal_nan=True)


TOLERANCE = 1e-3
"""Difference of gradients, relative to the largest entry, that is not rounding."""


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
