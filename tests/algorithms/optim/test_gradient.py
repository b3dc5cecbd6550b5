"""Gradients of many clients at once are those of each client, with torch.func and without."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from toys import StraightThrough

from hedgerow.algorithms.core import torch_private
from hedgerow.algorithms.core.client_data import rows_of
from hedgerow.algorithms.core.torch_private import call
from hedgerow.algorithms.optim import batched_functions
from hedgerow.algorithms.optim.batched_functions import BatchedFunctions, TransformNeededError
from hedgerow.algorithms.optim.gradient import direct_gradients, gradient_and_value

CLIENTS, VARIANTS = 3, 2


class Net(nn.Module):
    """Linear layers with and without a bias on samples of any shape, and a parameter that is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 2, bias=False)
        self.scale, self.unused = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)) * self.scale)


def own_parameters(net: nn.Module, *sizes: int) -> dict[str, torch.Tensor]:
    """Different parameters for each index of these dimensions."""
    random = torch.Generator().manual_seed(1)
    return {
        name: p.detach() + 0.1 * torch.randn(*sizes, *p.shape, generator=random, dtype=p.dtype)
        for name, p in net.named_parameters()
    }


def reference(loss, w, *rest):
    """Gradient and value of one client by torch.autograd."""
    w = {name: p.clone().requires_grad_() for name, p in w.items()}
    value = loss(w, *rest)
    slopes = torch.autograd.grad(value, list(w.values()), materialize_grads=True)
    return dict(zip(w, slopes, strict=True)), value.detach()


def check(found, expected):
    for name, slope in expected[0].items():
        assert torch.allclose(found[0][name], slope, atol=1e-12), name
    assert torch.allclose(found[1], expected[1], atol=1e-12)


@pytest.fixture(params=["direct", "torch.func", "without private names"])
def gradient(request, monkeypatch):
    """Function (loss, differentiable) -> gradient and value under vmap, each way."""
    monkeypatch.setattr(torch_private, "HAS_VMAP_LEVELS", request.param != "without private names")
    return in_torch_func if request.param == "torch.func" else directly


def directly(loss, **options):
    def both(*arguments):
        with direct_gradients():
            return gradient_and_value(loss, **options)(*arguments)

    return both


def in_torch_func(loss, **options):
    return gradient_and_value(loss, **options)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().double()


