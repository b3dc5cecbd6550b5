"""Builds coordinator, executor and worker of a run, in whichever process they are."""

from pathlib import Path
from typing import Any, cast

from hedgerow.algorithms.online.online_algorithm import Online
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.coordinator import Coordinator
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.factory import build_algorithms
from hedgerow.platform.runtime.online_server import OnlineServer
from hedgerow.platform.runtime.process import init_process
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.worker import Worker
from hedgerow.platform.storage.run_lock import Claim


def build_coordinator(
    experiments: list[Experiment],
    dataset: Dataset,
    partition: Partition,
    executor: Executor | None,
    checkpoints: list[Path],
    claim: Claim | None = None,
) -> Coordinator:
    """Coordinator of one experiment, or of several that differ only in floats of their algorithm.

    executor: None for one worker in this process. For the other arguments see Coordinator.
    """
    executor = executor or inline_executor(experiments, dataset, partition)
    return Coordinator(build_servers(experiments, dataset, partition), executor, list(checkpoints), claim)


def build_servers(experiments: list[Experiment], dataset: Dataset, partition: Partition) -> list[FederatedServer]:
    """Server of each experiment: rounds over clients, or over the tasks of a stream."""
    algorithms = build_algorithms(experiments, dataset, partition)
    return [
        OnlineServer(experiment, cast(Online, algorithm), partition, dataset)
        if algorithm.learns_stream
        else FederatedServer(experiment, algorithm, partition, len(dataset.y_test))
        for experiment, algorithm in zip(experiments, algorithms, strict=True)
    ]


def inline_executor(
    experiments: list[Experiment], dataset: Dataset, partition: Partition, num_shards: int = 1
) -> Executor:
    """Executor with one worker in this process, which runs all shares of the work. See Executor for the arguments."""
    resources = experiments[0].resources
    init_process(resources.threads, resources=resources)
    worker = Worker(*worker_arguments(experiments, dataset, partition))
    return Executor(experiments, worker, num_shards)


def worker_arguments(experiments: list[Experiment], dataset: Dataset, partition: Partition) -> tuple[Any, ...]:
    """Arguments of a Worker that hosts the clients of these experiments."""
    first = experiments[0]
    algorithms = build_algorithms(experiments, dataset, partition)
    return algorithms, dataset, partition, first.seed, first.resources, first.evaluation.follows
