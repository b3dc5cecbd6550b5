"""Local steps change gradients and parameters in place: with the numbers of new tensors, and without sharing memory."""

from dataclasses import replace

import pytest
import torch
from torch.func import vmap

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.pytree import add
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.optim.in_place import add_, apart, lerp_, mul_
from hedgerow.algorithms.optim.local_sgd import LocalOptimizer, LocalSGD, Proximal, minimize

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
START = {"a": torch.zeros(3, 4), "b": torch.zeros(3, 4), "c": torch.zeros(2)}
TERM = {"a": torch.full((3, 4), 1.0), "b": torch.full((3, 4), 2.0), "c": torch.tensor([3.0, 4.0])}
BATCH = Batch(X, torch.zeros(5, dtype=torch.long), torch.ones(5), torch.ones(()))


def loss(w, batch):
    """The gradients of a and b are one tensor, and that of c repeats one number."""
    return (batch.x @ (w["a"] + w["b"]).T - 1).pow(2).mean() + w["c"].sum()


def gradient(w):
    w = {name: p.clone().requires_grad_() for name, p in w.items()}
    return dict(zip(w, (g.clone() for g in torch.autograd.grad(loss(w, BATCH), list(w.values()))), strict=True))


@pytest.mark.parametrize("batched", [False, True], ids=["loop", "vmap"])
@pytest.mark.parametrize(
    ("settings", "terms"),
    [
        ({}, {"linear": TERM}),
        ({"weight_decay": 0.5}, {}),
        ({"clip_norm": 0.1}, {}),
        ({"momentum": 0.9}, {}),
        ({"clip_norm": 100.0}, {"proximal": Proximal(2.0, TERM)}),
    ],
    ids=["linear", "decay", "clip", "momentum", "proximal"],
)
def test_parameters_that_a_model_adds_take_their_own_steps(batched, settings, terms):
    hp = LocalSGD(lr=0.1, **settings)
    data = ClientData(X, X, lambda x: x, {}, batched)

    def solve(x):
        return minimize(loss, START, data, hp, batches=[replace(BATCH, x=x)] * 3, **terms)[0]

    found = {name: p[0] for name, p in vmap(solve)(X[None]).items()} if batched else solve(X)

    w, momentum = START, None
    for _ in range(3):
        d = gradient(w)
        if "linear" in terms:
            d = add(d, TERM)
        if "proximal" in terms:
            d = {name: d[name] + 2.0 * (w[name] - TERM[name]) for name in w}
        norm = sum(g.square().sum() for g in d.values()).sqrt()
        if hp.clip_norm is not None and norm > hp.clip_norm:
            d = {name: g * hp.clip_norm / (norm + 1e-6) for name, g in d.items()}
        d = add(d, w, hp.weight_decay)
        momentum = d if momentum is None else add(d, momentum, hp.momentum)
        w = add(w, momentum, -hp.lr)
    for name in w:
        torch.testing.assert_close(found[name], w[name], rtol=1e-5, atol=1e-6)


def test_gradients_of_their_own_are_not_copied():
    one, sum_ = torch.randn(3), torch.tensor(2.0).expand(4)
    first, second, third, fourth = apart([one, one, torch.randn(2), sum_])
    assert first is one
    assert second.data_ptr() != one.data_ptr()
    assert torch.equal(second, one)
    assert third.shape == (2,)
    fourth += torch.arange(4.0)
    assert fourth.tolist() == [2.0, 3.0, 4.0, 5.0]


