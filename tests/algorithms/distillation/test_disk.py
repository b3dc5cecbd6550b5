"""DiSK: the losses' values and limits (its specification's checks 1 to 9), and the learner's identities."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import check_resuming, identical
from students import DATA, built, run, task
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import flatten, tree_map, unstack
from hedgerow.algorithms.nn.features import Features, extract_features
from hedgerow.algorithms.objectives.distillation_loss import divergence, soft_labels
from hedgerow.algorithms.objectives.guide import (
    distance,
    excuses,
    fitted_temperature,
    guide_network,
    multiplier,
    overspent,
)
from hedgerow.platform.config import registries
from hedgerow.platform.config.registries import algorithm_class

CLASSES, SAMPLES = 5, 7


@pytest.fixture
def said():
    """A student's logits, a teacher's, and the batch they are about; three of the student's answers are wrong."""
    torch.manual_seed(3)
    logits, teacher = torch.randn(SAMPLES, CLASSES), 2 * torch.randn(SAMPLES, CLASSES)
    y = logits.argmax(-1)
    y[:3] = (y[:3] + 1) % CLASSES
    return logits, teacher, Batch(torch.zeros(SAMPLES, 1), y)


def slope(function, at):
    at = at.clone().requires_grad_()
    return torch.autograd.grad(function(at), at)[0]


# ---- the distance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1.0, 4.0])
def test_nobody_excused_is_distillation(said, tau):
    """Check 1: L_dist = L_KL + tau^2 H(t), with the same slope."""
    logits, teacher, batch = said
    t, nobody = soft_labels(teacher, tau), torch.zeros(SAMPLES)
    entropy = -(t * t.log()).sum(-1).mean()
    far = distance(logits, t, nobody, batch, tau, tau, 3)
    torch.testing.assert_close(far, divergence(t, logits, batch, tau) + tau**2 * entropy)
    torch.testing.assert_close(
        slope(lambda z: distance(z, t, nobody, batch, tau, tau, 3), logits),
        slope(lambda z: divergence(t, z, batch, tau), logits),
    )


def test_everybody_excused_in_all_classes(said):
    """Check 2: values in [-tau tau_s ln 2, 0], and a class counts s / (s + 1) of what it did."""
    logits, teacher, batch = said
    t, all_of_it, tau, own = soft_labels(teacher, 4.0), torch.ones(SAMPLES), 4.0, 2.0
    assert -tau * own * math.log(2) <= distance(logits, t, all_of_it, batch, tau, own, CLASSES) <= 0
    s = soft_labels(logits, own)
    weights = t / s * (s / (s + 1))
    wanted = -tau * own / SAMPLES * s * (weights - (weights * s).sum(-1, keepdim=True)) / own
    torch.testing.assert_close(slope(lambda z: distance(z, t, all_of_it, batch, tau, own, CLASSES), logits), wanted)


def test_excuses_and_classes_only_help(said):
    """Checks 3 and 5: the distance falls in g and in K; beyond all classes K changes nothing."""
    logits, teacher, batch = said
    t, g = soft_labels(teacher, 4.0), torch.linspace(0, 1, SAMPLES)
    assert (slope(lambda g: distance(logits, t, g, batch, 4.0, 4.0, 2), g) < 0).all()
    values = [float(distance(logits, t, g, batch, 4.0, 4.0, top)) for top in range(1, CLASSES + 3)]
    assert values[:CLASSES] == sorted(values[:CLASSES], reverse=True)
    assert len(set(values[CLASSES - 1 :])) == 1
    assert values[0] > values[1] > values[2]


def test_a_student_that_is_sure_of_the_wrong_class_has_a_finite_loss():
    batch, t = Batch(torch.zeros(1, 1), torch.tensor([0])), torch.tensor([[1.0, 0.0]])
    far = distance(torch.tensor([[-1e4, 1e4]]), t, torch.zeros(1), batch, 1.0, 1.0, 1)
    assert float(far) == pytest.approx(12 * math.log(10))


# ---- the budget ------------------------------------------------------------------------------------------------------


