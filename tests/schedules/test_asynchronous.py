"""Asynchronous rounds: the order of events, the weights of stale updates, and identities with synchronous rounds."""

import numpy as np
import pytest
import torch
from helpers import (
    Quadratics,
    blobs,
    build,
    check_resuming,
    distance,
    identical,
    model,
    partition,
    run_inline,
    small_task,
)
from packs import RAGGED, pack
from pydantic import TypeAdapter
from ray_runs import numbers, same, small

from hedgerow.algorithms.core.messages import Aggregate, Cohort
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.fednova import FedNova
from hedgerow.algorithms.federated.fedprox import FedProx
from hedgerow.algorithms.federated.fedsgd import FedSGD
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.schedule_section import Schedule
from hedgerow.platform.config.system_heterogeneity import Simulation
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import build_data, check_task
from hedgerow.platform.runtime.shards import ObjectsLost
from hedgerow.platform.schedules.events import COUNT, EventQueue, Flight, groups
from hedgerow.platform.schedules.stale_round import StaleRound

DATA = blobs()
EVEN = partition(np.full(12, 15), seed=1)
HYPER = {"batch_size": 5, "lr": 0.1}
SPEEDS = {"kind": "list", "speeds": [1.0, 0.1, 0.7, 1.3, 0.25]}
VARIED = {"speed": SPEEDS, "jitter": 0.2, "bandwidth": 500.0, "dropout": 0.1}


def schedule(**values) -> Schedule:
    return TypeAdapter(Schedule).validate_python({"kind": "fedbuff", **values})


def simulation(**values) -> Simulation:
    return Simulation.model_validate(values)


def inline(kind=FedAvg, hyper=None, clients=EVEN, **settings):
    return run_inline(kind, small_task(DATA), DATA, clients, HYPER if hyper is None else hyper, **settings)


def done(run):
    """A run after its last round."""
    list(run)
    return run


def buffered(buffer=3, concurrency=6, **values):
    return schedule(buffer=buffer, concurrency=concurrency, **values)


# ---- staleness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [
        ({"kind": "constant"}, [1, 1, 1, 1]),
        ({"kind": "polynomial"}, [1, 2**-0.5, 3**-0.5, 9**-0.5]),
        ({"kind": "polynomial", "exponent": 2.0}, [1, 1 / 4, 1 / 9, 1 / 81]),
        ({"kind": "hinge", "slope": 10.0, "start": 1.0}, [1, 1, 1 / 11, 1 / 71]),
    ],
)
def test_factors_of_staleness(staleness, expected):
    assert schedule(staleness=staleness).staleness.factors(np.array([0.0, 1.0, 2.0, 8.0])) == pytest.approx(expected)


# ---- events ----------------------------------------------------------------------------------------------------------


def steps(queue: EventQueue, seconds, rounds: int):
    """Server steps of a queue whose clients take `seconds`."""
    entry, found = queue.initial(), []
    for round in range(1, rounds + 1):
        found.append(queue.next_step(entry, round, lambda clients: seconds[clients], np.zeros(0, int)))
        entry = found[-1].in_flight
    return found


def test_events_are_those_computed_by_hand():
    # Client 0 takes 1 s, client 1 takes 2.5 s, and both start again at once: arrivals at 1, 2, 2.5, 3, 4, 5 (twice).
    # Server steps at 2, 3 and 5; times of arrival count from the step before.
    queue = EventQueue(schedule(buffer=2), simulation(), 0, 2, 2)
    found = steps(queue, np.array([1.0, 2.5]), 3)
    arrivals = [[(f.client, f.version, f.finish) for f in step.arrivals] for step in found]
    assert arrivals[:2] == [[(0, 0, 1.0), (0, 0, 2.0)], [(1, 0, 0.5), (0, 1, 1.0)]]
    assert arrivals[2][0] == (0, 2, 1.0)
    assert sorted(arrivals[2][1:]) in ([(0, 2, 2.0)], [(1, 1, 2.0)])
    assert [step.seconds for step in found] == [2.0, 1.0, 2.0]
    assert found[1].record(1, {"simulated_seconds": 2.0}) == {
        "dropped_out": 0, "simulated_round_seconds": 1.0, "simulated_seconds": 3.0, "staleness_mean": 0.5,
        "staleness_max": 1, f"{COUNT}0": 1, f"{COUNT}1": 1,
    }  # fmt: skip
    # The client that arrived twice from version 0 is in two groups.
    assert [(g.version, g.clients.tolist()) for g in groups(found[0].arrivals)] == [(0, [0]), (0, [0])]