SETTINGS = {
    "sgd": (LocalSGD(lr=0.1), torch.optim.SGD, {}),
    "momentum": (LocalSGD(lr=0.1, momentum=0.5), torch.optim.SGD, {"momentum": 0.5}),
    "weight decay": (LocalSGD(lr=0.1, weight_decay=0.2), torch.optim.SGD, {"weight_decay": 0.2}),
    "clipping": (LocalSGD(lr=0.1, clip_norm=1e9), torch.optim.SGD, {}),
    "adam": (LocalOptimizer(lr=0.1, optimizer="adam"), torch.optim.Adam, {}),
    "torch": (LocalOptimizer(lr=0.1, optimizer={"name": "torch.optim.RMSprop"}), torch.optim.RMSprop, {}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_with_sparse_gradients_are_those_of_torch_with_dense_ones(name):
    hyper, optimizer, options = SETTINGS[name]
    rows = [torch.tensor([1, 3, 3]), torch.tensor([0, 3]), torch.tensor([2, 2])]
    table = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    found, _ = minimize(
        lambda p, batch: torch.nn.functional.embedding(batch.x, p["w"], sparse=True).pow(2).sum(),
        {"w": table},
        ClientData(X, X, lambda x: x, {}, False),
        hyper,
        batches=[replace(BATCH, x=x) for x in rows],
    )
    expected = table.clone().requires_grad_()
    steps = optimizer([expected], lr=0.1, **options)
    for x in rows:
        steps.zero_grad()
        expected[x].pow(2).sum().backward()
        steps.step()
    torch.testing.assert_close(found["w"], expected.detach())


def test_a_sparse_gradient_is_dense_for_algorithms():
    loss = lambda w: torch.nn.functional.embedding(torch.tensor([1, 3, 3]), w["w"], sparse=True).pow(2).sum()  # noqa: E731
    slope = gradient_and_value(loss)({"w": torch.ones(5, 2)})[0]["w"]
    assert slope.tolist() == [[0, 0], [2, 2], [0, 0], [4, 4], [0, 0]]


OPERATIONS = {
    "add": (lambda a, b, s: add_([a], [b], s)[0], torch.addcmul),
    "add a multiple": (lambda a, b, s: add_([a], [b], 0.3)[0], lambda a, b, s: a + 0.3 * b),
    "mul": (lambda a, b, s: mul_([a], s)[0], lambda a, b, s: a * s),
    "lerp": (lambda a, b, s: lerp_([a], [b], s)[0], torch.lerp),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_under_one_and_two_levels_of_vmap_are_those_of_new_tensors(name):
    changed, new = OPERATIONS[name]
    generator = torch.Generator().manual_seed(1)
    a, b, s = (torch.randn(2, 3, *shape, generator=generator) for shape in ((4, 5), (4, 5), ()))
    expected = torch.stack([torch.stack([new(a[i, j], b[i, j], s[i, j]) for j in range(3)]) for i in range(2)])
    # Which of them have the outer and the inner dimension: all, or each of them without one.
    for part in ((0, 0, 0), (0, None, 0), (0, 0, None), (None, 0, 0)):
        where = [x if dim == 0 else x[0] for x, dim in zip((a, b, s), part, strict=True)]
        wanted = (
            expected
            if part == (0, 0, 0)
            else torch.stack(
                [
                    torch.stack(
                        [
                            new(*(x[i, j] if d == 0 else x[j] for x, d in zip(where, part, strict=True)))
                            for j in range(3)
                        ]
                    )
                    for i in range(2)
                ]
            )
        )
        both = vmap(vmap(changed), part)(*(x.clone() for x in where))
        torch.testing.assert_close(both, wanted, rtol=1e-6, atol=1e-7)
        inner = vmap(vmap(changed, part), 0) if part[0] == 0 else None
        if inner is not None:
            narrow = [x if dim == 0 else x[:, 0] for x, dim in zip((a, b, s), part, strict=True)]
            wanted = torch.stack(
                [
                    torch.stack(
                        [
                            new(*(x[i, j] if d == 0 else x[i] for x, d in zip(narrow, part, strict=True)))
                            for j in range(3)
                        ]
                    )
                    for i in range(2)
                ]
            )
            torch.testing.assert_close(inner(*(x.clone() for x in narrow)), wanted, rtol=1e-6, atol=1e-7)


def test_what_is_changed_is_the_first_argument_alone():
    a, b, s = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3)
    before = a.clone(), b.clone(), s.clone()
    result = vmap(lambda x, y, z: add_([x], [y], z)[0])(a, b, s)
    assert torch.equal(result, a)
    assert not torch.equal(a, before[0])
    assert torch.equal(b, before[1])
    assert torch.equal(s, before[2])


def test_minimize_leaves_its_arguments_alone():
    start = {"w": torch.randn(6, 4)}
    kept = start["w"].clone()
    data = ClientData(X, X, lambda x: x, {}, True)
    vmap(
        lambda w: minimize(
            lambda p, batch: (batch.x @ p["w"]).pow(2).sum(),
            {"w": w},
            data,
            LocalSGD(lr=0.1, weight_decay=0.1),
            batches=[BATCH] * 2,
        )[0]
    )(start["w"])
    assert torch.equal(start["w"], kept)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"clip_norm": 0.1}, {"weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize("weight", [0.0, 0.5], ids=["alone", "proximal"])
def test_steps_of_one_client_leave_its_start_alone(steps, settings, weight):
    """The result has memory of its own, and the values of the same steps on a copy, by plain PyTorch."""
    start = {"w": torch.randn(4, 3)}
    before = start["w"].clone()
    hyper = LocalSGD(lr=0.1, **settings)

    def loss(p, batch):
        return (batch.x @ p["w"]).pow(2).sum()

    data = ClientData(X, X, lambda x: x, {}, False)
    proximal = Proximal(weight, start)
    found, _ = minimize(loss, start, data, hyper, proximal=proximal, batches=[BATCH] * steps)
    w, momentum = before.clone(), torch.zeros(4, 3)
    for _ in range(steps):
        direction = 2 * BATCH.x.T @ (BATCH.x @ w) + weight * (w - before)
        if hyper.clip_norm:
            direction = direction * min(1.0, hyper.clip_norm / float(direction.norm()))
        momentum = hyper.momentum * momentum + direction + hyper.weight_decay * w
        w = w - 0.1 * momentum
    torch.testing.assert_close(found["w"], w, rtol=1e-5, atol=1e-6)
    found["w"].zero_()
    assert torch.equal(start["w"], before)
