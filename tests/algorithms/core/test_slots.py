"""Slots around an algorithm: weighting, rules of aggregation, server optimisers, transforms; the user's own too."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from bilevel_runs import on_blobs
from click.testing import CliRunner
from helpers import (
    Quadratics,
    blobs,
    check_resuming,
    distance,
    identical,
    named,
    partition,
    run_inline,
    slots_of,
    small_task,
    without_clock,
)
from mode_models import NORMED
from pydantic import Field

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.keyed_random import bits, gaussian, subkey
from hedgerow.algorithms.core.messages import POOL, Exchange
from hedgerow.algorithms.core.parts import Part, Wire
from hedgerow.algorithms.core.pytree import add, count, flat, flatten, like, sub, tree_map, zeros_like
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.algorithms.optim.local_sgd import LocalSGD, minimize
from hedgerow.algorithms.optim.server_optimizer import ServerOptimizer
from hedgerow.algorithms.slots.support import without_task
from hedgerow.algorithms.transforms.clip import Clip
from hedgerow.algorithms.transforms.sketching import Sketch
from hedgerow.algorithms.transforms.sparse_vectors import dense, top_k
from hedgerow.algorithms.transforms.sparsify import TopK
from hedgerow.algorithms.transforms.transform import Transform
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import dump_experiment, load_experiment, parse_experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.data.sampling import client_keys
from hedgerow.platform.runtime.factory import build_algorithms, build_data, check_task
from hedgerow.platform.runtime.middleware_order import compose
from hedgerow.platform.ui.explained_experiment import complete

DATA = blobs(samples=160)
CLIENTS = partition(np.array([30, 25, 25, 20, 20]), seed=0)
LOCAL = {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": None}
D = count(small_task(DATA).init())
LOOP, VMAP = ("loop", 1), ("vmap", 3)


def run(kind, mode=VMAP, rounds=4, folder=None, **section):
    kind = algorithm_class(kind) if isinstance(kind, str) else kind
    engine = EngineConfig(mode=mode[0], chunk=mode[1])
    own = {key: value for key, value in LOCAL.items() if key in kind.Hyper.model_fields}
    settings = {"rounds": rounds, "engine": engine}
    return run_inline(kind, small_task(DATA), DATA, CLIENTS, own | section, folder, **settings)


# ---- empty slots, weighting, server optimisers -----------------------------------------------------------------------


@pytest.mark.grid
@pytest.mark.parametrize("mode", [LOOP, VMAP], ids=["loop", "vmap"])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedsgd", "feddyn", "scaffold", "fedsplit"])
def test_empty_slots_change_no_bit(name, mode):
    bare, slotted = run(name, mode), run(name, mode)
    (learner,), worker = slotted.servers, slotted.worker
    learner.algorithm = compose(learner.algorithm.inner, slots_of({}))
    worker.algorithms = [compose(worker.algorithms[0].inner, slots_of({}))]
    assert without_clock(bare) == without_clock(slotted)
    assert identical(flatten(bare.server), flatten(slotted.server))


OPTIMIZERS = [{"lr": 0.5, "momentum": 0.9}, {"optimizer": "adam", "lr": 0.1}, {"optimizer": "yogi", "momentum": 0.5}]


@pytest.mark.grid
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedsgd"])
def test_server_optimizers_are_those_inside_the_algorithm(name, optimizer):
    class Before(algorithm_class(name)):
        """The server's step inside the round, as these algorithms had it."""

        def init_server(self):
            state = super().init_server()
            return {**state, "optimizer": ServerOptimizer(**optimizer).init(state["w"])}

        def round(self, server, cohort):
            state = yield from super().round(server, cohort)
            w, memory = ServerOptimizer(**optimizer).step(server["w"], state["w"], server["optimizer"])
            return {"w": w, "optimizer": memory}

    inside, around = run(Before), run(name, aggregation={"server_optimizer": optimizer})
    assert without_clock(inside) == without_clock(around)
    assert identical(flatten(inside.server), flatten(around.server))


