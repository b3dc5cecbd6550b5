"""A teacher that is trained in the run: its learning rate, its momentum, its score; and one from another run."""

import math

import numpy as np
import pytest
import torch
from helpers import run_inline
from ray_runs import small
from students import DATA, EVERYBODY, SGD, run, task
from torch import nn

import hedgerow
from hedgerow.algorithms.optim.pretraining import TeacherTraining
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.numbers import percent
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.config.teacher_section import Teacher
from hedgerow.platform.runs.runner import run as run_file
from hedgerow.platform.runtime.factory import build_algorithms, check
from hedgerow.platform.storage.run_lock import RunLock
from hedgerow.platform.tracking.formatting import summary_table
from hedgerow.platform.tracking.summary import summarise
from hedgerow.searchspaces.extra.table_file import find_rows
from hedgerow.searchspaces.extra.table_result import standing


def test_a_teachers_learning_rate_falls_along_a_cosine():
    plan = TeacherTraining(epochs=6, lr=0.2, lr_cosine=4)
    wanted = [0.1 * (1 + math.cos(math.pi * passes / 4)) for passes in (0, 1, 2, 3, 3, 3)]
    assert [plan.at(epoch).lr for epoch in range(1, 7)] == pytest.approx(wanted)
    assert [TeacherTraining(lr=0.2).at(epoch).lr for epoch in (1, 20)] == [0.2, 0.2]


@pytest.mark.parametrize("cosine", [None, 3])
def test_a_teacher_learns_as_torchs_sgd_does(cosine):
    """Four passes of one step, whose momentum lasts."""
    plan = TeacherTraining(epochs=4, batch_size=None, lr=0.2, weight_decay=0.01, lr_cosine=cosine)
    done = run_inline(algorithm_class("kd"), task(plan), DATA, EVERYBODY, SGD, rounds=1)
    next(done)
    module, x, y = task().teacher, torch.from_numpy(DATA.x_train), torch.from_numpy(DATA.y_train)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    for passes in range(4):
        optimizer.param_groups[0]["lr"] = plan.at(passes + 1).lr
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(task().prepare(x)), y).backward()
        optimizer.step()
    for name, p in module.named_parameters():
        if not name.endswith(("mean", "variance")):
            torch.testing.assert_close(done.server["teacher"][name], p.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["kd", "disk"])
