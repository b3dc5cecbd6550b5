"""Adaptation: MAML to second order, prototypes, none; loop and batch agree (moml.md, 1.1)."""

import pytest
import torch
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.online.online_algorithm import OnlineSGD
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.personalized.adaptation import adapted, halves, maml, meta_loss


def hyper(**values) -> OnlineSGD:
    return OnlineSGD(name="any", **values)


@pytest.fixture
def small() -> tuple[Task, dict, Batch]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    task = Task(module)
    return task, task.init(), Batch(torch.randn(10, 4).double(), torch.arange(10) % 3)


@pytest.mark.parametrize("steps", [1, 5])
def test_maml_is_differentiated_through_all_its_steps(small, steps):
    task, w, batch = small
    hp = hyper(adapt_steps=steps, adapt_lr=0.3)
    gradient, value = gradient_and_value(lambda w: meta_loss(task, w, batch, hp))(w)
    assert float(value) == pytest.approx(float(meta_loss(task, w, batch, hp)))
    direction = tree_map(torch.randn_like, w)
    h = 1e-5
    up, down = ({name: w[name] + s * h * direction[name] for name in w} for s in (1, -1))
    slope = (meta_loss(task, up, batch, hp) - meta_loss(task, down, batch, hp)) / (2 * h)
    assert float(slope) == pytest.approx(float(sum((gradient[n] * direction[n]).sum() for n in w)), rel=1e-7)
    # With the gradient of the adapted model alone (first order) it would be another number.
    support, query = halves(batch)
    first = gradient_and_value(task.loss)(maml(task, w, support, 0.3, steps), query)[0]
    assert float(slope) != pytest.approx(float(sum((first[n] * direction[n]).sum() for n in w)), rel=1e-3)


def test_maml_is_gradient_descent_on_the_support(small):
    task, w, batch = small
    _, u = adapted(task, w, batch, hyper(adapt_steps=2, adapt_lr=0.5))
    for _ in range(2):
        slope = torch.func.grad(task.loss)(w, batch)
        w = {name: w[name] - 0.5 * slope[name] for name in w}
    assert max(float((u[name] - w[name]).abs().max()) for name in w) < 1e-12


@pytest.mark.parametrize("adapt", ["maml", "proto", "none"])
def test_nobody_adapts_without_support(small, adapt):
    task, w, _ = small
    predictor, u = adapted(task, w, None, hyper(adapt=adapt))
    assert predictor is task
    assert u is w


def test_prototypes_predict_the_nearest_centre(small):
    task, w, batch = small
    support = Batch(batch.x[:6], torch.tensor([0, 0, 0, 2, 2, 2]))
    predictor, u = adapted(task, w, support, hyper(adapt="proto"))
    outputs = task.logits(w, batch.x)
    centres = torch.stack([task.logits(w, support.x)[rows].mean(0) for rows in (slice(0, 3), slice(3, 6))])
    distances = torch.cdist(outputs, centres).square()
    logits = predictor.logits(u, batch.x)
    assert torch.allclose(logits[:, [0, 2]] - logits[:, [0]], -(distances - distances[:, [0]]))
    # A class without samples is never predicted.
    assert bool((logits.argmax(1) == torch.tensor([0, 2])[distances.argmin(1)]).all())


def test_a_sample_whose_class_was_not_shown_teaches_prototypes_nothing(small):
    task, w, batch = small
    support = Batch(batch.x[:4], torch.tensor([0, 0, 2, 2]))
    predictor, u = adapted(task, w, support, hyper(adapt="proto"))
    query = Batch(batch.x[4:], torch.tensor([0, 2, 1, 1, 2, 0]))
    known = Batch(batch.x[[4, 5, 8, 9]], query.y[[0, 1, 4, 5]])
    assert float(predictor.loss(u, query)) == pytest.approx(float(predictor.loss(u, known)))
    loss, correct, samples = predictor.score(u, query).tolist()
    assert samples == 6
    assert correct <= 4
    assert 0 < loss < 1000


@pytest.mark.parametrize("adapt", ["maml", "proto", "none"])
def test_padded_samples_change_nothing(small, adapt):
    task, w, batch = small
    padded = Batch(
        torch.cat([batch.x, batch.x[:5]]),
        torch.cat([batch.y, batch.y[:5]]),
        torch.tensor([1.0] * 10 + [0.0] * 5).double(),
    )
    hp = hyper(adapt=adapt, adapt_steps=2)
    assert float(meta_loss(task, w, padded, hp)) == pytest.approx(float(meta_loss(task, w, batch, hp)), rel=1e-12)


@pytest.mark.parametrize("adapt", ["maml", "proto", "none"])
def test_batched_over_models_the_gradients_are_the_same(small, adapt):
    task, w, batch = small
    hp = hyper(adapt=adapt, adapt_steps=2)
    models = [tree_map(lambda p, s=s: s * p, w) for s in (1.0, 0.5)]
    stacked = tree_map(lambda *parts: torch.stack(parts), *models)
    gradient = gradient_and_value(lambda w: meta_loss(task, w, batch, hp))
    batched = torch.func.vmap(lambda w: gradient(w)[0])(stacked)
    for i, model in enumerate(models):
        alone = gradient(model)[0]
        assert max(float((batched[n][i] - alone[n]).abs().max()) for n in w) < 1e-12
