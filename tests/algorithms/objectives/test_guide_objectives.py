"""DiSK and SimKD as objectives of federated methods: they equal the algorithms in one place; their client states."""

import numpy as np
import pytest
import torch
from guides import ALONE, CLIENTS, DATA, DISK, GUIDE, SIMKD, TOGETHER, X, Y, net, task
from helpers import (
    check_resuming,
    distance,
    identical,
    model,
    objection,
    objective,
    run_inline,
    write_states,
)
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import flatten, tree_map
from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.nn.feature_maps import feature_distance, with_teacher_classifier
from hedgerow.algorithms.nn.features import extract_features, teacher_features
from hedgerow.algorithms.objectives.client_guide import Lesson
from hedgerow.algorithms.slots.slots import Slots, SlottedHyper
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.data.augmentation import Augmentation
from hedgerow.platform.models.torchvision_nets import resnet


def run(kind, side=None, mode=("loop", 1), on=None, clients=CLIENTS, folder=None, rounds=3, **hyper):
    values = {"lr": 0.05, "batch_size": 8, "epochs": 2, "objective": side, **hyper}
    settings = {"rounds": rounds, "engine": EngineConfig(mode=mode[0], chunk=mode[1])}
    settings["clients_per_round"] = "all" if clients is ALONE else 0.5
    return run_inline(kind, on or task(), DATA, clients, values, folder, **settings)


def finished(*args, **hyper):
    done = run(*args, **hyper)
    list(done)
    return done


# ---- what they are ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FedAvg, FedDyn])
def test_with_alpha_1_nobody_asks_the_teacher(method):
    sides = (None, {**DISK, "alpha": 1.0}, DISK)
    plain, guided, loud = (finished(method, side, rounds=1) for side in sides)
    assert identical(model(guided), model(plain))
    assert distance(model(loud), model(plain)) > 1e-4
    on = with_teacher_classifier(task())
    reusing, alike = finished(method, {**SIMKD, "alpha": 1.0}, rounds=1), finished(method, on=on, rounds=1)
    assert identical(reusing.server["w"], alike.server["w"])


@pytest.mark.parametrize("softness", ["teacher", 3.0, "fit"])
def test_disk_with_one_client_is_disk(softness):
    """With all samples as one batch, and a guide that begins as the central one does."""
    step = {"lr": 0.1, "batch_size": None, "epochs": None, "steps": 2}
    guide = {**GUIDE, "student_tau": softness, "guide_lr": 0.2}
    central = run(algorithm_class("disk"), on=task(norm=True), clients=ALONE, alpha=0.3, tau=2.0, **guide, **step)
    learner = central.servers[0]
    first = learner.algorithm.inner.extra_modules(learner._cohort(1, np.zeros(1, int)))
    federated = run(FedAvg, {**DISK, "guide": guide}, on=task(norm=True), clients=ALONE, **step)
    lessons = {"objective": first | {"lessons": torch.zeros(())}}
    write_states(federated.states.store, np.zeros(1, int), tree_map(lambda p: p[None], lessons))
    before = tree_map(torch.clone, federated.server["w"])
    for _ in range(3):
        next(central)
        next(federated)
        assert distance(federated.server["w"], central.server["w"]) < 1e-5
    assert distance(federated.server["w"], before) > 1e-2
    state = tree_map(lambda p: p[0], federated.states.read(np.zeros(1, int)))["objective"]
    assert distance(state["guide"], central.server["guide"]) < 1e-5
    assert distance(state["guide"], first["guide"]) > 1e-2
    assert state["lessons"] == 3


def test_simkd_with_one_client_is_simkd():
    step = {"lr": 0.1, "batch_size": None, "epochs": None, "steps": 2}
    central, federated = (
        run(kind, side, clients=ALONE, **step) for kind, side in ((algorithm_class("simkd"), None), (FedAvg, SIMKD))
    )
    learner = central.servers[0]
    first = learner.algorithm.inner.started(learner.state, learner._cohort(1, np.zeros(1, int)))["w"]
    assert set(first) == set(federated.server["w"])
    federated.servers[0].state["w"] = tree_map(torch.clone, first)
    list(central), list(federated)
    assert distance(federated.server["w"], central.server["w"]) < 1e-5
    assert distance(federated.server["w"], first) > 1e-3
    mine, theirs = (one.servers[0].history[-1]["test_loss"] for one in (federated, central))
    assert mine == pytest.approx(theirs, rel=1e-4)
    # Saved is the model that the task names.
    assert set(federated.servers[0].algorithm.evaluate_params(federated.server)) == set(task().init())