def test_a_teacher_is_scored_when_it_is_made_and_then_never_again(name):
    done = run(name, warm_start=1)
    first, second, third = list(done)
    teacher = done.servers[0].algorithm.inner.teacher_task
    x, y = teacher.prepare(torch.from_numpy(DATA.x_test)), torch.from_numpy(DATA.y_test)
    logits = teacher.logits(done.server["teacher"], x)
    assert second["teacher_test_accuracy"] == pytest.approx(float((logits.argmax(-1) == y).float().mean()))
    assert second["teacher_test_loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)
    assert second["train_teacher_loss"] > 0
    assert second["train_loss"] > 0
    assert not [name for name in (*first, *third) if name.startswith(("teacher", "train_teacher"))]
    assert not [name for name in second if name.endswith(("correct", "samples"))]
    # Nothing of it is transmitted.
    assert second["transmissions"] == second["scalars_down"] == second["exchanges"] == 0
    summary = summarise([first, second, third], [])
    assert summary["teacher_test_accuracy"] == second["teacher_test_accuracy"]
    assert not summary["report"]
    assert summary_table([("", summary)]).texts[0]["teacher test accuracy"] == percent(second["teacher_test_accuracy"])
    rows = standing({"CE": [first], "KD": [first, second, third]})
    assert rows["teacher"] == {"KD": percent(second["teacher_test_accuracy"])}


@pytest.mark.parametrize("data", ["intervals", "gaussians"])
def test_a_teacher_of_a_toy_knows_its_classes(data, tmp_path):
    """At its full schooling, on the table's 1000 samples; scored on more, since 100 tell no better than to 2 %."""
    line = find_rows(f"disk/6.1/{data}")[1][0]
    values = {**line.values, "name": "teacher", "output": str(tmp_path), "rounds": 1, "algorithm": {"name": "kd"}}
    values |= {"resources": {"executor": "inline"}, "tracking": {"enabled": False}}
    values["task"] = {**values["task"], "data": {"name": data, "test_samples": 3000}}
    (record,) = run_file(parse_experiment(values, source=data)).records
    assert record["teacher_test_accuracy"] > 0.97


# ---- a teacher from another run --------------------------------------------------------------------------------------

PLAIN = {"rounds": 2, "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 8}, "resources": {"executor": "inline"}}
REPORTED = {
    "the largest model that is trained": {"algorithm": {"name": "heterofl", "capacities": [0.5], "lr": 0.1}},
    "the average of the clients": {"evaluation": {"model": "clients"}},
    "decoded": {"algorithm": {"name": "fedsep", "sketch_size": 20, "lr": 0.1}},
}


def student(folder, teacher, **settings):
    return small(
        folder, **{**PLAIN, "objective": {"kind": "distillation"}, "task__teacher": {"run": str(teacher)}, **settings}
    )


@pytest.mark.parametrize("settings", REPORTED.values(), ids=REPORTED)
def test_the_teacher_from_a_run_is_the_model_that_the_run_reports(settings, tmp_path):
    finished = run_file(small(tmp_path, **{**PLAIN, **settings}))
    wanted = student(tmp_path, finished.folder.path)
    dataset, partition = check(wanted, None)
    teacher = build_algorithms([wanted], dataset, partition)[0].task.teacher
    x = (torch.from_numpy(dataset.x_test).float() - torch.tensor(dataset.mean)) / torch.tensor(dataset.std)
    is_right = teacher(x).argmax(-1).numpy() == dataset.y_test
    assert is_right.mean() == finished.records[-1]["test_accuracy"]


def test_a_name_stands_for_the_newest_run_with_a_date_behind_it(tmp_path):
    for name in ("kd-20260101-115959", "kd-20260101-120000", "kd-50-20260202-120000", "kd-9-20250101-120000"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "experiment.yaml").touch()
    assert Teacher(run=str(tmp_path / "kd")).run == str(tmp_path / "kd-20260101-120000")
    assert Teacher(run=str(tmp_path / "kd-9")).run == str(tmp_path / "kd-9-20250101-120000")


def test_a_teacher_of_other_inputs_or_classes_is_refused(tmp_path):
    x, y = np.random.default_rng(0).normal(5, 3, (60, 4)).astype(np.float32), np.arange(60) % 3

    def data(change):
        names = np.array(["cat", "dog", "fox" if change == "names" else "cow"])
        scale = 2 if change == "std" else 1
        arrays = {"x_train": scale * x[:40], "y_train": names[y[:40]], "x_test": x[40:], "y_test": names[y[40:]]}
        np.savez(tmp_path / f"{change}.npz", **arrays)
        partition = {"kind": "iid", "clients": 2}
        return {"task__data": {"name": "npz", "path": str(tmp_path / f"{change}.npz")}, "task__partition": partition}

    folder = run_file(small(tmp_path, **PLAIN, **data("same"))).folder
    check(student(tmp_path, folder, **data("same")), None)
    for change, said in {"std": "other `mean` and `std`", "names": "other names or order of classes"}.items():
        with pytest.raises(UserError, match=f"task.teacher.run: the data of .* have {said} than task.data's"):
            check(student(tmp_path, folder, **data(change)), None)


def test_a_teacher_does_not_change_while_others_learn_from_it(tmp_path):
    first, second = (
        run_file(small(tmp_path / name, **{**PLAIN, "rounds": n})).folder for name, n in (("a", 1), ("b", 2))
    )
    finished = run_file(student(tmp_path, first))
    finished.folder.update(status="interrupted")
    second.checkpoints.rename(tmp_path / "second")
    first.checkpoints.rename(tmp_path / "first")
    (tmp_path / "second").rename(first.checkpoints)
    first.metrics.write_text(second.metrics.read_text())
    with pytest.raises(UserError, match=r"task.teacher.run: the model of .* is not the one from which .* learns"):
        hedgerow.resume(finished.folder.path, show=False)
    first.update(status="running")
    still = r"task.teacher.run: .* is still running, so its model changes; let it finish"
    with RunLock(first.path), pytest.raises(UserError, match=still):
        check(student(tmp_path, first), None)
    # A run whose process was killed changes no more.
    check(student(tmp_path, first), None)


def test_a_run_that_scores_its_model_through_other_layers_cannot_teach(tmp_path):
    maps = {"name": "resnet", "channels": [4, 8], "blocks": [1, 1], "groups": 2}
    settings = {"rounds": 1, "algorithm": {"name": "simkd", "lr": 0.01}, "clients_per_round": "all"}
    task = {"task__model": maps, "task__teacher": {"model": maps, "epochs": 1}}
    finished = run_file(small(tmp_path, **{**PLAIN, **settings, **task}))
    with pytest.raises(UserError, match=r"task.teacher.run: .* scores its model through .*, which is not part of it"):
        check(student(tmp_path, finished.folder.path), None)
    with pytest.raises(UserError, match=r"its model is scored through 'projector.*', which is not part"):
        finished.module()
