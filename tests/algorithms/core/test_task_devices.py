"""A task on another device is a copy: the server's modules stay on the CPU."""

import torch
from torch import nn

from hedgerow.algorithms.core.layer_context import TrainMode, in_train_mode, without_statistics
from hedgerow.algorithms.core.task import Task


def test_a_copy_on_another_device_leaves_the_task_where_it_is():
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()

    module = network()
    mode = TrainMode(in_train_mode(module), without_statistics(module), ("1.running_mean", "1.running_var"))
    task = Task(module, torch.zeros(3), torch.ones(3), teacher=network(), train_mode=mode)
    other = task.to(torch.device("meta"))

    def devices(one: Task) -> set[str]:
        modules = one.module, one.teacher, one.train_mode.module, one.train_mode.untracked
        tensors = [one.mean, one.std, *(t for m in modules for t in (*m.parameters(), *m.buffers()))]
        return {tensor.device.type for tensor in tensors}

    assert devices(task) == {"cpu"}
    assert devices(other) == {"meta"}
