"""Cost of an exchange apart from the clients' work: wall time and the coordinator's processor time per round.

    python benchmarks/round_overhead.py [--actors 1 8 16] [--rounds 200]

FedAvg on scikit-learn's digits with logistic regression, one client with one mini-batch of 8 per actor and round; the
coordinator runs in this process. With more actors than cores, most of the wall time is that of the actors' processes.

Prints the results, and writes benchmarks/results/round_overhead.json.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import ray
from measuring import conditions, small_steps, write_results

from hedgerow.algorithms.core.own_code import Surroundings
from hedgerow.platform.actors.client_actor import ActorSpec, RayExecutor
from hedgerow.platform.actors.placement import reserved
from hedgerow.platform.actors.session import ray_session
from hedgerow.platform.actors.shared_data import share
from hedgerow.platform.actors.silence import Signs
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator

WARM = 20
"""Rounds that do not count."""


def measure(actors: int, rounds: int) -> dict[str, float]:
    """Milliseconds per round."""
    algorithm = {"name": "fedavg", "lr": 0.1, "steps": 1, "batch_size": 8}
    experiment = small_steps(algorithm, rounds + WARM, actors, 64, {"actors": actors})
    dataset, partition = check(experiment, None)
    with tempfile.TemporaryDirectory() as folder:
        signs = Signs(Path(folder) / ".signs")
        signs.begin()
        spec = ActorSpec([experiment], Surroundings.here(), share(dataset), ray.put(vars(partition)))
        kinds = experiment.resources.kinds * actors
        with reserved(experiment.resources, kinds) as group:
            executor = RayExecutor(spec, group, list(range(actors)), signs, kinds, kinds)
            coordinator = build_coordinator([experiment], dataset, partition, executor, [Path(folder) / "checkpoints"])
            walls, cpus = [], []
            for _ in range(WARM + rounds - 1):
                wall, cpu = time.perf_counter(), time.process_time()
                coordinator.next_round()
                walls.append(time.perf_counter() - wall)
                cpus.append(time.process_time() - cpu)
            executor.close()
    walls, cpus = (1e3 * np.array(times[WARM:]) for times in (walls, cpus))
    return {
        "actors": actors,
        "wall ms, median": round(float(np.median(walls)), 2),
        "wall ms, 10th percentile": round(float(np.quantile(walls, 0.1)), 2),
        "coordinator's cpu ms, median": round(float(np.median(cpus)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=200)
    chosen = parser.parse_args()
    with ray_session():
        results = [measure(actors, chosen.rounds) for actors in chosen.actors]
    write_results("round_overhead", {**conditions(), "results": results})


if __name__ == "__main__":
    main()
