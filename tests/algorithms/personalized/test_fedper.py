"""Models that clients share a part of: identity with FedAvg, what is sent and scored, slots, and refusals."""

import numpy as np
import pytest
import torch
from helpers import blobs, check_resuming, distance, identical, model, objective, run_inline, small_task
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import count, flatten
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.personalized.fedper import FedPer
from hedgerow.algorithms.personalized.fedrep import FedRep
from hedgerow.platform.config.experiment import EngineConfig, Evaluation
from hedgerow.platform.data import Partition

DATA = blobs(features=2, classes=4)
TRAIN, OWN = np.array([1, 50, 13, 3, 30, 41]), np.array([2, 8, 7, 5, 10, 10])
OFFSETS = np.concatenate([[0], np.cumsum(TRAIN + OWN)])
RAGGED = Partition(np.random.default_rng(1).permutation(180), OFFSETS, TRAIN)
ALL = np.arange(6)
KINDS = [FedPer, FedRep]
BODY, HEAD = {"0.weight", "0.bias"}, {"2.weight", "2.bias"}
LOOP, VMAP = EngineConfig(mode="loop"), EngineConfig(mode="vmap", chunk=3)


def ragged(kind=FedPer, hyper=None, folder=None, **settings):
    values = {"lr": 0.2, "batch_size": 4, "epochs": 2, "momentum": 0.5, **(hyper or {})}
    if kind is FedRep and "head_steps" not in values:
        values["head_epochs"] = 3
    wanted = {"rounds": 3, "clients_per_round": 0.5, "evaluation": Evaluation(clients=6), **settings}
    return run_inline(kind, small_task(DATA), DATA, RAGGED, values, folder, **wanted)


def done(*args, **settings):
    one = ragged(*args, **settings)
    return one, list(one)


def client_models(run):
    """The model of each client, as it is scored."""
    own = run.states.read(ALL).get("own", {})
    return [{**model(run), **{name: leaf[k] for name, leaf in own.items()}} for k in range(6)]


def samples(rows):
    return Batch(torch.from_numpy(DATA.x_train[rows]), torch.from_numpy(DATA.y_train[rows]))


