"""Clients that are slow, away, or lost: who takes part, what it takes, and that the rest is as with fewer clients."""

import math

import numpy as np
import pytest
import torch
from families import EVERYTHING
from helpers import (
    blobs,
    check_resuming,
    distance,
    experiment,
    identical,
    model,
    partition,
    run_inline,
    small_task,
    without_clock,
)
from packs import pack
from searches import one_after_the_other, plan
from toys import Stacker, Stateful, TwoPhases

from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.heterogeneous.capacities import by_capacity
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.system_heterogeneity import Simulation
from hedgerow.platform.runtime.factory import build_data, check_task
from hedgerow.platform.runtime.participation import participation
from hedgerow.searchspaces.tune.search_runner import search

DATA = blobs()
SIZES = np.array([3, 60, 17, 1, 40, 59])
RAGGED = partition(SIZES, seed=1)
MANY = 20_000
LOST = ("unavailable", "dropped_out", "late")


def simulation(**values) -> Simulation:
    return Simulation.model_validate(values)


def cohort(clients: int, round: int = 1, seed: int = 0) -> Cohort:
    return Cohort(round, np.arange(clients), np.ones(clients, int), clients, seed=seed)


def inline(algorithm, hyper=None, clients=RAGGED, **settings):
    return run_inline(algorithm, small_task(DATA), DATA, clients, hyper or {}, **settings)


# ---- the models of clients -------------------------------------------------------------------------------------------


def test_speeds_are_those_of_their_model():
    clients = np.arange(MANY)
    assert (simulation(speed={"kind": "constant", "speed": 2.5}).speed.of(0, clients) == 2.5).all()
    listed = simulation(speed={"kind": "list", "speeds": [1.0, 4.0, 2.0]}).speed
    assert listed.of(7, np.array([0, 1, 2, 3, 7])).tolist() == [1, 4, 2, 1, 4]
    drawn = simulation(speed={"kind": "lognormal", "sigma": 0.5}).speed
    logarithms = np.log(drawn.of(0, clients))
    # Four standard errors.
    assert abs(logarithms.mean()) < 4 * 0.5 / math.sqrt(MANY)
    assert abs(logarithms.std() - 0.5) < 4 * 0.5 / math.sqrt(2 * MANY)
    # Each client's own, whatever other clients are sampled; another seed's are others.
    assert (drawn.of(0, clients[5:9]) == drawn.of(0, clients)[5:9]).all()
    assert (drawn.of(1, clients) != drawn.of(0, clients)).all()


@pytest.mark.parametrize(
    ("availability", "expected"),
    [
        ({"kind": "always"}, lambda round: 1.0),
        ({"kind": "bernoulli", "probability": 0.3}, lambda round: 0.3),
        # Clocks all over the day: the mean; all the same: the hour's.
        ({"kind": "diurnal", "probability": 0.5, "amplitude": 0.8, "period": 6}, lambda round: 0.5),
        (
            {"kind": "diurnal", "probability": 0.5, "amplitude": 0.8, "period": 6.0, "spread": 0.0},
            lambda round: 0.5 * (1 + 0.8 * math.cos(math.pi * round / 3)),
        ),
    ],
)
def test_clients_are_there_as_often_as_they_should(availability, expected):
    wanted = simulation(availability=availability)
    rates = []
    for round in range(1, 7):
        found = participation(wanted, cohort(MANY, round), np.ones(MANY), MANY)
        chance = expected(round)
        assert abs(found.answers.mean() - chance) <= 4 * math.sqrt(chance * (1 - chance) / MANY)
        assert (found.answers == ~found.unavailable).all()
        rates.append(found.answers)
    if availability["kind"] == "bernoulli":
        # Rounds are independent.
        assert abs((rates[0] & rates[1]).mean() - 0.09) < 4 * math.sqrt(0.09 * 0.91 / MANY)


def test_dropouts_are_as_many_as_they_should_among_those_that_are_there():
    wanted = simulation(availability={"kind": "bernoulli", "probability": 0.5}, dropout=0.2)
    found = participation(wanted, cohort(MANY), np.ones(MANY), MANY)
    assert not (found.dropped_out & found.unavailable).any()
    assert abs(found.dropped_out.sum() / (~found.unavailable).sum() - 0.2) < 4 * math.sqrt(0.16 / (MANY / 2))
    assert (found.answers ^ found.unavailable ^ found.dropped_out).all()


