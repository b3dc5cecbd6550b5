"""Packs of experts that differ in float hyperparameters."""

import numpy as np
from helpers import PackRun, blobs, build, distance, experiment, partition, slots_of, small_task

from hedgerow.algorithms.core.pytree import flatten
from hedgerow.platform.runtime.factory import build_algorithms
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


def check_pack(start, changes, data, rounding) -> None:
    """Check that experts that run together end as each of them ends alone. start: changed settings -> run on `data`."""
    alone = [start(change) for change in changes]
    for one in alone:
        list(one)
    servers = [start(change).servers[0] for change in changes]
    clients = servers[0].experiment.task.partition.draw(data.y_train, data.classes, None, 0)
    algorithms = build_algorithms([server.experiment for server in servers], data, clients)
    list(PackRun(servers, Worker(algorithms, data, clients, 0), [None] * len(servers)))
    for server, one in zip(servers, alone, strict=True):
        assert distance(flatten(server.state), flatten(one.server)) < rounding
