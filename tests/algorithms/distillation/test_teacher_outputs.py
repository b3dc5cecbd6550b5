"""Outputs of the teacher are kept where they cannot differ from round to round, and are those of each mini-batch."""

from dataclasses import replace

import image_students
import pytest
import students
import torch
from helpers import distance, run_inline

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.algorithms.distillation import teacher_outputs
from hedgerow.platform.config.registries import algorithm_class

SGD = {"lr": 0.05, "epochs": 1, "batch_size": 10}


class Counting(torch.nn.Module):
    """A teacher that counts the samples of the training set that it sees."""

    def __init__(self):
        super().__init__()
        self.body, self.seen = students.net(6, 12, 4), 0

    def forward(self, x):
        self.seen += len(x)
        return self.body(x)


def on_images(name, **hyper):
    return run_inline(
        algorithm_class(name), image_students.task(), image_students.IMAGES, image_students.EVERYBODY, {**SGD, **hyper}
    )


CASES = {
    "kd": lambda: students.run("kd", warm_start=1),
    "disk": lambda: students.run("disk", student_tau="fit"),
    "fitnet": lambda: on_images("fitnet"),
    "simkd": lambda: on_images("simkd"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_training_is_the_same_with_outputs_of_each_mini_batch(case, monkeypatch):
    kept = case()
    list(kept)
    monkeypatch.setattr(teacher_outputs, "MOST", 0)
    each = case()
    list(each)
    assert distance(flatten(kept.server), flatten(each.server)) < 1e-5


def counted(rounds=4, augment=None, **hyper):
    """A run, and the module of its teacher."""
    task = replace(students.task(None), teacher=Counting(), augment=augment)
    hyper = {**students.SGD, **hyper}
    return run_inline(
        algorithm_class("kd"), task, students.DATA, students.EVERYBODY, hyper, rounds=rounds
    ), task.teacher


def seen(run, teacher):
    """Training samples that the teacher sees in each round after its first."""
    counts = []
    for _ in run:
        counts.append(teacher.seen)
        teacher.seen = 0
    return counts[1:]


def test_the_teacher_sees_each_sample_once():
    assert seen(*counted()) == [0, 0, 0]
    assert seen(*counted(epochs=3)) == [0, 0, 0]


def test_the_teacher_sees_each_mini_batch_where_its_outputs_are_not_kept(monkeypatch):
    n = len(students.DATA.y_train)
    assert seen(*counted(augment=lambda x, key, rows: x + 0.1)) == [n, n, n]
    # A round reads some of the samples only.
    assert seen(*counted(epochs=None, steps=2)) == [60, 60, 60]
    monkeypatch.setattr(teacher_outputs, "MOST", 0)
    assert seen(*counted()) == [n, n, n]


def test_the_outputs_of_another_teacher_are_computed_anew():
    run, teacher = counted()
    next(run)
    run.server["teacher"] = {name: p + 0.1 for name, p in run.server["teacher"].items()}
    teacher.seen = 0
    next(run)
    assert teacher.seen == len(students.DATA.y_train)
    assert seen(run, teacher) == [0]


class Shifted(torch.nn.Module):
    """A teacher with a buffer."""

    def __init__(self):
        super().__init__()
        self.body = students.net(6, 12, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        return self.body(x) + self.shift


def test_outputs_are_computed_on_the_device_of_the_workers_task():
    task = replace(students.task(None), teacher=Shifted())
    run = run_inline(algorithm_class("kd"), task, students.DATA, students.EVERYBODY, students.SGD)
    learner = run.worker.algorithms[0].inner
    # As a worker on a GPU does.
    learner.task = task.to(torch.device("meta"))
    teacher = learner.teacher_task.init()
    batch = Batch(torch.zeros(2, 6, device="meta"), torch.zeros(2, device="meta"), None, 1.0)
    assert learner.says({"teacher": teacher}, batch).logits.device.type == "meta"
