"""A probe of a user's module before the first round: whether it fits the data, its training mode, and vmap."""

import io
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pickle import Pickler
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from hedgerow.algorithms.core.keyed_random import other_generators, seeded
from hedgerow.algorithms.core.layer_context import (
    Attribute,
    BufferPolicy,
    LayerContext,
    TrainMode,
    copied,
    in_train_mode,
    without_statistics,
)
from hedgerow.algorithms.core.measures import Targets
from hedgerow.algorithms.core.task import trainable
from hedgerow.algorithms.core.torch_private import BATCH_NORMS, TRACKING_NORMS, call, plain_attributes
from hedgerow.algorithms.optim.batched_functions import batched_attention
from hedgerow.algorithms.optim.gradient import direct_gradients, gradient_and_value
from hedgerow.platform.common.errors import UserError, one_line
from hedgerow.platform.common.own_code_errors import failure
from hedgerow.platform.models.vmap_check import fingerprint

CLIENTS, SAMPLES, REAL = 2, 4, 2
"""Clients, samples of each, and those that are not padding, in the probe under vmap."""


def probe_samples(shape: tuple[int, ...], tokens: np.ndarray | None) -> Tensor:
    """Prepared samples for the probes of this module: random values, or rows of a data set of tokens.

    shape: shape of one sample. tokens: raw samples of the data set, (samples, length), or None.
    """
    number = CLIENTS * SAMPLES
    if tokens is None:
        return 2 * torch.rand(number, *shape, generator=torch.Generator().manual_seed(0)) - 1
    return torch.from_numpy(tokens[np.linspace(0, len(tokens) - 1, number).astype(int)]).long()


def materialize(module: nn.Module, name: str, samples: Tensor) -> None:
    """Gives lazy layers, such as `LazyLinear`, the sizes that follow from the samples. Raises UserError."""
    if any(is_lazy(tensor) for tensor in [*module.parameters(), *module.buffers()]):
        _called(module.eval(), name, samples[:2])
        module.train()


class _Assignments(TorchFunctionMode):
    """Notes assignments to a tensor, also to those of its entries that have some value if none has it, and changes of
    `requires_grad`. flags: value of `requires_grad` by the `id` of each parameter.
    """

    def __init__(self, tensor: Tensor, flags: Mapping[int, bool]):
        super().__init__()
        self.tensor, self.flags, self.are_found, self.freezes = tensor, flags, False, False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.are_found |= function is Tensor.__setitem__ and args[0] is self.tensor
        if function in (Tensor.requires_grad_, Tensor.requires_grad.__set__):  # type: ignore[attr-defined]
            flag = (*args[1:], *(kwargs or {}).values(), True)[0]
            self.freezes |= self.flags.get(id(args[0]), flag) != flag
        return function(*args, **(kwargs or {}))


