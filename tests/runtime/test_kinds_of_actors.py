"""Client actors of two kinds: which there are, which shares each runs, and the bits and plans of a run with them."""

import json
from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from several_workers import SeveralWorkers, experiment, histories, same_state

from hedgerow.cluster.feasibility import MemoryEstimate
from hedgerow.cluster.nodes import parse_nodes
from hedgerow.platform.actors.actor_room import actors_that_fit, actors_to_start, choose_actors, room_by_kind
from hedgerow.platform.actors.placement import bundle_indices, bundles
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runtime.assignment import hosts_of
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator, inline_executor
from hedgerow.platform.runtime.shards import ChunkTooLarge, ExecutionPlan

KINDS = st.lists(st.sampled_from(["gpu", "cpu"]), min_size=1, max_size=12)

NODES = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 3.0}, {"CPU": 8.0, "GPU": 0.0}, {"CPU": 2.0}]
"""The GPUs of the third node are in use."""


def test_a_node_with_gpus_hosts_no_cpu_actors():
    mixed = Resources(mixed=True, gpus_per_actor=0.5)
    assert room_by_kind(mixed, NODES) == {"gpu": 4, "cpu": 5}
    assert actors_that_fit(mixed, NODES) == 9
    assert room_by_kind(Resources(gpus_per_actor=0.5), NODES) == {"gpu": 4}
    assert room_by_kind(Resources(), NODES) == {"cpu": 17}
    assert room_by_kind(mixed.model_copy(update={"actors_per_node": 3}), NODES) == {"gpu": 3, "cpu": 3}


@pytest.mark.parametrize(
    ("settings", "cohort", "expected"),
    [
        ({"mixed": True}, 100, {"gpu": 2, "cpu": 5}),
        ({"mixed": True}, 4, {"gpu": 2, "cpu": 2}),
        ({"mixed": True}, 1, {"gpu": 1}),
        ({"mixed": True, "actors": 3}, 100, {"gpu": 2, "cpu": 1}),
        ({"mixed": ["cpu", "gpu", "cpu"], "actors": 3}, 100, {"cpu": 2, "gpu": 1}),
        ({}, 100, {"gpu": 2}),
        ({"gpus_per_actor": 0}, 100, {"cpu": 17}),
    ],
)
def test_gpus_come_first_unless_the_kinds_are_listed(settings, cohort, expected):
    assert Counter(choose_actors(Resources(**{"gpus_per_actor": 1, **settings}), cohort, NODES)) == expected


def test_the_actors_of_each_kind_have_their_own_bundles():
    resources = Resources(mixed=True, gpus_per_actor=1, cpus_per_actor=0.5)
    actors = ["gpu", "gpu", "cpu", "cpu", "cpu"]
    assert bundles(resources, actors) == [{"CPU": 0.5, "GPU": 1.0}] * 2 + [{"CPU": 0.5}] * 3
    assert bundle_indices(resources, actors) == [0, 1, 2, 3, 4]
    by_node = resources.model_copy(update={"actors_per_node": 2})
    assert bundles(by_node, actors) == [{"CPU": 1.0, "GPU": 2.0}, {"CPU": 1.0}, {"CPU": 0.5}]
    assert bundle_indices(by_node, actors) == [0, 0, 1, 1, 2]
    # The memory of an actor with a GPU is the GPU's.
    assert bundles(resources.model_copy(update={"memory_mb": 100}), ["gpu", "cpu"])[1] == {"CPU": 0.5, "memory": 1e8}


@given(shares=KINDS, room=st.fixed_dictionaries({"gpu": st.integers(0, 9), "cpu": st.integers(0, 9)}), data=st.data())
def test_as_many_actors_start_as_fit_and_one_of_each_kind(shares, room, data):
    wanted, least = Counter(shares), data.draw(st.integers(1, len(shares)))
    fit = sum(min(room[kind], count) for kind, count in wanted.items())
    actors = actors_to_start(shares, room, least)
    counts = Counter(actors)
    assert counts.keys() == wanted.keys()
    assert all(counts[kind] <= wanted[kind] for kind in wanted)
    assert least <= len(actors) <= max(fit + len(wanted), least)
    if fit >= least and all(room[kind] for kind in wanted):
        assert len(actors) == fit
        assert all(counts[kind] <= room[kind] for kind in wanted)
    assert len(actors_to_start(shares, room, least, least)) == max(least, len(wanted))
    # Those of a kind follow each other.
    assert len(list(groupby(actors))) == len(wanted)


@given(shares=KINDS, data=st.data())
def test_a_share_runs_on_an_actor_of_its_kind(shares, data):
    room = {kind: data.draw(st.integers(1, count)) for kind, count in Counter(shares).items()}
    workers = actors_to_start(shares, room, 1)
    hosts = hosts_of(shares, workers)
    assert [workers[host] for host in hosts] == shares
    for kind in room:
        loads = np.bincount(hosts, minlength=len(workers))[np.array(workers) == kind]
        assert loads.max() - loads.min() <= 1
    alike = hosts_of(["cpu"] * len(shares), ["cpu"] * len(workers))
    assert alike.tolist() == (np.arange(len(shares)) % len(workers)).tolist()


