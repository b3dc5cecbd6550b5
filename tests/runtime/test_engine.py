"""The engine and the inline executor: states, exchanges, reductions, clients that diverge."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import blobs, distance, identical, model, partition, run_inline, small_task
from internals import count_compilations
from torch import nn
from toys import Diverging, Stacker, Stateful, StraightThrough, TwoPhases

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.algorithms.core.messages import Exchange, StepResult
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.federated.fedsgd import FedSGD
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.algorithms.optim import gradient
from hedgerow.algorithms.personalized.per_fedavg import PerFedAvg
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig, Evaluation
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runtime.autotune import (
    MEASURED_STEPS,
    Measurement,
    Workload,
    can_compile,
    candidate_plans,
    tune_plan,
)
from hedgerow.platform.runtime.shards import ExecutionPlan, longest_first
from hedgerow.platform.tracking.summary import unscored_warnings

DATA = blobs()
RAGGED = partition(np.array([3, 60, 17, 1, 40, 59]), seed=1)
LOOP, VMAP = EngineConfig(mode="loop"), EngineConfig(mode="vmap", chunk=4)


def test_a_plan_of_a_gpu_has_the_numbers_of_the_loop_on_the_cpu():
    """As in a run that began on a GPU and is continued on the CPU."""
    loop, graph = (run_inline(FedAvg, small_task(DATA), DATA, RAGGED, {"batch_size": 8}, engine=LOOP) for _ in range(2))
    graph.executor.plans.take(0, {"train/clients": {"mode": "graph", "chunk": 1, "compiled": False}})
    for _ in range(2):
        assert next(graph)["train_loss"] == next(loop)["train_loss"]
    assert distance(model(graph), model(loop)) == 0


def test_results_do_not_depend_on_the_chunk_size():
    runs = []
    for chunk in (2, 3, 5, 6):
        engine = EngineConfig(mode="vmap", chunk=chunk)
        run = run_inline(FedAvg, small_task(DATA), DATA, RAGGED, {"batch_size": 8}, rounds=3, engine=engine)
        list(run)
        runs.append(model(run))
    for other in runs[1:]:
        assert max(float((other[k] - runs[0][k]).abs().max()) for k in other) < 1e-6


def learned(module, engine):
    """Parameters after three rounds of FedAvg."""
    task = replace(small_task(DATA), module=module)
    run = run_inline(FedAvg, task, DATA, RAGGED, {"batch_size": 8}, rounds=3, engine=engine)
    list(run)
    return model(run)


def test_gradients_of_batched_clients_are_computed_directly(monkeypatch):
    calls = []
    directly = gradient._directly
    monkeypatch.setattr(gradient, "_directly", lambda *args: calls.append(1) or directly(*args))
    learned(small_task(DATA).module, VMAP)
    assert len(calls) > 3
    calls.clear()
    learned(small_task(DATA).module, LOOP)
    assert calls == []


class Layer(nn.Module):
    """A model with a function between two layers. function: (module, hidden values) -> hidden values."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.function = function

    def forward(self, x):
        return self.last(self.function(self, self.first(x)))


def hooked(module, hidden):
    """Halves the gradient."""
    if hidden.requires_grad:
        hidden.register_hook(lambda slope: slope / 2)
    return hidden


def attended(module, hidden):
    tokens = hidden.view(-1, 2, 4)
    return module.attention(tokens, tokens, tokens, need_weights=False)[0].reshape(hidden.shape)