def test_the_budget_by_hand(said):
    """Check 4: over the wrong samples or all; nothing, with no slope, while it is kept."""
    logits, _, batch = said
    g = torch.linspace(0.1, 0.7, SAMPLES)
    losses = nn.functional.cross_entropy(logits, batch.y, reduction="none")
    assert float(overspent(logits, g, batch, 0.0, "all")) == pytest.approx(float((g * losses).sum()) / SAMPLES)
    assert float(overspent(logits, g, batch, 0.0)) == pytest.approx(float((g * losses).sum()) / 3)
    spent = float((g * losses)[:3].sum()) / 3
    assert float(overspent(logits, g, batch, 0.0, of="wrong")) == pytest.approx(spent)
    assert float(overspent(logits, g, batch, spent - 0.1, of="wrong")) == pytest.approx(0.1, abs=1e-6)
    assert float(overspent(logits, g, batch, 100.0)) == 0
    assert not slope(lambda g: overspent(logits, g, batch, 100.0), g).any()
    right = replace(batch, y=logits.argmax(-1))
    assert torch.isfinite(overspent(logits, g, right, 0.0))
    assert float(overspent(logits, g, right, 0.0, of="wrong")) == 0


def test_padding_counts_nowhere(said):
    logits, teacher, batch = said
    g, t = torch.linspace(0.1, 0.7, SAMPLES), soft_labels(teacher, 4.0)
    padded = replace(batch, mask=torch.tensor([1.0] * 4 + [0.0] * 3))
    short = replace(batch, y=batch.y[:4])
    for over in ("wrong", "all"):
        alone = overspent(logits[:4], g[:4], short, 0.01, over)
        torch.testing.assert_close(overspent(logits, g, padded, 0.01, over), alone)
    far = distance(logits[:4], t[:4], g[:4], short, 4.0, 2.0, 2)
    torch.testing.assert_close(distance(logits, t, g, padded, 4.0, 2.0, 2), far)


# ---- temperature and multiplier --------------------------------------------------------------------------------------


def test_the_temperature_that_brings_a_student_nearest():
    """Check 6."""
    torch.manual_seed(0)
    teacher = torch.randn(50, 6)
    t = soft_labels(teacher, 4.0)
    assert float(fitted_temperature(t, teacher)) == pytest.approx(4.0, rel=1e-3)
    assert float(fitted_temperature(t, 2.5 * teacher)) == pytest.approx(10.0, rel=1e-3)


def test_the_multiplier_rises_and_begins_anew():
    """Check 7: the specification's values; a period begins in rounds 1, 51, ..."""
    found = [multiplier(lesson, 0.1, 50.0, 50) for lesson in range(1, 201)]
    for r, value in ((0, 0.1), (1, 0.1492), (12, 6.8622), (25, 25.05), (37, 42.1295), (49, 49.9508)):
        assert found[r] == pytest.approx(value, abs=1e-4)
    assert found[:50] == sorted(found[:50])
    assert found[50:100] == found[:50]
    assert found[-1] == max(found)


# ---- the guide -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("features", "parameters"), [(512, 48_065), (256, 31_681)])
def test_the_guide_has_the_size_of_the_source(features, parameters):
    assert sum(p.numel() for p in guide_network(features + 100, [64, 128]).parameters()) == parameters


def test_a_guide_excuses_between_nothing_and_all(said):
    _, teacher, _ = said
    guide = guide_network(3 + CLASSES, [6])
    seen = Features([], torch.randn(SAMPLES, 3), teacher.requires_grad_())
    g = excuses(guide, dict(guide.named_parameters()), seen)
    assert g.shape == (SAMPLES,)
    assert ((g > 0) & (g < 1)).all()


# ---- the learner -----------------------------------------------------------------------------------------------------


def batch_of(learner):
    return Batch(learner.task.prepare(torch.from_numpy(DATA.x_train[:40])), torch.from_numpy(DATA.y_train[:40]))


def test_disk_whose_guide_excuses_nobody_is_kd():
    """Check 1, of the learners: one lesson has the same slope."""
    disk, kd = (algorithm_class(name)(registries.algorithms.section(name)(), task()) for name in ("disk", "kd"))
    w, teacher = disk.task.init(), disk.teacher_task.init()
    guide = {name: torch.zeros(p.shape) for name, p in disk.guide.named_parameters()}
    last = list(guide)[-1]
    guide[last] = torch.full_like(guide[last], -1e4)
    aids = {"guide": guide, "student_tau": torch.tensor(4.0)}
    down = {"teacher": teacher}
    batch = batch_of(disk)

    def slopes(lesson, aids):
        params = {name: p.clone().requires_grad_() for name, p in w.items()}
        return torch.autograd.grad(lesson({"w": params}, aids), list(params.values()))

    for one, other in zip(
        slopes(disk.lesson(disk.hyper, down, batch), aids), slopes(kd.lesson(kd.hyper, down, batch), {}), strict=True
    ):
        torch.testing.assert_close(one, other)


