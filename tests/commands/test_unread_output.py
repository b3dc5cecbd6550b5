"""Output of commands whose reader ends, or that has nowhere to go."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from preloaded import PreloadedPython
from tracked_runs import small

from hedgerow.platform.ui.command_output import UnreadOutput


def written(folder: Path, rounds: int) -> str:
    file = folder / "experiment.yaml"
    values = small(folder / "runs", enabled=False).model_dump(mode="json")
    file.write_text(yaml.safe_dump(values | {"rounds": rounds}))
    return str(file)


def status(folder: Path) -> str:
    (record,) = folder.glob("runs/tracked-*/run.json")
    return json.loads(record.read_text())["status"]


def test_a_run_goes_on_when_the_reader_of_its_output_ends(tmp_path):
    command = ["-m", "hedgerow", "run", written(tmp_path, 40)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with PreloadedPython(command, text=True, cwd=tmp_path, **pipes) as process:
        assert process.stdout.readline() == "tracked: 40 rounds\n"
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors, status(tmp_path)) == (0, "", "finished")


def test_a_run_needs_no_standard_streams(tmp_path):
    command = shlex.join([sys.executable, "-m", "hedgerow", "run", written(tmp_path, 2)])
    subprocess.run(["sh", "-c", f"exec {command} <&- >&- 2>&-"], cwd=tmp_path, check=True)
    assert status(tmp_path) == "finished"


def test_output_is_discarded_once_its_reader_has_ended():
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        output = UnreadOutput(stream)
        print("read", file=output, flush=True)
        assert os.read(reader, 100) == b"read\n"
        os.close(reader)
        for _ in range(3):
            print("x" * 100_000, file=output, flush=True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_a_full_disk_does_not_take_is_an_error():
    with pytest.raises(OSError, match="No space left"), Path("/dev/full").open("w") as stream:
        print("lost", file=UnreadOutput(stream), flush=True)
