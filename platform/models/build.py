"""Builds the model of a task, and refuses what cannot be trained in a client step."""

import inspect
from itertools import pairwise
from typing import Any

from torch import nn

from hedgerow.platform.errors import UserError
from hedgerow.platform.models.config import CNN, MLP, CharLSTM, LogReg, OwnModel, ResNet18
from hedgerow.platform.plugins import import_object
from hedgerow.platform.section import Section

RECURRENT = "torch's recurrent kernels have no batching rule: under vmap they fall back to a slow loop"


def build_model(config: Section, sample_shape: tuple[int, ...], classes: int, tokens: bool = False) -> nn.Module:
    """A module that maps a batch of samples to logits (samples, classes), its parameters drawn from torch's generator.

    sample_shape: of one sample, without the batch. tokens: samples are integer sequences. A module that cannot be
    batched over clients carries the reason in its attribute `no_vmap`. Raises UserError when the model does not fit
    the data or holds what has no place in a client step.
    """
    if tokens != isinstance(config, CharLSTM) and not isinstance(config, OwnModel):
        needs, has = ("token sequences", "none") if not tokens else ("images or features", "token sequences")
        raise UserError(f"task.model: {_name(config)} takes {needs}, but task.data has {has}; choose another model")
    module = _build(config, sample_shape, classes)
    _refuse_unfit_layers(module)
    if not hasattr(module, "no_vmap") and any(isinstance(m, nn.RNNBase) for m in module.modules()):
        module.no_vmap = RECURRENT  # type: ignore[assignment]
    return module


def _build(config: Any, shape: tuple[int, ...], classes: int) -> nn.Module:
    features = 1
    for size in shape:
        features *= size
    if isinstance(config, LogReg):
        return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))
    if isinstance(config, MLP):
        return nn.Sequential(nn.Flatten(), *_fully_connected([features, *config.hidden, classes]))
    if isinstance(config, CNN):
        return _cnn(config, shape, classes)
    if isinstance(config, ResNet18):
        # torchvision takes seconds to import: only runs with this model pay for it.
        from hedgerow.platform.models.resnet import resnet18_gn

        if len(shape) != 3:
            raise UserError("task.model: resnet18_gn takes images, but task.data has flat features; choose mlp")
        if 64 % config.groups:
            raise UserError(f"task.model.groups: {config.groups} does not divide 64 channels; choose 1, 2, 4, ... 64")
        return resnet18_gn(shape[0], classes, config.groups, config.small_images)
    if isinstance(config, CharLSTM):
        from hedgerow.platform.models.char_lstm import CharLSTMNet

        return CharLSTMNet(config.vocabulary, config.embedding, config.hidden, config.layers, classes)
    return _own(config)


def _fully_connected(widths: list[int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


def _cnn(config: CNN, shape: tuple[int, ...], classes: int) -> nn.Module:
    if len(shape) != 3:
        raise UserError("task.model: cnn takes images, but task.data has flat features; choose mlp or logreg")
    channels, height, width = shape
    layers: list[nn.Module] = []
    for outputs in config.channels:
        layers += [nn.Conv2d(channels, outputs, config.kernel, padding=config.padding), nn.ReLU(), nn.MaxPool2d(2)]
        channels = outputs
        height, width = ((side + 2 * config.padding - config.kernel + 1) // 2 for side in (height, width))
        if min(height, width) < 1:
            raise UserError(
                f"task.model: images of {shape[1]}x{shape[2]} are too small for cnn with kernel {config.kernel} and "
                f"padding {config.padding}; lower task.model.kernel or raise task.model.padding"
            )
    widths = [channels * height * width, *config.fully_connected, classes]
    return nn.Sequential(*layers, nn.Flatten(), *_fully_connected(widths))


def _own(config: OwnModel) -> nn.Module:
    module_class = import_object(config.name, nn.Module, "a torch.nn.Module", "task.model.name")
    try:
        inspect.signature(module_class).bind(**config.args)
    except TypeError as error:
        raise UserError(
            f"task.model.args: {config.name} cannot be made from them ({error}); see its __init__"
        ) from None
    return module_class(**config.args)


def _refuse_unfit_layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"task.model: layer {name!r} is a BatchNorm, whose running statistics have no place in a client step; "
                "use GroupNorm"
            )
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise UserError(
                f"task.model: layer {name!r} is a Dropout, whose global randomness would make runs irreproducible; "
                "set p=0 or use weight_decay"
            )


def _name(config: Any) -> str:
    return str(config.name)
