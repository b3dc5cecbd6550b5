"""Overhead of a search beyond the training of its experts, as ratios in the same run.

    python benchmarks/search.py [--repeats 3] [--only scheduler search packs lockstep]

Prints a table and writes benchmarks/results/search.json with the command, the versions and the machine.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from measuring import PeakMemory, conditions, write_results
from ray.tune.experiment import Trial

from hedgerow.platform.actors.session import ray_session
from hedgerow.platform.runs.runner import run
from hedgerow.searchspaces.hedge.scheduler import HedgeScheduler
from hedgerow.searchspaces.spaces.search_file import SearchSpec, parse_search
from hedgerow.searchspaces.tune.search_runner import search

EXPERTS = 200
CORES = os.cpu_count() or 1


class Controller:
    """The part of Tune's controller that the scheduler uses."""

    def __init__(self, trials: list[Trial]):
        self.trials = trials

    def get_trials(self) -> list[Trial]:
        return self.trials


def scheduler_cost(rounds: int = 50, turns: bool = False) -> dict[str, float]:
    """Milliseconds per report: handling it and choosing the next trial, with 200 experts and a journal on disk.

    turns: one trial runs at a time while the others are paused, at most a round ahead of each other, and experts of
    small weight are looked for (`prune`); otherwise all run at once.
    """
    settings: dict[str, Any] = {"ahead": 1, "prune": 1e-300} if turns else {}
    with tempfile.TemporaryDirectory() as folder:
        scheduler = HedgeScheduler(EXPERTS, range=(0, 1), journal=Path(folder) / "losses.jsonl", **settings)
        trials = [Trial("benchmark", trial_id=f"x_{i:05d}", stub=True) for i in range(EXPERTS)]
        controller = Controller(trials)
        for trial in trials:
            trial.create_placement_group_factory()
            scheduler.on_trial_add(controller, trial)
            trial.set_status(Trial.PAUSED if turns else Trial.RUNNING)
        spent = []
        for number in range(1, rounds + 1):
            for i, trial in enumerate(trials):
                result = {"loss": ((7 * i + number * (i + 3)) % 11) / 11, "training_iteration": number}
                trial.set_status(Trial.RUNNING)
                start = time.perf_counter()
                scheduler.on_trial_result(controller, trial, result)
                handled = time.perf_counter()
                if turns:
                    trial.set_status(Trial.PAUSED)
                choosing = time.perf_counter()
                scheduler.choose_trial_to_run(controller)
                spent.append(time.perf_counter() - choosing + handled - start)
        assert scheduler.rounds.hedge.rounds == rounds
    mean = sum(spent) / len(spent)
    return {"experts": EXPERTS, "ms per report": round(1e3 * mean, 4), "longest, ms": round(1e3 * max(spent), 2)}


def plan(output: str, rounds: int, engine: dict[str, Any] | None = None, **search: Any) -> SearchSpec:
    """Search over twelve experts of FedProx on digits, each with the same work per round."""
    return parse_search(
        {
            "name": "benchmark",
            "rounds": rounds,
            "participation": 0.1,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.3},
                "model": {"name": "mlp", "hidden": [200]},
            },
            "algorithm": {"name": "fedprox", "epochs": 5, "batch_size": 8},
            "engine": engine or {},
            "tracking": {"enabled": False},
            "output": output,
            "search": {"space": {"algorithm.lr": [0.003, 0.01, 0.03, 0.1], "algorithm.mu": [0.0, 0.01, 1.0]}, **search},
        }
    )


def stream_plan(output: str, rounds: int, **search: Any) -> SearchSpec:
    """Search over twelve experts of MOGD on a stream of tasks of digits, each with the same work per round."""
    return parse_search(
        {
            "name": "benchmark",
            "rounds": rounds,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "stream", "tasks": rounds, "ways": 5, "train": 40, "test": 40},
                "model": {"name": "mlp", "hidden": [200]},
            },
            "algorithm": {"name": "mogd", "steps": 10, "batch_size": 10},
            "evaluation": {"every": rounds},
            "tracking": {"enabled": False},
            "output": output,
            "search": {
                "space": {"algorithm.lr": [0.003, 0.01, 0.03, 0.1], "algorithm.adapt_lr": [0.01, 0.1, 0.3]},
                **search,
            },
        }
    )


class Clock:
    """Records when each round of an expert was reported."""

    def __init__(self) -> None:
        self.labels = [""] * 12
        self.reports: list[tuple[float, int]] = []

    def trial(self, index: int, record: dict[str, Any]) -> None:
        self.reports.append((time.perf_counter(), index))

    def state(self, index: int, text: str) -> None: ...

    def hedge(self, record: dict[str, Any]) -> None: ...