def _called(
    module: Callable[[Tensor], Tensor], name: str, samples: Tensor, flags: Mapping[int, bool] = MappingProxyType({})
) -> Tensor:
    """Output of a module; UserError if it fails, changes the samples, which other models may also read, or freezes or
    unfreezes its parameters. flags: see `_Assignments`.
    """
    before, assignments = samples.clone(), _Assignments(samples, flags)
    try:
        with torch.no_grad(), assignments:
            output = module(samples)
    except Exception as error:
        raise UserError(
            f"task.model: {name} fails on {_described(samples)} ({failure(error)}); fix its forward"
        ) from error
    if assignments.are_found or not torch.equal(samples, before):
        raise UserError(
            f"task.model: {name} changes its input in place, and other models may read the same samples; let its first "
            "layer return a new tensor, such as nn.ReLU(inplace=False)"
        )
    if assignments.freezes:
        raise UserError(
            f"task.model: {name} sets `requires_grad` of its parameters in a call, and clients train copies of them; "
            "set it in __init__, or call the layers under torch.no_grad()"
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


def try_out(module: nn.Module, name: str, samples: Tensor, expected: Expected) -> None:
    """Runs a module on two samples. Raises UserError where it does not fit the data."""
    expected.check(_called(module, name, samples[:2]), name, samples[:2])


def find_train_mode(
    module: nn.Module,
    name: str,
    samples: Tensor,
    expected: Expected,
    policy: BufferPolicy,
    attributes: Mapping[tuple[str, str], Any],
) -> TrainMode | None:
    """Runs a module on two samples and on one, and returns how it differs in training mode; None if it needs no such
    mode.

    If it does, the module is put into evaluation mode. attributes: initial values, see `plain_attributes_of`. Raises
    UserError where the module does not fit the data.
    """
    samples = samples[:2]
    modes = [(layer, layer.training) for layer in module.modules()]
    before = {key: buffer.detach().clone() for key, buffer in module.named_buffers()}
    images, class_images = _images(module, _attributes(module)), _images(module, _class_attributes(module))
    # Copies: a call may change them in place.
    w = {key: p.detach().clone() for key, p in module.named_parameters()}
    flags = {id(w[key]): p.requires_grad for key, p in module.named_parameters()}
    large = _large_parameters(module)
    has_norms = any(isinstance(layer, BATCH_NORMS) for layer in module.modules())
    # Its calls return the buffers that they change, in either mode of the module.
    context = LayerContext(TrainMode(module.train(), None, tuple(before)), True, before)

    def check(samples: Tensor) -> Tensor:
        output = _called(partial(context.call, module, w), name, samples, flags)
        expected.check(output, name, samples)
        return output

    with torch.random.fork_rng(devices=[]):
        torch_state, others = torch.get_rng_state(), other_generators()
        trained = [check(samples)]
        if other_generators() != others:
            raise UserError(
                f"task.model: {name} draws from NumPy or Python's random in its forward, so runs would not be "
                "reproducible; draw from torch, whose generator is seeded here"
            )
        _differentiate(context, module, samples)
        is_random = not torch.equal(torch.get_rng_state(), torch_state)
        changed = _tracked(module) | _changed(before, context.buffers)
        # The last mini-batch of a client may have one sample. Batch norm has then no variance, unless of an image.
        takes_one = not has_norms or _succeeds(partial(context.call, module, w), samples[:1])
        if takes_one:
            check(samples[:1])
        trained += _outputs(context, module, large, samples)
        buffers, module = context.buffers, module.eval()
        evaluated = [check(samples), *_outputs(context, module, large, samples)]
        check(samples[:1])
    differs = not all(close(one, other) for one, other in zip(trained, evaluated, strict=False))
    if new := next((key for key, _ in module.named_parameters() if key not in w), None):
        raise UserError(
            f"task.model: {name} creates its parameter {new!r} in a call; create it in __init__, or use a lazy layer"
        )
    parameters = _changed(w, dict(module.named_parameters())) | _changed(large, _large_parameters(module))
    changes_evaluation = bool(parameters or _changed(buffers, context.buffers))
    if frozen := next((key for key, p in module.named_parameters() if key in parameters and not p.requires_grad), None):
        raise UserError(
            f"task.model: {name} changes its frozen parameter {frozen!r} in a call, and all clients share it; make it "
            "a buffer (register_buffer), which the server averages"
        )
    if shared := next(iter(_changed(before, dict(module.named_buffers()))), None):
        fix = "keep it as a plain attribute, with which each client begins anew"
        if shared in _tracked(module):
            fix = "turn gradient checkpointing off, which runs its layer again"
        raise UserError(
            f"task.model: {name} changes its buffer {shared!r} in the backward pass, where it is the one of all "
            f"clients; {fix}"
        )
    for kind, key in _differing(class_images, _images(module, _class_attributes(module))):
        raise UserError(
            f"task.model: {name} changes the attribute {key!r} of its class {kind.__name__} in a call, which would "
            "pass from one client to the next; set it in __init__ as an attribute of self"
        )
    kept = tuple(
        Attribute(layer, key, (attributes[layer, key],) if (layer, key) in attributes else ())
        for layer, key in _differing(images, _images(module, _attributes(module)))
    )
    for attribute in kept:
        try:
            attribute.reset(module)
        except Exception as error:
            raise UserError(
                f"task.model: {name} changes its attribute {str(attribute)!r} in a call, which would pass from one "
                f"client to the next, and it cannot be copied ({one_line(error)}); do not change it in forward"
            ) from error
    if kept:
        with seeded(0):
            if not _outputs(context, module, w, samples):
                raise UserError(
                    f"task.model: {name} fails once its attribute {str(kept[0])!r} is a copy of its first value, with "
                    "which each client begins; let hooks read it from the module, not from a closure"
                )
        for attribute in kept:
            attribute.reset(module)
    if not (changed or is_random or has_norms or kept or differs or changes_evaluation):
        for layer, was_training in modes:
            layer.training = was_training
        return None
    try:
        untracked = without_statistics(module)
        copy = in_train_mode(untracked if untracked and policy == "ignore" else module)
    except Exception as error:
        fix = "; return the module itself, not that of torch.compile" if hasattr(module, "_orig_mod") else ""
        raise UserError(f"task.model: {name} cannot be copied ({one_line(error)}), as its layers need{fix}") from error
    module.eval()
    names = tuple(key for key, _ in copy.named_buffers() if key in changed)
    return TrainMode(
        copy, untracked, names, is_random, takes_one, policy, kept, bool(parameters), changes_evaluation, differs
    )


LARGE = 1e3
"""Size of parameters that a constraint on their size changes."""


def _large_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Large random values of all parameters, of both signs, which hardly any change in place leaves as they are."""
    generator = torch.Generator().manual_seed(0)
    return {
        key: (LARGE * torch.randn(p.shape, generator=generator)).to(p.dtype) for key, p in module.named_parameters()
    }


def _succeeds(call: Callable[[Tensor], Tensor], samples: Tensor) -> bool:
    try:
        call(samples)
    except Exception:
        return False
    return True


def _outputs(context: LayerContext, module: nn.Module, w: dict[str, Tensor], samples: Tensor) -> list[Tensor]:
    """Output of a module, which may refuse the results of parameters that mean nothing to it: then no output.

    Evaluations of clients run with gradients enabled, too.
    """
    with torch.enable_grad(), suppress(Exception):
        return [context.call(module, w, samples)]
    return []


def _differentiate(context: LayerContext, module: nn.Module, samples: Tensor) -> None:
    """Calls a module as in training, with a backward pass, for the state that only gradients change.

    A model that has no gradients can still be trained without them.
    """
    with torch.enable_grad(), suppress(Exception):
        leaves = {key: p.detach().clone().requires_grad_() for key, p in module.named_parameters() if p.requires_grad}
        # Not the leaves themselves: a call may change its parameters in place.
        output = context.call(module, {key: p.clone() for key, p in leaves.items()}, samples)
        torch.autograd.grad(output.sum(), list(leaves.values()), allow_unused=True)


def _changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> set[str]:
    """Names of the tensors that are no longer the same."""
    return {key for key, value in before.items() if not _equal(after[key], value)}


def close(one: Tensor, other: Tensor) -> bool:
    """Whether outputs differ by rounding alone."""
    size = TOLERANCE * float(one.nan_to_num(0, 0, 0).abs().max()) if one.numel() else 0
    return torch.allclose(one, other, rtol=0, atol=size, equal_nan=True)


def plain_attributes_of(module: nn.Module) -> dict[tuple[str, str], Any]:
    """Copies of the plain attributes of all layers, by layer and name. Those that cannot be copied are themselves."""

    def copy_of(value: Any) -> Any:
        try:
            return copied(value, module)
        except Exception:  # objects raise errors of any kind
            return value

    return {place: copy_of(value) for place, value in _attributes(module).items()}


def _attributes(module: nn.Module) -> dict[tuple[str, str], Any]:
    """The plain attributes of all layers, by layer and name."""
    return {
        (layer, name): value for layer, part in module.named_modules() for name, value in plain_attributes(part).items()
    }


def _class_attributes(module: nn.Module) -> dict[tuple[type, str], Any]:
    """The attributes of the classes of all layers but those of torch, by class and name."""
    kinds = dict.fromkeys(kind for layer in module.modules() for kind in type(layer).__mro__)
    return {
        (kind, name): value
        for kind in kinds
        if not kind.__module__.startswith("torch.")
        for name, value in vars(kind).items()
        if not name.startswith("__")
    }


class _Image(Pickler):
    """Writes what determines the value of an attribute: other modules, parameters and functions are only named, and so
    are objects that cannot be pickled, such as locks.
    """

    PROTOCOL = 4

    def __init__(self, file: io.BytesIO, own: set[int]):
        super().__init__(file, self.PROTOCOL)
        self.own = own

    def persistent_id(self, value: Any) -> Any:
        if id(value) in self.own or isinstance(value, (type, FunctionType, torch.jit.ScriptModule)):
            return id(value)
        return fingerprint([("", value)]) if isinstance(value, Tensor) else None

    def reducer_override(self, value: Any) -> Any:
        try:
            value.__reduce_ex__(self.PROTOCOL)
        except Exception:  # objects raise errors of any kind
            return int, (id(value),)
        return NotImplemented


def _images(module: nn.Module, attributes: Mapping[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    """Attributes of a module with their images, by the same keys."""
    own = {id(one) for one in (*module.parameters(), *module.buffers(), *module.modules())}
    images: dict[Any, tuple[Any, Any]] = {}
    for place, value in attributes.items():
        file = io.BytesIO()
        try:
            _Image(file, own).dump(value)
        except Exception:  # objects raise errors of any kind
            images[place] = value, id(value)
        else:
            images[place] = value, file.getvalue()
    return images


def _differing(before: Mapping[Any, tuple[Any, Any]], after: Mapping[Any, tuple[Any, Any]]) -> list[Any]:
    """Keys whose images differ, or that only one of the two has."""
    return [
        key for key in {**before, **after} if key not in before or key not in after or before[key][1] != after[key][1]
    ]


def vmap_objection(module: nn.Module, mode: TrainMode | None, samples: Tensor) -> str | None:
    """Reason why a module cannot be trained for several clients at once, found by a probe; None if it can.

    In the probe, two clients have their own samples, and draw the same random numbers. They have their own parameters
    and buffers, or share them, as in their first step and in evaluation. Their gradients and outputs must be those of
    one client after the other, and must not depend on padding, unless the module is only batched without it. samples:
    see `probe_samples`.
    """
    if mode is not None and mode.attributes:
        return f"a call changes its attribute {str(mode.attributes[0])!r}, with which each client begins anew"
    if mode is not None and mode.changes_parameters:
        return "a call changes its parameters in place"
    shared = {name: p.detach() for name, p in trainable(module).items()}
    initial = {} if mode is None else mode.initial(module)
    # Slightly different ones, since a client may be given those of another.
    w = {name: torch.stack([p, 1.01 * p]) for name, p in shared.items()}
    buffers = {name: torch.stack([buffer] * CLIENTS) for name, buffer in initial.items()}
    x = samples.unflatten(0, (CLIENTS, SAMPLES))
    real = REAL if mode is None or mode.takes_padding else SAMPLES
    mask = (torch.arange(SAMPLES) < real).float()
    padded = torch.cat([x[:, :real], x[:, :1].expand_as(x)[:, real:]], 1)

    def outputs(w: Any, buffers: Any, x: Tensor, training: bool = False) -> Tensor:
        return call(module, w, x) if mode is None else LayerContext(mode, training, buffers).call(module, w, x)

    def slopes(w: Any, buffers: Any, x: Tensor, is_direct: bool = False) -> Any:
        def loss(w: dict[str, Tensor]) -> Tensor:
            values = outputs(w, buffers, x, training=True).reshape(len(x), -1).logsumexp(-1)
            return (values * mask).sum() / mask.sum()

        with direct_gradients() if is_direct else nullcontext():
            return gradient_and_value(loss)(w)[0]

    def both(function: Callable[..., Any], x: Tensor, randomness: str = "same") -> list[Any]:
        """Results of the clients with their own parameters, and with those that they share."""
        results = []
        for *own, dims in ((w, buffers, 0), (shared, initial, (None, None, 0))):
            with seeded(0), batched_attention():
                results.append(torch.func.vmap(function, dims, randomness=randomness)(*own, x))
        return results

    def trained(function: Callable[..., Any]) -> tuple[Any, Any]:
        both(function, x, "different")
        return both(function, x), both(function, padded)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # As in a client step.
            try:
                found, other = trained(partial(slopes, is_direct=True))
            except Exception:
                found, other = trained(slopes)
            evaluated, scored = both(outputs, x), both(outputs, padded)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
        return f"it fails for several clients at once under torch.func.vmap: {reason.rstrip('.')}"
    for client in range(CLIENTS):
        mine, kept = ({name: value[client] for name, value in tree.items()} for tree in (w, buffers))
        for i, own in enumerate(((mine, kept), (shared, initial))):
            with seeded(0):
                alone = slopes(*own, x[client])
            with seeded(0), torch.no_grad():
                alone |= {"": outputs(*own, x[client])[:real]}
            batched, others = (
                {name: slope[client] for name, slope in gradients[i].items()} | {"": scores[i][client][:real]}
                for gradients, scores in ((found, evaluated), (other, scored))
            )
            for where, one, another in (("with padded mini-batches, ", batched, others), ("", alone, batched)):
                if (name := _first_difference(one, another)) is not None:
                    what = f"the gradient of {name!r}" if name else "the output"
                    return f"{where}{what} for several clients at once is another one"
    return None


def _first_difference(expected: dict[str, Tensor], found: dict[str, Tensor]) -> str | None:
    """Name of the first gradient, or "" of the output, that differs by more than rounding."""
    slopes = [slope for name, slope in expected.items() if name and slope.numel()]
    size = max(float(slope.nan_to_num().abs().max()) for slope in slopes)
    for name, one in expected.items():
        most = TOLERANCE * (size if name else float(one.nan_to_num().abs().max()))
        if not torch.allclose(found[name], one, rtol=0, atol=most, equal_nan=True):
            return name
    return None


TOLERANCE = 1e-3
"""Difference of gradients, relative to the largest entry, that is not rounding."""


def _tracked(module: nn.Module) -> set[str]:
    """Names of running statistics, which a probe may leave as they are: a mean of zeros is 0."""
    return {
        f"{name}.{key}".removeprefix(".")
        for name, layer in module.named_modules()
        if isinstance(layer, (*BATCH_NORMS, *TRACKING_NORMS))
        for key, _ in module.get_submodule(name).named_buffers()
    }


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether tensors are the same; NaN equals NaN."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
