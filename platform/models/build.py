"""Builds the model of a task."""

from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import nn

from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import trainable
from hedgerow.algorithms.problems.quadratic import Coefficients, QuadraticModel
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import require
from hedgerow.platform.common.registry import import_object
from hedgerow.platform.common.section import Section
from hedgerow.platform.models import torchvision_nets as staged
from hedgerow.platform.models import toy_models as toys
from hedgerow.platform.models.char_lstm import CharLSTMNet
from hedgerow.platform.models.early_exit import EarlyExit
from hedgerow.platform.models.model import (
    CNN,
    MLP,
    MODELS,
    CharLSTM,
    Conv4,
    CustomModel,
    ExitResNet,
    IntervalsModel,
    LogReg,
    MobileNetV2,
    PreActResNet,
    QuadraticXY,
    ResNet,
    ResNet18,
    ShuffleNetV2,
    SmallCNN,
    StaticMLP,
    StaticResNet,
    VisionTransformer,
)
from hedgerow.platform.models.preact_resnet import preact_resnet
from hedgerow.platform.models.static_resnet import StaticResNetModule
from hedgerow.platform.models.vmap_check import check_module, constants

COPIES = 3
"""Copies of the parameters that training holds at least: the server's, a client's, and its gradient."""


def build_model(config: Section, sample_shape: tuple[int, ...], classes: int, is_tokens: bool = False) -> nn.Module:
    """A module that maps a batch of samples to logits (samples, classes), its parameters drawn from torch's generator.

    config: one of `ModelConfig`. sample_shape: of one sample, without the batch. is_tokens: samples are integer
    sequences. The module's attribute `no_vmap` says why it cannot be batched over clients, None when it can; its
    attribute `constants` is `check.constants` of a user's own model. Raises UserError when the model does not fit the
    data or holds what has no place in a client step.
    """
    if isinstance(config, CustomModel):
        module = _custom(config)
    else:
        _refuse_wrong_kind(config, "token sequences" if is_tokens else _kind(sample_shape))
        _check_size(config, sample_shape, classes)
        module = _built_in(config, sample_shape, classes)
    module.no_vmap = check_module(module)  # type: ignore[assignment]
    module.constants = None  # type: ignore[assignment]
    if isinstance(config, CustomModel):
        _try_out(module, config.name, sample_shape, classes, is_tokens)
        if not trainable(module):
            raise UserError(
                f"task.model: {type(module).__name__} has no parameters to train, or all of them are frozen "
                "(requires_grad=False); leave some trainable"
            )
        # Those of built-in models follow from the seed and the sizes.
        module.constants = constants(module)  # type: ignore[assignment]
    return module


def _kind(shape: tuple[int, ...]) -> str:
    return "images" if len(shape) == 3 else "flat features"


def _refuse_wrong_kind(config: Any, kind: str) -> None:
    if kind not in config.takes:
        fitting = [name for name, other in MODELS.items() if kind in other.takes]
        raise UserError(
            f"task.model: {config.name} takes {' or '.join(config.takes)}, but task.data has {kind}; choose "
            f"{', '.join(fitting)}"
        )


def _check_size(config: Any, shape: tuple[int, ...], classes: int) -> None:
    """Raises UserError where copies of the parameters do not fit into memory. Nothing is allocated to find out."""
    advice = "lower the sizes of its layers"
    try:
        with torch.device("meta"):
            module = _built_in(config, shape, classes)
    except (RuntimeError, TypeError):
        # Sizes overflow in PyTorch, which then has no number of parameters to compare.
        raise UserError(f"task.model: {config.name} has more parameters than any memory holds; {advice}") from None
    count = sum(parameter.numel() for parameter in module.parameters())
    needed = COPIES * sum(parameter.nbytes for parameter in module.parameters())
    require(needed, f"task.model: {COPIES} copies of the {count:,} parameters of {config.name}", advice)


def _built_in(config: Any, shape: tuple[int, ...], classes: int) -> nn.Module:
    match config:
        case LogReg():
            return nn.Sequential(nn.Flatten(), *_fully_connected([prod(shape), classes]))
        case MLP():
            return nn.Sequential(nn.Flatten(), *_fully_connected([prod(shape), *config.hidden, classes]))
        case CNN():
            return _cnn(config, shape, classes)
        case SmallCNN():
            return _cnn(CNN(channels=[16, 32], kernel=3, padding=1, fc=[]), shape, classes, config.name)
        case Conv4():
            return _conv4(config.channels, shape, classes)
        case ResNet18():
            return _resnet18(config, shape, classes)
        case StaticResNet():
            return StaticResNetModule(shape[0], classes, config.channels, config.blocks)
        case ExitResNet():
            return EarlyExit(shape[0], classes, config.channels, config.blocks, config.exit_after, config.groups)
        case PreActResNet():
            return preact_resnet(shape[0], classes, config.channels, config.blocks, config.groups)
        case CharLSTM():
            if config.vocabulary is not None and config.vocabulary < classes:
                raise UserError(
                    f"task.model.vocabulary: {config.vocabulary} is less than the {classes} characters of the data; "
                    "remove it"
                )
            return CharLSTMNet(config.vocabulary or classes, config.embedding, config.hidden, config.layers, classes)
        case QuadraticXY():
            return _quadratic(config.upper, prod(shape))
        case ResNet():
            norm = partial(nn.GroupNorm, config.groups) if config.groups else StaticBatchNorm2d
            stem = config.stem or config.channels[0]
            how = {"bottleneck": config.bottleneck, "large_images": config.large_images}
            return staged.resnet(shape[0], classes, stem, config.channels, config.blocks, norm, **how)
        case ShuffleNetV2():
            return staged.shufflenet_v2(shape[0], classes)
        case MobileNetV2():
            return staged.mobilenet_v2(shape[0], classes)
        case VisionTransformer():
            return _vit(config, shape, classes)
        case IntervalsModel():
            return _intervals(config, shape, classes)
        case StaticMLP():
            return toys.StaticMLP([prod(shape), *config.hidden, classes], config.levels)
    raise TypeError(f"not the section of a model: {config!r}")


