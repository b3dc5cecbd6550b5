"""Builds coordinator, executor and worker of a run, in whichever process they are."""

from pathlib import Path
from typing import Any

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.coordinator import Coordinator
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.factory import build_algorithms
from hedgerow.platform.runtime.online_server import OnlineServer
from hedgerow.platform.runtime.process import init_process
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.state_store import StateStore
from hedgerow.platform.runtime.transport import InProcess, Transport
from hedgerow.platform.runtime.worker import Worker
from hedgerow.platform.storage.run_lock import Claim


def build_coordinator(
    experiments: list[Experiment],
    dataset: Dataset,
    partition: Partition,
    checkpoints: list[Path],
    claim: Claim | None = None,
    transport: Transport | None = None,
    parts: int = 1,
) -> Coordinator:
    """Coordinator of one experiment, or of several that differ only in floats of their algorithm.

    transport: None: one worker in this process. For the other arguments see Executor and Coordinator.
    """
    servers = build_servers(experiments, dataset, partition)
    if transport is None:
        resources = experiments[0].resources
        init_process(resources.threads, resources=resources)
        transport = InProcess(lambda: Worker(*worker_arguments(experiments, dataset, partition)))
    return Coordinator(servers, build_executor(servers, transport, parts), list(checkpoints), claim)


def build_executor(servers: list[FederatedServer], transport: Transport, parts: int = 1) -> Executor:
    """Executor of these servers. parts: number of parts of an exchange."""
    stores = [
        StateStore(server.initial_client_state, server.population, server.participants, transport.memory)
        if server.initial_client_state
        else None
        for server in servers
    ]
    return Executor([server.experiment for server in servers], transport, parts, stores)


def build_servers(experiments: list[Experiment], dataset: Dataset, partition: Partition) -> list[FederatedServer]:
    """Server of each experiment: rounds over clients, or over the tasks of a stream."""
    algorithms = build_algorithms(experiments, dataset, partition)
    return [
        OnlineServer(experiment, algorithm, partition, dataset)
        if algorithm.inner.trains_on == "stream"
        else FederatedServer(experiment, algorithm, partition, len(dataset.y_test))
        for experiment, algorithm in zip(experiments, algorithms, strict=True)
    ]


def worker_arguments(experiments: list[Experiment], dataset: Dataset, partition: Partition) -> tuple[Any, ...]:
    """Arguments of a Worker for these experiments."""
    first = experiments[0]
    algorithms = build_algorithms(experiments, dataset, partition)
    return algorithms, dataset, partition, first.seed, first.resources, first.evaluation.follows