UNIFORM = {"aggregation": {"weighting": "uniform"}}


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedsgd"])
def test_weights_by_samples_are_those_of_the_exchange(name):
    class Before(algorithm_class(name)):
        def round(self, server, cohort):
            generator, reply = super().round(server, cohort), None
            while True:
                try:
                    exchange = generator.send(reply)
                except StopIteration as stop:
                    return stop.value
                reply = yield Exchange(
                    exchange.step, exchange.broadcast, exchange.clients, batches=exchange.batches, weights=cohort.sizes
                )

    inside, around = run(Before), run(name, aggregation={"weighting": "samples"})
    assert without_clock(inside) == without_clock(around)
    assert identical(flatten(inside.server), flatten(around.server))
    assert identical(flatten(around.server), flatten(run_to_end(name).server))
    assert distance(around.server["w"], run_to_end(name, **UNIFORM).server["w"]) > 1e-4


def run_to_end(*args, **section):
    done = run(*args, **section)
    list(done)
    return done


# ---- transforms ------------------------------------------------------------------------------------------------------


class FedAvgTopK(Algorithm):
    """Top-K with memory as an algorithm of its own: the reference."""

    class Hyper(LocalSGD):
        name: str = "fedavg_topk"
        entries: int = 10

    def init_client(self):
        return {"residual": zeros_like(flat(self.task.init()))}

    def round(self, server, cohort):
        w = server["w"]
        found = yield Exchange(self.train, {"w": w}, cohort.clients, batches=self.hyper.batches, reduce="stack")
        values = found.up["values"] / len(found.up["values"])
        moved = dense({"values": values.flatten(), "indices": found.up["indices"].flatten()}, count(w))
        return {"w": add(w, like(moved, w))}

    def train(self, hp, down, state, data):
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        moved = flat(sub(w, down["w"])) + state["residual"]
        message = top_k(moved, hp.entries)
        return message, {"residual": moved - dense(message, len(moved))}, {"loss": loss}


@pytest.mark.parametrize("mode", [LOOP, VMAP], ids=["loop", "vmap"])
def test_top_k_is_that_of_an_algorithm_of_its_own(mode):
    top_k = [{"kind": "top_k", "entries": 10}]
    inside, around = run(FedAvgTopK, mode), run("fedavg", mode, transforms=top_k, **UNIFORM)
    records = [list(one) for one in (inside, around)]
    assert distance(inside.server["w"], around.server["w"]) <= 6e-8
    for mine, theirs in zip(*records, strict=True):
        for key in ("scalars_up", "scalars_down", "bytes_up", "bytes_down"):
            assert mine[key] == theirs[key]
    assert records[1][0]["bytes_up"] == 5 * 10 * (4 + 4)


def test_clip_shortens_what_is_longer_and_nothing_else():
    clip = Clip(norm=2.0)
    update = {"w": {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}}
    short, _ = clip.client(clip, update, {}, None)
    assert torch.allclose(short["w"]["a"], torch.tensor([1.2, 0.0]))
    assert torch.allclose(short["w"]["b"], torch.tensor([1.6]))
    same, _ = clip.client(clip, tree_map(lambda leaf: leaf / 5, update), {}, None)
    assert identical(same["w"], tree_map(lambda leaf: leaf / 5, update["w"]))
    nothing, _ = clip.client(clip, tree_map(torch.zeros_like, update), {}, None)
    assert identical(nothing["w"], tree_map(torch.zeros_like, update["w"]))


def test_a_clip_is_of_the_joint_norm_of_all_parts():
    """One client: the server moves by the clipped update, (w, change) of SCAFFOLD together."""
    norm = 0.01
    done = run(Scaffold, rounds=1, transforms=[{"kind": "clip", "norm": norm}])
    start = done.server
    list(done)
    both = flat({"w": sub(done.server["w"], start["w"]), "c": sub(done.server["c"], start["c"])})
    assert float(both.norm()) <= norm + 1e-6
    assert float(both.norm()) > norm / 2


CLIP_AND_TOP = [{"kind": "clip", "norm": 0.2}, {"kind": "top_k", "entries": 20, "error_feedback": False}]
COVERED = ["fedavg", "fedprox", "fedsgd", "feddyn", "scaffold", "fedsplit"]


@pytest.mark.parametrize("name", COVERED)
def test_transforms_in_a_loop_are_those_under_vmap(name):
    loop, vmap = run_to_end(name, LOOP, transforms=CLIP_AND_TOP), run_to_end(name, VMAP, transforms=CLIP_AND_TOP)
    assert distance(flatten(loop.server), flatten(vmap.server)) < 2e-7
    assert distance(flatten(loop.server), flatten(run_to_end(name, LOOP).server)) > 1e-3
    factor = 2 if name == "scaffold" else 1
    assert vmap.servers[0].history[-1]["bytes_up"] == 5 * 20 * 8 * factor


