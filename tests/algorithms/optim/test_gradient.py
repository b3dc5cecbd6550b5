"""Gradients of many clients at once: those of each client, whatever the model shares, nests or ignores."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from hedgerow.algorithms.core import torch_private
from hedgerow.algorithms.core.client_data import rows_of
from hedgerow.algorithms.core.torch_private import call
from hedgerow.algorithms.optim.batched_functions import BatchedFunctions
from hedgerow.algorithms.optim.gradient import gradient_and_value

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


@pytest.fixture(params=["with", "without"])
def private_names(request, monkeypatch):
    """Runs a test with the private names of torch, and as if they were missing."""
    monkeypatch.setattr(torch_private, "HAS_VMAP_LEVELS", request.param == "with")


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().double()


@pytest.mark.parametrize("shape", [(4,), (6, 4), (6, 3, 4), (0, 4)], ids=str)
@pytest.mark.usefixtures("private_names")
def test_each_client_has_its_own_gradient(net, shape):
    x = torch.randn(CLIENTS, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    w = own_parameters(net, CLIENTS)

    def loss(w, x):
        return call(net, w, x).square().sum()

    slopes, values = torch.func.vmap(gradient_and_value(loss))(w, x)
    for client in range(CLIENTS):
        mine = {name: p[client] for name, p in w.items()}
        check(({n: s[client] for n, s in slopes.items()}, values[client]), reference(loss, mine, x[client]))


@pytest.mark.usefixtures("private_names")
def test_clients_that_share_their_parameters_have_their_own_gradients(net):
    x = torch.randn(CLIENTS, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    w = own_parameters(net)

    def loss(w, x):
        return call(net, w, x).square().sum()

    slopes, values = torch.func.vmap(gradient_and_value(loss), in_dims=(None, 0))(w, x)
    for client in range(CLIENTS):
        check(({n: s[client] for n, s in slopes.items()}, values[client]), reference(loss, w, x[client]))


@pytest.mark.parametrize("shared", [False, True], ids=["own model per client", "one model per variant"])
@pytest.mark.usefixtures("private_names")
def test_variants_and_clients_have_their_own_gradients(net, shared):
    x = torch.randn(CLIENTS, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    w = own_parameters(net, VARIANTS) if shared else own_parameters(net, VARIANTS, CLIENTS)

    def loss(w, x):
        return call(net, w, x).square().sum()

    over_clients = torch.func.vmap(gradient_and_value(loss), in_dims=(None if shared else 0, 0))
    slopes, values = torch.func.vmap(over_clients, in_dims=(0, None))(w, x)
    for variant in range(VARIANTS):
        for client in range(CLIENTS):
            mine = {name: p[variant] if shared else p[variant, client] for name, p in w.items()}
            found = {name: slope[variant, client] for name, slope in slopes.items()}, values[variant, client]
            check(found, reference(loss, mine, x[client]))


@pytest.mark.usefixtures("private_names")
def test_a_client_that_diverges_leaves_the_others_alone(net):
    x = torch.randn(CLIENTS, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    w = own_parameters(net, CLIENTS)
    w["first.weight"][1] = torch.inf

    def loss(w, x):
        return call(net, w, x).square().sum()

    slopes, _ = torch.func.vmap(gradient_and_value(loss))(w, x)
    finite = torch.stack([slope.reshape(CLIENTS, -1).isfinite().all(1) for slope in slopes.values()]).all(0)
    assert finite.tolist() == [True, False, True]


@pytest.mark.usefixtures("private_names")
def test_a_gradient_within_a_gradient_is_a_product_with_the_hessian(net):
    x = torch.randn(CLIENTS, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    flat = torch.randn(CLIENTS, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    v = torch.linspace(0, 1, 20, dtype=torch.float64)

    def loss(flat, x):
        return (x @ flat.view(4, 5)).tanh().square().sum()

    def product(flat, x):
        inner = gradient_and_value(loss, differentiable=True)
        return gradient_and_value(lambda flat: inner(flat, x)[0] @ v)(flat)[0]

    found = torch.func.vmap(product)(flat, x)
    for client in range(CLIENTS):
        hessian = torch.autograd.functional.hessian(lambda w, x=x[client]: loss(w, x), flat[client])
        assert torch.allclose(found[client], hessian @ v)
        assert torch.allclose(product(flat[client], x[client]), hessian @ v)


@pytest.mark.usefixtures("private_names")
def test_other_results_leave_without_a_graph(net):
    w, x = own_parameters(net, CLIENTS), torch.ones(CLIENTS, 6, 4, dtype=torch.float64)

    def loss(w, x):
        out = call(net, w, x)
        return out.sum(), {"largest": out.max()}

    _, value, others = torch.func.vmap(gradient_and_value(loss, aux=True))(w, x)
    assert not value.requires_grad
    assert not others["largest"].requires_grad
    assert torch.equal(others["largest"], torch.func.vmap(lambda w, x: call(net, w, x).max())(w, x))


def test_a_loss_must_be_one_number(net):
    w, x = own_parameters(net, CLIENTS), torch.ones(CLIENTS, 6, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"the loss must be a 0-d tensor, but has shape \(6, 2\)"):
        torch.func.vmap(gradient_and_value(lambda w, x: call(net, w, x)))(w, x)


def test_layers_see_that_their_parameters_require_a_gradient():
    torch.manual_seed(0)
    # In evaluation mode it has a fast path without gradients.
    net = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).double().eval()
    w, x = own_parameters(net, CLIENTS), torch.randn(CLIENTS, 6, 3, 4, dtype=torch.float64)

    def loss(w, x):
        assert all(p.requires_grad for p in w.values())
        return call(net, w, x).square().mean()

    slopes, values = torch.func.vmap(gradient_and_value(loss))(w, x)
    for client in range(CLIENTS):
        mine = {name: p[client] for name, p in w.items()}
        check(({n: s[client] for n, s in slopes.items()}, values[client]), reference(loss, mine, x[client]))


def test_a_linear_layer_that_clients_share_stays_as_it_is():
    weight, bias = torch.randn(5, 4), torch.randn(5)

    def layer(x):
        with BatchedFunctions():
            return functional.linear(x, weight, bias=bias)

    x = torch.randn(CLIENTS, 6, 4)
    assert torch.equal(torch.func.vmap(layer)(x), functional.linear(x, weight, bias))
    assert torch.equal(layer(x[0]), functional.linear(x[0], weight, bias))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
@pytest.mark.usefixtures("private_names")
def test_rows_are_those_of_the_index(dtype):
    table = torch.arange(40).view(10, 2, 2).to(dtype)
    rows = torch.tensor([[[3, 1], [0, 0]], [[9, 9], [4, 2]]])
    assert torch.equal(torch.func.vmap(lambda rows: rows_of(table, rows))(rows), table[rows])
    assert torch.equal(rows_of(table, rows[0, 0]), table[rows[0, 0]])
    tables = torch.stack([table, table + 1])
    both = torch.func.vmap(rows_of)(tables, rows)
    assert torch.equal(both, torch.stack([tables[0][rows[0]], tables[1][rows[1]]]))
