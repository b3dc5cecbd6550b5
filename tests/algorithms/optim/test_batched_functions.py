"""Each function that the tensors of many clients may enter has the gradients that PyTorch computes for one client."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hedgerow.algorithms.optim.batched_functions import (
    CONSTANT,
    DIFFERENTIABLE,
    FIRST_ORDER,
    TransformNeededError,
    batched_attention,
    named,
)
from hedgerow.algorithms.optim.gradient import direct_gradients, gradient_and_value

CLIENTS = 3


class G(NamedTuple):
    """Shape of an argument that is differentiated."""

    shape: tuple[int, ...]


class I(NamedTuple):  # noqa: E742
    """Shape of whole numbers below `high`, which differ between clients."""

    shape: tuple[int, ...]
    high: int


class B(NamedTuple):
    """Shape of a mask that differs between clients."""

    shape: tuple[int, ...]


class P(NamedTuple):
    """Shape of an argument between 0 and 1 that is differentiated."""

    shape: tuple[int, ...]


class L(NamedTuple):
    """List of arguments."""

    parts: tuple


def g(*shape: int) -> G:
    return G(shape)


class Call(NamedTuple):
    arguments: tuple
    options: dict


def a(*arguments, **options) -> Call:
    return Call(arguments, options)


def each(names: str, calls: list[Call]) -> dict[str, list[Call]]:
    return dict.fromkeys(names.split(), calls)


M, IMAGE = g(3, 4), g(2, 4, 6, 6)
ONE, TWO = [a(M)], [a(M, M), a(M, g(4)), a(M, 2.0)]
TWO_TENSORS = [a(M, M), a(M, g(4))]
HEADS = g(2, 4, 5, 3)
TOKENS = g(5, 2, 4)
ATTENTION = (TOKENS, TOKENS, TOKENS, 4, 2, g(12, 4), g(12), None, None, False)
REDUCTION = [a(M), a(M, 1), a(M, 0, keepdim=True), a(M, dim=-1)]
ALONG = [a(M, 1), a(M, dim=0)]
CLASSES = [a(g(5, 4), I((5,), 4)), a(g(5, 4), I((5,), 4), reduction="none"), a(g(5, 4), I((5,), 4), ignore_index=1)]
TARGETS = torch.arange(12.0, dtype=torch.float64).view(3, 4)
NUMBERS = [a(M, TARGETS), a(M, TARGETS, reduction="sum"), a(M, TARGETS, reduction="none")]

CALLS: dict[str, list[Call]] = {
    **each(
        "abs absolute neg negative positive exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal "
        "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid logit erf erfc relu relu6 elu "
        "selu celu gelu silu mish softplus softsign hardtanh hardsigmoid hardswish tanhshrink softshrink "
        "hardshrink logsigmoid nan_to_num ceil floor round trunc sign contiguous clone float double __iter__ "
        "relu_ __neg__ __abs__",
        ONE,
    ),
    **each("leaky_relu leaky_relu_", [a(M), a(M, 0.2)]),
    "clamp_": [a(M, -0.5, 0.5)],
    "prelu": [a(g(3, 4), g(1)), a(g(3, 4, 2), g(4))],
    **each("clamp clip", [a(M, -0.5, 0.5), a(M, min=0.0), a(M, max=1.0), a(M, g(4))]),
    **each("clamp_min clamp_max", [a(M, 0.0), a(M, g(3, 4))]),
    "threshold": [a(M, 0.1, 3.0)],
    **each("add sub subtract", [*TWO, a(M, M, alpha=0.5)]),
    **each(
        "mul multiply div divide true_divide pow add_ sub_ mul_ div_ __add__ __radd__ __iadd__ __sub__ "
        "__rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__ __pow__ __rpow__",
        [*TWO, a(M, 3), a(M, 0.5)],
    ),
    **each("maximum minimum atan2 hypot logaddexp xlogy", TWO_TENSORS),
    "where": [a(B((3, 4)), M, M), a(B((3, 4)), M, 0.5), a(M, B((3, 4)), M)],
    "masked_fill": [a(M, B((3, 4)), 2.0), a(M, B((4,)), -1e9)],
    "lerp": [a(M, M, 0.3), a(M, M, M)],
    **each("addcmul addcdiv", [a(M, M, M), a(M, M, M, value=0.5)]),
    "linear": [a(g(5, 4), g(3, 4), g(3)), a(g(2, 5, 4), g(3, 4)), a(g(4), g(3, 4)), a(g(5, 4), g(4))],
    "bilinear": [a(g(5, 3), g(5, 4), g(2, 3, 4), g(2))],
    **each("__matmul__ __rmatmul__", [a(g(4, 4), g(4, 4)), a(g(2, 4, 4), g(4, 4))]),
    "matmul": [a(g(3, 4), g(4, 2)), a(g(2, 3, 4), g(4, 2)), a(g(4), g(4)), a(g(3, 4), g(4)), a(g(4), g(4, 2))],
    "mm": [a(g(3, 4), g(4, 2))],
    "bmm": [a(g(2, 3, 4), g(2, 4, 5))],
    "mv": [a(g(3, 4), g(4))],
    "dot": [a(g(4), g(4))],
    "outer": [a(g(4), g(3))],
    "addmm": [a(g(3, 2), g(3, 4), g(4, 2)), a(g(2), g(3, 4), g(4, 2), alpha=0.5)],
    "baddbmm": [a(g(2, 3, 5), g(2, 3, 4), g(2, 4, 5))],
    "einsum": [a("ij,jk->ik", g(3, 4), g(4, 2)), a("bhid,bhjd->bhij", g(2, 2, 3, 4), g(2, 2, 5, 4))],
    "tensordot": [a(g(3, 4), g(4, 2), 1), a(g(3, 4, 2), g(4, 2), dims=2)],
    **each("sum mean nansum", [*REDUCTION, a(g(2, 3, 4), (0, 2))]),
    "prod": REDUCTION,
    **each("var std var_mean std_mean", [*REDUCTION, a(M, 1, correction=0), a(M, 1, False)]),
    **each("amax amin", [*REDUCTION, a(g(2, 3, 4), (0, 2))]),
    "norm": [a(M), a(M, 2, 1), a(M, p=1, dim=0), a(M, dim=-1, keepdim=True)],
    **each("logsumexp cumsum cumprod softmax log_softmax softmin", ALONG),
    "sort": [a(M), a(M, 0, descending=True), a(M, dim=1, stable=True)],
    "topk": [a(M, 2), a(M, 2, 0, largest=False)],
    "view": [a(M, 2, 6), a(M, (-1,)), a(M, 4, -1)],
    **each("view_as reshape_as", [a(M, g(2, 6))]),
    "reshape": [a(M, (2, 6)), a(M, (-1,))],
    "flatten": [a(IMAGE), a(IMAGE, 1), a(IMAGE, 2, 3)],
    "unflatten": [a(M, 1, (2, 2)), a(M, -1, (2, -1))],
    "squeeze": [a(g(3, 1, 4)), a(g(3, 1, 4), 1), a(g(3, 1, 1), -1)],
    "unsqueeze": [a(M, 0), a(M, -1)],
    "permute": [a(g(2, 3, 4), (2, 0, 1))],
    **each("transpose movedim swapaxes", [a(g(2, 3, 4), 1, 2), a(g(2, 3, 4), -1, 0)]),
    "t": ONE,
    **each("expand broadcast_to", [a(g(3, 1), (3, 4)), a(g(4), (2, 3, 4))]),
    "expand_as": [a(g(3, 1), g(3, 4))],
    **each("repeat tile", [a(M, (2, 3)), a(M, (2, 1, 2))]),
    "repeat_interleave": [a(M, 2), a(M, 2, dim=1)],
    **each("cat concat", [a(L((M, M)), 0), a(L((M, g(3, 2))), dim=1)]),
    "stack": [a(L((M, M)), 0), a(L((M, M)), dim=-1)],
    **each("hstack vstack", [a(L((M, M)))]),
    "split": [a(M, 2, 1), a(M, [1, 3], dim=1)],
    "chunk": [a(M, 2, 1), a(M, 3)],
    "tensor_split": [a(M, 2, 1)],
    "unbind": [a(M), a(M, 1)],
    "narrow": [a(M, 1, 1, 2)],
    "select": [a(M, 1, 2)],
    "__getitem__": [
        *(a(M, 1), a(M, (slice(None), slice(1, 3))), a(M, (Ellipsis, None)), a(M, (slice(None), -1))),
        *(a(M, I((5,), 3)), a(M, (I((2,), 3), I((2,), 4))), a(M, (slice(None), [0, 2]))),
    ],
    "index_select": [a(M, 0, I((5,), 3)), a(M, 1, I((2,), 4))],
    "gather": [a(M, 1, I((3, 2), 4)), a(M, 0, I((2, 4), 3))],
    "take_along_dim": [a(M, I((3, 2), 4), 1)],
    "flip": [a(M, (0,)), a(M, (0, 1))],
    "roll": [a(M, 1, 0), a(M, 2)],
    **each("tril triu", [a(M), a(M, 1)]),
    "diagonal": [a(M), a(g(2, 3, 3), 0, 1, 2)],
    "unfold": [a(g(2, 3, 4), 2, 2, 1), a(IMAGE, 3), a(IMAGE, (2, 2), stride=2)],
    "pad": [
        *(a(IMAGE, (1, 1, 2, 0)), a(IMAGE, (1, 1), value=2.0)),
        *(a(IMAGE, (1, 1, 1, 1), mode=mode) for mode in ("reflect", "replicate", "circular")),
    ],
    "to": [a(M, torch.float64), a(M, torch.float32), a(M, "cpu")],
    "type_as": [a(M, M)],
    "pixel_shuffle": [a(IMAGE, 2)],
    "pixel_unshuffle": [a(IMAGE, 2)],
    "channel_shuffle": [a(IMAGE, 2)],
    **{
        f"conv{n}d": [
            *(a(g(2, 4, *[5] * n), g(6, 4, *[3] * n), g(6)), a(g(2, 4, *[5] * n), g(6, 4, *[3] * n))),
            a(g(2, 4, *[5] * n), g(6, 2, *[3] * n), g(6), stride=2, padding=1, groups=2),
            a(g(2, 4, *[5] * n), g(4, 1, *[2] * n), None, 1, "same", 2, 4),
        ]
        for n in (1, 2, 3)
    },
    **{f"conv_transpose{n}d": [a(g(2, 4, *[4] * n), g(4, 3, *[3] * n), g(3), stride=2, padding=1)] for n in (1, 2)},
    **{
        f"max_pool{n}d": [
            a(g(2, 3, *[6] * n), 2),
            a(g(2, 3, *[5] * n), 3, 2, 1),
            a(g(2, 3, *[5] * n), 2, ceil_mode=True),
        ]
        for n in (1, 2, 3)
    },
    **{f"avg_pool{n}d": [a(g(2, 3, *[6] * n), 2), a(g(2, 3, *[5] * n), 3, 2, 1)] for n in (1, 2, 3)},
    **{
        f"adaptive_{kind}_pool{n}d": [a(g(2, 3, *[6] * n), 1), a(g(2, 3, *[5] * n), 2)]
        for n in (1, 2)
        for kind in ("avg", "max")
    },
    "batch_norm": [
        a(g(5, 4), None, None, g(4), g(4), True),
        a(IMAGE, None, None, g(4), g(4), training=True),
        a(IMAGE, torch.zeros(4).double(), torch.ones(4).double(), g(4), g(4)),
        a(IMAGE, g(4), g(4), None, None, True, 0.1, 1e-5, False),
    ],
    "layer_norm": [a(M, (4,), g(4), g(4)), a(g(2, 3, 4), (3, 4)), a(M, (4,))],
    "group_norm": [a(IMAGE, 2, g(4), g(4)), a(IMAGE, 4)],
    "instance_norm": [
        *(a(IMAGE), a(IMAGE, weight=g(4), bias=g(4))),
        a(IMAGE, g(4), g(4), None, None, True, 0.1, 1e-5, False),
    ],
    "rms_norm": [a(M, (4,), g(4)), a(M, (4,))],
    "normalize": [a(M), a(M, p=1.0, dim=0)],
    "local_response_norm": [a(IMAGE, 2)],
    "cosine_similarity": [a(M, M), a(M, M, dim=0)],
    "pairwise_distance": [a(M, M)],
    "glu": [a(M), a(g(4, 3), 0)],
    "interpolate": [a(IMAGE, scale_factor=2), a(IMAGE, size=(9, 9), mode="bilinear")],
    **{f"dropout{n}": [a(x, 0.5, False), a(x, 0.5)] for n, x in {"": M, "1d": g(2, 4, 6), "2d": IMAGE}.items()},
    "dropout3d": [a(g(2, 3, 2, 2, 2), 0.5)],
    **each("alpha_dropout feature_alpha_dropout", [a(M, 0.5, True)]),
    "scaled_dot_product_attention": [
        *(a(HEADS, HEADS, HEADS), a(HEADS, HEADS, HEADS, None, 0.3, True), a(HEADS, HEADS, HEADS, scale=0.3)),
        *(a(HEADS, HEADS, HEADS, torch.ones(5, 5).bool().tril()), a(HEADS, HEADS, HEADS, g(5, 5))),
        a(HEADS, g(2, 2, 5, 3), g(2, 2, 5, 3), enable_gqa=True),
    ],
    "multi_head_attention_forward": [
        *(a(*ATTENTION, 0.0, g(4, 4), g(4), need_weights=False), a(*ATTENTION, 0.3, g(4, 4), g(4))),
    ],
    "cross_entropy": [
        *CLASSES,
        a(g(5, 4), I((5,), 4), label_smoothing=0.1),
        a(g(5, 4), g(5, 4)),
        a(g(2, 4, 3), I((2, 3), 4)),
    ],
    "nll_loss": CLASSES,
    **each("mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div", NUMBERS),
    "binary_cross_entropy": [a(P((3, 4)), TARGETS / 12), a(P((3, 4)), P((3, 4)))],
    "binary_cross_entropy_with_logits": [*NUMBERS, a(M, g(3, 4), pos_weight=g(4))],
    **each(
        "eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__",
        [a(M, M), a(M, 0.5)],
    ),
    **each("argmax argmin argsort any all count_nonzero", ALONG),
    **each(
        "isnan isinf isfinite detach zeros_like ones_like size stride dim ndimension numel nelement "
        "is_floating_point is_complex __len__",
        ONE,
    ),
    "full_like": [a(M, 2.0)],
    "new_full": [a(M, (2,), 2.0)],
    **each("new_zeros new_ones", [a(M, (2, 3))]),
}
"""Calls of each function. Each form of a function accepts some of them."""


def shapes_of(arguments) -> list:
    """Placeholders among arguments, in order."""
    if isinstance(arguments, (G, I, B, P)):
        return [arguments]
    parts = arguments.values() if isinstance(arguments, dict) else arguments
    parts = parts.parts if isinstance(parts, L) else parts
    return [one for part in parts for one in shapes_of(part)] if isinstance(arguments, (tuple, dict)) else []


def filled(arguments, values):
    """Arguments with the next of the values in place of each placeholder."""
    if isinstance(arguments, (G, I, B, P)):
        return next(values)
    if isinstance(arguments, L):
        return [filled(part, values) for part in arguments.parts]
    if isinstance(arguments, dict):
        return {name: filled(part, values) for name, part in arguments.items()}
    return tuple(filled(part, values) for part in arguments) if isinstance(arguments, tuple) else arguments


def drawn(placeholders, has_ties: bool):
    """Values of each client: parameters, and inputs that are not differentiated."""
    random = torch.Generator().manual_seed(1)
    w, inputs = {}, {}
    for i, one in enumerate(placeholders):
        shape = (CLIENTS, *one.shape)
        if isinstance(one, (G, P)):
            value = torch.randn(shape, generator=random, dtype=torch.float64)
            value = value.round() if has_ties else value
            w[str(i)] = value.sigmoid() if isinstance(one, P) else value
        else:
            number = torch.randint(0, one.high if isinstance(one, I) else 2, shape, generator=random)
            inputs[str(i)] = number if isinstance(one, I) else number.bool()
    return w, inputs


def outputs_of(result) -> list:
    """Numbers in the result of a function, as tensors."""
    if isinstance(result, Tensor):
        return [result.double()]
    if isinstance(result, (int, float)):
        return [torch.tensor(float(result)).double()]
    return [tensor for part in result or () for tensor in outputs_of(part)]


def loss_of(function: Callable, call: Call, count: int) -> Callable:
    def loss(w, inputs):
        # A product, since a leaf cannot be changed in place.
        values = iter([w[str(i)] * 1.0 if str(i) in w else inputs[str(i)] for i in range(count)])
        total = sum(value.square().sum() for value in w.values())
        arguments, options = filled(call.arguments, values), filled(call.options, values)
        for output in outputs_of(function(*arguments, **options)):
            weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).reshape(output.shape)
            total = total + (output * weights).sum() + output.square().sum()
        return total

    return loss


def second(loss: Callable, gradient: Callable) -> Callable:
    """Product of the gradient with numbers, as a loss."""

    def product(w, inputs):
        slopes = gradient(loss)(w, inputs)[0].values()
        return sum((slope * torch.linspace(0, 1, slope.numel()).reshape(slope.shape)).sum() for slope in slopes)

    return product


def inner(loss: Callable) -> Callable:
    return gradient_and_value(loss, differentiable=True)


def plain(loss: Callable) -> Callable:
    """Gradient by torch.autograd, that can be differentiated."""

    def both(w, inputs):
        w = {name: p if p.requires_grad else p.clone().requires_grad_() for name, p in w.items()}
        value = loss(w, inputs)
        slopes = torch.autograd.grad(value, list(w.values()), create_graph=True, materialize_grads=True)
        return dict(zip(w, slopes, strict=True)), value

    return both


def directly(loss: Callable) -> Callable:
    def both(w, inputs):
        with direct_gradients():
            return gradient_and_value(loss)(w, inputs)

    return both


def compare(loss: Callable, reference: Callable, w, inputs) -> bool:
    """Compare gradients of all clients with those of each one, with the same random numbers for each. Returns whether
    PyTorch computes one for one client.
    """

    def alone(i: int):
        torch.manual_seed(0)
        return plain(reference)(*({k: v[i] for k, v in some.items()} for some in (w, inputs)))

    with batched_attention():
        try:
            expected = [alone(i) for i in range(CLIENTS)]
        except (TypeError, RuntimeError, AttributeError, ValueError):
            return False
        torch.manual_seed(0)
        slopes, values = torch.func.vmap(directly(loss), randomness="same")(w, inputs)
    for i, (slope, value) in enumerate(expected):
        torch.testing.assert_close(values[i], value.detach(), equal_nan=True)
        for name in w:
            torch.testing.assert_close(slopes[name][i], slope[name].detach(), equal_nan=True)
    return True


@pytest.mark.grid
@pytest.mark.parametrize("has_ties", [False, True], ids=["different numbers", "equal numbers"])
@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_many_clients_are_those_of_each_client(name, has_ties):
    for function in named(name):
        fits = False
        for call in CALLS[name]:
            placeholders = shapes_of((call.arguments, call.options))
            w, inputs = drawn(placeholders, has_ties)
            loss = loss_of(function, call, len(placeholders))
            if compare(loss, loss, w, inputs):
                fits = True
                if name in FIRST_ORDER:
                    with pytest.raises(TransformNeededError):
                        compare(second(loss, inner), second(loss, plain), w, inputs)
                else:
                    compare(second(loss, inner), second(loss, plain), w, inputs)
        assert fits, f"no call of {name} fits {function}"


def test_every_function_has_calls():
    assert set(CALLS) == {*DIFFERENTIABLE, *FIRST_ORDER, *CONSTANT}
    assert all(map(named, CALLS))


def loss_of_rows(**options):
    def loss(w, inputs):
        return (functional.embedding(inputs["rows"], w["table"], **options) * inputs["slopes"]).square().sum()

    return loss


ROWS = torch.tensor([[0, 3, 3, 1], [2, 0, 0, 0], [1, 1, 1, 3]])
TABLES, SLOPES = torch.arange(24.0).view(3, 4, 2) - 10, torch.arange(24.0).view(3, 4, 2)


def test_an_embedding_selects_rows_for_many_clients():
    loss = loss_of_rows()
    assert compare(loss, loss, {"table": TABLES}, {"rows": ROWS, "slopes": SLOPES})


OPTIONS = {"padding_idx": 0, "scale_grad_by_freq": True, "sparse": True, "max_norm": 1.0}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_an_embedding_that_act_in_its_backward_need_torch_func(option):
    with pytest.raises(TransformNeededError):
        torch.func.vmap(directly(loss_of_rows(**{option: OPTIONS[option]})))(
            {"table": TABLES}, {"rows": ROWS, "slopes": SLOPES}
        )


@pytest.mark.parametrize("function", [torch.max, torch.Tensor.max, torch.min, torch.Tensor.min])
def test_a_maximum_of_all_entries_needs_torch_func_where_equal_ones_share_the_gradient(function):
    with pytest.raises(TransformNeededError):
        torch.func.vmap(directly(lambda w, inputs: function(w["table"])))({"table": TABLES}, {})

    def loss(w, inputs):
        return (function(w["table"], 1)[0] * inputs["slopes"][:, 0]).sum()

    assert compare(loss, loss, {"table": TABLES.round()}, {"slopes": SLOPES})


def test_a_function_that_is_not_known_may_compute_constants():
    def loss(w, inputs):
        return (w["table"] * inputs["slopes"].sinc()).square().sum()

    assert compare(loss, loss, {"table": TABLES}, {"slopes": SLOPES})
    with pytest.raises(TransformNeededError):
        torch.func.vmap(directly(lambda w, inputs: w["table"].sinc().sum()))({"table": TABLES}, {})
