"""The engine and the inline executor: states, exchanges, reductions, clients that diverge."""

import numpy as np
import pytest
import torch
from helpers import blobs, identical, model, partition, run_inline, small_task
from toys import Diverging, Stacker, Stateful, TwoPhases

from hedgerow.algorithms import FedAvg
from hedgerow.platform.engine import Plan
from hedgerow.platform.experiment import EngineConfig
from hedgerow.platform.planning import choose

DATA = blobs()
RAGGED = partition(np.array([3, 60, 17, 1, 40, 59]), seed=1)
LOOP, VMAP = EngineConfig(mode="loop"), EngineConfig(mode="vmap", chunk=4)


def test_results_do_not_depend_on_the_chunk_size():
    runs = []
    for chunk in (2, 3, 5, 6):
        engine = EngineConfig(mode="vmap", chunk=chunk)
        run = run_inline(FedAvg, small_task(DATA), DATA, RAGGED, {"batch_size": 8}, rounds=3, engine=engine)
        list(run)
        runs.append(model(run))
    for other in runs[1:]:
        assert max(float((other[k] - runs[0][k]).abs().max()) for k in other) < 1e-6


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
def test_scratch_state_lasts_from_one_exchange_to_the_next_and_ends_with_the_round(engine):
    run = run_inline(TwoPhases, small_task(DATA), DATA, RAGGED, {}, rounds=2, engine=engine)
    list(run)
    assert float(run.server["first"]) == 180
    assert float(run.server["second"]) == 360
    states = run.executor.worker.states
    assert set(states.pending) == set(range(6))
    states.enter(3, 0, 2)
    assert states.pending == {}
    assert list(states.shards()) == []


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
def test_a_stack_has_every_answer_in_the_order_of_the_clients(engine):
    run = run_inline(Stacker, small_task(DATA), DATA, RAGGED, {}, rounds=1, engine=engine, participation=0.7)
    next(run)
    values = run.server["stack"].numpy().ravel() - 100
    assert (np.diff(values) > 0).all()
    assert len(values) == 4


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
def test_client_states_persist_for_those_who_took_part(engine):
    run = run_inline(Stateful, small_task(DATA), DATA, RAGGED, {"batch_size": 8}, rounds=4, engine=engine,
                     participation=0.5)  # fmt: skip
    records = list(run)
    states = run.executor.worker.states
    states.enter(5, 0, 4)
    times = sum(float(tree["times"].sum()) for _, tree in states.shards())
    assert times == sum(r["participants"] for r in records)


def test_an_uncommitted_round_is_forgotten():
    run = run_inline(Stateful, small_task(DATA), DATA, RAGGED, {"batch_size": 8}, rounds=4)
    next(run)
    states = run.executor.worker.states
    states.enter(2, 0, 0)  # round 1 was not committed: it is run again
    assert list(states.shards()) == []


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
def test_a_client_that_diverges_is_left_out_and_counted(engine):
    data = blobs()
    by_label = np.argsort(data.y_train, kind="stable")
    zeros = int((data.y_train == 0).sum())
    clients = partition(np.array([zeros, 60, 180 - zeros - 60]))
    clients = type(clients)(by_label, clients.offsets, clients.train_sizes)
    hyper = {"batch_size": None, "lr": 0.2}
    bad = run_inline(Diverging, small_task(data), data, clients, hyper, rounds=2, engine=engine)
    records = list(bad)
    assert [record["dropped"] for record in records] == [1, 1]
    assert all(np.isfinite(record["train_loss"]) for record in records)
    # The two others alone give the same model.
    rest = type(clients)(by_label[zeros:], clients.offsets[1:] - zeros, clients.train_sizes[1:])
    good = run_inline(FedAvg, small_task(data), data, rest, hyper, rounds=2, engine=engine)
    list(good)
    assert max(float((model(bad)[k] - model(good)[k]).abs().max()) for k in model(bad)) < 1e-6


def test_when_everybody_diverges_the_server_stays_as_it_is():
    run = run_inline(Diverging, small_task(DATA), DATA, RAGGED, {"everybody": True}, rounds=2)
    records = list(run)
    assert [record["dropped"] for record in records] == [6, 6]
    assert identical(model(run), small_task(DATA).init())


def test_the_ledger_equals_the_hand_count():
    task = small_task(DATA)
    size = sum(p.numel() for p in task.init().values())
    assert size == 6 * 8 + 8 + 8 * 3 + 3
    run = run_inline(FedAvg, task, DATA, RAGGED, {}, rounds=3, participation=0.5)
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


def test_evaluation_on_schedule_and_after_the_last_round():
    from hedgerow.platform.experiment import Evaluation

    run = run_inline(FedAvg, small_task(DATA), DATA, RAGGED, {}, rounds=5, evaluation=Evaluation(every=2))
    assert [r["round"] for r in run if "test_accuracy" in r] == [2, 4, 5]


def test_held_out_samples_are_not_trained_on():
    held = type(RAGGED)(RAGGED.order, RAGGED.offsets, np.maximum(RAGGED.sizes // 2, 1))
    run = run_inline(FedAvg, small_task(DATA), DATA, held, {"batch_size": 8}, rounds=1)
    samples = run.executor.worker.samples["clients"]
    from hedgerow.algorithms.base import Batches

    for flag in (False, True):
        streams = samples.streams({"s": Batches(held_out=flag)}, (0, 1, 0), np.array([1]))
        rows, mask = streams["s"]
        first, last = (30, 60) if flag else (0, 30)
        assert set(rows[mask].tolist()) == set(RAGGED.samples(1)[first:last].tolist())


def test_the_plan_is_measured_once_and_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    calls = []

    def measure(plan):
        calls.append(plan)
        return 1.0 if plan.mode == "loop" else 2.0

    # Eight clients: eight loops take 8 s, one chunk of eight 2 s.
    assert choose(EngineConfig(), None, 8, {"k": 1}, measure) == Plan("vmap", 8)
    assert choose(EngineConfig(), None, 8, {"k": 1}, measure) == Plan("vmap", 8)
    assert calls == [Plan("loop"), Plan("vmap", 2), Plan("vmap", 4), Plan("vmap", 8)]
    assert choose(EngineConfig(), "no batching rule", 8, {"k": 1}, measure) == Plan("loop")
    assert choose(EngineConfig(mode="vmap", chunk=3), None, 8, {"k": 1}, measure) == Plan("vmap", 3)
    assert choose(EngineConfig(mode="loop"), None, 8, {"k": 1}, measure) == Plan("loop")
    assert len(calls) == 4
    # Where batching is slower, larger chunks are not even tried: they cost memory.
    tried = []
    slow = choose(EngineConfig(), None, 8, {"k": 2}, lambda plan: tried.append(plan) or plan.chunk**4)
    assert slow == Plan("loop")
    assert tried == [Plan("loop"), Plan("vmap", 2)]