def guides(**hyper):
    """What the guide excuses in the end."""
    done = run("disk", rounds=40, alpha=0.0, guide_lr=0.5, **hyper)
    list(done)
    learner, server = done.servers[0].algorithm.inner, done.server
    seen = extract_features(learner.teacher_task, server["teacher"], batch_of(learner).x)
    return excuses(learner.guide, server["guide"], seen)


def test_the_guide_without_a_budget_and_with_none_to_spend():
    """Check 3."""
    free = guides(lambda_min=0.0, lambda_max=0.0)
    bound = guides(lambda_min=1000.0, lambda_max=1000.0, delta=0.0)
    assert float(free.detach().mean()) > 0.9
    assert float(bound.detach().mean()) < 0.1


def test_what_is_excused_is_told_and_a_slow_guide_is_not_stuck():
    """A guide as quick as the student is soon at 1 for all, where the budget's slope does not reach it any more."""
    told = {}
    for rate in (0.001, None):
        given = {} if rate else {"guide_lr": None}
        done = run("disk", rounds=12, guide_hidden=[64, 128], lambda_period=12, batch_size=None, steps=20, epochs=None,
                   delta=0.1, **given)  # fmt: skip
        list(done)
        learner, server = done.servers[0].algorithm.inner, done.server
        assert learner.hyper.guide_lr == rate
        everybody = replace(batch_of(learner), x=learner.task.prepare(torch.from_numpy(DATA.x_train)))
        g = excuses(
            learner.guide, server["guide"], extract_features(learner.teacher_task, server["teacher"], everybody.x)
        )
        told[rate] = [record["train_excused"] for record in done.servers[0].history]
        assert told[rate][-1] == pytest.approx(float(g.detach().mean()), abs=1e-5)
    assert min(told[None]) > 0.999
    assert told[0.001][0] > 0.9 > 0.5 > told[0.001][-1]


def test_labels_alone_are_the_central_learner():
    # The exchanges in which the teacher learns come first, and shuffle what follows otherwise.
    plain, taught = run("central", batch_size=None), run("kd", alpha=1.0, batch_size=None)
    list(plain), list(taught)
    assert all(torch.allclose(taught.server["w"][name], p, atol=1e-6) for name, p in plain.server["w"].items())


def test_the_teacher_is_trained_once_and_never_again():
    """Check 8: parameters and statistics stay as they were, those of its schooling."""
    done = run("disk", warm_start=1)
    next(done)
    assert "teacher" not in done.server
    next(done)
    before = tree_map(torch.clone, done.server["teacher"])
    assert {"1.mean", "1.variance"} < set(before)
    assert not torch.equal(before["0.weight"], done.servers[0].algorithm.inner.teacher_task.init()["0.weight"])
    next(done)
    assert identical(before, done.server["teacher"])


def test_nothing_that_learns_has_a_slope_by_the_teacher():
    """Check 8."""
    done = run("disk", rounds=1)
    list(done)
    learner, server = done.servers[0].algorithm.inner, done.server
    w, guide, teacher = (
        tree_map(lambda p: p.clone().requires_grad_(), server[key]) for key in ("w", "guide", "teacher")
    )
    down = {"teacher": teacher, "multiplier": torch.tensor(1.0)}
    aids = {"guide": guide, "student_tau": torch.tensor(4.0)}
    hyper, batch = learner.hyper, batch_of(learner)
    learner.excuse(hyper, down, batch)(guide, {"w": w, "student_tau": torch.tensor(4.0)}).backward()
    learner.lesson(hyper, down, batch)({"w": w}, aids).backward()
    assert all(p.grad is None for p in teacher.values())
    assert all(p.grad is not None for p in (*w.values(), *guide.values()))