@pytest.mark.parametrize("shape", [(4,), (6, 4), (6, 3, 4), (0, 4)], ids=str)
def test_each_client_has_its_own_gradient(gradient, net, shape):
    x = torch.randn(CLIENTS, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    w = own_parameters(net, CLIENTS)

    def loss(w, x):
        return call(net, w, x).square().sum()

    slopes, values = torch.func.vmap(gradient(loss))(w, x)
    for client in range(CLIENTS):
        mine = {name: p[client] for name, p in w.items()}
        check(({n: s[client] for n, s in slopes.items()}, values[client]), reference(loss, mine, x[client]))


def test_clients_that_share_their_parameters_have_their_own_gradients(gradient, net):
    x = torch.randn(CLIENTS, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    w = own_parameters(net)

    def loss(w, x):
        return call(net, w, x).square().sum()

    slopes, values = torch.func.vmap(gradient(loss), in_dims=(None, 0))(w, x)
    for client in range(CLIENTS):
        check(({n: s[client] for n, s in slopes.items()}, values[client]), reference(loss, w, x[client]))


@pytest.mark.parametrize("shared", [False, True], ids=["own model per client", "one model per variant"])
def test_variants_and_clients_have_their_own_gradients(gradient, net, shared):
    x = torch.randn(CLIENTS, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    w = own_parameters(net, VARIANTS) if shared else own_parameters(net, VARIANTS, CLIENTS)

    def loss(w, x):
        return call(net, w, x).square().sum()

    def over_clients(w, x):
        return torch.func.vmap(gradient(loss), in_dims=(None if shared else 0, 0))(w, x)

    slopes, values = torch.func.vmap(over_clients, in_dims=(0, None))(w, x)
    for variant in range(VARIANTS):
        for client in range(CLIENTS):
            mine = {name: p[variant] if shared else p[variant, client] for name, p in w.items()}
            found = {name: slope[variant, client] for name, slope in slopes.items()}, values[variant, client]
            check(found, reference(loss, mine, x[client]))


def test_a_client_that_diverges_leaves_the_others_alone(gradient, net):
    x = torch.randn(CLIENTS, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    w = own_parameters(net, CLIENTS)
    w["first.weight"][1] = torch.inf

    def loss(w, x):
        return call(net, w, x).square().sum()

    slopes, _ = torch.func.vmap(gradient(loss))(w, x)
    finite = torch.stack([slope.reshape(CLIENTS, -1).isfinite().all(1) for slope in slopes.values()]).all(0)
    assert finite.tolist() == [True, False, True]


def test_a_gradient_within_a_gradient_is_a_product_with_the_hessian(gradient):
    x = torch.randn(CLIENTS, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    flat = torch.randn(CLIENTS, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    v = torch.linspace(0, 1, 20, dtype=torch.float64)

    def loss(flat, x):
        return functional.linear(x, flat.view(5, 4)).tanh().square().sum()

    def product(flat, x):
        inner = gradient_and_value(loss, differentiable=True)
        return gradient(lambda flat: inner(flat, x)[0] @ v)(flat)[0]

    products = torch.func.vmap(product)(flat, x)
    for client in range(CLIENTS):
        hessian = torch.autograd.functional.hessian(lambda w, x=x[client]: loss(w, x), flat[client])
        assert torch.allclose(products[client], hessian @ v)


def test_a_gradient_of_several_models_within_a_gradient(gradient):
    x = torch.randn(CLIENTS, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    w = torch.randn(CLIENTS, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def loss(w, x):
        def ensemble(v):
            return torch.func.vmap(lambda v: functional.linear((x @ v).tanh(), v).square().sum())(v).sum()

        return gradient_and_value(ensemble, differentiable=True)(w)[0].square().sum()

    slopes, _ = torch.func.vmap(gradient(loss))(w, x)
    for client in range(CLIENTS):
        assert torch.allclose(slopes[client], gradient_and_value(loss)(w[client], x[client])[0])


def test_gradients_are_computed_where_they_are_switched_off(gradient, net):
    w, x = own_parameters(net, CLIENTS), torch.ones(CLIENTS, 6, 4, dtype=torch.float64)
    with torch.no_grad():
        slopes, _ = torch.func.vmap(gradient(lambda w, x: call(net, w, x).sum()))(w, x)
    assert slopes["second.weight"].any()


def test_other_results_leave_without_a_graph(gradient, net):
    w, x = own_parameters(net, CLIENTS), torch.ones(CLIENTS, 6, 4, dtype=torch.float64)

    def loss(w, x):
        out = call(net, w, x)
        return out.sum(), {"largest": out.amax()}

    _, value, others = torch.func.vmap(gradient(loss, aux=True))(w, x)
    assert not value.requires_grad
    assert not others["largest"].requires_grad
    assert torch.equal(others["largest"], torch.func.vmap(lambda w, x: call(net, w, x).amax())(w, x))


def register_hook(x, w):
    w.register_hook(lambda slope: 0 * slope)
    return x @ w


NEED_TRANSFORMS = {
    "backward of the user's own": lambda x, w: StraightThrough.apply(x @ w),
    "hook": register_hook,
    "question for the graph": lambda x, w: x @ w if w.requires_grad else x,
    "sinc": lambda x, w: (x @ w).sinc(),
    "operator by name": lambda x, w: torch.ops.aten.sin(x @ w),
    "loss of several numbers": lambda x, w: (x @ w)[:, :2],
}


@pytest.mark.parametrize("layer", NEED_TRANSFORMS.values(), ids=list(NEED_TRANSFORMS))
def test_what_only_torch_func_differentiates_is_refused(layer):
    x, w = torch.randn(CLIENTS, 6, 4), torch.randn(CLIENTS, 4, 4)

    def loss(w, x):
        out = layer(x, w)
        return out if out.shape[1] == 2 else out.sum()

    with pytest.raises(TransformNeededError):
        torch.func.vmap(directly(loss))(w, x)
    # The transforms are in place again.
    assert torch.func.vmap(lambda x: x.sum())(x).shape == (CLIENTS,)
    assert torch_private.vmap_levels() == {}


def test_linear_layers_are_batched_products(monkeypatch, net):
    products = []
    monkeypatch.setattr(batched_functions, "_linear", lambda *args: products.append(linear(*args)) or products[-1])
    w, x = own_parameters(net, CLIENTS), torch.ones(CLIENTS, 6, 4, dtype=torch.float64)
    torch.func.vmap(directly(lambda w, x: call(net, w, x).sum()))(w, x)
    assert [product.shape for product in products] == [(6, 5), (6, 2)]


linear = batched_functions._linear


@pytest.mark.parametrize("shape", [(6, 4), (6, 3, 4)], ids=["samples", "tokens"])
def test_the_result_of_a_linear_layer_can_be_viewed_in_another_shape(gradient, net, shape):
    w, x = own_parameters(net, CLIENTS), torch.ones(CLIENTS, *shape, dtype=torch.float64)

    def loss(w, x):
        rows = functional.linear(x, w["first.weight"], w["first.bias"])
        return rows.view(6, -1).square().sum() if x.dim() > 2 else rows.square().sum()

    slopes, _ = torch.func.vmap(gradient(loss))(w, x)
    mine = {name: p[0] for name, p in w.items()}
    assert torch.allclose(slopes["first.weight"][0], reference(loss, mine, x[0])[0]["first.weight"])


def test_a_linear_layer_of_one_output_may_have_a_vector_as_its_weight(gradient):
    x, w = torch.randn(CLIENTS, 6, 4), torch.randn(CLIENTS, 4)
    slopes, _ = torch.func.vmap(gradient(lambda w, x: functional.linear(x, w).sum()))(w, x)
    assert torch.allclose(slopes, x.sum(1))


def test_a_linear_layer_that_clients_share_stays_as_it_is():
    weight, bias = torch.randn(5, 4), torch.randn(5)

    def layer(x):
        with BatchedFunctions(torch_private.vmap_levels()):
            return functional.linear(x, weight, bias=bias)

    x = torch.randn(CLIENTS, 6, 4)
    assert torch.equal(torch.func.vmap(layer)(x), functional.linear(x, weight, bias))


@pytest.mark.parametrize("has_names", [True, False])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
def test_rows_are_those_of_the_index(dtype, has_names, monkeypatch):
    monkeypatch.setattr(torch_private, "HAS_VMAP_LEVELS", has_names)
    table = torch.arange(40).view(10, 2, 2).to(dtype)
    rows = torch.tensor([[[3, 1], [0, 0]], [[9, 9], [4, 2]]])
    assert torch.equal(torch.func.vmap(lambda rows: rows_of(table, rows))(rows), table[rows])
    assert torch.equal(rows_of(table, rows[0, 0]), table[rows[0, 0]])
    tables = torch.stack([table, table + 1])
    both = torch.func.vmap(rows_of)(tables, rows)
    assert torch.equal(both, torch.stack([tables[0][rows[0]], tables[1][rows[1]]]))
