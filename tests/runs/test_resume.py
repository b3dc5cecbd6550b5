"""Nothing is lost: a driver killed outright, torn files, damaged checkpoints."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from helpers import blobs, check_resuming, partition, run_inline, small_task
from processes import FILE, ROUNDS, hedgerow, outcome
from toys import Stateful

from hedgerow.cli import main
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.storage.checkpoint import latest_checkpoint, write_checkpoint
from hedgerow.platform.tracking.tracker import RunLog


@pytest.mark.exhaustive("kills")
def test_a_driver_killed_at_a_random_round_resumes_to_the_same_end(tmp_path):
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    for output in (calm, killed):
        output.mkdir()
        (output / "file.yaml").write_text(yaml.safe_dump({**FILE, "output": str(output / "runs")}))
    calmly = ["resources.executor=inline"]
    overrides = [word for setting in calmly for word in ("--set", setting)]
    # Meanwhile.
    inline = hedgerow("run", str(calm / "file.yaml"), *overrides, stdout=subprocess.DEVNULL)

    victim = hedgerow("run", str(killed / "file.yaml"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    target = random.SystemRandom().randrange(20, ROUNDS // 2)
    while not (folders := list((killed / "runs").glob("killed-*"))) or _rounds(folders[0]) < target:
        assert victim.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    assert _rounds(folders[0]) < ROUNDS
    assert json.loads((folders[0] / "run.json").read_text())["status"] == "running"

    resumed = hedgerow("resume", str(folders[0]), stdout=subprocess.DEVNULL)
    assert resumed.wait(180) == 0
    assert inline.wait(120) == 0
    (undisturbed,) = (calm / "runs").glob("killed-*")
    records, parameters = outcome(folders[0])
    expected_records, expected_parameters = outcome(undisturbed)
    assert records == expected_records
    assert all(torch.equal(parameters[name], expected_parameters[name]) for name in expected_parameters)
    assert json.loads((folders[0] / "run.json").read_text())["status"] == "finished"

    again = CliRunner().invoke(main, ["resume", str(folders[0])])
    assert again.exit_code == 2
    assert "is finished: there is nothing to resume" in again.output


def _rounds(folder: Path) -> int:
    return len(RunLog(folder / "metrics.jsonl").read())


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_run_that_goes_on_from_a_checkpoint_ends_with_the_same_bits(tmp_path, mode):
    data = blobs()
    settings = {
        "clients_per_round": 0.5, "rounds": 8, "engine": EngineConfig(mode=mode, chunk="auto" if mode == "loop" else 2),
    }  # fmt: skip
    hyper = {"lr": 0.1, "batch_size": 8, "clip_norm": 0.5, "pull": 0.3}

    def start(folder):
        return run_inline(
            Stateful, small_task(data), data, partition(np.full(8, 20), seed=0), hyper, folder, **settings
        )

    # Some clients take part for the first time after it, others have their states from the checkpoint.
    check_resuming(start, 3, tmp_path)


def test_resuming_what_is_no_run_is_refused(tmp_path):
    result = CliRunner().invoke(main, ["resume", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not a run" in result.output


def _checkpoint(folder: Path, round: int) -> Path:
    server = {"w": {"a": torch.full((3,), float(round))}, "optimizer": {}}
    target = folder / f"round-{round:08d}"
    write_checkpoint(target, server, {"round": round, "history": []}, lambda aside: {})
    return target


def test_a_checkpoint_without_one_of_its_files_is_passed_over(tmp_path):
    good, bad = _checkpoint(tmp_path, 3), _checkpoint(tmp_path, 6)
    (bad / "server.safetensors").unlink()
    assert latest_checkpoint(tmp_path) == (good, ["round-00000006"])


def test_an_interrupted_write_leaves_no_checkpoint(tmp_path):
    def fail(aside):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(tmp_path / "round-00000001", {"w": {"a": torch.zeros(1)}}, {"round": 1}, fail)
    assert latest_checkpoint(tmp_path) is None


def test_a_torn_last_line_of_metrics_is_left_out(tmp_path):
    log = RunLog(tmp_path / "metrics.jsonl")
    log.append({"round": 1, "x": 0.1})
    log.append({"round": 2, "x": np.nan})
    with log.path.open("a") as file:
        file.write('{"round": 3, "x"')
    assert [record["round"] for record in log.read()] == [1, 2]
    log.replace(log.read()[:1])
    assert log.read() == [{"round": 1, "x": 0.1}]