def test_rounds_before_the_teacher_are_cross_entropy():
    warm, plain = run("disk", rounds=2, warm_start=2), run("central", rounds=2)
    list(warm), list(plain)
    assert identical(warm.server["w"], plain.server["w"])


@pytest.mark.parametrize("name", ["central", "kd", "disk"])
def test_models_side_by_side_are_models_alone(name):
    together = run(name, rounds=2, starts=3)
    list(together)
    assert together.servers[0].history[-1]["test_accuracy"] > 0
    learner = together.servers[0].algorithm.inner
    first = learner.started(learner.init_server(), together.servers[0]._cohort(1, torch.zeros(1, dtype=int).numpy()))
    branches = ["w", "guide"] if name == "disk" else ["w"]
    for number, start in enumerate(unstack(first["w"])):
        if name == "disk" and number:
            # Its guide is another one than a student's alone.
            continue
        alone = run(name, rounds=2)
        alone.servers[0].state = {"w": start}
        list(alone)
        for branch in branches:
            mine = unstack(together.server[branch])[number]
            assert all(torch.allclose(mine[key], p, atol=1e-5) for key, p in alone.server[branch].items())
    assert not torch.allclose(first["w"]["0.weight"][0], first["w"]["0.weight"][1])


@pytest.mark.parametrize("softness", ["teacher", 2.0, "fit"])
def test_resuming(softness, tmp_path):
    check_resuming(
        lambda folder: run("disk", rounds=4, folder=folder, warm_start=1, student_tau=softness, starts=2),
        2,
        tmp_path,
    )


def test_learning_rates_fall_along_a_cosine():
    hyper = registries.algorithms.section("disk")(lr=0.2, lr_cosine=4, guide_lr=0.1, warm_start=4)
    assert [hyper.at(round).lr for round in (1, 3, 5)] == pytest.approx([0.2, 0.1, 0.2])
    assert [hyper.at(round).guide_lr for round in (1, 3)] == pytest.approx([0.1, 0.05])
    assert hyper.at(4).lr == pytest.approx(0.1 * (1 + math.cos(0.75 * math.pi)))


def test_momentum_lasts_from_round_to_round():
    """Four rounds of one step are four steps of torch's SGD; under a teacher, the student's begins anew."""
    x, y = torch.from_numpy(DATA.x_train), torch.from_numpy(DATA.y_train)

    def descend(w, steps):
        module = built(0)
        module.load_state_dict(w)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(task().prepare(x)), y).backward()
            optimizer.step()
        return {name: p.detach() for name, p in module.named_parameters()}

    for method, steps in (("central", 4), ("kd", 2)):
        hyper = {"alpha": 1.0, "warm_start": 2} if method == "kd" else {}
        done = run(method, rounds=4, batch_size=None, **hyper)
        next(done), next(done)
        half = tree_map(torch.clone, done.server["w"])
        list(done)
        wanted = descend(task().init() if method == "central" else half, steps)
        assert all(torch.allclose(done.server["w"][name], p, atol=1e-5) for name, p in wanted.items())
        assert not torch.allclose(done.server["w"]["0.weight"], half["0.weight"], atol=1e-3)


def test_a_guide_has_a_momentum_of_its_own():
    done = run("disk", warm_start=1)
    next(done)
    assert set(done.server["momentum"]) == {"w"}
    list(done)
    momentum = done.server["momentum"]
    assert set(momentum) == {"w", "guide"}
    assert all(p.abs().max() > 0 for p in momentum["guide"].values())
    plain = run("disk", momentum=0.0)
    next(plain)
    assert "momentum" not in plain.server


def test_without_a_teacher_nobody_learns():
    lonely = replace(task(), teacher=None)
    objection = algorithm_class("kd")(registries.algorithms.section("kd")(), lonely).incompatibility()
    assert objection.startswith("task.teacher: kd learns from a teacher; set `model`")
    clipped = algorithm_class("central")(
        registries.algorithms.section("central")(starts=2, clip_norm=1.0), lonely
    ).incompatibility()
    assert clipped.startswith("algorithm.clip_norm")


def test_everything_that_a_run_keeps_is_finite():
    done = run("disk", starts=2)
    list(done)
    assert all(torch.isfinite(leaf).all() for leaf in flatten(done.server).values())