def test_simkd_and_disk_together_with_one_client_are_simkd_disk():
    """With all samples as one batch, and a projector and a guide that begin as the central ones do."""
    step = {"lr": 0.1, "batch_size": None, "epochs": None, "steps": 2}
    guide = {**GUIDE, "guide_lr": 0.2}
    on = task(module=resnet(1, 3, 2, [2, 4], [1, 1], StaticBatchNorm2d))
    central = run(algorithm_class("simkd_disk"), on=on, clients=ALONE, alpha=0.0, tau=2.0, **guide, **step)
    learner = central.servers[0]
    cohort = learner._cohort(1, np.zeros(1, int))
    first, beside = (
        learner.algorithm.inner.started(learner.state, cohort)["w"],
        learner.algorithm.inner.extra_modules(cohort),
    )
    federated = run(FedAvg, {**TOGETHER, "guide": guide}, on=on, clients=ALONE, **step)
    assert set(first) == set(federated.server["w"])
    federated.servers[0].state["w"] = tree_map(torch.clone, first)
    lessons = {"objective": beside | {"lessons": torch.zeros(())}}
    write_states(federated.states.store, np.zeros(1, int), tree_map(lambda p: p[None], lessons))
    list(central), list(federated)
    assert distance(federated.server["w"], central.server["w"]) < 1e-5
    assert distance(federated.server["w"], first) > 1e-3
    state = tree_map(lambda p: p[0], federated.states.read(np.zeros(1, int)))["objective"]
    assert distance(state["guide"], central.server["guide"]) < 1e-5
    assert distance(state["guide"], beside["guide"]) > 1e-2


def test_a_guide_beside_simkd_excuses_from_its_distance():
    """Eq. A.1: with g = 0 it is SimKD's, with g = 1 nothing."""
    own = objective(**TOGETHER)
    of = own.task(task())
    network = of.guide
    batch = Batch(torch.from_numpy(X[:6]) / 100.0, torch.from_numpy(Y[:6]))
    seen = extract_features(of, of.init(), batch.x)
    plain = feature_distance(seen, teacher_features(of, batch.x)).mean()
    for bias, wanted in ((-1e4, plain), (1e4, torch.zeros(()))):
        guide = tree_map(torch.zeros_like, own.init_client(of)["guide"])
        guide[[name for name, _ in network.named_parameters()][-1]] += bias
        lesson = Lesson(guide, own.temperature, {})
        torch.testing.assert_close(own.terms(own, of, of.init(), batch, lesson)[1], wanted)
    assert plain > 0


def test_a_model_under_its_teachers_layer_says_what_that_layer_says():
    of = task()
    reusing = with_teacher_classifier(of)
    x = torch.from_numpy(X[:6]) / 100.0
    maps, features, logits = reusing.module(x, inside=True)
    torch.testing.assert_close(features, maps[-1].mean((2, 3)))
    torch.testing.assert_close(logits, of.teacher[-1](features))
    assert not any(name.startswith("head") for name in reusing.init())
    assert {type(layer) for layer in reusing.module.projector} == {nn.Conv2d, nn.GroupNorm, nn.ReLU}


@pytest.mark.grid
@pytest.mark.parametrize("mode", [("loop", 1), ("vmap", 2)], ids=["loop", "vmap"])
@pytest.mark.parametrize(
    "side", [{"kind": "distillation"}, {"kind": "both"}, DISK, SIMKD, TOGETHER], ids=lambda side: side["kind"]
)
def test_whoever_learns_leaves_the_teacher_alone(side, mode):
    """DiSK's check 8: bit for bit what it was before the run, though it would take gradients; so is its last layer."""
    on = task(augment=Augmentation(crop=1))
    on.teacher.requires_grad_(True)
    before = tree_map(torch.clone, on.teacher.state_dict())
    done = finished(FedDyn, side, mode, on=on)
    of = done.servers[0].algorithm.task
    assert distance(done.server["w"], of.init()) > 1e-3
    assert identical(on.teacher.state_dict(), before)
    assert all(p.grad is None for p in on.teacher.parameters())
    if "simkd" in side["kind"]:
        assert identical(of.module.head.state_dict(), on.teacher[-1].state_dict())


# ---- their states ----------------------------------------------------------------------------------------------------


