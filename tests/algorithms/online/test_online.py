"""The online loop: what is scored before it is learnt, what is looked at, and that nothing is lost."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from families import settings_of, stream
from helpers import distance, identical
from processes import outcome

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.algorithms.core.messages import Cohort
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.data.sampling import draw_pooled_batches
from hedgerow.platform.runs.runner import resume, run
from hedgerow.platform.runtime.coordinator import Coordinator, build_coordinator
from hedgerow.platform.runtime.factory import build_data
from hedgerow.platform.tracking.summary import meta_regret
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.spaces.search_file import parse_search

ONLINE = [name for name in ALGORITHMS if algorithm_class(name).trains_on == "stream"]
EVERYBODY = np.zeros(1, int)


def learnt(values: dict | list[dict]) -> Coordinator:
    several = values if isinstance(values, list) else [values]
    experiments = [parse_experiment(one) for one in several]
    dataset, partition = build_data(experiments[0], None)
    coordinator = build_coordinator(experiments, dataset, partition, [Path("not-saved")] * len(several))
    for _ in range(several[0]["rounds"]):
        coordinator.next_round()
    return coordinator


def final(coordinator: Coordinator, expert: int = 0) -> dict[str, torch.Tensor]:
    return coordinator.servers[expert].state["w"]


# ---- every learner ------------------------------------------------------------------------------------------------


@pytest.mark.grid
@pytest.mark.parametrize("adapt", ["maml", "proto", "none"])
@pytest.mark.parametrize("name", ONLINE)
def test_loop_and_batch_learn_the_same(name, adapt):
    values = stream(settings_of(name, adapt=adapt))
    loop = learnt(values | {"engine": {"mode": "loop"}})
    batch = learnt(values)
    assert distance(final(loop), final(batch)) < 1e-5
    for mine, theirs in zip(*(c.servers[0].history for c in (loop, batch)), strict=True):
        assert mine["test_loss"] == pytest.approx(theirs["test_loss"], rel=1e-4)
        assert mine.get("ltm_loss", 0) == pytest.approx(theirs.get("ltm_loss", 0), rel=1e-4)
    start = loop.servers[0].algorithm.init_server()["w"]
    assert distance(final(loop), start) > 1e-4


@pytest.mark.parametrize("train", [25, 5])
def test_loop_and_batch_learn_the_same_where_samples_do_not_come_out_even(train):
    values = stream(settings_of("moml", state_update="exact", batch_size=4))
    values["task"] = values["task"] | {"partition": values["task"]["partition"] | {"train": train}}
    loop, batch = learnt(values | {"engine": {"mode": "loop"}}), learnt(values)
    assert distance(final(loop), final(batch)) < 1e-5
    for mine, theirs in zip(*(c.servers[0].history for c in (loop, batch)), strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)


def test_prototypes_are_learnt():
    values = stream(settings_of("mogd", adapt="proto", steps=10, batch_size=10), rounds=40)
    values["task"] = values["task"] | {
        "partition": {"kind": "stream", "tasks": 40, "train": 60, "test": 50},
        "model": {"name": "mlp", "hidden": [32]},
    }
    history = learnt(values).servers[0].history
    scores = [record["test_accuracy"] for record in history]
    assert np.mean(scores[-10:]) > max(0.75, scores[0] + 0.1)


@pytest.mark.parametrize("name", ONLINE)
def test_nobody_looks_at_test_samples_or_at_tasks_to_come(name):
    """Three tasks are learnt; what comes after them, and what scores them, is then replaced by noise."""
    experiment = parse_experiment(stream(settings_of(name), rounds=3))
    dataset, partition = build_data(experiment, None)
    x = dataset.x_train.copy()
    for task in range(len(partition)):
        rows = partition.samples(task)
        # The competitor may know all tasks, but not what scores them.
        hidden = rows if task >= 3 else rows[partition.train_sizes[task] :]
        x[hidden] = np.random.default_rng(task).integers(0, 17, x[hidden].shape)
    models = []
    for data in (dataset, replace(dataset, x_train=x)):
        coordinator = build_coordinator([experiment], data, partition, [Path("not-saved")])
        models.append([coordinator.next_round() and final(coordinator) for _ in range(3)][-1])
    assert identical(*models)


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize(
    ("name", "key", "floats"),
    [("moml", "adapt_lr", (0.01, 0.1, 0.5)), ("moml", "alpha", (0.1, 1.0, 5.0)), ("b_moml", "alpha", (0.0, 0.5, 2.0)),
     ("ftml", "lr", (0.01, 0.1, 0.3))],
)  # fmt: skip
def test_experts_that_differ_in_floats_learn_as_alone(name, key, floats):
    several = [stream(settings_of(name, **{key: value})) for value in floats]
    packed = learnt(several)
    for expert, values in enumerate(several):
        assert distance(final(packed, expert), final(learnt(values))) < 1e-5
    assert distance(final(packed, 0), final(packed, 2)) > 1e-4


# ---- the protocol -------------------------------------------------------------------------------------------------


def test_a_task_is_scored_before_it_is_learnt():
    # The first score is that of the initial model, whatever the learner does; the second not.
    first, second = (learnt(stream(settings_of("mogd", lr=lr))).servers[0].history for lr in (0.1, 0.4))
    assert first[0]["test_loss"] == second[0]["test_loss"]
    assert first[1]["test_loss"] != second[1]["test_loss"]


def test_ctm_is_the_mean_so_far_and_ltm_comes_on_schedule():
    history = learnt(stream(settings_of("moml"))).servers[0].history
    scores = [record["test_accuracy"] for record in history]
    assert [record["ctm"] for record in history] == pytest.approx([np.mean(scores[: t + 1]) for t in range(5)])
    assert [record["round"] for record in history if "ltm" in record] == [2, 4, 5]


def test_ltm_is_the_accuracy_on_all_tasks_so_far_adapted_anew():
    # A learner that hardly moves shows one and the same model to all tasks.
    coordinator = learnt(stream(settings_of("mogd", lr=1e-30)))
    history = coordinator.servers[0].history
    assert history[-1]["ltm"] == pytest.approx(history[-1]["ctm"])
    assert history[-1]["ltm_loss"] == pytest.approx(np.mean([record["test_loss"] for record in history]), rel=1e-5)


def test_what_is_kept_is_told():
    values = {name: learnt(stream(settings_of(name))).servers[0].history for name in ONLINE}
    sample = 8 * 8 + 8  # uint8 pixels and an int64 label
    model = 64 * 12 + 12 + 12 * 4 + 4
    for name, (vectors, tasks) in {
        "moml": (3, 0), "moml_zero": (2, 0), "b_moml": (3, 5), "mogd": (1, 0), "fs": (1, 0), "ftml": (1, 5),
        "toe": (1, 5), "ftrl": (1, 5), "offline": (1, 5),
    }.items():  # fmt: skip
        last = values[name][-1]
        assert (last["memory_vectors"], last["memory_tasks"]) == (vectors, tasks), name
        assert last["memory_bytes"] == 4 * model * vectors + tasks * 26 * sample
        assert last["transmissions"] == 0


def test_regret_is_what_was_suffered_above_the_offline_competitor(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mogd", "offline"):
        values = stream(settings_of(name, adapt="none"), name=name, output=str(tmp_path))
        values["task"] = values["task"] | {"model": {"name": "logreg"}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
    told = CliRunner().invoke(main, ["run", "mogd.yaml", "offline.yaml"], catch_exceptions=False).output
    logs = {name: RunLog(next(tmp_path.glob(f"{name}-*")) / "metrics.jsonl").read() for name in ("mogd", "offline")}
    # The competitor's last model, on each of the tasks; and what the learner lost on each before it had learnt it.
    best = 5 * logs["offline"][-1]["ltm_loss"]
    for name, records in logs.items():
        regret = sum(record["test_loss"] for record in records) - best
        assert meta_regret(records, logs["offline"]) == pytest.approx(regret)
        assert re.search(rf"│ {name} .* {regret:.3f} │", told)


def test_efficiency_is_the_fewest_samples_that_suffice():
    points = [0, 4, 26]
    easy, hard = (
        learnt(stream(settings_of("moml"), evaluation={"efficiency": {"threshold": t, "points": points}}))
        for t in (0.01, 0.999)
    )
    found = [record["efficiency_points"] for record in easy.servers[0].history]
    assert set(found) <= set(points)
    assert min(found) == 0
    assert {record["efficiency_reached"] for record in easy.servers[0].history} == {1.0}
    for record in hard.servers[0].history:
        assert (record["efficiency_points"], record["efficiency_reached"]) == (26, 0.0)
    # All samples of the task score as the task's own score does.
    whole = learnt(stream(settings_of("moml"), evaluation={"efficiency": {"threshold": 0.3, "points": [26]}}))
    for record in whole.servers[0].history:
        assert record["efficiency_reached"] == (record["test_accuracy"] >= 0.3)


def test_from_scratch_draws_a_new_model_each_round():
    coordinator = learnt(stream(settings_of("fs")))
    algorithm, models = coordinator.servers[0].algorithm, []
    for number in (1, 2, 2):
        generator = algorithm.round({}, Cohort(number, EVERYBODY, EVERYBODY, 6))
        with pytest.raises(StopIteration) as stop:
            next(generator)
        models.append(stop.value.value["w"])
    assert identical(models[1], models[2])
    assert distance(models[0], models[1]) > 0.01


def test_the_random_buffer_keeps_old_tasks_and_the_latest_buffer_the_latest():
    from hedgerow.algorithms.online.b_moml import BMOML

    def buffers(**hyper):
        algorithm = BMOML(BMOML.Hyper(buffer=3, **hyper), None)
        buffer, seen = torch.full((3,), -1), []
        for task in range(40):
            buffer = algorithm.pushed(buffer, task, Cohort(task + 1, np.array([task]), EVERYBODY, 40))
            seen.append(buffer.tolist())
        return seen

    latest = buffers()
    assert latest[:4] == [[-1, -1, 0], [-1, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert latest[-1] == [37, 38, 39]
    assert buffers(policy="random", keep=1.0) == latest
    random = buffers(policy="random", keep=0.3)
    assert random[:3] == latest[:3]
    kept = sum(a != b for a, b in pairwise(random[2:]))
    assert 3 < kept < 25
    assert all(mine == sorted(mine) for mine in random)


# ---- mini-batches of other tasks ----------------------------------------------------------------------------------


def test_mini_batches_of_others_come_from_one_task_each_without_replacement():
    sizes = np.array([5, 9, 3])
    owners, positions, mask = draw_pooled_batches(
        BatchSpec(4, steps=200, pooled_from=range(3)), (1, "a"), np.array([7]), sizes
    )
    assert owners.shape == positions.shape == mask.shape == (1, 200, 4)
    assert (owners == owners[:, :, :1]).all()
    assert set(np.unique(owners)) == {0, 1, 2}
    for owner, row, real in zip(owners[0, :, 0], positions[0], mask[0], strict=True):
        assert real.sum() == min(4, sizes[owner])
        assert len(set(row[real].tolist())) == real.sum()
        assert row[real].max() < sizes[owner]
    again = draw_pooled_batches(BatchSpec(4, steps=200, pooled_from=range(3)), (1, "a"), np.array([7]), sizes)
    assert all(np.array_equal(a, b) for a, b in zip((owners, positions, mask), again, strict=True))


def test_mixed_mini_batches_are_drawn_from_the_union():
    sizes = np.array([1, 9])
    owners, positions, mask = draw_pooled_batches(
        BatchSpec(10, steps=400, pooled_from=range(2), mixed=True), (1,), np.array([0]), sizes
    )
    assert mask.all()
    assert (positions < sizes[owners]).all()
    assert np.mean(owners == 0) == pytest.approx(0.1, abs=0.02)


def test_without_a_size_a_batch_is_all_that_one_of_them_has_or_all_of_them_have():
    sizes = np.array([2, 3])
    owners, positions, mask = draw_pooled_batches(BatchSpec(pooled_from=(4, 2), mixed=True), (1,), np.array([0]), sizes)
    assert owners.tolist() == [[[0, 0, 1, 1, 1]]]
    assert positions.tolist() == [[[0, 1, 0, 1, 2]]]
    assert mask.all()
    owners, positions, mask = draw_pooled_batches(BatchSpec(pooled_from=(4, 2), steps=50), (1,), np.array([0]), sizes)
    for owner, row, real in zip(owners[0, :, 0], positions[0], mask[0], strict=True):
        assert sorted(row[real].tolist()) == list(range(sizes[owner]))
    assert set(owners[0, :, 0].tolist()) == {0, 1}


# ---- nothing is lost, and bad files -------------------------------------------------------------------------------


def test_a_resumed_stream_ends_as_an_undisturbed_one(tmp_path):
    values = stream(settings_of("b_moml", policy="random", keep=0.5), output=str(tmp_path))
    calm, cut = (run(parse_experiment(values)).folder for _ in range(2))
    # As if it had been killed after its first checkpoint.
    for checkpoint in sorted(cut.checkpoints.glob("round-*"))[1:]:
        rmtree(checkpoint)
    cut.update(status="interrupted")
    resume(str(cut.path))
    mine, theirs = outcome(calm.path), outcome(cut.path)
    assert mine[0] == theirs[0]
    assert identical(mine[1], theirs[1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"algorithm": {"name": "fedavg"}}, "algorithm.name: fedavg does not learn streams; choose one of b_moml,"),
        ({"rounds": 7}, "`rounds: 7` is more than the 6 tasks of the stream"),
        ({"algorithm": {"name": "ftml", "solver": "newton"}}, "`solver: newton` works only for convex losses"),
        ({"evaluation": {"efficiency": {"threshold": 0.5, "points": [27]}}}, "goes up to 27, but a task has 26"),
        ({"evaluation": {"targets": [0.5]}}, "`evaluation.targets` is not supported for a stream"),
        (
            {"evaluation": {"efficiency": {"threshold": 0.5, "points": [3, 1]}}},
            "`points` must be 0 or more and in ascending order",
        ),
    ],
)
def test_what_does_not_fit_a_stream_is_refused(change, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_experiment(stream(settings_of("moml")) | change)


@pytest.mark.parametrize(
    ("kind", "metric", "taken"),
    [("hedge", "test_loss", True), ("hedge", "client_loss", False), ("hedge", "ltm", False), ("grid", "ltm", True),
     ("grid", "ctm", True), ("grid", "test_accuracy", False)],
)  # fmt: skip
def test_hedge_weighs_what_was_suffered_and_the_others_the_end(kind, metric, taken):
    search = {"kind": kind, "metric": metric, "space": {"algorithm.alpha": [0.1, 1.0]}}
    values = stream(settings_of("moml")) | {"search": search}
    if taken:
        assert parse_search(values).search.mode == ("min" if "loss" in metric else "max")
    else:
        with pytest.raises(UserError, match=f"search.metric: '{metric}' is not reported"):
            parse_search(values)


def test_a_bad_stream_ends_in_one_sentence_with_exit_code_2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = stream(settings_of("moml"))
    values["task"]["partition"] |= {"ways": 11}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(values))
    for command in ("run", "partition"):
        done = CliRunner().invoke(main, [command, "bad.yaml"])
        assert (done.exit_code, done.stderr.splitlines()) == (
            2, ["hedgerow: task.partition.ways: 11 is more than the 10 classes; lower it"],
        )  # fmt: skip
    assert [file.name for file in tmp_path.iterdir()] == ["bad.yaml"]


def test_the_stream_is_the_same_for_all_experts():
    space = {"task.partition.train": [10, 20]}
    with pytest.raises(
        UserError, match=r"search.space.task.partition.train cannot be searched: the stream is the same"
    ):
        parse_search(stream(settings_of("moml")) | {"search": {"space": space}})


def test_a_learner_of_streams_needs_one():
    values = stream(settings_of("moml"))
    values["task"] = values["task"] | {"partition": {"kind": "iid", "clients": 5}}
    with pytest.raises(UserError, match=r"moml learns a stream of tasks; set `task.partition.kind: stream`"):
        parse_experiment(values)
