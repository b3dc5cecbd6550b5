"""Hypergradient tools against closed forms, finite differences and forward mode (fedbio.md, sections 2.5 and 6)."""

import pytest
import torch
from bilevels import problem
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import add, dot, scale, sub, tree_map
from hedgerow.algorithms.optim import hypergradient as tools
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.problems import Cleaning, HyperRepresentation

RIDGE = 0.1


def network(kind):
    """A small one, in double precision: its f and g, and a point."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, y = torch.randn(12, 3).double(), torch.randint(0, 2, (12,))
    rows = torch.arange(12)
    fields = {"mean": torch.zeros(3), "std": torch.ones(3)}
    if kind == "cleaning":
        fields |= {"slots": rows, "places": rows, "blocks": rows[None], "wrong": torch.zeros(12, dtype=torch.bool)}
        task = Cleaning(module, **fields)
    else:
        task = HyperRepresentation(module, **fields, head=("2.weight", "2.bias"))
    train, validation = Batch(x[:8], y[:8], rows=rows[:8]), Batch(x[8:], y[8:], rows=rows[8:])
    z = tree_map(lambda leaf: leaf.double() + 0.3 * torch.randn_like(leaf.double()), task.start())

    def f(x, y):
        return task.upper(x, y, validation)

    def g(x, y):
        return task.lower(x, y, train) + 0.5 * RIDGE * dot(y, y)

    return f, g, z["x"], z["y"]


def linear_descent(hessian, b, u, lr, steps):
    """Runs `steps` steps of gradient descent on 1/2 u' H u - b' u from u (FedBiO, Eq. 4).

    Each step reduces the distance to H^-1 b by a factor 1 - lr mu, for lr up to 1 / |H|.
    """
    for _ in range(steps):
        u = add(u, sub(hessian(u), b), -lr)
    return u


def solved(g, x, y, steps=10):
    """argmin_y g, by Newton's method."""
    for _ in range(steps):
        y = sub(y, tools.solve(tools.dense_hessian(g, x, y), tools.lower_slope(g, x, y)))
    return y


def by_differences(h, x, step=1e-5):
    """The gradient of h at a tree x."""
    flat = tools.flat(x)
    eye = torch.eye(len(flat), dtype=torch.float64)
    return torch.stack(
        [(h(tools.like(flat + step * e, x)) - h(tools.like(flat - step * e, x))) / (2 * step) for e in eye]
    )


def relative(found, wanted):
    found, wanted = (tools.flat(t) if isinstance(t, dict) else t for t in (found, wanted))
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("kind", ["cleaning", "hyper_representation"])
def test_products_equal_forward_over_reverse(kind):
    _, g, x, y = network(kind)
    u = tree_map(torch.randn_like, y)
    slope, cross, hessian = tools.products(g, x, y, u)
    gradient = torch.func.grad(g, argnums=(0, 1))
    (_, slope_y), (cross_, hessian_) = torch.func.jvp(lambda y: gradient(x, y), (y,), (u,))
    for found, wanted in ((slope, slope_y), (cross, cross_), (hessian, hessian_)):
        assert relative(found, wanted) < 1e-12
    assert relative(tools.hessian_product(g, x, y, u), hessian) < 1e-12
    assert relative(tools.cross_product(g, x, y, u), cross) < 1e-12


@pytest.mark.parametrize("kind", ["cleaning", "hyper_representation"])
def test_products_equal_finite_differences(kind):
    _, g, x, y = network(kind)
    u = tree_map(torch.randn_like, y)
    _, cross, hessian = tools.products(g, x, y, u)
    along_x = by_differences(lambda x: dot(tools.lower_slope(g, x, y), u), x)
    along_y = by_differences(lambda y: dot(tools.lower_slope(g, x, y), u), y)
    assert relative(cross, along_x) < 1e-7
    assert relative(hessian, along_y) < 1e-7


def test_products_are_the_same_under_vmap():
    _, g, x, y = network("hyper_representation")
    us = tree_map(lambda leaf: torch.randn(4, *leaf.shape, dtype=torch.float64), y)
    together = torch.func.vmap(lambda u: tools.products(g, x, y, u))(us)
    for i in range(4):
        alone = tools.products(g, x, y, tree_map(lambda leaf, i=i: leaf[i], us))
        for found, wanted in zip(together, alone, strict=True):
            assert relative(tree_map(lambda leaf, i=i: leaf[i], found), wanted) < 1e-12


