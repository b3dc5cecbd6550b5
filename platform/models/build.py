"""Builds the model of a task."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hedgerow.algorithms.core.measures import Targets
from hedgerow.algorithms.core.own_code import is_own
from hedgerow.algorithms.core.task import trainable
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import require
from hedgerow.platform.common.own_code_errors import failure
from hedgerow.platform.common.registry import Registry, import_named, require_own
from hedgerow.platform.models import MODELS
from hedgerow.platform.models.gradient_check import READS_AGAIN, needs_plain_format, reads_parameters_again
from hedgerow.platform.models.initial_weights import freeze, load_weights
from hedgerow.platform.models.model import CustomModel, Model
from hedgerow.platform.models.probe import (
    Expected,
    find_train_mode,
    materialize,
    plain_attributes_of,
    probe_samples,
    try_out,
    vmap_objection,
)
from hedgerow.platform.models.vmap_check import constants, fingerprint, vmap_reason

MARKS = {"no_vmap", "constants", "train_mode", "plain_format", "reads_again"}
"""Attributes that `build_model` sets on a module."""

COPIES = 3
"""Minimum number of copies of the parameters during training: the server's, a client's, and its gradient."""

FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Variable that makes `torch.load` refuse pickled objects, whatever its caller wants."""


def build_model(
    config: Model | CustomModel,
    sample_shape: tuple[int, ...],
    classes: int,
    tokens: np.ndarray | None = None,
    targets: Targets = "classes",
    outputs: Sequence[tuple[int, ...]] = (),
) -> nn.Module:
    """Builds a module that maps a batch of samples to outputs, by default logits (samples, classes), with parameters
    from torch's generator.

    sample_shape: shape of one sample, without the batch. tokens: raw samples of the data set, if they are sequences of
    integers; else None. targets: kind of the targets. outputs: shapes that the output of one sample may have; empty:
    (classes,). The module's attribute `no_vmap` is the reason why it cannot be batched over clients, or None;
    `constants` is `vmap_check.constants` of a foreign model, or the hash of the file of its parameters; `train_mode`
    says how it differs in training mode, or is None; `plain_format` says whether it needs the default memory format,
    and `reads_again` whether its backward pass reads parameters again. Raises UserError when the model does not fit the
    data.
    """
    samples = probe_samples(sample_shape, tokens)
    if isinstance(config, CustomModel):
        module = _custom(config)
        _refuse_marked(module, config.name)
        attributes = plain_attributes_of(module)
        materialize(module, config.name, samples)
    else:
        _refuse_wrong_kind(config, "token sequences" if tokens is not None else _kind(sample_shape))
        _check_size(config, sample_shape, classes)
        module = config.build(sample_shape, classes)
        attributes = plain_attributes_of(module) if config.is_foreign else {}
    digest = load_weights(module, Path(config.init)) if config.init else None
    freeze(module, config.freeze)
    expected = Expected(targets, tuple(outputs) or ((classes,),))
    properties: dict[str, Any] = {"no_vmap": vmap_reason(module), "constants": digest, "train_mode": None}
    if config.is_foreign:
        mode = find_train_mode(module, config.name, samples, expected, config.buffers, attributes)
        key = repr((config, classes, fingerprint([("", samples)]))), type(module)
        known = _properties()
        if key not in known:
            reads_again = reads_parameters_again(module, config.name, mode, samples)
            objection = READS_AGAIN if reads_again else properties["no_vmap"]
            if objection is None and not hasattr(module, "no_vmap"):
                objection = vmap_objection(module, mode, samples)
            plain_format = needs_plain_format(module, mode, samples)
            known[key] = {"no_vmap": objection, "reads_again": reads_again, "plain_format": plain_format}
        # Constants of built-in models follow from the seed, the sizes and the file.
        properties |= {"train_mode": mode, "constants": constants(module, digest), **known[key]}
    elif targets != "classes":
        try_out(module, config.name, samples, expected)
    if not trainable(module):
        raise UserError(
            f"task.model: {type(module).__name__} has no parameters to train, or all of them are frozen "
            "(requires_grad=False); leave some trainable"
        )
    for name, parameter in trainable(module).items():
        if parameter.dtype != torch.float32:
            raise UserError(
                f"task.model: {config.name} has the parameter {name!r} of type {parameter.dtype}; make it torch.float32"
            )
    for name, value in properties.items():
        setattr(module, name, value)
    return module


def remove_marks(module: nn.Module) -> None:
    """Remove what `build_model` has set on a module, so that it is an ordinary one."""
    for name in MARKS & vars(module).keys():
        delattr(module, name)


