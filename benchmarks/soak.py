"""A search whose processes are killed at random all the time: nothing may be lost, and memory must stay flat.

    python benchmarks/soak.py [--minutes 60] [--every 30] [--rounds N] [--seed 0]

The same search runs twice at the same time: undisturbed, and with a SIGKILL every --every seconds, once it trains
again, to a client actor, to a trial (Tune's actor, which is its coordinator) or to the driver, which is then resumed.
The kills stop after --minutes or with the search. Both searches must end with the same metrics, models and Hedge
weights, bit for bit. Without --rounds, the number of rounds is what one search alone trains in 0.45 times the minutes.

Prints the results, and writes them to benchmarks/results/soak.json.
"""

import argparse
import signal
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from disturbance import Disturbance, Search
from measuring import PeakMemory, conditions, write_results
from mlflow.tracking import MlflowClient

from hedgerow.platform.storage.checkpoint import latest_checkpoint
from hedgerow.platform.tracking.mlflow_store import default_uri
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.tracker import RunLog

CALIBRATION = 60
"""Rounds of a first search, which determines how many rounds fit into the time."""

SHARE = 0.45
"""Share of the minutes that one search alone would take. Two run at a time, and the disturbed one restarts often."""


def left_behind(search: Search) -> dict[str, Any]:
    """Everything that must not be lost: every expert's records and last model, and Hedge's own records."""
    assert search.folder is not None
    contents: dict[str, Any] = {"hedge": RunLog(search.folder / "metrics.jsonl").read()}
    for expert in sorted((search.folder / "experts").iterdir()):
        records = RunLog(expert / "metrics.jsonl").read()
        contents[f"{expert.name} records"] = [{k: v for k, v in one.items() if k != "seconds"} for one in records]
        last = latest_checkpoint(expert / "checkpoints")
        contents[f"{expert.name} model"] = (last[0] / "server.safetensors").read_bytes() if last else b""
    return contents


def untidy(search: Search) -> dict[str, Any]:
    """Leftovers to rule out after the end: half-written files, and MLflow runs that have not ended or miss rounds."""
    assert search.folder is not None
    files = [file for file in search.folder.rglob("*") if file.name.startswith(".") and not file.name.endswith(".lock")]
    client = MlflowClient(default_uri(search.home / "runs"))
    runs = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])]
    recorded = [len(client.get_metric_history(run.info.run_id, "traffic/transmissions")) for run in runs]
    return {
        "status": RunFolder(search.folder).record()["status"],
        "half-written files": len(files),
        "MLflow runs": dict(Counter(run.info.status for run in runs)),
        "rounds in MLflow": sorted(recorded, reverse=True)[: len(search.trained)],
    }


def steady(samples: list[tuple[float, float]], every: float) -> list[tuple[float, float]]:
    """Peak memory of each interval between two kills, with its time: right after a kill, some processes are missing."""
    parts: dict[int, list[tuple[float, float]]] = {}
    for second, megabytes in samples:
        parts.setdefault(int(second / every), []).append((second, megabytes))
    return [max(part, key=lambda sample: sample[1]) for part in parts.values()]


def slope(points: list[tuple[float, float]]) -> dict[str, float]:
    """MB per hour by least squares, with its standard error; nothing for fewer than three points."""
    if len(points) < 3:
        return {}
    hours, megabytes = np.array(points).T
    hours = hours / 3600
    centred = hours - hours.mean()
    per_hour = float(centred @ megabytes / (centred @ centred))
    rest = megabytes - megabytes.mean() - per_hour * centred
    error = float(np.sqrt(rest @ rest / (len(rest) - 2) / (centred @ centred)))
    return {"MB": round(float(megabytes.mean())), "MB per hour": round(per_hour), "standard error": round(error)}


def affordable(search: Search, minutes: float) -> int:
    """Number of rounds that an undisturbed search trains in SHARE of the minutes, estimated from a short search."""
    search.wait()
    assert search.folder is not None
    clocks = [RunLog(file).read() for file in search.folder.glob("experts/*/metrics.jsonl")]
    per_round = max((c[-1]["seconds"] - c[9]["seconds"]) / (len(c) - 10) for c in clocks)
    return max(2, round(SHARE * 60 * minutes / per_round / 10)) * 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=30)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # SIGTERM ends the script like Ctrl-C, so that no search keeps running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        # Paths of Ray's sockets must be short.
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp")))

        def start(name: str, rounds: int) -> Search:
            search = Search(home / name, rounds)
            stack.callback(search.end)
            return search

        rounds = arguments.rounds or affordable(start("a", CALIBRATION), arguments.minutes)
        # Both run at the same time: they share the machine, and nothing else.
        calm, search = start("b", rounds), start("c", rounds)
        with PeakMemory(every=1.0, marker=search.marker) as memory:
            disturbance = Disturbance(search, memory, arguments.every, arguments.minutes, arguments.seed)
            disturbance.carry_out()
        calm.wait()
        expected, actual = left_behind(calm), left_behind(search)
        results = conditions() | {
            "experts": len(calm.trained),
            "rounds": rounds,
            "minutes disturbed": round(disturbance.minutes, 1),
            "kills": dict(Counter(kill["what"] for kill in disturbance.kills)),
            "rounds run again, at most": sum(kill["rounds run again, at most"] for kill in disturbance.kills),
            "equal": {name: actual.get(name) == value for name, value in expected.items()},
            "memory": slope(steady(disturbance.while_it_trained(memory.samples), arguments.every))
            | {"most": round(memory.megabytes)},
            "processes left behind": disturbance.orphans,
            **untidy(search),
            "each kill": disturbance.kills,
        }
        write_results("soak", results)
    sys.exit(0 if all(results["equal"].values()) and actual.keys() == expected.keys() else 1)


if __name__ == "__main__":
    main()
