"""A task with two exits, for FedHeN and related algorithms."""

import numpy as np
import torch
from helpers import dataset, partition, run_inline

from hedgerow.algorithms.core.messages import Aggregate
from hedgerow.algorithms.core.task import Task
from hedgerow.platform.config import registries
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.models.early_exit import EarlyExit

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 160)
X = (RNG.normal(size=(3, 2, 6, 6))[Y] + 0.3 * RNG.normal(size=(160, 2, 6, 6))).astype(np.float32)
DATA = dataset(X, Y, test=40)
CLIENTS = partition(np.full(6, 20))
LOCAL = {"lr": 0.1, "epochs": 1, "batch_size": 10, "clip_norm": 10.0}


def task(seed=0):
    torch.manual_seed(seed)
    return Task(EarlyExit(2, 3, [4, 6], [1, 1], 1, 2), torch.zeros(()), torch.ones(()), sample_shape=(2, 6, 6))


def run(name, mode=("loop", 1), rounds=3, folder=None, kind=None, clients_per_round="all", data=DATA, **hyper):
    settings = {
        "rounds": rounds,
        "engine": EngineConfig(mode=mode[0], chunk=mode[1]),
        "clients_per_round": clients_per_round,
    }
    return run_inline(kind or algorithm_class(name), task(), data, CLIENTS, {**LOCAL, **hyper}, folder, **settings)


def algorithm(name, **hyper):
    return algorithm_class(name)(registries.algorithms.section(name)(**{**LOCAL, **hyper}), task())


def answered(one, values, part):
    """Aggregate of replies in which every parameter of client i is values[i]."""
    w = one.task.init()
    w = one.early(w) if part else w
    sums = {key: torch.full_like(p, float(sum(values))) for key, p in w.items()}
    return Aggregate({"w": sums}, np.ones(len(values), bool), {})