def test_as_many_clients_as_wanted_are_always_at_work():
    queue = EventQueue(schedule(buffer=4), simulation(dropout=0.3), 3, 50, 10)
    started = arrived = 0
    for step in steps(queue, np.random.default_rng(0).uniform(1, 9, 50), 20):
        started += sum(map(len, step.started))
        arrived += len(step.arrivals) + step.dropped_out
        # Those that replace the last arrivals start from the next version.
        assert 10 - 4 <= started - arrived == len(step.in_flight["client"]) <= 10
        assert len(step.arrivals) == 4
        assert len(step.versions) <= 10
        assert len(set(step.in_flight["client"].tolist())) == len(step.in_flight["client"])


def test_only_available_clients_start_and_the_clock_never_stops():
    seldom = simulation(
        availability={"kind": "diurnal", "probability": 0.5, "amplitude": 1.0, "period": 8, "spread": 0}
    )
    queue = EventQueue(schedule(buffer=3), seldom, 0, 20, 5)
    found = steps(queue, np.ones(20), 16)
    assert all(len(step.arrivals) == 3 for step in found)


# ---- identities ------------------------------------------------------------------------------------------------------

CLOCK = {"seconds", "unavailable", "late"}
ADAM = {"optimizer": "adam", "lr": 0.1}
STALE = {"dropped_out", "staleness_mean", "staleness_max", f"{COUNT}0"}


@pytest.mark.parametrize(
    ("kind", "hyper"),
    [
        (FedAvg, HYPER),
        (FedProx, HYPER | {"mu": 0.1}),
        (FedSGD, {"lr": 0.3}),
        (FedNova, HYPER),
        (FedAvg, HYPER | {"aggregation": {"weighting": "samples", "server_optimizer": ADAM}}),
        (FedAvg, HYPER | {"transforms": [{"kind": "clip", "norm": 0.1}]}),
    ],
)
def test_equal_speeds_and_a_full_buffer_give_the_synchronous_run(kind, hyper):
    settings = {"rounds": 4, "clients_per_round": 0.5, "simulation": simulation(bandwidth=1e3)}
    synchronous, other = inline(kind, hyper, **settings), inline(kind, hyper, schedule=schedule(buffer=6), **settings)
    for record, stale in zip(list(synchronous), list(other), strict=True):
        assert stale.keys() - record.keys() == STALE - {"dropped_out"}
        assert (stale["staleness_mean"], stale["staleness_max"], stale[f"{COUNT}0"]) == (0, 0, 6)
        assert {k: v for k, v in record.items() if k not in CLOCK} == {
            k: v for k, v in stale.items() if k not in CLOCK | STALE or k == "dropped_out"
        }
    assert identical(model(synchronous), model(other))


@pytest.mark.parametrize("transforms", [[], [{"kind": "clip", "norm": 1e9}]])
def test_a_step_adds_the_mean_of_weighted_updates(transforms):
    problem = Quadratics(clients=4)
    algorithm = build(FedAvg, {"transforms": transforms}, problem.task)
    w, old = {"x": torch.randn(4)}, {"x": torch.randn(4)}
    flights = [
        Flight(0.0, 0.0, 0, 1, 5),
        Flight(0.0, 0.0, 1, 2, 2),
        Flight(0.0, 0.0, 2, 3, 5),
        Flight(0.0, 0.0, 3, 1, 2),
    ]
    cohort = Cohort(6, np.array([1, 2, 3]), np.array([1, 1, 1]), 4)
    arrived, version = groups(flights), schedule(buffer=4, staleness={"kind": "polynomial", "exponent": 1.0})
    stale = StaleRound(version, 5, arrived, {"2": {"w": old}}, algorithm.inner.parts, algorithm.hyper)
    generator = stale.around(algorithm.round({"w": w}, cohort))
    sent = next(generator)
    assert [(e.clients.tolist(), e.broadcast["w"]) for e in sent] == [([1, 2], old), ([1, 3], w)]
    updates = [{"x": torch.randn(4)}, {"x": torch.randn(4)}]
    values = updates if transforms else [{"x": u["x"] + b["x"]} for u, b in zip(updates, [old, w], strict=True)]
    with pytest.raises(StopIteration) as stop:
        generator.send([Aggregate({"w": value}, np.ones(2, bool), {"loss": np.ones(2)}) for value in values])
    # Two of the four updates are three versions old: s = 1/4.
    expected = w["x"] + (2 * updates[0]["x"] / 4 + 2 * updates[1]["x"]) / 4
    torch.testing.assert_close(stop.value.value["w"]["x"], expected)