@pytest.mark.parametrize("name", COVERED)
def test_transforms_on_three_workers_are_those_on_one(name):
    one, three = run(name, transforms=CLIP_AND_TOP), run(name, transforms=CLIP_AND_TOP)
    three.executor.parts = 3
    list(one), list(three)
    assert distance(flatten(one.server), flatten(three.server)) < 1e-6


@pytest.mark.parametrize(
    "section",
    [
        {"transforms": [CLIP_AND_TOP[0], {"kind": "top_k", "entries": 20}]},
        {
            "transforms": [{"kind": "sketch", "rows": 3, "columns": 20, "entries": 10}],
            "aggregation": {"server_optimizer": {"momentum": 0.5}},
        },
    ],
    ids=["top_k", "sketch"],
)
def test_states_of_slots_are_resumed(section, tmp_path):
    check_resuming(lambda folder: run("fedavg", folder=folder, **section), 2, tmp_path)


@pytest.mark.parametrize("u_at", ["t", "t+1"])
def test_transforms_of_a_bilevel_algorithm(u_at):
    """Parts are declared: of u alone, that clients did not receive, nothing is left out."""
    plain, loop, vmap = (
        on_blobs("fedbio", mode=mode, u_at=u_at, **slots)
        for mode, slots in ((VMAP, {}), (LOOP, {"transforms": CLIP_AND_TOP}), (VMAP, {"transforms": CLIP_AND_TOP}))
    )
    records = [list(one) for one in (plain, loop, vmap)]
    assert distance(flatten(loop.server), flatten(vmap.server)) < 1e-5
    assert distance(flatten(plain.server), flatten(vmap.server)) > 1e-4
    numbers = count(plain.server["u"]) if u_at == "t+1" else 2 * 20
    assert records[2][-1]["scalars_up"] == 5 * (2 * 2 * 20 + numbers)


def test_an_aggregate_is_projected_back_into_the_feasible_set():
    class Bounded(FedAvg):
        def project(self, server):
            return {**server, "w": tree_map(lambda p: p.clamp(-0.2, 0.2), server["w"])}

    for section in (
        {"transforms": [{"kind": "clip", "norm": 1e3}]},
        {"aggregation": {"server_optimizer": {"lr": 3.0}}},
    ):
        done = run_to_end(Bounded, **section)
        assert float(flat(done.server["w"]).abs().max()) == pytest.approx(0.2)


def test_a_transform_does_not_hide_that_a_client_diverged():

    class Hiding(Transform):
        def client(self, hp, update, state, key):
            return tree_map(lambda leaf: leaf.nan_to_num(0.0, 0.0, 0.0), update), state

    class Diverges(FedAvg):
        def train(self, hp, down, state, data):
            up, state, metrics, *_ = super().train(hp, down, state, data)
            bad = torch.where(data.streams["train"][1].sum() > 80, torch.nan, 0.0)
            return {"w": tree_map(lambda p: p + bad, up["w"])}, state, metrics

    for mode in (LOOP, VMAP):
        done = run(Diverges, mode, rounds=1)
        algorithms = [done.servers[0].algorithm.inner, done.worker.algorithms[0].inner]
        slots = slots_of({}).model_copy(update={"transforms": [Hiding()]})
        done.servers[0].algorithm = compose(algorithms[0], slots)
        done.worker.algorithms = [compose(algorithms[1], slots)]
        (record,) = list(done)
        assert record["dropped"] == 1


# ---- what clients remember -------------------------------------------------------------------------------------------


class Quantize(Transform):
    """Stochastic rounding to 15 levels between the extremes of each leaf."""

    is_random = True

    def client(self, hp, update, state, key):
        def rounded(leaf):
            low, high = leaf.min(), leaf.max()
            step = ((high - low) / 15).clamp(min=1e-30)
            noise = bits(key, leaf.numel()).double().view(leaf.shape) / 2**32
            return (low + ((leaf - low) / step + noise).floor() * step).to(leaf.dtype)

        return tree_map(rounded, update), state


