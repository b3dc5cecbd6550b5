"""Packs of experts that differ in floats."""

import numpy as np
from helpers import blobs, experiment, partition, small_task

from hedgerow.platform.executors import InlineExecutor
from hedgerow.platform.federated import FederatedRun
from hedgerow.platform.learner import Learner
from hedgerow.platform.worker import Worker

DATA = blobs()
RAGGED = partition(np.array([3, 60, 17, 1, 40, 59]), seed=1)


def pack(algorithm, hypers, folders=None, **settings) -> FederatedRun:
    """An inline run of several experts."""
    values = [algorithm.Hyper(**hyper) for hyper in hypers]
    wanted = [experiment(value, **settings) for value in values]
    worker = Worker([algorithm(value, small_task(DATA)) for value in values], DATA, RAGGED, 0)
    learners = [Learner(one, algorithm(one.algorithm, small_task(DATA)), RAGGED, len(DATA.y_test)) for one in wanted]
    return FederatedRun(learners, InlineExecutor(worker), folders or [None] * len(values))
