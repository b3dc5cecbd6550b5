"""FedHeN, NoSide and Decouple: the facts of fedhen.md, section 5."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from exits import CLIENTS, DATA, LOCAL, algorithm, answered, run, task
from helpers import check_resuming, dataset, distance, identical, partition, run_inline
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.messages import Aggregate
from hedgerow.algorithms.core.pytree import count, tree_map
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.optim.descent import clip_factor
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.models.early_exit import EarlyExit

METHODS = ("fedhen", "noside", "decouple")


@pytest.mark.parametrize(("classes", "published"), [(10, 11_171_146), (100, 11_217_316)])
def test_the_networks_have_the_published_sizes(classes, published):
    """CK-SIZES. The exit has mix pooling's share and a linear layer in addition."""
    with torch.device("meta"):
        module = EarlyExit(3, classes, [64, 128, 256, 512], [2, 2, 2, 2], 2, 2)
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    of_exit = {name for name in sizes if name.startswith(("exit.", "mix"))}
    assert sum(n for name, n in sizes.items() if name not in of_exit) == published
    assert sum(n for name, n in sizes.items() if name in module.early - of_exit) == 674_880
    assert sum(sizes[name] for name in of_exit) == 128 * classes + classes + 1
    assert module.early_alone == of_exit
    assert module.early < sizes.keys()
    assert {name.partition(".")[0] for name in sizes.keys() - module.early} == {"rest", "head"}


def test_the_exit_of_the_complex_network_is_the_simple_one():
    """CK-SUBNET: M alone decides, in training and evaluation alike."""
    one = algorithm("fedhen")
    w, other = one.task.init(), task(seed=1).init()
    x = torch.randn(5, 2, 6, 6)
    early, late = one.logits(w, x, "both")
    assert torch.equal(early, one.logits(one.early(w), x, "early"))
    assert torch.equal(early, one.logits({**other, **one.early(w)}, x, "early"))
    assert torch.equal(late, one.task.logits(w, x))
    assert not torch.allclose(early, late)
    one.task.module.eval()
    assert torch.equal(early, one.logits(w, x, "early"))


def test_the_side_gradient():
    """CK-SIDEGRAD: one pass gives the sum of both gradients; the exit's is 0 on M', the other's on the exit."""
    one = algorithm("fedhen")
    w = one.task.init()
    batch = Batch(torch.from_numpy(DATA.x_train[:8]), torch.from_numpy(DATA.y_train[:8]))

    def both(w):
        early, late = one.logits(w, batch.x, "both")
        return one.task.criterion(early, batch) + one.task.criterion(late, batch)

    together = torch.func.grad(both)(w)
    early, late = (torch.func.grad(lambda w, e=exits: one.loss(w, batch, e))(w) for exits in ("early", "late"))
    assert distance(together, tree_map(torch.add, early, late)) < 1e-6
    assert all((early[name] == 0).all() for name in w if name not in one.task.module.early)
    assert all((late[name] == 0).all() for name in w if name.startswith(("exit.", "mix")))
    assert all((early[name] != 0).any() for name in one.task.module.early)


@pytest.mark.parametrize("name", METHODS)
def test_the_server_averages_as_written(name):
    """CK-AGGREGATION, CK-CONSTRAINT: three simple clients and one complex one; the divisor of the shared part is 4."""
    one = algorithm(name)
    server = one.init_server()
    after = one.aggregate(server, answered(one, [1, 2, 6], True), answered(one, [8], False))
    simple = one.simple(after)
    if name == "decouple":
        assert all((p == 3).all() for p in simple.values())
        assert all((p == 8).all() for p in after["w"].values())
    else:
        assert all((p == 17 / 4).all() for p in simple.values())
        assert all((p == 8).all() for key, p in after["w"].items() if key not in one.task.module.early)
        assert identical(one.early(after["w"]), simple)
    nobody = Aggregate({}, np.zeros(0, bool), {})
    assert identical(one.aggregate(server, nobody, nobody)["w"], server["w"])
    only = one.aggregate(server, answered(one, [5], True), nobody)
    assert all((p == 5).all() for p in one.simple(only).values())
    assert all(torch.equal(only["w"][key], p) for key, p in server["w"].items() if key not in one.task.module.early)


def test_without_the_side_objective_fedhen_is_noside():
    """CK-REDUCTION."""
    silent, plain, loud = run("fedhen", side_weight=0.0), run("noside"), run("fedhen")
    [list(one) for one in (silent, plain, loud)]
    assert distance(silent.server["w"], plain.server["w"]) < 1e-6
    assert distance(loud.server["w"], plain.server["w"]) > 1e-3


class Simple(nn.Module):
    """The simple network alone."""

    def __init__(self, whole):
        super().__init__()
        self.whole = whole

    def forward(self, x):
        return self.whole(x, "early")


