"""What a client with the complex architecture does in FedHeN and NoSide: fedhen.md, section 5."""

import pytest
import torch
from exits import CLIENTS, DATA, LOCAL, algorithm, answered, run, task
from helpers import distance, identical, run_inline
from torch.func import functional_call

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.pytree import add, leaves, scale, sub
from hedgerow.algorithms.core.task import Task
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class

X, Y = torch.from_numpy(DATA.x_train[:8]), torch.from_numpy(DATA.y_train[:8])


def sent(one, w, steps=1):
    """What a client with these samples answers to the complex model w, after so many steps with all of them."""
    rows = torch.arange(8).expand(steps, 8)
    data = ClientData(X, Y, lambda x: x, {"train": (rows, torch.ones_like(rows, dtype=torch.bool))}, batched=False)
    return one.train_complex(one.hyper, {"w": w}, {}, data)[0]["w"]


def slopes(one, w):
    """The gradients of the simple network's loss and of the complex one's."""
    batch = Batch(X, Y)
    return [torch.func.grad(lambda w, e=exits: one.loss(w, batch, e))(w) for exits in ("early", "late")]


def norm(tree):
    return float(torch.cat([leaf.flatten() for leaf in leaves(tree)]).norm())


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_a_client_goes_along_the_sum_of_both_gradients(weight):
    """CK-SIDEGRAD: M' moves by the complex loss alone, the exit by the simple one's."""
    one = algorithm("fedhen", side_weight=weight, clip_norm=None)
    w = one.task.init()
    early, late = slopes(one, w)
    moved = scale(sub(w, sent(one, w)), 1 / LOCAL["lr"])
    assert distance(moved, add(late, early, weight)) < 1e-5
    assert distance({name: moved[name] for name in w if name not in one.task.module.early}, late) < 1e-5
    assert distance({name: moved[name] for name in one.exit}, scale(early, weight)) < 1e-5


def test_the_sum_of_both_gradients_is_clipped():
    """CK-CLIP: at norm 10 as a whole, and not each of the two."""
    one = algorithm("fedhen", clip_norm=10.0)
    w = scale(one.task.init(), 6.0)
    early, late = slopes(one, w)
    both = add(early, late)
    assert min(norm(both), norm(late)) > 10
    moved = scale(sub(w, sent(one, w)), 1 / LOCAL["lr"])
    assert norm(moved) == pytest.approx(10, abs=1e-2)
    assert distance(moved, scale(both, 10 / norm(both))) < 1e-3
    apart = add(scale(early, min(1, 10 / norm(early))), scale(late, 10 / norm(late)))
    assert distance(moved, scale(apart, 10 / norm(apart))) > 1e-2


@pytest.mark.parametrize(("name", "hyper"), [("noside", {}), ("decouple", {}), ("fedhen", {"side_weight": 0.0})])
def test_an_exit_that_the_loss_does_not_depend_on_is_sent_back_as_it_came(name, hyper):
    one = algorithm(name, weight_decay=0.1, **hyper)
    w = one.task.init()
    answer = sent(one, w, steps=5)
    assert one.exit == {"mix", "exit.weight", "exit.bias"}
    assert all(torch.equal(answer[key], w[key]) for key in one.exit)
    assert not any(torch.equal(answer[key], w[key]) for key in w if key not in one.exit)


def test_decay_does_not_shrink_the_exit_where_nobody_trains_it():
    for mode in (("loop", 1), ("vmap", 3)):
        done = run("noside", mode, simple=0.0, weight_decay=0.1)
        list(done)
        before = {name: p for name, p in task().init().items() if name in ("exit.weight", "exit.bias", "mix")}
        # But for the rounding of the mean.
        assert distance(before, done.server["w"]) < 1e-6


def test_the_exit_may_be_averaged_over_the_simple_clients_alone():
    """Of what is shared, the exit alone has another divisor: three simple clients and one complex one."""
    one = algorithm("noside", exit="simple")
    server = one.init_server()
    after = one.aggregate(server, answered(one, [1, 2, 6], True), answered(one, [8], False))
    for name, p in after["w"].items():
        mean = 3 if name in one.exit else 17 / 4 if name in one.task.module.early else 8
        assert (p == mean).all()
    assert identical(one.early(after["w"]), one.simple(after))


class Summed(Task):
    """The complex network, whose loss is that of both exits."""

    def loss(self, w, batch):
        early, late = functional_call(self.module, w, (batch.x,), {"exits": "both"})
        return self.criterion(early, batch) + self.criterion(late, batch)


def test_with_complex_clients_alone_fedhen_is_fedavg_on_the_summed_loss():
    """CK-REDUCTION."""
    whole = {"batch_size": None, "epochs": None, "steps": 2}
    mine = run("fedhen", simple=0.0, **whole)
    plain = run_inline(
        algorithm_class("fedavg"),
        Summed(**task().fields),
        DATA,
        CLIENTS,
        {**LOCAL, **whole, "aggregation": {"weighting": "uniform"}},
        rounds=3,
        engine=EngineConfig(mode="loop", chunk=1),
    )
    [list(one) for one in (mine, plain)]
    assert distance(mine.server["w"], plain.server["w"]) < 1e-6
