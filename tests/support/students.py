"""Small teachers and students."""

from itertools import pairwise

import torch
from helpers import blobs, partition, run_inline
from torch import nn

from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.optim.pretraining import TeacherTraining
from hedgerow.platform.config.registries import algorithm_class

DATA = blobs(samples=160, classes=4)
EVERYBODY = partition(torch.tensor([len(DATA.y_train)]).numpy())
SGD = {"lr": 0.1, "momentum": 0.9, "epochs": 1, "batch_size": 30}


def net(*widths, norm=False):
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), *([StaticBatchNorm2d(outputs)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers[: -1 - norm])


def built(seed):
    torch.manual_seed(seed)
    return net(6, 3, 4)


def task(teacher_training=TeacherTraining(epochs=3)):  # noqa: B008
    torch.manual_seed(0)
    scaling = (torch.from_numpy(DATA.mean), torch.from_numpy(DATA.std))
    teacher = net(6, 12, 4, norm=True)
    return Task(
        net(6, 3, 4), *scaling, build=built, sample_shape=(6,), teacher=teacher, teacher_training=teacher_training
    )


def run(name, rounds=3, folder=None, **hyper):
    own = {"guide_hidden": [5], "top_k": 2} if name == "disk" else {}
    return run_inline(algorithm_class(name), task(), DATA, EVERYBODY, {**SGD, **own, **hyper}, folder, rounds=rounds)
