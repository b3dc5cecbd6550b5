"""What docs/faults.md promises: full disks, notices of termination, damaged checkpoints."""

import json
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_ray import numbers, same, small

from hedgerow.platform import runner
from hedgerow.platform.errors import UserError
from hedgerow.platform.runner import resume, run

INLINE = {"resources__executor": "inline"}


def leftovers(folder: Path) -> list[Path]:
    """Files and folders of writes that were not brought to their end."""
    return [*folder.rglob("*.tmp"), *folder.rglob(".round-*")]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return run(small(tmp_path_factory.mktemp("calm"), rounds=9, **INLINE))


@pytest.fixture
def each_round(monkeypatch):
    """The driver hears of every round by itself."""
    monkeypatch.setattr(runner, "BEAT", 0.0)


@contextmanager
def small_disk(place: Path, size: str):
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.usefixtures("each_round")
def test_a_full_disk_ends_in_a_sentence_and_the_run_resumes(tmp_path, calm):
    with small_disk(tmp_path / "disk", "2m") as disk:
        ballast = disk / "ballast"

        def fill(record):
            if record["round"] == 3:
                stat = os.statvfs(disk)
                ballast.write_bytes(bytes(stat.f_bavail * stat.f_bsize - 3 * stat.f_bsize))

        with pytest.raises(UserError, match=r"^checkpoints: .*round-00000004 cannot be written .*No space left"):
            run(small(disk, rounds=9, **INLINE), show=fill)
        (folder,) = disk.glob("small-*")
        assert [found.name for found in (folder / "checkpoints").iterdir()] == ["round-00000002"]
        assert json.loads((folder / "run.json").read_text())["status"] == "failed"
        assert not leftovers(disk)
        ballast.unlink()
        assert same(resume(str(folder)), calm)


@pytest.mark.usefixtures("each_round")
def test_a_termination_notice_saves_first_and_a_truncated_checkpoint_is_named_and_passed_over(tmp_path, calm):
    def terminate(record):
        if record["round"] == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run(small(tmp_path, rounds=9, **INLINE), show=terminate)
    (folder,) = tmp_path.glob("small-*")
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    good, newest = sorted((folder / "checkpoints").iterdir())
    assert (good.name, newest.name) == ("round-00000004", "round-00000005")
    states = newest / "states-0000.safetensors"
    states.write_bytes(states.read_bytes()[:-100])
    resumed = resume(str(folder))
    assert f"{newest} is damaged (states-0000.safetensors is truncated)" in (resumed.warning or "")
    assert same(resumed, calm)
    assert not leftovers(folder)
    assert numbers(resumed)[4]["round"] == 5