@pytest.mark.parametrize("name", METHODS)
def test_with_one_architecture_they_are_fedavg(name):
    """CK-REDUCTION."""
    simple = run(name, simple=1.0)
    alone = Task(Simple(task().module), torch.zeros(()), torch.ones(()), sample_shape=(2, 6, 6))
    hyper = {**LOCAL, "aggregation": {"weighting": "uniform"}}
    settings = {"rounds": 3, "engine": EngineConfig(mode="loop", chunk=1)}
    plain = run_inline(algorithm_class("fedavg"), alone, DATA, CLIENTS, hyper, **settings)
    [list(one) for one in (simple, plain)]
    found = simple.servers[0].algorithm.inner.simple(simple.server)
    assert distance(found, {key: plain.server["w"][f"whole.{key}"] for key in found}) < 1e-6
    if name != "fedhen":
        # Mini-batches are other ones in another exchange of the round: whole local data.
        hyper = {**hyper, "batch_size": None, "epochs": None, "steps": 2}
        complex_ = run(name, simple=0.0, batch_size=None, epochs=None, steps=2)
        plain = run_inline(algorithm_class("fedavg"), task(), DATA, CLIENTS, hyper, **settings)
        [list(one) for one in (complex_, plain)]
        assert distance(complex_.server["w"], plain.server["w"]) < 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_what_is_transmitted(name):
    """CK-TRAFFIC: 2 (|Z_s| d_s + |Z_c| d_c), whether or not averages of latest models are kept."""
    one = algorithm(name)
    few, many = count(one.early(one.task.init())), count(one.task.init())
    for latest in (False, True):
        record = next(run(name, simple=1 / 3, latest=latest))
        assert record["scalars_down"] == record["scalars_up"] == 2 * few + 4 * many
        assert record["exchanges"] == 1


@pytest.mark.parametrize("name", METHODS)
def test_a_client_that_diverged_is_left_out(name):
    """CK-NAN: the mean is the others', with the divisor that is left."""
    kind, others = algorithm_class(name), []

    class Breaking(kind):
        def learn(self, loss, hp, down, state, data, **more):
            up, state, metrics = super().learn(loss, hp, down, state, data, **more)
            broken = torch.where(data.y[data.streams["train"][0]][0, 0] == 0, float("nan"), 0.0)
            if broken == 0:
                others.append(up["w"])
            return {key: tree_map(lambda p: p + broken, tree) for key, tree in up.items()}, state, metrics

    record = next(one := run(name, kind=Breaking, rounds=1))
    assert 0 < record["dropped"] < 6
    assert all(torch.isfinite(p).all() for p in one.server["w"].values())
    assert np.isfinite(record["test_loss"])
    algorithm, start = one.servers[0].algorithm.inner, task().init()
    complex_ = [w for w in others if w.keys() == start.keys()]
    shared = complex_ if name == "decouple" else others
    for key, p in one.server["w"].items():
        having = [w[key] for w in (shared if key in algorithm.early(start) else complex_)]
        assert torch.allclose(p, sum(having) / len(having), atol=1e-6)
    simple = [w for w in others if w.keys() != start.keys()] if name == "decouple" else others
    for key, p in algorithm.simple(one.server).items():
        assert torch.allclose(p, sum(w[key] for w in simple) / len(simple), atol=1e-6)


def test_clipping_at_ten():
    """CK-CLIP."""
    direction = [torch.full((4,), 30.0), torch.full((9,), -7.0)]
    factor = clip_factor([d.norm() for d in direction], 10.0)
    assert float(torch.cat([factor * d for d in direction]).norm()) == pytest.approx(10, abs=1e-4)
    assert float(clip_factor([torch.tensor(3.0)], 10.0)) == 1


class Toy(Task):
    """The network's outputs are losses."""

    is_scored = False

    def criterion(self, logits, batch):
        return logits.mean()


class ToyNet(nn.Module):
    """f_i(u) = 1/2 (u - c_i)^2, f_j(u, v) = 1/2 (u + v/2 - p_j)^2 + 1/2 (v - q_j)^2; a sample is (c, p, q)."""

    early = frozenset({"u"})

    def __init__(self):
        super().__init__()
        self.u, self.v = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor(-0.2))

    def forward(self, x, exits="late"):
        early = 0.5 * (self.u - x[:, 0]) ** 2
        late = 0.5 * (self.u + 0.5 * self.v - x[:, 1]) ** 2 + 0.5 * (self.v - x[:, 2]) ** 2
        return {"early": early, "late": late, "both": (early, late)}[exits]


