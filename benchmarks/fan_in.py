"""Memory of the coordinator and time of a round when many actors on several nodes return large sums.

    python benchmarks/fan_in.py [--nodes 4] [--actors 16] [--megabytes 25 100] [--rounds 4] [--sums flat tree]

FedAvg, one client per actor, one local step on one sample, with an MLP of the given size (float32). "flat": every actor
returns its float64 sum to the coordinator. "tree": the actors add their sums up in pairs, and the coordinator receives
the mean in float32, as Hedgerow does from sums of 8 MB on if the actors are on several nodes. The nodes are raylets on
this machine, so that transfers take time of its cores and no network. The bytes that the coordinator's node receives
are computed, for a cluster with one actor on each node.

Prints the results, and writes benchmarks/results/fan_in.json.
"""

import argparse
import tempfile
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import psutil
from flat_sums import Flat
from measuring import conditions, write_results
from ray.cluster_utils import Cluster

from hedgerow.platform.actors import client_actor
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.runner import run

INPUTS, CLASSES = 64, 10


def _coordinator() -> psutil.Process | None:
    """The coordinator's process."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "ray::CoordinatorActor" in "".join(process.cmdline()):
                return process
    return None


class Peak:
    """Private memory of the coordinator's process in MB, sampled."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        found = None
        while not self._stop.wait(0.02):
            with suppress(psutil.Error):
                found = found or _coordinator()
                if found:
                    memory = found.memory_info()
                    self.values.append((memory.rss - memory.shared) / 1e6)


def measure(address: str, actors: int, megabytes: float, rounds: int) -> dict[str, float]:
    """Peak memory of the coordinator and median seconds of a round."""
    width = int(megabytes * 1e6 / 4 / (INPUTS + CLASSES + 2))
    with tempfile.TemporaryDirectory() as folder, Peak() as peak:
        finished = run(
            parse_experiment(
                {
                    "name": "fan-in",
                    "output": folder,
                    "rounds": rounds,
                    "clients_per_round": actors,
                    "task": {
                        "data": {"name": "digits"},
                        "partition": {"kind": "iid", "clients": 4 * actors},
                        "model": {"name": "mlp", "hidden": [width]},
                    },
                    "algorithm": {"name": "fedavg", "lr": 0.01, "steps": 1, "batch_size": 1},
                    "evaluation": {"every": 1000, "clients": 0},
                    "checkpoints": {"every": 0},
                    "tracking": {"enabled": False},
                    "engine": {"mode": "loop"},
                    "resources": {"executor": "ray", "actors": actors, "placement": "spread"},
                }
            ),
            address=address,
        )
    seconds = np.diff([record["seconds"] for record in finished.records])[1:]
    return {"coordinator_peak_mb": round(max(peak.values)), "round_seconds": round(float(np.median(seconds)), 2)}


def received(actors: int, megabytes: float) -> dict[str, float]:
    """MB that the coordinator's node receives in an exchange, with one actor on each node."""
    return {"flat": 2 * actors * megabytes, "tree": megabytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--actors", type=int, default=16)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[25, 100])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sums", nargs="+", choices=["flat", "tree"], default=["flat", "tree"])
    chosen = parser.parse_args()
    tree, results = client_actor.ClientActor, []
    # Room for all sums, and as much again: by default such a node has 150 MB, and would move sums to the disk.
    store = int(4e6 * chosen.actors * max(chosen.megabytes))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": store})
    try:
        for _ in range(chosen.nodes):
            share = -(-chosen.actors // chosen.nodes)
            # All stores together must fit into the shared memory of this machine.
            cluster.add_node(num_cpus=share, object_store_memory=2 * store * share // chosen.actors)
        for megabytes in chosen.megabytes:
            for name in chosen.sums:
                client_actor.ClientActor = Flat if name == "flat" else tree  # type: ignore[misc]
                case = {"nodes": chosen.nodes, "actors": chosen.actors, "model_mb": megabytes, "sums": name}
                results.append(case | measure(cluster.address, chosen.actors, megabytes, chosen.rounds))
                print(results[-1], flush=True)
    finally:
        cluster.shutdown()
    modelled = [{"actors": n, "model_mb": 100} | received(n, 100) for n in (16, 50, 200, 1000)]
    write_results("fan_in", {**conditions(), "measured": results, "node_receives_mb": modelled})


if __name__ == "__main__":
    main()