def test_fedasync_that_takes_over_every_model_is_a_relay():
    # One client at work, and its model replaces the server's: a synchronous run with one client per round.
    settings = {"rounds": 4, "clients_per_round": 1}
    relay = schedule(kind="fedasync", alpha=1.0)
    assert identical(model(done(inline(**settings))), model(done(inline(schedule=relay, **settings))))


def test_a_buffer_may_be_larger_than_the_population():
    records = list(inline(rounds=3, schedule=schedule(buffer=20, concurrency=12), simulation=simulation(**VARIED)))
    assert [record["participants"] for record in records] == [20] * 3


@pytest.mark.parametrize("noise", [{"expected": 6.0}, {}], ids=["expected", "actual"])
def test_noise_is_that_of_a_mean_over_all_arrivals(noise):
    clip, often = {"kind": "clip", "norm": 1e6}, {"kind": "list", "speeds": [9.0, 1.0, 1.0, 0.5, 0.5, 0.5]}
    settings = {"clients": partition(np.full(6, 15), seed=1), "rounds": 1, "schedule": buffered(6, 3)}
    settings["simulation"] = simulation(speed=often)

    def after(*transforms):
        hyper = {**HYPER, "transforms": list(transforms), "aggregation": {"weighting": "uniform"}}
        return done(inline(hyper=hyper, **settings))

    plain, noisy = after(clip), after(clip, {"kind": "gaussian_noise", "multiplier": 0.0, **noise})
    assert distance(small_task(DATA).init(), model(plain)) > 1e-3
    assert distance(model(plain), model(noisy)) < 1e-6


def test_fedasync_mixes_the_arriving_model():
    # With alpha = 1 and no factor, the server's model is the last client's.
    one = {"rounds": 5, "clients_per_round": 4, "simulation": simulation(**VARIED)}
    mixed = schedule(kind="fedasync", alpha=0.3, staleness={"kind": "polynomial", "exponent": 1.0})
    run, models = inline(schedule=mixed, **one), [small_task(DATA).init()]
    replaced: list = []
    plain = run.executor.run

    def run_exchanges(exchanges):
        results = plain(exchanges)
        replaced.extend(r.up["w"] for e, r in zip(exchanges, results, strict=True) if e.step.__name__ == "train")
        return results

    run.executor.run = run_exchanges
    for record in run:
        if not record["dropped"]:
            alpha = 0.3 / (1 + record["staleness_max"])
            expected = {k: (1 - alpha) * v + alpha * replaced[-1][k] for k, v in models[-1].items()}
            assert distance(expected, model(run)) < 1e-6
        assert record["participants"] == 1
        models.append(model(run))
    assert len(replaced) == 5


@pytest.mark.exhaustive("convergence")
def test_a_straggler_delays_an_asynchronous_server_less(capsys):
    speeds = {"kind": "list", "speeds": [0.1, *[1.0] * 11]}
    settings = {"simulation": simulation(speed=speeds), "hyper": HYPER | {"lr": 0.01}}
    times = {}
    for name, own in {
        "synchronous": {"rounds": 30, "clients_per_round": "all"},
        "asynchronous": {"rounds": 60, "schedule": buffered(6, 12)},
    }.items():
        records = list(inline(**own, **settings))
        times[name] = next(r["simulated_seconds"] for r in records if r["test_accuracy"] >= 0.9)
    with capsys.disabled():
        print(f"\nsimulated seconds until 90 %: {times}, factor {times['synchronous'] / times['asynchronous']:.1f}")
    assert times["asynchronous"] < times["synchronous"] / 2


def test_counts_and_downloads():
    size = sum(p.numel() for p in small_task(DATA).init().values())
    run = inline(rounds=10, schedule=buffered(), simulation=simulation(**VARIED))
    started = 0
    for record in run:
        counts = {k: v for k, v in record.items() if k.startswith(COUNT)}
        assert sum(counts.values()) == record["participants"] == 3
        mean = sum(int(k.removeprefix(COUNT)) * v for k, v in counts.items()) / 3
        assert record["staleness_mean"] == pytest.approx(mean)
        assert record["scalars_up"] == 3 * size
        started += record["scalars_down"] // size
    assert started == int(run.server["in_flight"]["started"])
    assert any(record["staleness_max"] for record in run.servers[0].history)
    assert len(run.server["versions"]) <= 6