def toy(name, rounds, **hyper):
    x = np.random.default_rng(3).normal(size=(6, 3)).astype(np.float32)
    one = Toy(ToyNet(), torch.zeros(()), torch.ones(()), sample_shape=(3,))
    values = {"lr": 0.2, "batch_size": None, "epochs": None, "steps": 1, **hyper}
    settings = {"rounds": rounds, "engine": EngineConfig(mode="vmap", chunk=3)}
    done = run_inline(
        algorithm_class(name), one, dataset(x, np.zeros(6, np.int64)), partition(np.ones(6, int)), values, **settings
    )
    list(done)
    return done, x


@pytest.mark.exhaustive("convergence")
def test_the_toy_problem_with_a_constraint():
    """CK-TOY: the first update by hand; then the point at which both brackets vanish. Decouple ends elsewhere."""
    u, v = 0.3, -0.2
    one, x = toy("fedhen", 1)
    c, p, q = x.T
    shared = (u - c[:3]).sum() + ((u + 0.5 * v - p[3:]) + (u - c[3:])).sum()
    rest = (0.5 * (u + 0.5 * v - p[3:]) + (v - q[3:])).sum()
    assert float(one.server["w"]["u"]) == pytest.approx(u - 0.2 / 6 * shared, abs=1e-6)
    assert float(one.server["w"]["v"]) == pytest.approx(v - 0.2 / 3 * rest, abs=1e-6)
    # With |S| = |C| = 3: sum over all of (u - c) + sum over C of (u + v/2 - p) = 0, and v's bracket.
    matrix = np.array([[6 + 3, 1.5], [1.5, 0.25 * 3 + 3]])
    best = np.linalg.solve(matrix, [c.sum() + p[3:].sum(), 0.5 * p[3:].sum() + q[3:].sum()])
    end, _ = toy("fedhen", 200)
    assert [float(end.server["w"][name]) for name in "uv"] == pytest.approx(best, abs=1e-5)
    apart, _ = toy("decouple", 200)
    own = np.linalg.solve([[3, 1.5], [1.5, 3.75]], [p[3:].sum(), 0.5 * p[3:].sum() + q[3:].sum()])
    assert [float(apart.server["w"][name]) for name in "uv"] == pytest.approx(own, abs=1e-5)
    assert float(apart.server["simple"]["u"]) == pytest.approx(c[:3].mean(), abs=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_loop_and_vmap_agree(name):
    loop, vmap = (run(name, mode, rounds=2, latest=True) for mode in (("loop", 1), ("vmap", 3)))
    [list(one) for one in (loop, vmap)]
    assert distance(loop.server["w"], vmap.server["w"]) < 1e-5
    assert distance(loop.server["latest"]["simple"], vmap.server["latest"]["simple"]) < 1e-5


def test_a_resumed_run_is_undisturbed(tmp_path):
    settings = {"latest": True, "clients_per_round": 0.5, "rounds": 4}
    check_resuming(lambda folder: run("fedhen", folder=folder, **settings), 2, tmp_path)


def test_averages_of_latest_models():
    """CK-REPORT: over all clients of an architecture; who has not taken part yet counts with the initial model."""
    one = run("decouple", latest=True, clients_per_round=0.5, rounds=3)
    list(one)
    states, server, algorithm = one.states.read(np.arange(6))["latest"], one.server, one.servers[0].algorithm.inner
    for key, p in server["latest"]["simple"].items():
        assert torch.allclose(p, states[key][:3].mean(0), atol=1e-6)
    for key, p in server["latest"]["complex"].items():
        assert torch.allclose(p, states[key][3:].mean(0), atol=1e-6)
    assert distance(algorithm.scored(server)["w"], server["w"]) > 0


@pytest.mark.parametrize("name", METHODS)
def test_they_learn_and_both_networks_are_scored(name):
    records = list(run(name, rounds=12))
    for loss in ("test_loss", "simple_test_loss"):
        assert records[-1][loss] < 0.8 * records[0][loss]
    assert records[-1]["simple_test_loss"] != records[-1]["test_loss"]


def test_the_simple_network_gains_most_from_the_side_objective():
    """CK-ORDERING: sorted by class, simple clients never see what complex ones see."""
    order = np.argsort(DATA.y_train, kind="stable")
    data = replace(DATA, x_train=DATA.x_train[order], y_train=DATA.y_train[order])
    seen = {name: [record["simple_test_accuracy"] for record in run(name, rounds=8, data=data)] for name in METHODS}
    reached = {name: next((t for t, value in enumerate(values) if value > 0.9), 99) for name, values in seen.items()}
    assert reached["fedhen"] < min(reached["noside"], reached["decouple"])
    assert seen["decouple"][-1] < 0.7


def test_models_with_one_exit_are_refused():
    kind = algorithm_class("fedhen")
    single = Task(nn.Linear(2, 2), sample_shape=(2,))
    assert "choose resnet_exit" in kind(kind.Hyper(), single).incompatibility()