class Shaken(Transform):
    is_random = True
    std: float = Field(0.01, ge=0)

    def client(self, hp, update, state, key):
        return tree_map(lambda leaf: leaf + hp.std * gaussian(key, leaf.numel()).view(leaf.shape), update), state


class ForgetfulDyn(FedDyn):
    """Its memory is of what was trained."""

    def train(self, hp, down, state, data):
        up, _, metrics, *_ = super().train(hp, down, state, data)
        return up, FedDyn.remember(self, hp, down, up, state), metrics

    def remember(self, hp, down, sent, state):
        return {}


class ForgetfulScaffold(Scaffold):
    def train(self, hp, down, state, data):
        up, _, metrics, *_ = super().train(hp, down, state, data)
        return up, Scaffold.remember(self, hp, down, up, state), metrics

    def remember(self, hp, down, sent, state):
        return {}


def optimality(kind, rounds, transform):
    """The distance to the optimum of six quadratics with full participation."""
    problem = Quadratics()
    own = (
        {"alpha": 0.3, "solver": "newton"} if issubclass(kind, FedDyn) else {"lr": 0.3, "steps": 5, "batch_size": None}
    )
    done = run_inline(
        kind, problem.task, problem.dataset, problem.partition, own, rounds=rounds, engine=EngineConfig(mode="loop")
    )
    slots = slots_of({}).model_copy(update={"transforms": [transform]})
    (learner,), worker = done.servers, done.worker
    learner.algorithm = compose(learner.algorithm.inner, slots)
    worker.algorithms = [compose(worker.algorithms[0].inner, slots)]
    list(done)
    return float(np.abs(done.server["w"]["x"].numpy() - problem.optimum).max())


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize(
    ("transform", "rounds"),
    [(Quantize(), 60), (TopK(entries=2, error_feedback=False), 60), (Clip(norm=0.05), 240)],
    ids=["quantize", "top_k", "clip"],
)
@pytest.mark.parametrize(("kind", "forgetful"), [(FedDyn, ForgetfulDyn), (Scaffold, ForgetfulScaffold)])
def test_clients_remember_what_they_sent(kind, forgetful, transform, rounds):
    """Control variates of what was trained stay wrong: orders of magnitude farther from the optimum."""
    assert optimality(kind, rounds, transform) < 5e-6
    assert optimality(forgetful, rounds, transform) > 5e-3


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize(("kind", "most"), [(FedDyn, 0.1), (Scaffold, 0.1)])
@pytest.mark.exhaustive("convergence")
def test_noise_of_clients_ends_near_the_optimum(kind, most):
    assert optimality(kind, 240, Shaken()) < most


# ---- random numbers --------------------------------------------------------------------------------------------------


def test_keys_depend_on_seed_round_exchange_and_client_alone():
    keys = client_keys((0, 1, 2), np.arange(1000))
    assert keys.shape == (1000, 2)
    assert len(np.unique(keys, axis=0)) == 1000
    assert (client_keys((0, 1, 2), np.array([7]))[0] == keys[7]).all()
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not (client_keys(other, np.arange(1000)) == keys).all(1).any()
    one = torch.from_numpy(keys[0])
    assert not torch.equal(subkey(one, 1), subkey(one, 2))
    drawn = gaussian(one, 100_000)
    assert abs(float(drawn.mean())) < 0.02
    assert float(drawn.std()) == pytest.approx(1, abs=0.02)
    together = torch.func.vmap(lambda key: gaussian(subkey(key, 5), 4))(torch.from_numpy(keys[:3]))
    assert torch.equal(together[2], gaussian(subkey(torch.from_numpy(keys[2]), 5), 4))


# ---- the user's own, and mistakes ------------------------------------------------------------------------------------