@pytest.mark.grid
@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
@pytest.mark.parametrize(
    "slots",
    [
        {},
        {"clip_norm": 0.5, "aggregation": {"rule": {"kind": "median"}, "server_optimizer": {"momentum": 0.5}}},
        {"transforms": [{"kind": "clip", "norm": 0.1}, {"kind": "top_k", "entries": 20}]},
    ],
    ids=["none", "median", "transforms"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_if_everything_is_shared_it_is_fedavg_bit_for_bit(kind, engine, slots):
    if kind is FedRep:
        slots = slots | {"aggregation": {"weighting": "uniform", **slots.get("aggregation", {})}}
    mine, records = done(kind, {"shared": ["*"], **slots}, engine=engine)
    plain, others = done(FedAvg, slots, engine=engine)
    assert identical(model(mine), model(plain))
    for key in ("train_loss", "client_loss", "client_accuracy", "bytes_up", "bytes_down"):
        assert [record[key] for record in records] == [record[key] for record in others]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shared", "names"),
    [(None, BODY), (["0.*"], BODY), (["*weight"], {"0.weight", "2.weight"}), (["2.bias"], {"2.bias"})],
)
def test_personal_parameters_are_client_state_and_are_not_sent(kind, shared, names):
    one, records = done(kind, {"shared": shared})
    assert model(one).keys() == names
    states = one.states.read(ALL)["own"]
    assert states.keys() == (BODY | HEAD) - names
    for record in records:
        assert record["scalars_up"] == record["scalars_down"] == 3 * count(model(one))
        assert record["bytes_up"] == record["bytes_down"] == 3 * 4 * count(model(one))
    # The unit is the whole model.
    assert records[-1]["transmissions"] == pytest.approx(3 * count(model(one)) / count(small_task(DATA).init()))
    # The reported model has the initial values of what the server does not have.
    reported, initial = one.servers[0].algorithm.evaluate_params(one.server), small_task(DATA).init()
    assert list(reported) == list(initial)
    assert identical({name: reported[name] for name in states}, {name: initial[name] for name in states})


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trains_the_base_and_the_heads_together_or_the_heads_first(kind, engine):
    """Two rounds with full batches, computed client by client."""
    hyper = {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": None, "momentum": 0.5}
    if kind is FedRep:
        hyper["head_steps"] = 4
    one, _ = done(kind, hyper, clients_per_round="all", rounds=2, engine=engine)
    task, initial = small_task(DATA), small_task(DATA).init()
    body, heads = {n: initial[n] for n in BODY}, [{n: initial[n] for n in HEAD} for _ in ALL]
    for _ in range(2):
        trained = []
        for k in ALL:
            w, batch = {**body, **heads[k]}, samples(RAGGED.samples(k)[: TRAIN[k]])
            for names, steps in [(HEAD, 4), (BODY, 3)] if kind is FedRep else [(HEAD | BODY, 3)]:
                velocity = {n: torch.zeros_like(w[n]) for n in names}
                for _ in range(steps):
                    gradient = torch.func.grad(task.loss)(w, batch)
                    velocity = {n: 0.5 * velocity[n] + gradient[n] for n in names}
                    w |= {n: w[n] - 0.2 * velocity[n] for n in names}
            trained.append(w)
            heads[k] = {n: w[n] for n in HEAD}
        # FedPer weights by samples, FedRep equally.
        p = [1 / 6] * 6 if kind is FedRep else TRAIN / TRAIN.sum()
        body = {n: sum(p[k] * w[n] for k, w in enumerate(trained)) for n in BODY}
    assert distance(body, model(one)) < 1e-5
    for k, whole in enumerate(client_models(one)):
        assert distance({**body, **heads[k]}, whole) < 1e-5


def test_with_an_exact_solver_heads_are_optimal_for_the_body_that_they_were_trained_on():
    """FedRep, convex in the head: its gradient is 0 at the received body and the new head."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    task = Task(module, torch.from_numpy(DATA.mean), torch.from_numpy(DATA.std), sample_shape=DATA.sample_shape)
    body = {name: p for name, p in task.init().items() if name.startswith("0.")}
    one = run_inline(FedRep, task, DATA, RAGGED, {"solver": "newton", "weight_decay": 0.1}, rounds=1)
    next(one)
    heads = one.states.read(ALL)["own"]
    for k in ALL:
        head, batch = {name: leaf[k] for name, leaf in heads.items()}, samples(RAGGED.samples(k)[: TRAIN[k]])
        slope = torch.func.grad(lambda head, batch=batch: task.loss({**body, **head}, batch))(head)
        assert max(float((slope[name] + 0.1 * head[name]).abs().max()) for name in head) < 1e-5


def test_each_client_is_scored_with_its_own_head_or_the_initial_one():
    one, records = done(rounds=1, clients_per_round=1 / 3)
    task, initial = small_task(DATA), small_task(DATA).init()
    accuracies, untrained = [], 0
    for k, whole in enumerate(client_models(one)):
        untrained += identical({n: whole[n] for n in HEAD}, {n: initial[n] for n in HEAD})
        batch = samples(RAGGED.samples(k)[TRAIN[k] :])
        accuracies.append(float((task.logits(whole, batch.x).argmax(-1) == batch.y).float().mean()))
    assert untrained == 4
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(accuracies))
    assert records[-1]["test_accuracy"] == pytest.approx(np.dot(accuracies, OWN) / OWN.sum())


@pytest.mark.grid
@pytest.mark.parametrize(
    "slots",
    [
        {"clip_norm": 0.5},
        {"aggregation": {"rule": {"kind": "trimmed_mean", "beta": 0.34}}},
        {"transforms": [{"kind": "top_k", "entries": 5, "error_feedback": True}]},
        {"transforms": [{"kind": "clip", "norm": 0.1}, {"kind": "quantize", "bits": 4}]},
        {"objective": {"kind": "robustness", "alpha": 0.5}},
    ],
    ids=["none", "trimmed_mean", "error_feedback", "quantize", "objective"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_loop_equals_vmap_with_slots_too(kind, slots):
    (first, records), (second, others) = (done(kind, slots, engine=engine) for engine in (LOOP, VMAP))
    assert distance(*(flatten({"w": model(one), **one.states.read(ALL)}) for one in (first, second))) < 1e-5
    assert records[-1]["client_loss"] == pytest.approx(others[-1]["client_loss"], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_like_an_undisturbed_one(kind, tmp_path):
    check_resuming(lambda folder: ragged(kind, folder=folder, rounds=5), 2, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_objectives_see_the_clients_whole_model(kind, monkeypatch):
    used, seen = type(objective(kind="stability")), []
    begin = used.begin

    def spy(self, task, hp, down, state, data):
        seen.append(down["w"])
        return begin(self, task, hp, down, state, data)

    monkeypatch.setattr(used, "begin", spy)
    one = ragged(kind, {"objective": {"kind": "stability"}}, engine=LOOP, clients_per_round="all", rounds=2)
    next(one)
    after_one = client_models(one)
    next(one)
    assert all(list(w) == list(small_task(DATA).init()) for w in seen)
    # In the second round, each client starts from the server's body and its own head.
    assert len(seen) == 12
    assert all(any(identical(w, whole) for w in seen[6:]) for whole in after_one)


@pytest.mark.parametrize(
    ("shared", "sentence"),
    [
        (["0.*", "conv.*"], "algorithm.shared: 'conv.*' matches no parameter of the model, which has '0.weight', "
         "'0.bias', '2.weight'; correct the pattern"),
        ([], "algorithm.shared: it shares no parameter of the model, which has '0.weight', '0.bias', '2.weight'; add a "
         "pattern"),
        (["*"], None),
        (None, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_patterns_that_do_not_fit_are_refused(kind, shared, sentence):
    assert kind(kind.Hyper(shared=shared), small_task(DATA)).incompatibility() == sentence


def test_a_model_of_one_layer_has_no_base():
    sentence = FedPer(FedPer.Hyper(), Task(nn.Linear(2, 4))).incompatibility()
    assert sentence is not None
    assert sentence.startswith("algorithm.shared: the model has one layer, so that nothing is left to share; give")
