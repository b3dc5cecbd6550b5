"""Builds the model of a task."""

from collections.abc import Sequence

import torch
from torch import nn

from hedgerow.algorithms.core.measures import Targets
from hedgerow.algorithms.core.task import trainable
from hedgerow.platform.common.errors import UserError, one_line
from hedgerow.platform.common.memory import require
from hedgerow.platform.common.registry import Registry, import_object
from hedgerow.platform.models import MODELS
from hedgerow.platform.models.model import CustomModel, Model
from hedgerow.platform.models.vmap_check import check_module, constants

COPIES = 3
"""Minimum number of copies of the parameters during training: the server's, a client's, and its gradient."""


def build_model(
    config: Model | CustomModel,
    sample_shape: tuple[int, ...],
    classes: int,
    is_tokens: bool = False,
    targets: Targets = "classes",
    outputs: Sequence[tuple[int, ...]] = (),
) -> nn.Module:
    """Builds a module that maps a batch of samples to outputs, by default logits (samples, classes), with parameters
    from torch's generator.

    sample_shape: shape of one sample, without the batch. is_tokens: samples are integer sequences. targets: kind of the
    targets. outputs: shapes that the output of one sample may have; empty: (classes,). The module's
    attribute `no_vmap` is the reason why it cannot be batched over clients, or None; its attribute `constants` is
    `vmap_check.constants` of a user's own model. Raises UserError when the model does not fit the data or contains
    layers that a client step cannot have.
    """
    if isinstance(config, CustomModel):
        module = _custom(config)
    else:
        _refuse_wrong_kind(config, "token sequences" if is_tokens else _kind(sample_shape))
        _check_size(config, sample_shape, classes)
        module = config.build(sample_shape, classes)
    module.no_vmap = check_module(module)  # type: ignore[assignment]
    module.constants = None  # type: ignore[assignment]
    if isinstance(config, CustomModel) or targets != "classes":
        _try_out(module, config.name, sample_shape, is_tokens, list(outputs) or [(classes,)], targets)
    if isinstance(config, CustomModel):
        if not trainable(module):
            raise UserError(
                f"task.model: {type(module).__name__} has no parameters to train, or all of them are frozen "
                "(requires_grad=False); leave some trainable"
            )
        # Constants of built-in models follow from the seed and the sizes.
        module.constants = constants(module)  # type: ignore[assignment]
    return module


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


def _custom(config: CustomModel) -> nn.Module:
    module_class = import_object(config.name, nn.Module, "a torch.nn.Module", "task.model.name")
    try:
        return module_class(**config.args)
    except Exception as error:
        raise UserError(
            f"task.model.args: {config.name} cannot be built from them ({one_line(error)}); see its __init__"
        ) from error


def _try_out(
    module: nn.Module,
    name: str,
    shape: tuple[int, ...],
    is_tokens: bool,
    expected: list[tuple[int, ...]],
    targets: Targets,
) -> None:
    """Checks before the first round that a module fits the data. expected: possible shapes of a sample's output."""
    samples = torch.zeros(2, *shape, dtype=torch.long if is_tokens else torch.float)
    batch = f"a batch of shape {tuple(samples.shape)}"
    try:
        with torch.no_grad():
            logits = module(samples)
    except Exception as error:
        raise UserError(f"task.model: {name} fails on {batch} ({one_line(error)}); fix its forward") from error
    output = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if output not in [(2, *one) for one in expected]:
        what = "outputs" if targets == "numbers" else "logits"
        raise UserError(
            f"task.model: {name} returns {output} for {batch}; {what} of shape {(2, *expected[0])} are expected"
        )