EXPERIMENT = {
    "name": "slots",
    "rounds": 2,
    "clients_per_round": "all",
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": 6},
        "model": {"name": "mlp", "hidden": [8]},
    },
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "resources": {"executor": "inline"},
    "engine": {"mode": "loop"},
    "tracking": {"enabled": False},
}
OWN = '''
import torch
from pydantic import Field

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.core.keyed_random import gaussian
from hedgerow.algorithms.transforms.transform import Transform
from hedgerow.algorithms.core.pytree import tree_map


class Trimmed(Aggregator):
    """Drops the smallest and the largest updates of each coordinate."""

    number: int = Field(1, ge=0, description="updates that are dropped at either end")

    def combine(self, updates, weights):
        def trimmed(leaf):
            return leaf.sort(0).values[self.number : len(leaf) - self.number].mean(0)

        return tree_map(trimmed, updates)


class Noise(Transform):
    """Adds Gaussian noise."""

    is_random = True
    std: float = Field(0.01, ge=0, description="standard deviation")

    def client(self, hp, update, state, key):
        return tree_map(lambda leaf: leaf + hp.std * gaussian(key, leaf.numel()).view(leaf.shape), update), state
'''


def test_a_trimmed_mean_and_a_noise_of_ones_own_run_by_their_paths(tmp_path, monkeypatch):
    (tmp_path / "own_slots.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    values = {
        **EXPERIMENT,
        "aggregation": {"rule": {"kind": "own_slots.Trimmed", "number": 1}},
        "transforms": [{"kind": "clip", "norm": 1.0}, {"kind": "own_slots.Noise", "std": 0.001}],
    }
    file = tmp_path / "slots.yaml"
    file.write_text(dump_experiment(parse_experiment(values)))
    assert load_experiment(file) == parse_experiment(values)
    result = CliRunner().invoke(main, ["run", str(file)])
    assert result.exit_code == 0, result.output
    wrong = [
        ("transforms.1.sdt=1", "transforms.1.sdt is not a key here; did you mean 'std'?"),
        ("transforms.1.std=-1.0", "transforms.1.std must be at least 0"),
        ("aggregation.rule.kind=own_slots.Noise", "'own_slots.Noise' is not an aggregator; name a class that"),
    ]
    for override, sentence in wrong:
        result = CliRunner().invoke(main, ["run", str(file), "--set", override])
        assert result.exit_code == 2
        assert sentence in result.output.replace("\n", " ")


CLEANING = {**EXPERIMENT["task"], "problem": {"kind": "cleaning"}}
CLEANING["partition"] = {**CLEANING["partition"], "upper_level_fraction": 0.2}


def refusal(**values):
    """The sentence with which an experiment is refused before any work."""
    parsed = parse_experiment({**EXPERIMENT, **values})
    with pytest.raises(UserError) as caught:
        check_task(parsed, *build_data(parsed, None))
    return str(caught.value)


