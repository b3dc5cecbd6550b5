"""Local optimisers are torch's, in a loop and batched, with every term of a method's local objective."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import blobs, distance, partition, run_inline, small_task
from pydantic import ValidationError
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.optim.local_sgd import minimize
from hedgerow.algorithms.optim.newton import newton
from hedgerow.algorithms.optim.torch_optimizer import TorchOptimizer
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config import registries
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.runtime.factory import build_algorithms, build_data, check

DATA = blobs(samples=160)
TASK = small_task(DATA)
SIZES = np.array([len(DATA.y_train) // 3, len(DATA.y_train) - len(DATA.y_train) // 3])
STEPS = {"lr": 0.02, "batch_size": None, "steps": 7}


def run(name, hyper, mode="loop", sizes=SIZES, rounds=1):
    engine = EngineConfig(mode=mode, chunk=2)
    result = run_inline(
        algorithm_class(name), TASK, DATA, partition(sizes), {**STEPS, **hyper}, rounds=rounds, engine=engine
    )
    list(result)
    return result.server["w"]


def reference(optimizer, penalty=lambda w: 0.0, clip=None):
    """Plain PyTorch: full-batch steps on all samples."""
    w = {name: p.requires_grad_() for name, p in TASK.init().items()}
    torchs = optimizer(list(w.values()))
    x, y = TASK.prepare(torch.from_numpy(DATA.x_train)), torch.from_numpy(DATA.y_train)
    for _ in range(7):
        torchs.zero_grad()
        (F.cross_entropy(TASK.logits(w, x), y) + penalty(w)).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(list(w.values()), clip)
        torchs.step()
    return {name: p.detach() for name, p in w.items()}


def proximal(w):
    start = TASK.init()
    return 0.25 * sum((p - start[name]).square().sum() for name, p in w.items())


EVERYONE = SIZES.sum(keepdims=True)
RMSPROP = {"name": "torch.optim.RMSprop", "args": {"alpha": 0.9, "momentum": 0.5}}


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("hyper", "optimizer"),
    [
        ({"optimizer": "adam", "weight_decay": 0.1}, lambda w: torch.optim.Adam(w, lr=0.02, weight_decay=0.1)),
        ({"optimizer": "adamw", "weight_decay": 0.1}, lambda w: torch.optim.AdamW(w, lr=0.02, weight_decay=0.1)),
        ({"optimizer": "adamw"}, lambda w: torch.optim.AdamW(w, lr=0.02, weight_decay=0.0)),
    ],
)
def test_adam_and_adamw_are_torchs(mode, hyper, optimizer):
    assert distance(run("fedavg", hyper, mode, EVERYONE), reference(optimizer)) < 1e-5


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_adamw_on_a_clipped_proximal_objective_is_torchs(mode):
    hyper = {"optimizer": "adamw", "mu": 0.5, "clip_norm": 0.3, "weight_decay": 0.01}
    wanted = reference(lambda w: torch.optim.AdamW(w, lr=0.02, weight_decay=0.01), proximal, clip=0.3)
    assert distance(run("fedprox", hyper, mode, EVERYONE), wanted) < 1e-5


def test_a_class_of_torch_optim_takes_its_own_steps():
    wanted = reference(lambda w: torch.optim.RMSprop(w, lr=0.02, alpha=0.9, momentum=0.5), proximal)
    assert distance(run("fedprox", {"optimizer": RMSPROP, "mu": 0.5}, sizes=EVERYONE), wanted) < 1e-6
    plain = reference(lambda w: torch.optim.Adagrad(w, lr=0.02))
    assert distance(run("fedavg", {"optimizer": "torch.optim.Adagrad"}, sizes=EVERYONE), plain) < 1e-6


def test_torchs_sgd_is_ours():
    ours = run("fedavg", {"momentum": 0.9, "weight_decay": 0.01}, rounds=2)
    torchs = {"name": "torch.optim.SGD", "args": {"momentum": 0.9, "weight_decay": 0.01}}
    assert distance(run("fedavg", {"optimizer": torchs}, rounds=2), ours) < 1e-6


@pytest.mark.parametrize(
    ("name", "more"),
    [("fedavg", {}), ("fedprox", {"mu": 0.1}), ("feddyn", {"alpha": 0.1}), ("fedsplit", {}), ("central", {})],
)
def test_loop_and_vmap_agree_over_rounds_with_clients_of_different_sizes(name, more):
    hyper = {"optimizer": "adamw", "weight_decay": 0.01, "batch_size": 16, "steps": None, "epochs": 2, **more}
    looped, batched = (run(name, hyper, mode, rounds=2) for mode in ("loop", "vmap"))
    assert distance(looped, batched) < 1e-5


def test_every_dense_class_of_torch_optim_with_default_arguments_is_accepted_or_refused_before_a_run():
    refused = set()
    for name, kind in vars(torch.optim).items():
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
            try:
                TorchOptimizer(name=f"torch.optim.{name}")
            except ValidationError:
                refused.add(name)
    assert {"LBFGS", "SparseAdam"} <= refused <= {"LBFGS", "SparseAdam", "Muon", "Optimizer"}


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"name": "fedavg", "optimizer": "adamm"}, "algorithm.optimizer must be sgd, adam or adamw, not 'adamm'"),
        ({"name": "fedavg", "optimizer": "torch.optim.Foo"}, "'torch.optim.Foo' is not an optimiser"),
        ({"name": "fedavg", "optimizer": {**RMSPROP, "args": {"alph": 1}}}, "unexpected keyword argument 'alph'"),
        ({"name": "fedavg", "optimizer": {**RMSPROP, "args": {"lr": 1}}}, "the learning rate is `algorithm.lr`"),
        ({"name": "fedavg", "optimizer": "torch.optim.LBFGS"}, "torch.optim.LBFGS cannot take a step"),
        ({"name": "fedavg", "optimizer": RMSPROP, "momentum": 0.9}, "`momentum` is for sgd, and torch.optim"),
        ({"name": "feddyn", "optimizer": "adam", "solver": "newton"}, "no effect with `solver: newton`"),
        ({"name": "scaffold", "optimizer": "adam"}, "because control variates are means of the gradients of SGD steps"),
    ],
)
def test_wrong_optimizers_are_refused_in_a_sentence(algorithm, message):
    with pytest.raises(UserError) as caught:
        parse_experiment(FILE | {"algorithm": algorithm})
    (sentence,) = caught.value.sentences
    assert message in sentence


FILE = {
    "name": "optimizers",
    "rounds": 2,
    "task": {"data": {"name": "digits"}, "partition": {"kind": "iid", "clients": 10}, "model": {"name": "logreg"}},
    "resources": {"executor": "inline"},
}


def test_an_optimizer_that_works_in_place_rules_out_vmap():
    made = parse_experiment(FILE | {"algorithm": {"name": "fedavg", "optimizer": RMSPROP}})
    dataset, clients = build_data(made, None)
    reason = "torch.optim.RMSprop changes its parameters in place, one client at a time"
    assert build_algorithms([made], dataset, clients)[0].task.module.no_vmap == reason
    batched = parse_experiment(
        FILE | {"algorithm": {"name": "fedavg", "optimizer": RMSPROP}, "engine": {"mode": "vmap"}}
    )
    with pytest.raises(UserError, match=r"engine\.mode: vmap is not possible: torch\.optim\.RMSprop changes"):
        check(batched, None, (dataset, clients))


def test_a_file_keeps_the_name_of_an_optimizer_and_a_section_its_arguments():
    section = registries.algorithms.section("fedavg")
    assert section(optimizer="adam").model_dump()["optimizer"] == "adam"
    dumped = section(optimizer=RMSPROP).model_dump(mode="json")
    assert section(**dumped) == section(optimizer=RMSPROP)


@pytest.mark.parametrize("batched", [False, True])
def test_newton_solves_a_problem_with_a_feature_that_is_always_zero(batched):
    """Its Hessian is singular: the feature's weight stays, and the others are those of least squares."""
    generator = np.random.default_rng(0)
    x = np.column_stack([generator.normal(size=(30, 3)), np.zeros(30)]).astype(np.float32)
    y = generator.normal(size=30).astype(np.float32)
    start = {"w": torch.tensor([1.0, -2.0, 3.0, 0.25])}

    def solved(y):
        def loss(w):
            return 0.5 * (torch.from_numpy(x) @ w["w"] - y).square().mean()

        return newton(loss, start, None, None, 0.0, batched)[0]["w"]

    found = torch.func.vmap(solved)(torch.from_numpy(y)[None])[0] if batched else solved(torch.from_numpy(y))
    expected = [*np.linalg.lstsq(x[:, :3], y, rcond=None)[0], 0.25]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_client_without_mini_batches_keeps_its_start_under_newton():
    hp, data = (
        SimpleNamespace(solver="newton", weight_decay=0.1),
        SimpleNamespace(batches=lambda _: iter(()), batched=False),
    )
    start = TASK.init()
    w, loss = minimize(TASK.loss, start, data, hp)
    assert distance(w, start) == 0
    assert loss.isnan()