def exact(f, g, x, y):
    """Hypergradient at y_x, with H^-1 from a dense matrix."""
    direct, b, _ = tools.slopes(f, x, y)
    return sub(direct, tools.cross_product(g, x, y, tools.solve(tools.dense_hessian(g, x, y), b)))


def unrolled(f, g, x, y, lr, steps):
    """Derivative of f(x, y_K(x)), where y_K is the result of K steps of gradient descent on g from y."""

    def outer(x):
        z = y
        for _ in range(steps):
            z = add(z, tools.lower_slope(g, x, z, differentiable=True), -lr)
        return f(x, z)

    return gradient_and_value(outer)(x)[0]


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("kind", ["cleaning", "hyper_representation"])
def test_the_exact_hypergradient_is_that_of_h(kind):
    """C25: the lower problem is solved anew for every difference."""
    f, g, x, y = network(kind)
    if kind == "hyper_representation":
        y = scale(y, 0.1)
    found = exact(f, g, x, solved(g, x, y))
    wanted = by_differences(lambda x: f(x, solved(g, x, y)), x)
    assert relative(found, wanted) < 1e-5


def test_all_solvers_agree_on_a_quadratic():
    quadratic = problem(clients=1)
    task, best = quadratic.task, quadratic.best()
    row = Batch(quadratic.means, torch.zeros(1))
    x, y = {"x": best["x"] + 1.0}, None
    q = task._problems(0.0, local=False)
    y = {"y": torch.linalg.solve(q.A[0], q.B[0] @ x["x"] + q.c[0])}
    wanted = task.hypergradient(x["x"])
    f, g = (lambda x, y: task.upper(x, y, row)), (lambda x, y: task.lower(x, y, row))
    assert relative(exact(f, g, x, y), wanted) < 1e-12
    direct, b, _ = tools.slopes(f, x, y)

    def hessian(v):
        return tools.hessian_product(g, x, y, v)

    for u in (
        tools.neumann([hessian] * 300, b, 0.25),
        tools.conjugate_gradient(hessian, b, 6),
        # More steps than there are dimensions change nothing.
        tools.conjugate_gradient(hessian, b, 40),
        linear_descent(hessian, b, scale(b, 0.0), 0.25, 300),
    ):
        assert relative(sub(direct, tools.cross_product(g, x, y, u)), wanted) < 1e-9
    # From y_x the unrolled steps stay there, and their derivative is the truncated series.
    assert relative(unrolled(f, g, x, y, 0.25, 200), wanted) < 1e-9
    truncated = tools.neumann([hessian] * 4, b, 0.25)
    assert relative(unrolled(f, g, x, y, 0.25, 5), sub(direct, tools.cross_product(g, x, y, truncated))) < 1e-12


def test_the_linear_iterate_contracts_and_is_the_neumann_series():
    """C4."""
    quadratic = problem(clients=1)
    task, row = quadratic.task, Batch(quadratic.means, torch.zeros(1))
    x, y = {"x": torch.ones(4).double()}, {"y": torch.ones(6).double()}

    def hessian(v):
        return tools.hessian_product(lambda x, y: task.lower(x, y, row), x, y, v)

    A = task._problems(0.0, local=False).A[0]  # noqa: N806
    eigenvalues = torch.linalg.eigvalsh(A)
    lr = float(1 / eigenvalues[-1])
    b = tools.slopes(lambda x, y: task.upper(x, y, row), x, y).y
    exact = tools.solve(A, b)
    u = start = {"y": torch.randn(6).double()}
    for _ in range(20):
        before, u = u, linear_descent(hessian, b, u, lr, 1)
        ratio = dot(sub(u, exact), sub(u, exact)).sqrt() / dot(sub(before, exact), sub(before, exact)).sqrt()
        assert ratio <= 1 - lr * float(eigenvalues[0]) + 1e-9
    for terms in (0, 1, 7):
        series = tools.neumann([hessian] * terms, b, lr)
        assert relative(linear_descent(hessian, b, scale(start, 0.0), lr, terms + 1), series) < 1e-12