@pytest.mark.parametrize("workers", [["gpu", "cpu"], ["gpu", "cpu", "cpu"], ["gpu", "gpu", "cpu", "cpu"]], ids=len)
@pytest.mark.parametrize("name", ["feddyn", "fedavg"])
def test_the_bits_are_those_of_one_process_with_as_many_shares(tmp_path, name, workers):
    chosen = experiment({"name": name})
    data, kinds = check(chosen, None), ["gpu", "cpu", "cpu", "gpu"]
    one = build_coordinator([chosen], *data, inline_executor([chosen], *data, 4), [tmp_path / "one"])
    several = SeveralWorkers([chosen], data, 4, len(workers), (kinds, workers))
    many = build_coordinator([chosen], *data, several, [tmp_path / "many"])
    one.advance(1e6)
    many.advance(1e6)
    assert histories(one) == histories(many)
    assert same_state(one.servers[0].state, many.servers[0].state)


class Observed(SeveralWorkers):
    """Notes the plan of each share of the training."""

    def _run_shards(self, shards, *arguments):
        self.seen = getattr(self, "seen", {})
        for mine in shards:
            for shard in mine:
                if shard.step == "train" and len(shard.clients):
                    self.seen.setdefault(shard.number, set()).add(shard.plan)
        return super()._run_shards(shards, *arguments)


def test_each_kind_has_a_plan_of_its_own_that_repeats_the_bits(tmp_path):
    plans = {"train/clients/gpu": {"mode": "vmap", "chunk": 2}, "train/clients/cpu": {"mode": "loop"}}
    chosen = experiment({"name": "feddyn"}, engine={"plans": plans})
    data, kinds = check(chosen, None), ["gpu", "cpu", "gpu"]

    def trained(name, experiment, workers):
        executor = Observed([experiment], data, 3, len(workers), (kinds, workers))
        coordinator = build_coordinator([experiment], *data, executor, [tmp_path / name])
        coordinator.advance(1e6)
        return coordinator, executor

    first, executor = trained("first", chosen, ["gpu", "gpu", "cpu"])
    batched, loop = ExecutionPlan("vmap", 2), ExecutionPlan("loop")
    assert executor.seen == {0: {batched}, 1: {loop}, 2: {batched}}
    # Steps without a plan in the file are measured for each kind.
    assert {f"evaluate_client/clients/{kind}" for kind in kinds} <= first.plans().keys()
    repeated = parse_experiment(chosen.model_dump(mode="json") | {"engine": {"plans": first.plans()}})
    second, _ = trained("second", repeated, ["gpu", "cpu"])
    assert second.plans() == first.plans()
    assert histories(first) == histories(second)
    assert same_state(first.servers[0].state, second.servers[0].state)


def test_a_plan_of_the_file_without_a_kind_is_that_of_both(tmp_path):
    chosen = experiment({"name": "fedavg"}, engine={"plans": {"train/clients": {"mode": "vmap", "chunk": 2}}})
    data, kinds = check(chosen, None), ["gpu", "cpu"]
    executor = Observed([chosen], data, 2, 2, (kinds, kinds))
    coordinator = build_coordinator([chosen], *data, executor, [tmp_path / "run"])
    coordinator.advance(1e6)
    assert executor.seen == {share: {ExecutionPlan("vmap", 2)} for share in range(2)}
    assert not {"train/clients/gpu", "train/clients/cpu"} & coordinator.plans().keys()


def test_a_chunk_that_is_too_large_is_halved_under_all_names_of_its_plan():
    chosen, plan = experiment({"name": "fedavg"}), ExecutionPlan("vmap", 8)
    executor = SeveralWorkers([chosen], check(chosen, None), 2, 2, (["gpu", "cpu"], ["gpu", "cpu"]))
    names = "train/clients/gpu", "train/clients/one/gpu", "train/clients_of_mine", "other/clients/gpu"
    executor.plans = [dict.fromkeys(names, plan) | {"train/clients/cpu": ExecutionPlan("loop")}]
    (smaller,) = executor.smaller_plans(ChunkTooLarge("train/clients", plan, "too large"))
    assert smaller == dict.fromkeys(names[:2], ExecutionPlan("vmap", 4))


def test_a_list_of_kinds_is_the_number_of_actors():
    for actors in ({}, {"actors": "auto"}, {"actors": 2}):
        assert Resources(mixed=["gpu", "cpu"], gpus_per_actor=1, **actors).actors == 2


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"CPU": 8.0}, "at least one client actor needs a GPU, but no node has one"),
        ({"CPU": 8.0, "GPU": 1.0}, "2 of the client actors do not fit on GPUs, and every node has GPUs"),
    ],
)
def test_a_cluster_without_nodes_of_a_kind_is_named(node, message):
    with pytest.raises(UserError, match=message):
        choose_actors(Resources(mixed=True, gpus_per_actor=1, actors=3), 9, [node])


def test_the_memory_of_an_actor_is_that_of_its_kind():
    resources = Resources(mixed=True, gpus_per_actor=1, memory_mb=4000)
    needed = MemoryEstimate(resources, process=1e9, store=0)
    nodes = parse_nodes("1x(cpus=8,memory=16) + 1x(cpus=8,gpus=1,memory=16)")
    assert [needed.actor_on(node) for node in nodes] == [4e9, 1e9]


def test_recorded_kinds_take_the_place_of_mixed():
    chosen = experiment({"name": "fedavg"}, resources={"mixed": True, "gpus_per_actor": 1})
    assert chosen.with_kinds(None) is chosen
    resources = chosen.with_kinds(["gpu", "cpu"]).resources
    assert (resources.mixed, resources.actors) == (["gpu", "cpu"], 2)
    assert Resources.model_validate(json.loads(resources.model_dump_json())) == resources
    plain = experiment({"name": "fedavg"})
    assert plain.with_kinds(["cpu", "cpu"]) is plain