FUNCTIONS = {
    "backward of the user's own": lambda module, hidden: StraightThrough.apply(hidden),
    "hook": hooked,
    "attention": attended,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_models_that_need_torch_func_learn_the_same_in_batches(function):
    alone, together = (learned(Layer(function), engine) for engine in (LOOP, VMAP))
    assert distance(alone, together) < 1e-5
    assert distance(alone, dict(Layer(function).named_parameters())) > 0.1


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
def test_scratch_state_lasts_from_one_exchange_to_the_next_and_ends_with_the_round(engine):
    run = run_inline(TwoPhases, small_task(DATA), DATA, RAGGED, {}, rounds=2, engine=engine)
    list(run)
    assert float(run.server["first"]) == 180
    assert float(run.server["second"]) == 360
    assert run.states.read(np.arange(6)) == {}


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
def test_a_stack_has_every_answer_in_the_order_of_the_clients(engine):
    run = run_inline(Stacker, small_task(DATA), DATA, RAGGED, {}, rounds=1, engine=engine, clients_per_round=0.7)
    next(run)
    values = run.server["stack"].numpy().ravel() - 100
    assert (np.diff(values) > 0).all()
    assert len(values) == 4
    # Each its own row of what is sent, and of what is known.
    assert (values % 3 == 0).all()


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
def test_client_states_persist_for_those_who_took_part(engine):
    run = run_inline(Stateful, small_task(DATA), DATA, RAGGED, {"batch_size": 8}, rounds=4, engine=engine,
                     clients_per_round=0.5)  # fmt: skip
    records = list(run)
    assert float(run.states.read(np.arange(6))["times"].sum()) == sum(r["participants"] for r in records)


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
def test_a_client_that_diverges_is_left_out_and_counted(engine):
    data = blobs()
    by_label = np.argsort(data.y_train, kind="stable")
    zeros = int((data.y_train == 0).sum())
    # The client that diverges is neither the largest nor the smallest, by which clients are dealt.
    clients = partition(np.array([zeros, 30, 180 - zeros - 30]))
    clients = type(clients)(by_label, clients.offsets, clients.train_sizes)
    hyper = {"batch_size": None, "lr": 0.2}
    bad = run_inline(Diverging, small_task(data), data, clients, hyper, rounds=2, engine=engine)
    records = list(bad)
    assert [record["dropped"] for record in records] == [1, 1]
    assert all(np.isfinite(record["train_loss"]) for record in records)
    # The two others alone give the same model.
    rest = type(clients)(by_label[zeros:], clients.offsets[1:] - zeros, clients.train_sizes[1:])
    good = run_inline(FedAvg, small_task(data), data, rest, hyper, rounds=2, engine=engine)
    losses = [record["train_loss"] for record in good]
    assert max(float((model(bad)[k] - model(good)[k]).abs().max()) for k in model(bad)) < 1e-6
    assert [record["train_loss"] for record in records] == pytest.approx(losses, rel=1e-5)


def test_when_everybody_diverges_the_server_stays_as_it_is():
    run = run_inline(Diverging, small_task(DATA), DATA, RAGGED, {"everybody": True}, rounds=2)
    records = list(run)
    assert [record["dropped"] for record in records] == [6, 6]
    assert identical(model(run), small_task(DATA).init())


class OnlyOneWeighs(Diverging):
    """The weight of all clients but those that diverge is 0."""

    def weights(self, cohort):
        return (cohort.sizes == RAGGED.train_sizes.max()).astype(float)

    def train(self, hp, down, state, data):
        up, state, metrics, *_ = FedAvg.train(self, hp, down, state, data)
        heavy = int(data.streams["train"][1].sum()) == RAGGED.train_sizes.max()
        return {"w": {name: p + torch.nan if heavy else p for name, p in up["w"].items()}}, state, metrics


def test_when_every_client_with_a_weight_diverges_the_server_stays_as_it_is():
    hyper = {"batch_size": None, "lr": 0.2}
    run = run_inline(OnlyOneWeighs, small_task(DATA), DATA, RAGGED, hyper, rounds=2, engine=LOOP)
    assert [record["dropped"] for record in run] == [6, 6]
    assert identical(model(run), small_task(DATA).init())


class OneModule(FedAvg):
    """A step that trains the same module for every client, and returns its parameters as they are."""

    def train(self, hp, down, state, data):
        self.own = getattr(self, "own", None) or {name: p.clone() for name, p in down["w"].items()}
        for name, p in self.own.items():
            p.copy_(down["w"][name])
            p.sub_(float(data.x[next(data.batches()).rows].mean()))
        return {"w": self.own}, state, {"loss": torch.zeros(())}


def test_a_step_that_returns_the_same_memory_for_every_client_is_refused():
    run = run_inline(OneModule, small_task(DATA), DATA, RAGGED, {}, rounds=1, engine=LOOP)
    with pytest.raises(UserError, match=r"^algorithm.name: a step returns memory .*; return clones \(round 1\)$"):
        list(run)


class SameState(Stateful):
    """The same for its states."""

    def train(self, hp, down, state, data):
        up, new, metrics, *_ = super().train(hp, down, state, data)
        self.own = getattr(self, "own", None) or tree_map(torch.zeros_like, new)
        tree_map(lambda own, leaf: own.copy_(leaf), self.own, new)
        return up, self.own, metrics


def test_a_step_that_returns_the_same_state_for_every_client_is_refused():
    run = run_inline(SameState, small_task(DATA), DATA, RAGGED, {}, rounds=1, engine=LOOP)
    with pytest.raises(UserError, match="a step returns memory"):
        list(run)


class StateInTheSecondStep(Stateful):
    """Its first step returns no state."""

    def round(self, server, cohort):
        yield Exchange(self.look, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches)
        return (yield from super().round(server, cohort))

    def look(self, hp, down, state, data):
        return StepResult({"loss": self.task.loss(down["w"], next(data.batches()))})


@pytest.mark.parametrize("followed", ["server", "clients"])
def test_a_step_that_returns_no_state_changes_none(followed, tmp_path):
    """Each client has taken part 0, 1 and 2 times when it trains."""
    log = tmp_path / "times"
    evaluation, hyper = Evaluation(every=1, clients=0, model=followed), {"log_file": str(log)}
    list(
        run_inline(
            StateInTheSecondStep, small_task(DATA), DATA, RAGGED, hyper, rounds=3, engine=LOOP, evaluation=evaluation
        )
    )
    assert sorted(log.read_text().split()) == [*6 * "0", *6 * "1", *6 * "2"]


class Shifted(FedAvg):
    """The first step of a round writes an entry to the state, of a type that NumPy may not have; the second adds it."""

    dtype = torch.float32

    def round(self, server, cohort):
        yield Exchange(self.look, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches)
        return (yield from super().round(server, cohort))

    def look(self, hp, down, state, data):
        labels = next(data.batches()).y
        return StepResult({}, {"label": labels[0].to(self.dtype)})

    def train(self, hp, down, state, data):
        up, _, metrics, *_ = super().train(hp, down, {}, data)
        return {"w": {name: p + state["label"].float() for name, p in up["w"].items()}}, {}, metrics


class ShiftedInHalf(Shifted):
    dtype = torch.bfloat16


def test_an_entry_for_the_rest_of_a_round_may_be_in_bfloat16():
    whole, half = (
        run_inline(algorithm, small_task(DATA), DATA, RAGGED, {}, rounds=2, engine=LOOP)
        for algorithm in (Shifted, ShiftedInHalf)
    )
    assert len(list(whole)) == len(list(half)) == 2
    # Labels are exact in both types.
    assert identical(model(whole), model(half))


class Alone(FedAvg):
    """Counts the clients that are trained alone."""

    trained = 0

    def train(self, hp, down, state, data):
        Alone.trained += not data.batched
        return super().train(hp, down, state, data)


def test_clients_that_only_fill_up_a_chunk_are_not_trained_alone():
    engine = EngineConfig(mode="vmap", chunk=4)
    run = run_inline(Alone, small_task(DATA), DATA, RAGGED, {"batch_size": 8}, rounds=1, engine=engine)
    worker = run.executor.transport.build()
    worker.samples["clients"] = replace(worker.samples["clients"], takes_padding=False)
    list(run)
    assert Alone.trained == len(RAGGED.train_sizes) == 6


def test_the_ledger_equals_the_hand_count():
    task = small_task(DATA)
    size = sum(p.numel() for p in task.init().values())
    assert size == 6 * 8 + 8 + 8 * 3 + 3
    run = run_inline(FedAvg, task, DATA, RAGGED, {}, rounds=3, clients_per_round=0.5)
    for number, record in enumerate(run, start=1):
        assert record["scalars_down"] == record["scalars_up"] == 3 * size
        assert record["bytes_down"] == record["bytes_up"] == 4 * 3 * size
        assert record["transmissions"] == pytest.approx(number)
    # Stacker: one common scalar and one of its own down to each client, one up.
    record = next(run_inline(Stacker, task, DATA, RAGGED, {}, rounds=1))
    assert (record["scalars_down"], record["scalars_up"]) == (12, 6)


def test_metrics_equal_their_definition():
    run = run_inline(FedAvg, small_task(DATA), DATA, RAGGED, {"batch_size": 8}, rounds=2)
    record = list(run)[-1]
    task, w = small_task(DATA), model(run)
    logits = task.logits(w, torch.from_numpy(DATA.x_test))
    labels = torch.from_numpy(DATA.y_test)
    assert record["test_accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert record["test_loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)
    own = []
    for client in range(6):
        rows = RAGGED.samples(client)
        guesses = task.logits(w, torch.from_numpy(DATA.x_train[rows])).argmax(1).numpy()
        own.append((guesses == DATA.y_train[rows]).mean())
    assert record["client_accuracy"] == pytest.approx(np.mean(own))
    assert record["client_accuracy_worst10"] == pytest.approx(min(own))


def test_clients_without_held_out_samples_are_left_out_of_the_means_over_clients():
    training = np.where(np.arange(6) % 2, RAGGED.sizes, np.maximum(RAGGED.sizes // 2, 1))
    held = type(RAGGED)(RAGGED.order, RAGGED.offsets, training)
    scored = [client for client in range(6) if training[client] < RAGGED.sizes[client]]
    assert 1 < len(scored) < 6
    run = run_inline(FedAvg, small_task(DATA), DATA, held, {"batch_size": 8}, rounds=1)
    record = list(run)[-1]
    accuracies, losses = [], []
    for client in scored:
        rows = RAGGED.samples(client)[training[client] :]
        logits = small_task(DATA).logits(model(run), torch.from_numpy(DATA.x_train[rows])).numpy().astype(float)
        y = DATA.y_train[rows]
        accuracies.append((logits.argmax(1) == y).mean())
        losses.append(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]))
    assert record["client_accuracy"] == pytest.approx(np.mean(accuracies))
    assert record["client_accuracy_worst10"] == pytest.approx(min(accuracies))
    assert record["client_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert record["unscored_clients"] == 6 - len(scored)
    assert unscored_warnings([record])[0].startswith(f"{6 - len(scored)} clients have no samples")


def test_a_metric_that_some_clients_do_not_have_is_said():
    (sentence,) = unscored_warnings([{"round": 1, "client_loss": 0.5, "unscored_clients_auroc": 2}])
    assert sentence.startswith("2 clients have no auroc, which is undefined on their samples; client_auroc is a mean")


def test_evaluation_on_schedule_and_after_the_last_round():

    run = run_inline(FedAvg, small_task(DATA), DATA, RAGGED, {}, rounds=5, evaluation=Evaluation(every=2))
    assert [r["round"] for r in run if "test_accuracy" in r] == [2, 4, 5]


def test_held_out_samples_are_not_trained_on():
    held = type(RAGGED)(RAGGED.order, RAGGED.offsets, np.maximum(RAGGED.sizes // 2, 1))
    run = run_inline(FedAvg, small_task(DATA), DATA, held, {"batch_size": 8}, rounds=1)
    samples = run.worker.samples["clients"]
    for share, first, last in (("train", 0, 30), ("held_out", 30, 60)):
        streams = samples.streams({"s": BatchSpec(split=share)}, (0, 1, 0), np.array([1]))
        rows, mask = streams["s"]
        assert set(rows[mask].tolist()) == set(RAGGED.samples(1)[first:last].tolist())


@pytest.mark.parametrize(
    "spec",
    [
        BatchSpec(size=8, epochs=2, views=2),
        BatchSpec(size=None),
        BatchSpec(size=8, steps=7),
        BatchSpec(size=None, steps=3),
        BatchSpec(size=8, shuffle=False, split="held_out"),
    ],
    ids=str,
)
def test_what_is_drawn_for_many_clients_at_once_is_what_each_draws_alone(spec):
    clients = partition(np.array([13, 30, 17, 1, 0, 41, 21, 57]), seed=1)
    run = run_inline(FedAvg, small_task(blobs()), blobs(), clients, {"batch_size": 8}, rounds=1)
    samples = run.worker.samples["clients"]
    key, everyone = (0, 3, 0), np.array([5, 4, 0, 7, 3])
    together = list(samples.each({"s": spec}, key, everyone, keyed=True))
    assert samples._drawn_together({"s": spec}) > len(everyone)
    for client, (streams, keys) in zip(everyone, together, strict=True):
        alone, own = samples.drawn({"s": spec}, key, np.array([client]), keyed=True)
        (rows, mask), (expected, real) = streams["s"], alone["s"]
        assert torch.equal(mask, real)
        assert torch.equal(rows[mask], expected[real])
        assert keys.keys() == own.keys()
        assert all(torch.equal(keys[name], own[name]) for name in own)


def test_the_plan_is_measured_once_and_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    calls = []

    def measure(plan, steps=MEASURED_STEPS):
        calls.append(plan)
        return Measurement(1.0 if plan.mode == "loop" else 2.0)

    # Eight clients: eight loops take 8 s, one chunk of eight 2 s.
    assert tune_plan(EngineConfig(), None, Workload(8), {"k": 1}, measure) == ExecutionPlan("vmap", 8)
    assert tune_plan(EngineConfig(), None, Workload(8), {"k": 1}, measure) == ExecutionPlan("vmap", 8)
    assert calls == [ExecutionPlan("loop"), ExecutionPlan("vmap", 4), ExecutionPlan("vmap", 8)]
    assert tune_plan(EngineConfig(), "no batching rule", Workload(8), {"k": 1}, measure) == ExecutionPlan("loop")
    assert tune_plan(EngineConfig(mode="vmap", chunk=3), None, Workload(8), {"k": 1}, measure) == ExecutionPlan(
        "vmap", 3
    )
    assert tune_plan(EngineConfig(mode="loop"), None, Workload(8), {"k": 1}, measure) == ExecutionPlan("loop")
    assert tune_plan(EngineConfig(), None, Workload(1), {"k": 1}, measure) == ExecutionPlan("loop")
    assert len(calls) == 3
    # Where batching is slower, larger chunks are not even tried: they cost memory.
    tried = []
    slow = tune_plan(
        EngineConfig(),
        None,
        Workload(8),
        {"k": 2},
        lambda plan, steps: tried.append(plan) or Measurement(plan.chunk**4),
    )
    assert slow == ExecutionPlan("loop")
    assert tried == [ExecutionPlan("loop"), ExecutionPlan("vmap", 4)]


def test_what_a_client_costs_once_does_not_decide_between_plans_that_are_close(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    tried = []

    def measure(plan, steps=MEASURED_STEPS):
        tried.append((plan.mode, steps))
        # In a loop a client costs 3 s once, and 1 s for each mini-batch; batched 1 s once, and 1.6 s for each.
        return Measurement(3.0 + steps if plan.mode == "loop" else plan.chunk * (1.0 + 1.6 * steps))

    assert tune_plan(EngineConfig(), None, Workload(8, steps=2), {"steps": 2}, measure) == ExecutionPlan("vmap", 4)
    assert tried == [("loop", 2), ("vmap", 2), ("vmap", 2)]
    assert tune_plan(EngineConfig(), None, Workload(8, steps=5), {"steps": 5}, measure) == ExecutionPlan("loop")
    assert tried[6:] == [("loop", 5), ("vmap", 5), ("vmap", 5)]
    assert tune_plan(EngineConfig(), None, Workload(8, steps=500), {"steps": 500}, measure) == ExecutionPlan("loop")
    assert tried[-1] == ("vmap", 10)


def test_large_chunks_are_tried_where_small_ones_are_slower_than_the_loop(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    tried = []

    def measure(plan, steps=MEASURED_STEPS):
        tried.append(plan.chunk)
        # A chunk costs as much as six clients in a loop, whatever its size.
        return Measurement(1.0 if plan.mode == "loop" else 6.0)

    assert tune_plan(EngineConfig(), None, Workload(64, steps=1), {}, measure) == ExecutionPlan("vmap", 64)
    assert tried == [1, 4, 8, 16, 32, 64]


def test_a_client_with_a_large_state_is_measured_by_its_mini_batches_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))

    def measure(plan, steps=MEASURED_STEPS):
        # In a loop a client costs 0.1 s once and 0.01 s for each mini-batch; batched 0.01 s once, and twice as much.
        return Measurement(0.1 + 0.01 * steps if plan.mode == "loop" else plan.chunk * (0.01 + 0.02 * steps))

    # From two mini-batches alone it would look as if batching were 2.4 times as fast.
    assert tune_plan(EngineConfig(), None, Workload(8, steps=6), {"steps": 6}, measure).mode == "vmap"
    # A tie: the loop.
    assert tune_plan(EngineConfig(), None, Workload(8, steps=8), {"steps": 8}, measure) == ExecutionPlan("loop")
    assert tune_plan(EngineConfig(), None, Workload(8, steps=60), {"steps": 60}, measure) == ExecutionPlan("loop")


@pytest.mark.parametrize(
    ("share", "chunks"), [(1, []), (3, [3]), (5, [3, 5]), (50, [4, 8, 13, 25, 50]), (5000, [4, 8, 16, 32, 64, 125])]
)
def test_chunks_cut_a_share_evenly(share, chunks):
    assert [plan.chunk for plan in candidate_plans(EngineConfig(), Workload(share)) if plan.mode == "vmap"] == chunks


def test_chunks_keep_within_the_memory_that_there_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    tried = []

    def measure(plan, steps=MEASURED_STEPS):
        tried.append(plan.chunk)
        return Measurement(1.0, at_rest=500.0, more=10.0 * plan.chunk)

    assert tune_plan(EngineConfig(), None, Workload(64, megabytes=700.0), {}, measure) == ExecutionPlan("vmap", 16)
    assert tried == [1, 4, 8, 16]


def test_a_long_run_is_compiled_where_that_is_faster(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    seconds = {"compiled": 0.01, "eager": 0.02}

    def measure(plan, steps=MEASURED_STEPS):
        assert steps is None or not plan.compiled
        return Measurement(seconds["compiled"] if plan.compiled else seconds["eager"] + plan.chunk / 10_000)

    def chosen(case, rounds=10_000, steps=10, **config):
        load = Workload(8, rounds, steps or 10, alike=steps is not None)
        return tune_plan(EngineConfig(**config), None, load, {"case": case}, measure)

    assert chosen("long") == ExecutionPlan("vmap", 8, compiled=True)
    assert chosen("short", rounds=10) == ExecutionPlan("vmap", 8)
    assert chosen("ragged", steps=None) == ExecutionPlan("vmap", 8)
    assert chosen("many steps", steps=1000) == ExecutionPlan("vmap", 8)
    assert chosen("not wanted", compile=False) == ExecutionPlan("vmap", 8)
    assert chosen("wanted", rounds=1, compile=True) == ExecutionPlan("vmap", 8, compiled=True)
    assert chosen("wanted, fixed", rounds=1, compile=True, mode="vmap", chunk=5) == ExecutionPlan(
        "vmap", 5, compiled=True
    )
    assert chosen("fixed", mode="vmap", chunk=5) == ExecutionPlan("vmap", 5)
    seconds["compiled"] = 0.03
    assert chosen("slower") == ExecutionPlan("vmap", 8)
    # Ten mini-batches of 20 ms each: to compile them could take minutes, whatever it gained.
    seconds |= {"compiled": 0.01, "eager": 0.2}
    assert chosen("heavy") == ExecutionPlan("vmap", 8)


def test_a_machine_without_a_compiler_goes_on_without(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))

    def measure(plan, steps=MEASURED_STEPS):
        if plan.compiled:
            raise RuntimeError("no working C++ compiler")
        return Measurement(1.0)

    assert tune_plan(EngineConfig(), None, Workload(8, 1000, 10, alike=True), {}, measure) == ExecutionPlan("vmap", 8)


def test_a_worker_tells_what_memory_a_chunk_takes():
    run = run_inline(
        FedAvg,
        small_task(DATA),
        DATA,
        RAGGED,
        {"batch_size": 8},
        engine=EngineConfig(),
        resources=Resources(executor="inline", memory_mb=1.0),
    )
    next(run)
    # Not even two clients at once fit into a megabyte, which the process itself exceeds.
    assert run.executor.plans.known[0]["train/clients"] == ExecutionPlan("loop")


@pytest.mark.exhaustive("compiler")
@pytest.mark.skipif(not can_compile(), reason="needs PyTorch 2.15")
def test_compiled_it_learns_the_same():
    # Two mini-batches each, full or not.
    alike = partition(np.array([24, 13, 24, 20, 17, 24]), seed=1)
    hyper = {"batch_size": 12, "epochs": 1, "lr_decay": 0.5, "momentum": 0.9}
    eager, compiled = (
        run_inline(
            FedAvg, small_task(DATA), DATA, alike, hyper, engine=EngineConfig(mode="vmap", chunk=3, compile=wanted)
        )
        for wanted in (False, True)
    )
    list(eager)
    before = count_compilations()
    list(compiled)
    assert compiled.executor.plans.known[0]["train/clients"] == ExecutionPlan("vmap", 3, compiled=True)
    assert distance(model(compiled), model(eager)) < 1e-6
    # Three rounds of two chunks with three learning rates: one compilation.
    assert count_compilations() - before == 1


def test_the_largest_clients_go_first_to_whoever_has_the_least_to_do():
    assert longest_first(np.array([5, 5, 5, 5, 5]), 2).tolist() == [0, 1, 0, 1, 0]
    # 9, 9, 5, 4, 2, 1 go to the one with less work, the first one if both have the same.
    assert longest_first(np.array([5, 1, 9, 9, 2, 4]), 2).tolist() == [0, 0, 0, 1, 1, 1]
    sizes = np.array([1, 9, 2, 8, 3, 7])
    owner = longest_first(sizes, 3)
    assert [sizes[owner == worker].sum() for worker in range(3)] == [10, 10, 10]
    # One client with nearly all the data has a worker for itself.
    owner = longest_first(np.array([1] * 20 + [1000]), 4)
    assert (owner == owner[20]).sum() == 1


def test_chunks_hold_clients_of_similar_size():
    run = run_inline(FedAvg, small_task(DATA), DATA, RAGGED, {"batch_size": 8}, rounds=1)
    seen = []
    worker_run = run.worker.run
    run.worker.run = lambda shards, broadcasts: seen.append(shards[0]) or worker_run(shards, broadcasts=broadcasts)
    next(run)
    assert RAGGED.sizes[seen[0].clients].tolist() == [60, 59, 40, 17, 3, 1]


@pytest.mark.parametrize(
    ("kind", "hyper"),
    [
        (FedAvg, {"momentum": 0.5}),
        (FedDyn, {"clip_norm": 5.0}),
        (Scaffold, {}),
        (PerFedAvg, {"adapt": "maml", "adapt_steps": 2}),
        (PerFedAvg, {"adapt": "proto"}),
        (FedSGD, {}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(map(str, value.values())),
)
def test_padding_does_not_carry_one_clients_infinity_to_the_others(kind, hyper):
    data = blobs()
    # Client 4 has no samples: all of its mini-batches are padding.
    clients = partition(np.array([13, 30, 17, 29, 0, 41, 21, 29]), seed=1)
    for row, value in ((clients.samples(0)[0], np.inf), (clients.samples(0)[5], np.nan)):
        data.x_train[row] = value
    ran = []
    for mode in ("loop", "vmap"):
        engine = EngineConfig(mode=mode, chunk=8 if mode == "vmap" else "auto", compile=False)
        run = run_inline(kind, small_task(data), data, clients, {"batch_size": 8, "lr": 0.1, **hyper}, rounds=2,
                         engine=engine)  # fmt: skip
        ran.append((run, [record["dropped"] for record in run]))
    (loop, dropped), (vmap, dropped_batched) = ran
    # These two divide by the number of a client's steps or samples, and client 4 has none.
    assert dropped == dropped_batched == [1 + (kind in (Scaffold, FedSGD))] * 2
    assert distance(model(loop), model(vmap)) < 1e-5
    samples = vmap.worker.samples["clients"]
    rows, mask = samples.streams({"s": BatchSpec(size=8)}, (0, 1, 0), np.arange(8))["s"]
    assert not mask.all()
    for client in range(8):
        own = set(clients.samples(client).tolist())
        assert set(rows[client].flatten().tolist()) <= own or not own
    assert torch.isfinite(samples.x[rows[4]]).all()