def _refuse_marked(module: nn.Module, name: str) -> None:
    """Raises UserError for a module that was built before, or whose own attribute has the name of a mark."""
    if {"train_mode", "constants"} <= vars(module).keys() and "no_vmap" in vars(module):
        remove_marks(module)
        raise UserError(
            f"task.model.name: {name} returns the same module again; build a new one in each call, such as "
            "`copy.deepcopy(module)`"
        )
    for mark in sorted(MARKS - {"no_vmap"}):
        if hasattr(module, mark):
            raise UserError(
                f"task.model: {name} has the attribute {mark!r}, a name that Hedgerow uses on models itself; rename it"
            )


def _kind(shape: tuple[int, ...]) -> str:
    return "images" if len(shape) == 3 else "flat features"


def _refuse_wrong_kind(config: Model, kind: str) -> None:
    if kind not in config.takes:
        models = Registry(MODELS, Model, "task.model.name")
        candidates = [name for name in models.names() if kind in models.resolve(name).takes]
        raise UserError(
            f"task.model: {config.name} takes {' or '.join(config.takes)}, but task.data has {kind}; choose "
            f"{', '.join(candidates)}"
        )


def _check_size(config: Model, shape: tuple[int, ...], classes: int) -> None:
    """Raises UserError if copies of the parameters do not fit into memory. The check allocates nothing."""
    advice = "lower the sizes of its layers"
    try:
        with torch.device("meta"):
            module = config.build(shape, classes)
    except (RuntimeError, TypeError):
        # Sizes overflow in PyTorch, so there is no number of parameters to compare.
        raise UserError(f"task.model: {config.name} has more parameters than any memory holds; {advice}") from None
    count = sum(parameter.numel() for parameter in module.parameters())
    needed = COPIES * sum(parameter.nbytes for parameter in module.parameters())
    require(needed, f"task.model: {COPIES} copies of the {count:,} parameters of {config.name}", advice)


class _ParameterHooks(TorchFunctionMode):
    """Context that notes the tensors on which gradient hooks are registered."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook):
            self.tensors.append(args[0])
        return function(*args, **kwargs or {})


def _custom(config: CustomModel) -> nn.Module:
    with _ParameterHooks() as hooks:
        module = _built(config)
    for name, parameter in module.named_parameters():
        if any(parameter is tensor for tensor in hooks.tensors):
            raise UserError(
                f"task.model: {config.name} registers a gradient hook on its parameter {name!r}, and clients train "
                "copies of parameters, which have no hooks; multiply the parameter by a mask in forward, set "
                "requires_grad=False, or register the hook on a tensor in forward"
            )
    return module


def _built(config: CustomModel) -> nn.Module:
    factory = import_named(config.name, "task.model.name")
    if not callable(factory):
        raise UserError(
            f"task.model.name: {config.name!r} is not callable; name a torch.nn.Module or a function that returns one"
        )
    is_foreign = not is_own(factory, config.name)
    if is_foreign and not (isinstance(factory, type) and issubclass(factory, nn.Module)):
        _require_listed(factory, config.name)
    try:
        with safe_weights() if is_foreign else nullcontext():
            module = factory(**config.args)
    except Exception as error:
        raise UserError(
            f"task.model.args: {config.name} cannot be built from them ({failure(error)}); see its "
            f"{'__init__' if isinstance(factory, type) else 'signature'}"
        ) from error
    if not isinstance(module, nn.Module):
        raise UserError(
            f"task.model.name: {config.name} returns an object of type {type(module).__name__}; name a torch.nn.Module "
            "or a function that returns one"
        )
    return module


def _require_listed(factory: Any, dotted: str) -> None:
    """Raises UserError if an object that is not the user's own is not a function that torchvision or timm lists as a
    model, or timm's `create_model`.
    """
    name = getattr(factory, "__name__", "")
    known: list[Any] = []
    if (models := sys.modules.get("torchvision.models")) is not None:
        known += [models.get_model_builder(one) for one in models.list_models() if one.endswith(name)]
    if (timm := sys.modules.get("timm")) is not None:
        known += [timm.create_model, *([timm.model_entrypoint(name)] if timm.is_model(name) else [])]
    if not any(factory is one for one in known):
        require_own(factory, dotted, "a model", "task.model.name")


@contextmanager
def safe_weights() -> Iterator[None]:
    """Files with pickled objects are not loaded: the arguments of a model may name files of weights."""
    before = os.environ.get(FORCED)
    os.environ[FORCED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FORCED]
        else:
            os.environ[FORCED] = before


@cache
def _properties() -> dict[tuple[str, type[nn.Module]], dict[str, Any]]:
    """Properties of models by their sections, samples and classes: each is tried once per process."""
    return {}