TOP = {"kind": "top_k", "entries": 10}
SKETCH = {"kind": "sketch", "entries": 10}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"algorithm": {"name": "central"}, "transforms": [TOP]}, "transforms: central does not average"),
        ({"algorithm": {"name": "stem"}, "transforms": [TOP]}, "transforms: stem does not average"),
        ({"algorithm": {"name": "feddyn"}, "aggregation": {"weighting": "samples"}},
         "aggregation.weighting: the server state of feddyn weights clients equally; set it to uniform"),
        ({"algorithm": {"name": "focus"}, "aggregation": {"weighting": "samples"}}, "weighting: focus defines"),
        ({"algorithm": {"name": "feddyn"}, "aggregation": {"server_optimizer": {"momentum": 0.9}}},
         "aggregation.server_optimizer.momentum: feddyn diverges with server momentum; set it to 0"),
        ({"algorithm": {"name": "heterofl"}, "aggregation": {"server_optimizer": {"lr": 0.9}}},
         "aggregation.server_optimizer: heterofl has its own server step; remove it"),
        ({"algorithm": {"name": "scaffold"}, "transforms": [TOP]},
         "transforms.0.error_feedback: clients of scaffold already keep their own state; set it to false"),
        ({"transforms": [SKETCH, TOP]}, "transforms.0: it encodes updates, which later transforms cannot read"),
        ({"algorithm": {"name": "feddyn"}, "transforms": [SKETCH]}, "transforms.0: clients of feddyn cannot know"),
        ({"transforms": [{"kind": "top_k", "entries": 10**6}]}, "transforms.0.entries: 1000000 is more than the"),
        *[({"algorithm": {"name": name}, "aggregation": {"weighting": weighting}, "task": CLEANING},
           f"aggregation.weighting: {name} defines its own client weights; set it to null")
          for name in ("fedavg_oracle", "preprocess", "comm_fedbio_topk") for weighting in ("uniform", "samples")],
        ({"algorithm": {"name": "broken_algorithms.UnknownEntry"}, "transforms": [TOP]},
         "algorithm.name: UnknownEntry.parts: 'w' of 'train' is like 'model', which is not in `init_server`; name one"),
        ({"algorithm": {"name": "broken_algorithms.UnknownStep"}, "transforms": [TOP]},
         "algorithm.name: UnknownStep.parts names the step 'fit', which is not a method; correct its name"),
        ({"algorithm": {"name": "broken_algorithms.UnknownModel"}, "aggregation": {"server_optimizer": {"lr": 0.5}}},
         "algorithm.name: UnknownModel.optimizes: 'model' is not in `init_server`; name one of its entries (w)"),
        ({"transforms": [{"kind": "broken_algorithms.JointSketch"}]},
         "transforms.0.kind: broken_algorithms.JointSketch is both `joint` and `encodes`; set one of them to False"),
        ({"algorithm": {"name": "broken_algorithms.Forgets"}, "transforms": [TOP]},
         "Forgets breaks the contract of an algorithm: its step `train` does not return 'more', which `parts`"),
        ({"algorithm": {"name": "broken_algorithms.Talkative"}, "transforms": [TOP]},
         "algorithm.name: Talkative: the slots of this experiment need to know what its clients send, and clients send "
         "'more', which resembles no single entry that they receive; declare `parts`"),
        ({"algorithm": {"name": "broken_algorithms.Undeclared"}, "transforms": [TOP]},
         "Undeclared breaks the contract of an algorithm: its step `train` returns 'more', which is not declared"),
        ({"algorithm": {"name": "broken_algorithms.Silent"}, "transforms": [TOP]},
         "'w' of its step `train` is declared as a value of 'w', which the step does not receive; broadcast it"),
        ({"algorithm": {"name": "broken_algorithms.OtherShape"}, "transforms": [TOP]},
         "'more' of its step `train` has another shape than 'w' in `init_server`, which `parts` names"),
        ({"algorithm": {"name": "broken_algorithms.Sums"}, "transforms": [TOP]},
         "Sums breaks the contract of an algorithm: the exchange of `train` has reduce='sum', but `parts` names"),
        ({"algorithm": {"name": "broken_algorithms.ReportsNoModel"}, "objective": {"kind": "stability", "limit": 0.1}},
         "ReportsNoModel breaks the contract of an algorithm: its step `train` is one of `training_steps`, but"),
        ({"algorithm": {"name": "broken_algorithms.TwoValues"}, "transforms": [TOP]},
         "TwoValues breaks the contract of an algorithm: its step `train` returns 2 values (dict, dict); return"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_in_a_sentence(values, sentence):
    found = refusal(**values)
    assert sentence in found
    assert "\n" not in found


def test_steps_outside_the_covered_exchanges_return_their_own_results():
    """The same step on the pool, and in an evaluation, where no exchange is decoded."""
    probes = []

    class Probing(FedAvg):
        parts: ClassVar = {"train": {"w": Part("w", "value")}}
        training_steps = ()

        def round(self, server, cohort):
            message, batches = {"w": server["w"]}, self.hyper.batches
            pool = yield Exchange(self.train, message, POOL, batches=batches, site="pool")
            found = yield Exchange(self.train, message, cohort.clients, batches=batches)
            probes.append((pool.up["w"], found.up["w"]))
            return {"w": found.up["w"]}

        def evaluate(self, server, cohort):
            found = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches)
            probes.append((found.up["w"],))
            return (yield from super().evaluate(server, cohort))

    for mode in (LOOP, VMAP):
        probes.clear()
        list(run(Probing, mode, rounds=1))
        plain = list(probes)
        for section in ([{"kind": "clip", "norm": 1e6}], [{"kind": "sketch", "rows": 3, "columns": 20, "entries": 10}]):
            probes.clear()
            list(run(Probing, mode, rounds=1, transforms=section))
            assert identical(probes[0][0], plain[0][0])
            assert probes[1][0].keys() == plain[1][0].keys()
        # The sketch changes what the round ends with, which the evaluation starts from.
        assert distance(probes[0][1], plain[0][1]) > 1e-3