def whole(mode="loop", **sections):
    """Coordinator of an experiment file after some rounds."""
    values = {
        "name": "whole",
        "rounds": 4,
        "clients_per_round": 0.5,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "dirichlet", "clients": 8, "alpha": 0.5, "samples_per_client": 21},
            "model": {"name": "logreg"},
            **sections.pop("task", {}),
        },
        "algorithm": {"name": "fedavg", "epochs": 2, "batch_size": 8},
        "engine": {"mode": mode},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
    }
    wanted = parse_experiment(values | sections)
    data = build_data(wanted, None)
    check_task(wanted, *data)
    coordinator = build_coordinator([wanted], *data, [None])
    while not coordinator.done:
        coordinator.next_round()
    return coordinator.servers[0]


DROPPED = {"name": "mode_models.Dropped"}


@pytest.mark.parametrize(
    "sections",
    [
        {"task": {"model": {"name": "mode_models.Normed"}}},
        {"task": {"model": DROPPED}, "aggregation": {"weighting": "samples"}},
        {"objective": {"kind": "stability"}},
        {"transforms": [{"kind": "sketch", "columns": 2000}]},
        {"transforms": [{"kind": "top_k", "entries": 100, "error_feedback": False}]},
        {
            "algorithm": {"name": "per_fedavg", "batch_size": 8},
            "task": {"partition": {"kind": "iid", "clients": 8, "client_test_fraction": 0.2}},
        },
        {
            "algorithm": {"name": "fedavg_oracle", "batch_size": 8},
            "task": {
                "partition": {"kind": "iid", "clients": 8, "upper_level_fraction": 0.2, "label_noise": 0.4},
                "problem": {"kind": "cleaning"},
            },
        },
    ],
    ids=["batch norm", "dropout", "objective", "sketch", "top-k", "per_fedavg", "fedavg_oracle"],
)
def test_other_settings_compose(sections):
    synchronous, full = whole(**sections), whole(**sections, schedule={"kind": "fedbuff", "buffer": 4})
    states = [
        {key: entry for key, entry in flatten(server.state).items() if not key.startswith(("in_flight", "versions"))}
        for server in (synchronous, full)
    ]
    assert identical(*states)
    stale = {"schedule": {"kind": "fedbuff", "buffer": 2}, "simulation": VARIED}
    # Dropout draws other numbers under vmap than in a loop.
    modes = ("vmap", "vmap") if sections.get("task", {}).get("model") == DROPPED else ("loop", "vmap")
    first, second = (whole(mode, **sections, **stale) for mode in modes)
    assert any(record["staleness_max"] for record in first.history)
    for name, value in flatten(first.state).items():
        torch.testing.assert_close(value, flatten(second.state)[name], rtol=1e-4, atol=1e-5)


def test_quarantined_clients_neither_start_nor_arrive():
    queue = EventQueue(schedule(buffer=2), simulation(), 0, 8, 4)
    first = queue.next_step(queue.initial(), 1, lambda clients: 1.0 + clients, np.zeros(0, int))
    out = first.in_flight["client"].numpy()
    second = queue.next_step(first.in_flight, 2, lambda clients: 1.0 + clients, out)
    clients = {flight.client for flight in second.arrivals} | set(second.in_flight["client"].tolist())
    assert len(second.arrivals) == 2
    assert not clients - set(range(8)) - set(out.tolist())
    assert not {flight.client for flight in second.arrivals} & set(out.tolist())


# ---- reproducibility -------------------------------------------------------------------------------------------------

SETTINGS = {"rounds": 8, "schedule": buffered(), "simulation": simulation(**VARIED)}


def test_loop_and_vmap_agree():
    loop, vmap = (
        inline(engine=engine, **SETTINGS) for engine in (EngineConfig(mode="loop"), EngineConfig(mode="vmap"))
    )
    for one, other in zip(list(loop), list(vmap), strict=True):
        assert one["simulated_seconds"] == other["simulated_seconds"]
    assert distance(model(loop), model(vmap)) < 1e-5


def test_several_shares_of_the_work_see_the_same_events():
    one, three = inline(**SETTINGS), inline(**SETTINGS)
    three.executor.parts = 3
    for record, other in zip(list(one), list(three), strict=True):
        names = [name for name in record if name.startswith(("staleness", "simulated"))]
        assert [record[name] for name in names] == [other[name] for name in names]
    assert distance(model(one), model(three)) < 1e-5


@pytest.mark.parametrize("hyper", [HYPER, HYPER | {"transforms": [{"kind": "clip", "norm": 0.1}]}])
def test_a_resumed_run_is_an_undisturbed_one(hyper, tmp_path):
    check_resuming(lambda folder: inline(hyper=hyper, folder=folder, **SETTINGS), 3, tmp_path)