def timed(chosen: SearchSpec, started: int = CORES) -> dict[str, float]:
    """Run a search: its wall time, start-up time, memory, and the time of all rounds at its steady pace.

    The steady pace begins when every process has sent its first report, after all imports. started: number of experts
    that have reported by then.
    """
    clock = Clock()
    began = time.perf_counter()
    with PeakMemory(every=0.5) as peak:
        search(chosen, show=clock)
    whole = time.perf_counter() - began
    firsts = sorted(next(at for at, index in clock.reports if index == i) for i in range(12))
    start = firsts[started - 1]
    share = 1 - sum(at <= start for at, _ in clock.reports) / len(clock.reports)
    return {
        "search, s": round((clock.reports[-1][0] - start) / share, 2),
        "start-up, s": round(firsts[0] - began, 1),
        "whole command, s": round(whole, 1),
        "peak MB": round(peak.megabytes),
    }


def measure_search(rounds: int) -> dict[str, float]:
    """A search of twelve experts, each in its own trial, compared with training them one by one in this process."""
    with tempfile.TemporaryDirectory() as output:
        spec = plan(output, rounds, pack="off")
        times = []
        run(spec.trial({"rounds": 3, "resources.executor": "inline"}))
        for overrides in spec.configurations:
            records = run(spec.trial(overrides | {"resources.executor": "inline"})).records
            times.append(records[-1]["seconds"])
        figures = timed(spec)
    ideal = sum(times) / CORES
    return {
        "experts": 12,
        "rounds": rounds,
        "alone, all experts, s": round(sum(times), 2),
        "alone / cores, s": round(ideal, 2),
        "ratio": round(figures["search, s"] / ideal, 3),
        **figures,
    }


def measure_packs(rounds: int) -> dict[str, Any]:
    """The same search with one trial per expert, packed, and packed with a compiled step."""
    with tempfile.TemporaryDirectory() as output:
        apart, packed = (timed(plan(output, rounds, pack=pack)) for pack in ("off", "auto"))
        compiled = timed(plan(output, rounds, engine={"compile": True}, pack="auto"))

    def share(found: dict[str, float]) -> dict[str, float]:
        return {key: round(found[key] / apart[key], 3) for key in ("search, s", "whole command, s")}

    return {
        "experts": 12,
        "rounds": rounds,
        "apart": apart,
        "packed": packed,
        "compiled": compiled,
        "packed / apart": share(packed),
        "compiled / apart": share(compiled),
    }


def measure_lockstep(rounds: int, repeat: int) -> dict[str, Any]:
    """Packed searches whose rounds are lock-step, and whose experts run ahead; every second time in reverse order.

    Both score the mixture in every round, and deploy the leader.
    """
    ways: dict[str, dict[str, Any]] = {"lock-step": {"ahead": 0}, "ahead": {"ahead": 20, "report_every": 10}}
    found: dict[str, Any] = {"load before, 1 min": round(os.getloadavg()[0], 2)}
    for name, make, length in (("federated", plan, rounds), ("stream", stream_plan, 10 * rounds)):
        times = {}
        for way in list(ways)[:: -1 if repeat % 2 else 1]:
            with tempfile.TemporaryDirectory() as output:
                times[way] = timed(make(output, length, **ways[way]), started=12)
        ratio = round(times["lock-step"]["search, s"] / times["ahead"]["search, s"], 3)
        found[name] = {"rounds": length, **times, "ratio": ratio}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", nargs="+", default=["scheduler", "search", "packs"])
    arguments = parser.parse_args()
    results = conditions()
    if "scheduler" in arguments.only:
        with ray_session():
            results["scheduler"] = scheduler_cost()
            results["scheduler, taking turns"] = scheduler_cost(turns=True)
    if "search" in arguments.only:
        runs = [measure_search(arguments.rounds) for _ in range(arguments.repeats)]
        results["search"] = {"ratio": median(run["ratio"] for run in runs), "runs": runs}
    if "packs" in arguments.only:
        runs = [measure_packs(arguments.rounds) for _ in range(arguments.repeats)]
        results["packs"] = {
            how: {key: median(run[how][key] for run in runs) for key in runs[0][how]}
            for how in ("packed / apart", "compiled / apart")
        } | {"runs": runs}
    if "lockstep" in arguments.only:
        runs = [measure_lockstep(arguments.rounds, repeat) for repeat in range(arguments.repeats)]
        results["lockstep"] = {
            f"{name}, lock-step / ahead": median(run[name]["ratio"] for run in runs) for name in ("federated", "stream")
        } | {"runs": runs}
    write_results("search" if len(arguments.only) == 3 else "-".join(["search", *arguments.only]), results)


if __name__ == "__main__":
    main()