def test_steps_messages_and_speed_make_a_clients_time():
    wanted = simulation(speed={"kind": "list", "speeds": [1.0, 2.0]}, seconds_per_step=0.5, bandwidth=100.0)
    seconds = wanted.seconds(cohort(4), np.array([4, 4, 8, 8]), np.array([50, 50, 0, 100]))
    # 4 steps of half a second, and 50 bytes down and up; twice as fast; ...
    assert seconds.tolist() == [2 + 1, 1 + 1, 4, 2 + 2]
    again = wanted.model_copy(update={"jitter": 0.3})
    factors = again.seconds(cohort(MANY), np.full(MANY, 2), np.zeros(MANY)) / np.tile([1.0, 0.5], MANY // 2)
    assert abs(np.log(factors).std() - 0.3) < 4 * 0.3 / math.sqrt(2 * MANY)
    assert abs(np.log(factors).mean()) < 4 * 0.3 / math.sqrt(MANY)


# ---- who answers -----------------------------------------------------------------------------------------------------

TIMES = np.array([3.0, 1.0, 5.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("deadline", "wanted", "answers", "seconds"),
    [
        (None, 5, [0, 1, 2, 3, 4], 5.0),
        (5.0, 5, [0, 1, 2, 3, 4], 5.0),
        # The server waits for those that are late until it is over.
        (4.5, 5, [0, 1, 3, 4], 4.5),
        (0.5, 5, [], 0.5),
        # It goes on with the last of those that it wants.
        (None, 2, [1, 3], 2.0),
        (100.0, 3, [0, 1, 3], 3.0),
        (2.5, 3, [1, 3], 2.5),
    ],
)
def test_the_first_that_finish_by_the_deadline_count(deadline, wanted, answers, seconds):
    found = participation(simulation(deadline=deadline), cohort(5), TIMES, wanted)
    assert np.flatnonzero(found.answers).tolist() == answers
    assert (found.late == ~found.answers).all()
    assert found.seconds == seconds


def test_the_server_does_not_wait_for_who_is_away_or_has_dropped_out():
    wanted = simulation(availability={"kind": "bernoulli", "probability": 0.7}, dropout=0.5, deadline=1e9)
    found = participation(wanted, cohort(200), np.arange(200.0), 200)
    assert not found.late.any()
    assert 0 < found.answers.sum() < 200
    assert found.seconds == np.flatnonzero(found.answers).max()


def test_chance_decides_among_equals():
    firsts = np.zeros(10)
    for round in range(1, 2001):
        firsts += participation(simulation(), cohort(10, round), np.ones(10), 3).answers
    assert np.abs(firsts / 2000 - 0.3).max() < 4 * math.sqrt(0.21 / 2000)


def test_a_clients_capacity_does_not_depend_on_who_is_lost():
    everybody, kept = cohort(30), np.arange(30) % 3 != 1
    for redraw in (True, False):
        drawn = dict(by_capacity(everybody, [1.0, 0.5], redraw))
        for capacity, clients in by_capacity(everybody.subset(kept), [1.0, 0.5], redraw):
            assert clients.tolist() == [c for c in drawn[capacity].tolist() if kept[c]]


# ---- rounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [FedAvg, Stateful, TwoPhases])
def test_clients_that_are_all_in_time_change_nothing(algorithm):
    settings = {"rounds": 3, "clients_per_round": "all" if algorithm is TwoPhases else 0.5}
    plain = inline(algorithm, **settings)
    simulated = inline(algorithm, simulation=simulation(deadline=1e9), **settings)
    records, others = without_clock(list(plain)), without_clock(list(simulated))
    for record, other in zip(records, others, strict=True):
        assert [other.pop(name) for name in LOST] == [0, 0, 0]
        assert other.pop("simulated_round_seconds") > 0
        other.pop("simulated_seconds")
        assert record == other
    assert identical(plain.server["w"], simulated.server["w"])


@pytest.mark.parametrize("engine", [EngineConfig(mode="loop"), EngineConfig(mode="vmap", chunk=2)])
@pytest.mark.parametrize("algorithm", [FedAvg, Stateful, TwoPhases])
def test_a_round_without_some_clients_is_a_round_of_the_others(algorithm, engine):
    # Clients 3, 4 and 5 are always late: it is as though there were three.
    slow = simulation(speed={"kind": "list", "speeds": [1.0] * 3 + [1e-6] * 3}, deadline=100.0)
    settings = {"rounds": 3, "engine": engine}
    lossy = inline(algorithm, simulation=slow, **settings)
    three = partition(SIZES, seed=1)
    three = type(three)(three.order[:80], three.offsets[:4], three.train_sizes[:3])
    few = inline(algorithm, clients=three, **settings)
    records = list(lossy)
    list(few)
    assert [(r["participants"], r["late"], r["dropped"]) for r in records] == [(3, 3, 0)] * 3
    for name, value in few.server.items():
        if name in ("w", "first", "second"):
            assert identical({"x": value} if torch.is_tensor(value) else value,
                             {"x": lossy.server[name]} if torch.is_tensor(value) else lossy.server[name])  # fmt: skip


def test_every_exchange_of_a_round_takes_its_time():
    # Two exchanges, in each a mini-batch; the slowest of those that answer is half as fast.
    wanted = simulation(speed={"kind": "list", "speeds": [1.0, 1.0, 0.5, 1.0, 1.0, 0.1]}, deadline=2.5)
    records = list(inline(TwoPhases, simulation=wanted, rounds=2))
    assert [r["simulated_round_seconds"] for r in records] == [2.5 + 2, 2.5 + 2]
    assert [r["simulated_seconds"] for r in records] == [4.5, 9.0]
    # FedAvg's epochs: of 60 samples, 8 mini-batches of 8 twice; the model's bytes, down and up.
    wanted = simulation(seconds_per_step=0.25, bandwidth=83 * 4.0)
    record = next(inline(FedAvg, {"batch_size": 8, "epochs": 2}, simulation=wanted))
    assert record["simulated_round_seconds"] == 0.25 * 2 * 8 + 2


def test_clients_that_lose_a_round_keep_their_states():
    wanted = simulation(availability={"kind": "bernoulli", "probability": 0.7}, dropout=0.3, over_selection=2.0)
    run = inline(Stateful, {"batch_size": 8}, rounds=8, clients_per_round=0.5, simulation=wanted)
    records = list(run)
    for record in records:
        assert record["participants"] + sum(record[name] for name in LOST) == 6
        assert record["participants"] <= 3
    assert all(sum(record[name] for record in records) > 0 for name in LOST)
    times = float(run.states.read(np.arange(6))["times"].sum())
    assert times == sum(record["participants"] for record in records) > 0


def test_the_ledger_charges_what_the_lost_received_and_nothing_that_they_sent():
    size = sum(p.numel() for p in small_task(DATA).init().values())
    wanted = simulation(availability={"kind": "bernoulli", "probability": 0.7}, dropout=0.3, over_selection=2.0)
    run, before = inline(FedAvg, rounds=8, clients_per_round=0.5, simulation=wanted), 0.0
    for record in run:
        assert record["scalars_up"] == record["participants"] * size
        assert record["scalars_down"] == (6 - record["unavailable"]) * size
        assert record["bytes_down"] == 4 * record["scalars_down"]
        # In units of a round in which all three that are wanted receive and send.
        spent = (record["scalars_down"] + record["scalars_up"]) / (6 * size)
        assert record["transmissions"] - before == pytest.approx(spent)
        before = record["transmissions"]
    # One common scalar and one of its own to each, late or not; one back.
    late = simulation(speed={"kind": "list", "speeds": [1.0, 0.1]}, deadline=5.0)
    record = next(inline(Stacker, simulation=late))
    assert (record["scalars_down"], record["scalars_up"], record["participants"]) == (12, 3, 3)


def test_when_everybody_is_lost_the_server_stays_as_it_is():
    run = inline(Stateful, rounds=3, simulation=simulation(deadline=0.5))
    size = sum(p.numel() for p in small_task(DATA).init().values())
    for number, record in enumerate(run, start=1):
        assert (record["participants"], record["late"], record["dropped"]) == (0, 6, 0)
        assert (record["scalars_down"], record["scalars_up"]) == (6 * size, 0)
        assert record["simulated_seconds"] == 0.5 * number
        assert 0 <= record["test_accuracy"] <= 1
    assert identical(model(run), small_task(DATA).init())


def test_a_run_that_goes_on_loses_the_same_clients(tmp_path):
    def start(folder):
        settings = {"rounds": 8, "clients_per_round": 0.5, "simulation": simulation(**EVERYTHING)}
        return inline(Stateful, {"batch_size": 8}, folder=folder, **settings)

    check_resuming(start, 3, tmp_path)


def test_a_pack_loses_the_clients_that_each_would_lose_alone():
    settings = {"rounds": 4, "clients_per_round": 0.5, "simulation": simulation(**EVERYTHING)}
    hypers = [{"pull": pull, "batch_size": 8} for pull in (0.0, 0.3)]
    packed = pack(Stateful, hypers, **settings)
    list(packed)
    for learner, hyper in zip(packed.servers, hypers, strict=True):
        alone = inline(Stateful, hyper, **settings)
        for record, other in zip(list(alone), learner.history, strict=True):
            assert {name: record[name] for name in (*LOST, "simulated_seconds")} == {
                name: other[name] for name in (*LOST, "simulated_seconds")
            }
        assert distance(learner.state["w"], alone.server["w"]) < 1e-6


def test_the_share_of_three_workers_loses_the_same_clients():
    settings = {"rounds": 4, "clients_per_round": 0.5, "simulation": simulation(**EVERYTHING)}
    one, three = (inline(Stateful, {"batch_size": 8}, **settings) for _ in range(2))
    three.executor.parts = 3
    for record, other in zip(without_clock(list(one)), without_clock(list(three)), strict=True):
        assert record == pytest.approx(other, abs=1e-6)
    assert distance(model(one), model(three)) < 1e-6


# ---- the whole house -------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive("processes")
def test_a_search_over_clients_that_are_lost(ray_here, tmp_path):
    space = {"simulation.dropout": [0.0, 0.5]}
    wanted = plan(tmp_path, rounds=3, simulation=EVERYTHING | {"deadline": 60.0}, search__space=space)
    finished = search(wanted)
    assert finished.hedge == one_after_the_other(wanted)
    losses = [sum(record["dropped_out"] for record in trial.records) for trial in finished.trials]
    assert losses[0] == 0 < losses[1]


def refused(**values) -> str:
    wanted = {
        "name": "x", "rounds": 2, "clients_per_round": 0.5,
        "task": {"data": {"name": "digits"}, "partition": {"kind": "iid", "clients": 10}, "model": {"name": "logreg"}},
        "algorithm": {"name": "fedavg"},
    } | values  # fmt: skip
    try:
        one = parse_experiment(wanted)
        check_task(one, *build_data(one, None))
    except UserError as error:
        return str(error)
    return "accepted"


def test_what_cannot_be_simulated_is_refused():
    assert "simulation.over_selection: 15 sampled clients per round exceed the population of 10; lower" in refused(
        simulation={"over_selection": 3.0}
    )
    assert "simulation: central trains in one place, without clients; remove it" in refused(
        simulation={}, algorithm={"name": "central"}
    )
    assert "simulation: stem needs all clients in every round; remove it" in refused(
        simulation={}, algorithm={"name": "stem"}, clients_per_round="all"
    )
    stream = {"kind": "stream", "tasks": 5, "train": 20, "test": 20}
    task = {"data": {"name": "digits"}, "partition": stream, "model": {"name": "logreg"}}
    assert "`simulation` needs clients, and a stream has none; remove it" in refused(
        simulation={}, task=task, algorithm={"name": "toe"}
    )


def test_without_a_simulation_nothing_of_it_is_recorded():
    assert experiment(FedAvg.Hyper()).simulation is None
    record = next(inline(FedAvg))
    assert not {*LOST, "simulated_seconds", "simulated_round_seconds"} & set(record)