def _fully_connected(widths: list[int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


def _cnn(config: CNN, shape: tuple[int, ...], classes: int, name: str = "cnn") -> nn.Module:
    channels, height, width = shape
    layers: list[nn.Module] = []
    for outputs in config.channels:
        layers += [nn.Conv2d(channels, outputs, config.kernel, padding=config.padding), nn.ReLU(), nn.MaxPool2d(2)]
        channels = outputs
        height, width = ((side + 2 * config.padding - config.kernel + 1) // 2 for side in (height, width))
        if min(height, width) < 1:
            raise UserError(
                f"task.model: images of {shape[1]}x{shape[2]} are too small for {name} with kernel {config.kernel} and "
                f"padding {config.padding}; choose mlp, or cnn with a smaller kernel or more padding"
            )
    return nn.Sequential(*layers, nn.Flatten(), *_fully_connected([channels * height * width, *config.fc, classes]))


def _conv4(channels: int, shape: tuple[int, ...], classes: int) -> nn.Module:
    height, width = (side // 8 - 1 for side in shape[1:])
    if min(height, width) < 1:
        raise UserError(
            f"task.model: images of {shape[1]}x{shape[2]} are too small for conv4, which wants 16x16 at least; choose "
            "mlp"
        )
    layers: list[nn.Module] = []
    for inputs in (shape[0], channels, channels):
        layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(channels, channels, 2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels * height * width, classes))


def _resnet18(config: ResNet18, shape: tuple[int, ...], classes: int) -> nn.Module:
    if 64 % config.groups:
        raise UserError(f"task.model.groups: {config.groups} does not divide 64 channels; choose 1, 2, 4, ... 64")
    # torchvision takes seconds to import: only runs with this model pay for it.
    from hedgerow.platform.models.resnet18 import resnet18_gn

    return resnet18_gn(shape[0], classes, config.groups, config.small_images)


def _vit(config: VisionTransformer, shape: tuple[int, ...], classes: int) -> nn.Module:
    if shape[1] != shape[2] or shape[1] % config.patch:
        raise UserError(
            f"task.model: vit takes square images whose side {config.patch} divides, and these have "
            f"{shape[1]}x{shape[2]} pixels; choose another `patch`"
        )
    return staged.ViT(shape, classes, config.patch, config.layers, config.heads, config.width)


def _quadratic(p: int, features: int) -> nn.Module:
    for d in range(1, features):
        if Coefficients.ends(p, d)["r"] == features:
            return QuadraticModel(p, d)
    raise UserError(f"task.model.upper: no quadratic problem in {p} variables fits the data; set it to task.data.upper")


def _intervals(config: IntervalsModel, shape: tuple[int, ...], classes: int) -> nn.Module:
    if (shape, classes) != ((1,), 2):
        raise UserError("task.model: intervals are on a line, in two classes; choose `task.data: {name: intervals}`")
    return toys.Intervals(config.number, config.steepness, config.floor)


def _custom(config: CustomModel) -> nn.Module:
    module_class = import_object(config.name, nn.Module, "a torch.nn.Module", "task.model.name")
    try:
        return module_class(**config.args)
    except Exception as error:
        raise UserError(
            f"task.model.args: {config.name} cannot be made from them ({_told(error)}); see its __init__"
        ) from error


def _try_out(module: nn.Module, name: str, shape: tuple[int, ...], classes: int, is_tokens: bool) -> None:
    """Find out here, not in the first round, whether the user's module fits the data."""
    samples = torch.zeros(2, *shape, dtype=torch.long if is_tokens else torch.float)
    batch = f"a batch of shape {tuple(samples.shape)}"
    try:
        with torch.no_grad():
            logits = module(samples)
    except Exception as error:
        raise UserError(f"task.model: {name} fails on {batch} ({_told(error)}); mend its forward") from error
    found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if found != (2, classes):
        raise UserError(f"task.model: {name} returns {found} for {batch}; logits of shape {(2, classes)} are wanted")


def _told(error: Exception) -> str:
    """On one line."""
    return " ".join(str(error).split()) or type(error).__name__
