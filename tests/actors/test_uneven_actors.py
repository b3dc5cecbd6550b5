"""One client actor is slower than the other: it gets fewer samples, and the run can be resumed and repeated."""

import json
import shutil
from collections import Counter
from pathlib import Path

import psutil
import pytest
from ray_runs import hosts_coordinator, same, small

from hedgerow.api import run as run_again
from hedgerow.platform.runs.runner import resume, run
from hedgerow.platform.tracking.run_folder import RunFolder


def samples_by_actor(log: Path, last: int = 0) -> list[Counter[int]]:
    """For each round of 12 clients: number of samples by process. last: of so many rounds; 0: of all."""
    lines = [tuple(map(int, line.split())) for line in log.read_text().splitlines()][-12 * last :]
    rounds = [Counter() for _ in lines[::12]]
    for number, (process, samples) in enumerate(lines):
        rounds[number // 12][process] += samples
    return rounds


def shares(log: Path, last: int = 0) -> list[list[int]]:
    return [sorted(by_actor.values()) for by_actor in samples_by_actor(log, last)]


@pytest.mark.usefixtures("kept")
@pytest.mark.exhaustive("processes")
def test_a_slow_actor_gets_fewer_samples_and_the_numbers_can_be_repeated(tmp_path):
    log = tmp_path / "log"
    slow = {"name": "toys.Uneven", "epochs": 2, "batch_size": 8, "slow_file": str(tmp_path / "slow")}
    settings = {
        "rounds": 12,
        "participation": 1.0,
        "engine": {"mode": "loop"},
        "checkpoints": {"every": 4, "keep": 3},
        "algorithm": {**slow, "log_file": str(log)},
        "resources": {"executor": "ray", "actors": 2, "cpus_per_actor": 1, "speeds": "measured"},
    }
    whole = run(small(tmp_path / "whole", **settings))
    changes = whole.speeds
    assert changes[0]["from_round"] == 6
    assert max(changes[0]["speeds"]) == 1 > 0.75 > min(changes[0]["speeds"])
    victim, dealt = int((tmp_path / "slow").readlink().name), shares(log)
    total = sum(dealt[0])
    of_victim = [by_actor[victim] for by_actor in samples_by_actor(log)]
    assert of_victim[:5] == [total / 2] * 5
    assert max(of_victim[5:]) < 0.45 * total

    # As if the run had been killed after round 12, and only the checkpoint of round 4 were intact.
    folder = tmp_path / "resumed" / whole.folder.name
    shutil.copytree(whole.folder.path, folder)
    for round in (8, 12):
        shutil.rmtree(folder / "checkpoints" / f"round-{round:08d}")
    RunFolder(folder).update(status="interrupted")
    resumed = resume(str(folder))
    assert resumed.speeds == changes
    assert same(resumed, whole)
    assert shares(log)[12:] == dealt[4:]

    # No actor is slow in the repeated run.
    calm = {**slow, "factor": 1.0, "log_file": str(tmp_path / "again")}
    repeated = run_again(
        small(tmp_path / "repeated", **settings | {"algorithm": calm}),
        resources__speeds=changes,
        engine__plans=whole.plans,
        show=False,
    )
    assert repeated.speeds == changes
    assert same(repeated, whole)
    assert shares(tmp_path / "again") == dealt


@pytest.mark.exhaustive("kills")
@pytest.mark.usefixtures("ray_here")
def test_a_coordinator_that_dies_goes_on_with_the_recorded_speeds(tmp_path):
    victims: list[psutil.Process] = []
    seen: list[list[dict]] = []

    def kill_once(record):
        if record["round"] >= 7 and not victims:
            (folder,) = (tmp_path / "run").iterdir()
            seen.append(json.loads((folder / "run.json").read_text())["speeds"])
            victims.extend(p for p in psutil.Process().children(recursive=True) if hosts_coordinator(p))
            victims[0].kill()

    slow = {"name": "toys.Uneven", "epochs": 2, "batch_size": 8, "slow_file": str(tmp_path / "slow")}
    settings = {
        "rounds": 14,
        "participation": 1.0,
        "engine": {"mode": "loop"},
        "checkpoints": {"every": 4},
        "resources": {"executor": "ray", "actors": 2, "cpus_per_actor": 1, "speeds": "measured"},
    }
    run_folder, log = tmp_path / "run", tmp_path / "log"
    disturbed = run(small(run_folder, **settings, algorithm={**slow, "log_file": str(log)}), show=kill_once)
    assert len(victims) == 1
    assert disturbed.speeds[: len(seen[0])] == seen[0]
    assert seen[0][0]["from_round"] == 6
    repeated = run_again(
        small(tmp_path / "repeated", **settings, algorithm={**slow, "log_file": str(tmp_path / "again")}),
        resources__speeds=disturbed.speeds,
        engine__plans=disturbed.plans,
        show=False,
    )
    assert same(repeated, disturbed)
    # Rounds in between ran twice in the disturbed run.
    assert shares(log)[:7] == shares(tmp_path / "again")[:7]
    assert shares(log, last=5) == shares(tmp_path / "again", last=5)
