"""Efficiency of the assignment of clients with states to actors, by simulation and on Ray.

    python benchmarks/balance.py [--rounds 20] [--actors 4 16] [--waits 0.06 0.5]

The efficiency is the work of a round divided by the number of actors times the work of the busiest actor. "At home"
runs every client where its state is kept, "balanced" is what Hedgerow does. The simulation draws cohorts from ten times
as many clients, with 60 samples each, or with lognormal numbers of samples of deviation 0.5. On Ray, each client waits
in its step in place of a computation, so that many actors fit on few cores; the efficiency is the waiting time of the
cohort divided by the number of actors times the duration of the exchange.

Prints the results, and writes benchmarks/results/balance.json.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from measuring import conditions, small_steps, write_results

from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import minimize
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.assignment import near_states, owner_of

SIMULATED = (10, 100, 1000)


class Waiting(FedAvg):
    """FedAvg whose clients keep their last model, and wait for `wait` seconds in their step."""

    parts: ClassVar = {}
    no_vmap = "clients wait"

    class Hyper(FedAvg.Hyper):
        name: str = "balance.Waiting"
        wait: float = 0.06

    def init_client(self) -> Any:
        return {"last": self.task.init()}

    def train(self, hp: Any, down: Any, state: Any, data: Any) -> Any:
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        time.sleep(hp.wait)
        return {"w": w}, {"last": w}, {"loss": loss}


def cohorts(cohort: int, deviation: float, rounds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Clients of each round, drawn from ten times as many, and their lognormal numbers of samples."""
    rng = np.random.default_rng(0)
    population = np.maximum(1, np.round(60 * rng.lognormal(0, deviation, 10 * cohort))).astype(int)
    for _ in range(rounds):
        clients = np.sort(rng.choice(len(population), cohort, replace=False))
        yield clients, population[clients]


def efficiency(owner: np.ndarray, sizes: np.ndarray, speeds: np.ndarray) -> float:
    """Share of the actors' time that is work."""
    seconds = np.bincount(owner, sizes, len(speeds)) / speeds
    return float(sizes.sum() / (speeds.sum() * seconds.max()))


def simulate(actors: int, per_actor: int, deviation: float, rounds: int) -> dict[str, float]:
    """Mean efficiencies over rounds, and the share of the clients whose states travel."""
    speeds, results = np.ones(actors), []
    for clients, sizes in cohorts(per_actor * actors, deviation, rounds):
        home, owner = owner_of(clients, actors), near_states(clients, sizes, speeds)
        results.append((efficiency(home, sizes, speeds), efficiency(owner, sizes, speeds), (owner != home).mean()))
    before, after, moved = np.mean(results, axis=0)
    return {"at home": round(before, 3), "balanced": round(after, 3), "states that travel": round(moved, 3)}


def measure(actors: int, per_actor: int, wait: float, rounds: int) -> float:
    """Efficiency on Ray, over the rounds after the first ones."""
    cohort = per_actor * actors
    with tempfile.TemporaryDirectory() as folder:
        algorithm = {"name": "balance.Waiting", "wait": wait, "lr": 0.01, "steps": 1, "batch_size": 1}
        finished = run(small_steps(algorithm, rounds, cohort, 4 * cohort, {"actors": actors}, folder))
    seconds = np.diff([record["seconds"] for record in finished.records])[2:]
    return round(float(per_actor * wait / np.median(seconds)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--actors", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--waits", type=float, nargs="+", default=[0.06, 0.5])
    chosen = parser.parse_args()
    simulated = [
        {"actors": actors, "clients": per_actor * actors, "deviation": deviation}
        | simulate(actors, per_actor, deviation, chosen.rounds)
        for actors in SIMULATED
        for per_actor in (1, 2, 4, 10)
        for deviation in (0.0, 0.5)
    ]
    measured = [
        {"actors": n, "clients": 4 * n, "seconds": wait, "efficiency": measure(n, 4, wait, chosen.rounds)}
        for wait in chosen.waits
        for n in chosen.actors
    ]
    write_results("balance", {**conditions(), "simulated": simulated, "measured": measured})


if __name__ == "__main__":
    main()