def test_a_guide_lasts_and_counts_its_own_lessons():
    """Who took part has had a lesson more; who did not has the guide that it had."""
    one = run(FedAvg, DISK, rounds=4)
    had, everybody = np.zeros(4), np.arange(4)
    guides = None
    for _ in range(4):
        next(one)
        states = one.states.read(everybody)["objective"]
        took_part = states["lessons"].numpy() > had
        assert took_part.sum() == 2
        had += took_part
        assert states["lessons"].tolist() == had.tolist()
        if guides is not None:
            for name, p in states["guide"].items():
                assert torch.equal(p[~took_part], guides[name][~took_part])
            assert not torch.equal(states["guide"]["0.weight"][took_part], guides["0.weight"][took_part])
        guides = states["guide"]
    assert 0 < had.max() < 4


def test_a_multiplier_lasts_from_round_to_round():
    """lambda_2 = (lambda_1 + dual_lr (S_2 - limit))+, from what each round reports of the one client."""
    side = {"kind": "distillation", "limit": 0.01, "dual_lr": 0.5}
    first, second, third = list(run(FedAvg, side, clients=ALONE))
    assert first["train_multiplier"] == pytest.approx(0.5 * (first["train_side_loss"] - 0.01), rel=1e-5)
    for before, after in ((first, second), (second, third)):
        wanted = before["train_multiplier"] + 0.5 * (after["train_side_loss"] - 0.01)
        assert after["train_multiplier"] == pytest.approx(wanted, rel=1e-5)
    assert third["train_multiplier"] > first["train_multiplier"] > 0


def test_a_guide_is_not_transmitted_and_a_projector_is():
    plain, guided, reusing = (finished(FedAvg, side, rounds=1).servers[0].history[-1] for side in (None, DISK, SIMKD))
    assert guided["transmissions"] == plain["transmissions"] == 1
    assert reusing["transmissions"] > 1
    assert np.isfinite(guided["train_guide_loss"])


@pytest.mark.parametrize(
    "side",
    [{**DISK, "guide": {**GUIDE, "student_tau": "fit"}}, SIMKD, {**SIMKD, "alpha": None, "limit": 0.01}, TOGETHER],
)
def test_loop_equals_vmap(side):
    on = task(augment=Augmentation(crop=1))
    loop, batched = (finished(FedDyn, side, mode, on=on, rounds=2) for mode in (("loop", 1), ("vmap", 2)))
    assert distance(loop.server["w"], batched.server["w"]) < 1e-5
    assert all(torch.isfinite(p).all() for p in flatten(loop.server).values())


def test_a_run_is_resumed_as_if_it_had_never_stopped(tmp_path):
    check_resuming(lambda folder: run(FedDyn, DISK, folder=folder, rounds=4), 2, tmp_path)


def test_the_guides_learning_rate_falls_with_the_models():
    def hyper(guide_lr, **values):
        given = {**DISK, "guide": {**GUIDE, "guide_lr": guide_lr}}
        return SlottedHyper.of(FedAvg.Hyper(**values), Slots(objective=objective(**given)))

    decaying = hyper(0.4, lr=0.1, lr_decay=0.5)
    assert [decaying.at(t).objective.guide.guide_lr for t in (1, 2, 3)] == pytest.approx([0.4, 0.2, 0.1])
    assert hyper(None).at(2).objective.guide.guide_lr is None


def test_what_does_not_fit_is_refused():
    def refusal(side, method="fedavg", **parts):
        return objection(algorithm_class(method), task(**parts), objective(**side))

    assert "disk needs a teacher" in refusal(DISK, teacher=None)
    assert "simkd matches feature maps" in refusal(SIMKD, module=nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))
    assert "it normalises by statistics of samples" in refusal(DISK, teacher=net(1, [4], norm=True))
    assert "for centralised training, disk is an algorithm" in refusal(DISK, "central")
    with pytest.raises(ValueError, match="guide\n  Extra inputs are not permitted"):
        objective(kind="simkd", guide=GUIDE)
    with pytest.raises(ValueError, match="disk has its own budget"):
        objective(kind="disk", limit=1.0)
    assert objective(kind="disk").guide.top_k == 20
    assert "simkd_disk needs a teacher" in refusal(TOGETHER, teacher=None)
    assert "simkd_disk matches feature maps" in refusal(TOGETHER, module=nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))
    assert "for centralised training, simkd_disk is an algorithm" in refusal(TOGETHER, "central")
    with pytest.raises(ValueError, match="simkd_disk has its own budget"):
        objective(kind="simkd_disk", limit=1.0)
    assert (objective(kind="simkd_disk").guide.lambda_min, objective(**TOGETHER).guide.lambda_min) == (50.0, 1.0)
    assert objective(kind="simkd_disk", guide={"delta": 0.3}).guide.lambda_min == 50.0
