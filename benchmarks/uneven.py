"""Efficiency with one client actor at half the speed of the others, by simulation and on Ray.

    python benchmarks/uneven.py [--rounds 25] [--actors 4]

The efficiency is the work of a round divided by the sum of the actors' speeds times the duration. "equal" deals clients
by size alone, "measured" in proportion to the speeds (`resources.speeds`). The simulation draws cohorts from ten times
as many clients, with lognormal numbers of samples of deviation 0.5 around 60, and knows the speeds. On Ray, each client
waits for 60 ms in its step, twice as long in one of the actors, so that many actors fit on few cores; the result is the
median of the last ten rounds.

Prints the results, and writes benchmarks/results/uneven.json.
"""

import argparse
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
from balance import WAIT, cohorts, efficiency
from measuring import conditions, small_steps, write_results

from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import minimize
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.assignment import longest_first, near_states

SIMULATED = (4, 10, 100)
PER_ACTOR = 8
"""Number of clients of a round per actor."""


class Uneven(FedAvg):
    """FedAvg whose clients wait in their step, twice as long in the first actor that links to its process id."""

    parts: ClassVar = {}
    no_vmap = "clients wait"

    class Hyper(FedAvg.Hyper):
        name: str = "uneven.Uneven"
        slow: str = ""

    def train(self, hp: Any, down: Any, state: Any, data: Any) -> Any:
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        # Not in the driver, which tries the step out.
        if any("ClientActor" in part for part in psutil.Process().cmdline()):
            link, own = Path(hp.slow), str(os.getpid())
            with suppress(FileExistsError):
                link.symlink_to(own)
            time.sleep(WAIT * (2 if link.readlink().name == own else 1))
        return {"w": w}, {}, {"loss": loss}


def simulate(actors: int, rounds: int) -> dict[str, float]:
    """Mean efficiencies over rounds, for clients without and with states."""
    speeds, results = np.append(np.ones(actors - 1), 0.5), []
    for clients, sizes in cohorts(PER_ACTOR * actors, 0.5, rounds):
        owners = [
            *(longest_first(sizes, known) for known in (np.ones(actors), speeds)),
            *(near_states(clients, sizes, known) for known in (np.ones(actors), speeds)),
        ]
        results.append([efficiency(owner, sizes, speeds) for owner in owners])
    names = ("equal", "measured", "equal, with states", "measured, with states")
    return {name: round(float(mean), 3) for name, mean in zip(names, np.mean(results, axis=0), strict=True)}


def measure(actors: int, rounds: int, speeds: str) -> dict[str, Any]:
    """Efficiency on Ray, over the last ten rounds, and the last recorded speeds."""
    cohort = PER_ACTOR * actors
    with tempfile.TemporaryDirectory() as folder:
        algorithm = {"name": "uneven.Uneven", "lr": 0.01, "steps": 1, "batch_size": 1, "slow": f"{folder}/slow"}
        resources = {"actors": actors, "speeds": speeds}
        finished = run(small_steps(algorithm, rounds, cohort, 2 * cohort, resources, folder))
        changes = finished.speeds
    seconds = np.median(np.diff([record["seconds"] for record in finished.records])[-10:])
    return {
        "actors": actors,
        "clients": cohort,
        "speeds": speeds,
        "efficiency": round(float(cohort * WAIT / ((actors - 0.5) * seconds)), 3),
        "seconds per round": round(float(seconds), 3),
        "changes": changes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--actors", type=int, default=4)
    chosen = parser.parse_args()
    simulated = [
        {"actors": actors, "clients": PER_ACTOR * actors} | simulate(actors, chosen.rounds) for actors in SIMULATED
    ]
    measured = [measure(chosen.actors, chosen.rounds, speeds) for speeds in ("equal", "measured")]
    write_results("uneven", {**conditions(), "simulated": simulated, "measured": measured})


if __name__ == "__main__":
    main()