def test_a_run_returns_to_an_earlier_checkpoint(tmp_path):
    calm, run = inline(**SETTINGS), inline(folder=tmp_path, **SETTINGS)
    list(calm)
    for _ in range(3):
        next(run)
    run.save()
    for _ in range(3):
        next(run)
    run._go_back(ObjectsLost("lost"))
    assert run.round == 3
    list(run)
    assert identical(model(calm), model(run))


def test_clients_that_diverge_are_left_out():
    class Diverging(FedAvg):
        def train(self, hp, down, state, data):
            return {"w": {name: value * torch.nan for name, value in down["w"].items()}}, state, {}

    run = inline(Diverging, **SETTINGS)
    records = list(run)
    assert [record["dropped"] for record in records] == [3] * 8
    assert records[-1]["simulated_seconds"] > records[0]["simulated_seconds"] > 0
    assert identical(model(run), small_task(DATA).init())


# ---- refusals --------------------------------------------------------------------------------------------------------


def refused(**values) -> str:
    wanted = {
        "name": "x", "rounds": 2, "clients_per_round": 0.5,
        "task": {"data": {"name": "digits"}, "partition": {"kind": "iid", "clients": 10}, "model": {"name": "logreg"}},
        "algorithm": {"name": "fedavg"},
        "schedule": {"kind": "fedbuff", "buffer": 2},
    } | values  # fmt: skip
    try:
        one = parse_experiment(wanted)
        check_task(one, *build_data(one, None))
    except UserError as error:
        return str(error)
    return "accepted"


def test_a_wrong_declaration_is_a_violation_of_the_contract():
    assert "it declares `single_exchange`, but its round is not one exchange whose `parts` are averaged" in refused(
        algorithm={"name": "toys.WrongTwice"}
    )
    assert refused(algorithm={"name": "toys.Twice"}).startswith("schedule: a round of toys.Twice is not one exchange")


def test_refusals():
    assert refused() == "accepted"
    assert "schedule: a round of scaffold is not one exchange" in refused(algorithm={"name": "scaffold"})
    assert "schedule: a round of feddyn is not one exchange" in refused(algorithm={"name": "feddyn"})
    assert "schedule: clients of ditto keep states between rounds" in refused(algorithm={"name": "ditto"})
    assert "simulation.deadline: an asynchronous server waits for no client; remove it" in refused(
        simulation={"deadline": 3.0}
    )
    assert "simulation.over_selection: an asynchronous server uses" in refused(simulation={"over_selection": 1.5})
    assert "schedule.concurrency: 11 clients at work exceed the population of 10; lower it" in refused(
        schedule={"kind": "fedbuff", "buffer": 2, "concurrency": 11}
    )
    # A client may arrive several times before a server step.
    assert refused(schedule={"kind": "fedbuff", "buffer": 12, "concurrency": 3}) == "accepted"
    clip = [{"kind": "clip", "norm": 1.0}]
    assert refused(transforms=clip) == "accepted"
    assert "transforms: fedasync mixes models, not updates" in refused(transforms=clip, schedule={"kind": "fedasync"})
    assert "evaluation.model" in refused(evaluation={"model": "clients"})
    feedback = [{"kind": "top_k", "entries": 5, "error_feedback": True}]
    assert "keep states between rounds with these settings" in refused(transforms=feedback)


# ---- on Ray ----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_two_actors_equal_one(tmp_path):
    settings = {
        "algorithm": {"name": "fedavg", "batch_size": 8},
        "schedule": {"kind": "fedbuff", "buffer": 3},
        "simulation": VARIED,
    }
    one, again, two = (
        run(small(tmp_path / name, resources__actors=actors, **settings))
        for name, actors in {"one": 1, "again": 1, "two": 2}.items()
    )
    assert same(one, again)
    for mine, theirs in zip(numbers(one), numbers(two), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)
    for name, value in one.parameters.items():
        assert np.abs(value - two.parameters[name]).max() < 1e-6


def test_variants_of_an_experiment_have_the_same_events():
    packed = pack(FedAvg, [HYPER, HYPER | {"lr": 0.05}], **SETTINGS)
    list(packed)
    for server, hyper in zip(packed.servers, [HYPER, HYPER | {"lr": 0.05}], strict=True):
        alone = inline(hyper=hyper, clients=RAGGED, **SETTINGS)
        records = list(alone)
        assert [r["simulated_seconds"] for r in records] == [r["simulated_seconds"] for r in server.history]
        assert distance(model(alone), server.state["w"]) < 1e-5