def test_a_step_keeps_the_key_that_its_exchange_requests():
    seen = []

    class Keyed(FedAvg):
        parts: ClassVar = {"train": {"w": Part("w", "value")}}
        training_steps = ()

        def round(self, server, cohort):
            message = {"w": server["w"]}
            found = yield Exchange(self.train, message, cohort.clients, batches=self.hyper.batches, keyed=True)
            return {"w": found.up["w"]}

        def train(self, hp, down, state, data):
            seen.append(data.key is not None)
            return super().train(hp, down, state, data)

    list(run(Keyed, LOOP, rounds=1, transforms=[{"kind": "clip", "norm": 1.0}]))
    assert seen == [True] * 5


def test_weights_by_samples_replace_those_of_an_exchange():
    class Weighted(FedAvg):
        def round(self, server, cohort):
            weights = np.arange(len(cohort.clients)) + 1.0
            message, batches = {"w": server["w"]}, self.hyper.batches
            found = yield Exchange(self.train, message, cohort.clients, batches=batches, weights=weights)
            return {"w": found.up["w"]}

    for weighting in ("samples", "uniform"):
        section = {"aggregation": {"weighting": weighting}}
        one, other = run_to_end(Weighted, **section), run_to_end("fedavg", **section)
        assert identical(one.server["w"], other.server["w"])


def test_parts_are_those_of_the_steps_that_run():
    kind = algorithm_class("fedbio")
    found = {u_at: kind(named(kind)(u_at=u_at), small_task(DATA)).parts for u_at in ("t", "t+1")}
    assert [list(parts) for parts in found.values()] == [["train"], ["train_xy", "train_u"]]


def test_declared_parts_of_all_algorithms_exist(monkeypatch):
    monkeypatch.setattr("hedgerow.platform.runtime.factory.check_contract", lambda *_: None)
    for name in ALGORITHMS:
        # numpy_client needs the factory of its clients.
        kind = algorithm_class(name)
        if without_task(kind, kind.Hyper.model_construct()).parts and name != "numpy_client":
            wanted = complete("all", name, NORMED.get(name, ()))
            (built,) = build_algorithms([wanted], *build_data(wanted, None))
            assert compose(built.inner, slots_of({"transforms": [CLIP_AND_TOP[0]]})).incompatibility() is None


def test_the_server_optimizer_of_a_checkpoint_may_change(tmp_path):
    """As population-based training changes it: state that a checkpoint has no use for begins anew."""
    plain, heavy, adam = (
        {"aggregation": {"server_optimizer": optimizer}}
        for optimizer in ({"lr": 0.5}, {"momentum": 0.9}, {"optimizer": "adam", "lr": 0.1})
    )
    first = run("fedavg", folder=tmp_path / "run", **plain)
    next(first)
    first.save()
    for section in (heavy, adam, plain):
        after = run("fedavg", folder=tmp_path / "run", **section)
        assert after.round == after.servers[0].round >= 1
        next(after)
        after.save()
    assert "optimizer" not in after.server


def test_a_wire_counts_bits():
    whole = Wire.of({"a": torch.zeros(50), "b": torch.zeros(50)})
    wire = TopK(entries=10).wire(whole)
    assert (wire.scalars, wire.bits) == (20, 10 * 32 + 10 * 32)
    # Only the last message is sent.
    assert TopK(entries=5).wire(wire) == TopK(entries=5).wire(whole)
    sketch = Sketch(rows=2, columns=7).wire(wire)
    assert (sketch.scalars, sketch.bits) == (14, 14 * 32)


def test_the_floats_of_slots_have_the_paths_of_the_file():
    values = {**EXPERIMENT, "transforms": [{"kind": "clip", "norm": 1.0}]}
    hyper = parse_experiment(values).hyper
    floats = hyper.floats()
    assert {"algorithm.lr", "aggregation.server_optimizer.lr", "transforms.0.norm"} < set(floats)
    changed = hyper.with_floats({"transforms.0.norm": 2.0, "algorithm.lr": 0.5})
    assert (changed.transforms[0].norm, changed.algorithm.lr, hyper.transforms[0].norm) == (2.0, 0.5, 1.0)


def test_client_data_has_a_key_only_where_a_step_asks_for_it():
    seen = []

    class Looks(FedAvg):
        def train(self, hp, down, state, data: ClientData):
            seen.append(data.key)
            return super().train(hp, down, state, data)

    list(run(Looks, LOOP, rounds=1))
    assert seen == [None] * 5
