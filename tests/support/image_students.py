"""A small image teacher, and a student with feature maps."""

import numpy as np
import torch
from helpers import dataset, partition
from pydantic import TypeAdapter

from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.optim.pretraining import TeacherTraining
from hedgerow.platform.config.registries import ModelConfig
from hedgerow.platform.models.torchvision_nets import resnet

RNG = np.random.default_rng(0)
IMAGES = dataset(RNG.normal(size=(40, 1, 8, 8)).astype(np.float32), np.arange(40) % 3, 10)
EVERYBODY = partition(np.array([30]))


def task():
    torch.manual_seed(0)
    student, teacher = (resnet(1, 3, w, [w, 2 * w], [1, 1], StaticBatchNorm2d) for w in (2, 4))
    scaling = (torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    return Task(
        student,
        *scaling,
        sample_shape=(1, 8, 8),
        teacher=teacher,
        teacher_training=TeacherTraining(epochs=1, batch_size=10),
    )


parse = TypeAdapter(ModelConfig).validate_python
