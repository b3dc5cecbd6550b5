"""A check of a user's module before the first round: Hedgerow's way to call it has the results of plain PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import channels_last, needs_default_format
from hedgerow.algorithms.core.keyed_random import seeded
from hedgerow.algorithms.core.layer_context import LayerContext, TrainMode
from hedgerow.algorithms.core.task import Params, Task, trainable
from hedgerow.algorithms.core.torch_private import gradients, set_parameters, tables_of
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.own_code_errors import failure
from hedgerow.platform.models.probe import TOLERANCE, close

COMPARED = 4
"""Number of samples of the check: batch norm has a variance of them."""

READS_AGAIN = "its backward pass reads parameters again, as gradient checkpointing does"


def needs_plain_format(module: nn.Module, mode: TrainMode | None, samples: Tensor) -> bool:
    """Whether a module fails on samples and kernels in the format of `channels_last`, or has another output there."""
    task, w, x = Task(module, train_mode=mode), trainable(module), samples[:COMPARED]
    if all(t.dim() != 4 for t in (x, *w.values())) or needs_default_format(module.parameters()):
        return False
    outputs = []
    for layout in (torch.clone, channels_last):
        try:
            with _without_trace(module, mode), seeded(0):
                own = {name: layout(p.detach()) for name, p in w.items()}
                state = torch.get_rng_state()
                with torch.no_grad():
                    outputs.append(task.logits(own, layout(x)))
                is_random = not torch.equal(torch.get_rng_state(), state)
        except Exception:  # of any kind, of the user's code
            return bool(outputs)
    default, other = outputs
    # Random numbers are drawn in the order of the memory.
    return not is_random and not close(default, other)


def reads_parameters_again(module: nn.Module, name: str, mode: TrainMode | None, samples: Tensor) -> bool:
    """Whether the backward pass of a module reads parameters again, as gradient checkpointing does: they must then be
    in the module until its end.

    Compares gradients at other parameters with those of plain autograd, where it runs. Raises UserError if they differ.
    """
    task, x, before = Task(module, train_mode=mode), samples[:COMPARED], trainable(module)

    def others() -> Params:
        """Other parameters, the same ones in every call."""
        with seeded(0):
            return {key: 1.05 * p.detach() + 0.02 * torch.randn_like(p) for key, p in before.items()}

    def plain() -> Params | None:
        with _without_trace(module, mode), seeded(0):
            if mode is not None:
                module.train()
                mode.reset(module)
            try:
                w = others()
                with torch.no_grad():
                    for key, p in before.items():
                        p.copy_(w[key])
                shared = next(
                    (key for key, p in before.items() if not torch.equal(p.nan_to_num(), w[key].nan_to_num())), None
                )
                slopes = _slopes(module(x), before)
            except Exception:  # of any kind, of the user's code
                return None
        if shared is not None:
            raise UserError(
                f"task.model: {name} has two parameters with the same memory, one of them {shared!r}, and clients "
                "would train each for itself; assign one nn.Parameter to both attributes"
            )
        return slopes

    def own(is_set: bool = False, by: Params | None = None) -> Params:
        with _without_trace(module, mode), seeded(0):
            w = {key: p.requires_grad_() for key, p in others().items()}
            with set_parameters(module if mode is None else mode.module, w) if is_set else nullcontext():
                return _results(task, w, x, by)

    expected = plain()
    if expected is None:
        return False
    try:
        found = own()
        if not (different := _differences(expected, found)):
            return False
        if _differences(expected, plain() or {}):
            # Not repeatable, so there is nothing to compare with.
            return False
        right_while_set = not _differences(expected, own(is_set=True))
        still_reached = own(by=before)
    except Exception as error:
        raise UserError(
            f"task.model: {name} runs with its own parameters, but fails with those of a client ({failure(error)}); "
            "use parameters and layers as attributes, not in a closure, a hook or a list"
        ) from error
    if not right_while_set:
        key = next((key for key in before if still_reached[key].any()), different[0])
        reached = f"its parameter {key!r}" if key else "a parameter"
        raise UserError(
            f"task.model: {name} reaches {reached} by a reference that the parameters of a client do not replace, such "
            "as a closure, a hook or a list; use it as an attribute of its layer in forward"
        )
    if mode is not None:
        raise UserError(
            f"task.model: the backward pass of {name} reads parameters again, as gradient checkpointing does, which "
            f"works only without {mode.layers}; remove one of the two"
        )
    return True


ROUNDING = 1e-5
"""Rounding of a gradient, relative to the largest entry of all."""


def _differences(expected: Params, found: Params) -> list[str]:
    """Names of the gradients, or "" of the output, that differ by more than rounding."""
    size = max(_size(slope) for slope in expected.values())
    return [
        key
        for key, one in expected.items()
        if key not in found
        or not torch.allclose(found[key], one, rtol=0, atol=TOLERANCE * _size(one) + ROUNDING * size, equal_nan=True)
    ]


def _results(task: Task, w: Params, x: Tensor, by: Params | None = None) -> Params:
    """Results of `_slopes` by the parameters `w`, or others, computed outside the call of the model, as in a step."""
    mode = task.train_mode
    with nullcontext() if mode is None else LayerContext(mode, True, mode.initial(task.module)).entered():
        return _slopes(task.logits(w, x), by or w)


def _slopes(output: Tensor, w: Params) -> Params:
    """Gradients of a linear function of the output, and the output as the entry ""."""
    factors = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    value = (output * factors).sum()
    slopes = gradients(value, list(w.values())) if value.requires_grad else [torch.zeros_like(p) for p in w.values()]
    return {**dict(zip(w, (slope.to_dense() for slope in slopes), strict=True)), "": output.detach()}


def _size(t: Tensor) -> float:
    return float(t.nan_to_num().abs().max()) if t.numel() else 0.0


@contextmanager
def _without_trace(module: nn.Module, mode: TrainMode | None) -> Iterator[None]:
    """Context after which a module and its copy in training mode have their attributes and tensors of before."""
    parts = [*module.modules(), *(() if mode is None else mode.module.modules())]
    tables = [dict(table.items()) for part in parts for table in tables_of(part)]
    tensors = [(t, t.detach().clone(), t.requires_grad) for t in (*module.parameters(), *module.buffers())]
    try:
        yield
    finally:
        now = [table for part in parts for table in tables_of(part)]
        for table, before in zip(now, tables, strict=True):
            current = dict(table.items())
            for key in current.keys() - before.keys():
                del table[key]
            for key, value in before.items():
                if key not in current or current[key] is not value:
                    table[key] = value
        with torch.no_grad():
            for tensor, value, requires_grad in tensors:
                tensor.requires_grad_(requires_grad)
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        if mode is not None:
            mode.reset(module)
