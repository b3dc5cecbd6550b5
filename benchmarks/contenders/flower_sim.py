"""Flower's simulation on Ray: a ClientApp on each of two CPUs, and FedAvg as the server's strategy."""

import os
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bare import Outcome, train_share
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Job

client_app = ClientApp()


@cache
def resident() -> tuple[Job, torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Job, model and data, loaded once in each of Ray's actors, which Flower keeps for the whole run."""
    torch.set_num_threads(1)
    job = Job(Path(os.environ["HEDGEROW_BENCH_JOB"]))
    return job, *job.load()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    job, module, x, y = resident()
    config = message.content.config_records["config"]
    rows = torch.from_numpy(job.rows[config["server-round"] - 1, [config["position"]]])
    arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
    names = [name for name, _ in module.named_parameters()]
    # The arrays may be read-only views of Ray's buffers; they are only copied from.
    w = {name: torch.tensor(array) for name, array in zip(names, arrays, strict=True)}
    trained = train_share(module, w, rows, x, y, job.lr)
    reply = {
        "arrays": ArrayRecord([p.numpy() for p in trained.values()]),
        "metrics": MetricRecord({"num-examples": rows.numel()}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


class GivenCohorts(FedAvg):
    """FedAvg with the job's cohorts instead of sampled ones; records when each round ends."""

    def __init__(self, cohorts: np.ndarray, population: int) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.cohorts, self.population = cohorts, population
        self.moments = [time.time()]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        # Flower gives its nodes random ids and registers them while the server starts: client k is the k-th node.
        while len(nodes := sorted(grid.get_node_ids())) < self.population:
            time.sleep(0.01)
        for position, client in enumerate(self.cohorts[server_round - 1]):
            place = ConfigRecord({"server-round": server_round, "position": position})
            content = RecordDict({"arrays": arrays, "config": place})
            yield Message(content=content, message_type="train", dst_node_id=nodes[client])

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        aggregate = super().aggregate_train(server_round, replies)
        self.moments.append(time.time())
        return aggregate


def run(job: Job) -> Outcome:
    os.environ["HEDGEROW_BENCH_JOB"] = str(job.folder)
    strategy = GivenCohorts(job.cohorts, job.settings["population"])
    server_app = ServerApp()
    outcome: dict[str, Any] = {}
    module = job.load()[0]

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        # By default, Flower's server polls for replies only ten times per second.
        grid.pull_interval = 0.01
        arrays = ArrayRecord([p.detach().numpy() for p in module.parameters()])
        result = strategy.start(grid, arrays, num_rounds=len(job.cohorts))
        outcome["arrays"] = result.arrays.to_numpy_ndarrays()

    run_simulation(
        server_app,
        client_app,
        num_supernodes=job.settings["population"],
        backend_config={"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    names = [name for name, _ in module.named_parameters()]
    return strategy.moments, dict(zip(names, outcome["arrays"], strict=True))
