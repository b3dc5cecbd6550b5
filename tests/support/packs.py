"""Packs of experts that differ in float hyperparameters."""

import numpy as np
from helpers import PackRun, blobs, build, experiment, partition, slots_of, small_task

from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.worker import Worker

DATA = blobs()
RAGGED = partition(np.array([3, 60, 17, 1, 40, 59]), seed=1)


def pack(algorithm, hypers, folders=None, **settings) -> PackRun:
    """An inline run of several experts."""
    filled = any(slots_of(hyper).are_filled for hyper in hypers)

    def built():
        return [build(algorithm, hyper, small_task(DATA), always=filled) for hyper in hypers]

    worker = Worker(built(), DATA, RAGGED, 0)
    servers = [
        FederatedServer(experiment(one.inner.hyper, **settings), one, RAGGED, len(DATA.y_test)) for one in built()
    ]
    return PackRun(servers, worker, folders or [None] * len(hypers))