def test_the_bias_of_the_neumann_series_is_geometric():
    """C10: at most (||B|| / mu) (1 - tau mu)^(Q+1) ||grad_y f||."""
    quadratic = problem(clients=1)
    task, row = quadratic.task, Batch(quadratic.means, torch.zeros(1))
    x, y = {"x": torch.ones(4).double()}, {"y": torch.ones(6).double()}
    q = task._problems(0.0, local=False)
    mu, big = (float(v) for v in torch.linalg.eigvalsh(q.A[0])[[0, -1]])
    f, g = (lambda x, y: task.upper(x, y, row)), (lambda x, y: task.lower(x, y, row))
    direct, b, _ = tools.slopes(f, x, y)
    exact = sub(direct, tools.cross_product(g, x, y, tools.solve(q.A[0], b)))
    errors = []
    for terms in (0, 1, 3, 8, 20):
        u = tools.neumann([lambda v: tools.hessian_product(g, x, y, v)] * terms, b, 1 / big)
        found = add(direct, tools.cross_product(g, x, y, u), -1.0)
        errors.append(float(dot(sub(found, exact), sub(found, exact)).sqrt()))
        cross = float(torch.linalg.matrix_norm(q.B[0], 2))
        assert errors[-1] <= cross / mu * (1 - mu / big) ** (terms + 1) * float(dot(b, b).sqrt()) + 1e-12
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01 * errors[0]


def test_f1_and_auc_of_finding_wrong_labels():
    from hedgerow.algorithms.problems.cleaning import detection

    wrong = torch.tensor([True, True, False, False])

    def report(precision, recall, f1, auc):
        names = ("cleaning_precision", "cleaning_recall", "cleaning_f1", "cleaning_auc")
        return dict(zip(names, (precision, recall, f1, auc), strict=True))

    assert detection(torch.tensor([0.1, 0.2, 0.8, 0.9]), wrong) == report(1.0, 1.0, 1.0, 1.0)
    assert detection(torch.tensor([0.5, 0.5, 0.5, 0.5]), wrong) == report(0.0, 0.0, 0.0, 0.5)
    # One of two found, one false alarm; of the four pairs three are in order.
    assert detection(torch.tensor([0.1, 0.6, 0.4, 0.9]), wrong) == report(0.5, 0.5, 0.5, 0.75)
    # To take everything for wrong finds everything: 2 rho / (1 + rho).
    assert detection(torch.tensor([0.1, 0.1, 0.1, 0.1]), wrong) == report(0.5, 1.0, 2 / 3, 0.5)
    assert detection(torch.ones(4), torch.zeros(4, dtype=torch.bool)) == {}


def test_gauss_newton_products():
    """J'(diag(p) - pp')J v / N of a dense Jacobian; positive semidefinite; of softmax regression the Hessian itself."""
    torch.manual_seed(1)
    x, y = torch.randn(7, 3).double(), torch.randint(0, 2, (7,))

    def fit(o):
        return torch.nn.functional.cross_entropy(o, y)

    for module in (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), nn.Linear(3, 2).double()):
        w = {name: p.detach() for name, p in module.named_parameters()}
        v = tree_map(torch.randn_like, w)

        def outputs(w, module=module):
            return torch.func.functional_call(module, w, (x,))

        found = tools.gauss_newton_product(outputs, fit, w, v)
        parts = torch.func.jacrev(outputs)(w)
        jacobian = torch.cat([part.reshape(14, -1) for part in parts.values()], 1)
        p = outputs(w).softmax(1)
        inner = torch.block_diag(*(torch.diag(one) - torch.outer(one, one) for one in p)) / 7
        assert torch.allclose(tools.flat(found), jacobian.T @ inner @ jacobian @ tools.flat(v), atol=1e-12)
        assert float(dot(found, v)) > 0
        hessian = tools.hessian_product(lambda _, w: fit(outputs(w)), {}, w, v)
        assert torch.allclose(tools.flat(found), tools.flat(hessian), atol=1e-12) == isinstance(module, nn.Linear)
