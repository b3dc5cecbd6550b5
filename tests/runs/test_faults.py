"""What docs/faults.md promises: full disks, notices of termination, damaged checkpoints."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from families import INLINE, POISON
from processes import SUPPORT, TOYS, hedgerow
from ray_runs import numbers, same, small
from searches import ROUNDS, SPACE, one_after_the_other, plan

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.runner import resume, run
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.storage.checkpoint import latest_checkpoint
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.tune.search_runner import resume_search, search


def leftovers(folder: Path) -> list[Path]:
    """Files and folders of writes that were not brought to their end."""
    return [*folder.rglob("*.tmp"), *folder.rglob(".round-*")]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return run(small(tmp_path_factory.mktemp("calm"), rounds=9, **INLINE))


@pytest.fixture
def each_round(monkeypatch):
    """The driver hears of every round by itself."""
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)


@contextmanager
def small_disk(place: Path, size: str):
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_run_whose_figures_cannot_be_drawn_is_finished(tmp_path, calm):
    with small_disk(tmp_path / "disk", "9m,nr_inodes=99") as disk:

        def take(record):
            if record["round"] == 9:
                with suppress(OSError):
                    for number in range(99):
                        (disk / f"ballast-{number}").touch()
                # Enough for the records, not for a folder with four figures.
                for number in range(3):
                    (disk / f"ballast-{number}").unlink()

        done = run(small(disk, rounds=9, **INLINE), show=take)
        record = done.folder.record()
        assert (record["status"], record["summary"]["rounds"]) == ("finished", 9)
        assert "figures are missing, since drawing failed (OSError: [Errno 28] No space left on device" in done.warning
        assert same(done, calm)


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
        assert [found.name for found in (folder / "checkpoints").glob("round-*")] == ["round-00000002"]
        assert json.loads((folder / "run.json").read_text())["status"] == "failed"
        assert not leftovers(disk)
        ballast.unlink()
        assert same(resume(str(folder)), calm)


@pytest.mark.parametrize("size", ["4k", "12k"])
def test_a_disk_that_is_full_from_the_beginning_is_named(tmp_path, calm, size):
    with small_disk(tmp_path / "disk", size) as disk:
        with pytest.raises(UserError, match=rf"{disk}/small-.*No space left on device"):
            run(small(disk, rounds=9, **INLINE))
        (folder,) = disk.glob("small-*")
        is_begun = (folder / "run.json").exists()
        # Pages of other sizes hold other files.
        assert is_begun == (size == "12k") or os.sysconf("SC_PAGESIZE") != 4096
        if is_begun:
            with pytest.raises(UserError, match=rf"{disk}/small-.*No space left on device.*`hedgerow resume"):
                resume(str(folder))
            subprocess.run(["mount", "-o", "remount,size=9m", disk], check=True)
            assert same(resume(str(folder)), calm)


class Filling:
    """Observer of a search that fills the disk after the second round of any trial."""

    def __init__(self, ballast: Path):
        self.labels, self.ballast = [""] * 4, ballast

    def trial(self, index: int, record: dict) -> None:
        if record["round"] == 2 and not self.ballast.exists():
            with suppress(OSError), self.ballast.open("wb") as file:
                while file.write(bytes(4096)):
                    file.flush()

    def state(self, index: int, text: str) -> None: ...
    def hedge(self, record: dict) -> None: ...


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("kind", ["hedge", "grid", "asha"])
def test_no_trial_of_a_search_fails_on_a_full_disk_and_the_search_resumes(tmp_path, kind):
    # A trial that fails is not started again.
    settings = {"search__pack": "off", "search__restarts": 0} if kind == "hedge" else {}
    if kind != "hedge":
        settings = {"search": {"kind": kind, "space": SPACE, "concurrency": 2, "restarts": 0}}
        settings["search"] |= {"grace": ROUNDS} if kind == "asha" else {}
    with small_disk(tmp_path / "disk", "4m") as disk:
        spec = plan(disk, **settings)
        with pytest.raises(UserError, match=r"No space left on device.*; .*, then `hedgerow resume"):
            search(spec, show=Filling(disk / "ballast"))
        (folder,) = disk.glob("small-*")
        with pytest.raises(UserError, match=r"No space left on device"):
            resume_search(str(folder))
        (disk / "ballast").unlink()
        done = resume_search(str(folder))
        assert done.warning is None
        assert [trial.status for trial in done.trials] == ["finished"] * 4
        for trial in done.trials:
            alone = plan(tmp_path / "alone").trial(trial.overrides | {"resources.executor": "inline"})
            assert numbers(trial) == numbers(run(alone))
        if kind == "hedge":
            assert done.hedge == one_after_the_other(plan(tmp_path / "calm"))
        assert not leftovers(disk)


@pytest.mark.usefixtures("each_round")
def test_a_termination_notice_saves_first_and_a_truncated_checkpoint_is_named_and_passed_over(tmp_path, calm):
    def terminate(record):
        if record["round"] == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run(small(tmp_path, rounds=9, **INLINE), show=terminate)
    (folder,) = tmp_path.glob("small-*")
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    good, newest = sorted((folder / "checkpoints").glob("round-*"))
    assert (good.name, newest.name) == ("round-00000004", "round-00000005")
    states = newest / "states-00000000.safetensors"
    states.write_bytes(states.read_bytes()[:-100])
    resumed = resume(str(folder))
    assert f"{newest} is damaged (states-00000000.safetensors is truncated)" in (resumed.warning or "")
    assert same(resumed, calm)
    assert not leftovers(folder)
    assert numbers(resumed)[4]["round"] == 5


@pytest.mark.usefixtures("each_round")
def test_a_run_of_which_all_checkpoints_are_damaged_is_refused_and_stays_as_it_is(tmp_path, calm):
    def stop(record):
        if record["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small(tmp_path, rounds=9, **INLINE), show=stop)
    (folder,) = tmp_path.glob("small-*")
    for found in (folder / "checkpoints").glob("round-*"):
        (found / "server.safetensors").write_bytes(b"")
    before = {path: path.read_bytes() for path in folder.rglob("[!.]*") if path.is_file() and ".lock" not in str(path)}
    with pytest.raises(
        UserError, match=r"has no checkpoint that can be used .* delete all of them to begin again"
    ) as no:
        resume(str(folder))
    assert str(no.value).startswith(str(folder / "checkpoints"))
    assert all(path.read_bytes() == content for path, content in before.items())
    shutil.rmtree(folder / "checkpoints")
    assert same(resume(str(folder)), calm)


@pytest.mark.exhaustive("kills")
@pytest.mark.usefixtures("ray_here")
def test_a_client_that_kills_its_actor_each_time_is_left_out_and_the_others_go_on(tmp_path):
    experiment = small(tmp_path / "run", resources__actors=2, **POISON)
    finished = run(experiment)
    assert "client 5 was left out from round 3 on" in (finished.warning or "")
    assert finished.folder.record()["quarantined"] == {"5": 3}
    assert [record.get("quarantined", 0) for record in numbers(finished)] == [0, 0, 1, 1, 1, 1]
    assert [record["participants"] for record in numbers(finished)] == [12, 12, 11, 11, 11, 11]
    # The same as if it had been known beforehand, on one worker that nothing happens to.
    inline = small(tmp_path / "known", resources__executor="inline", **POISON)
    known = build_coordinator([inline], *check(experiment, None), [tmp_path / "known" / "checkpoints"])
    known.servers[0].quarantined = {5: 3}
    known.advance(1e6)
    learner = known.servers[0]
    assert [record["participants"] for record in learner.history] == [12, 12, 11, 11, 11, 11]
    for name, value in finished.parameters.items():
        assert np.abs(value - learner.state["w"][name].numpy()).max() < 1e-6


WITHOUT_QUARANTINE = """
from hedgerow.cli import main
from hedgerow.platform.runtime import server
server.MOST_QUARANTINED = 0.0
main()
"""


@pytest.mark.exhaustive("kills")
def test_with_more_poison_than_is_left_out_the_run_ends_and_names_it(tmp_path):
    message = r"round 3: these clients crash .* every time: 5; fix the cause: at most 0% of the clients are left out"
    file = tmp_path / "small.yaml"
    file.write_text(dump_experiment(small(tmp_path, resources__executor="processes", resources__actors=2, **POISON)))
    # A process of its own: this one has threads, and forks no workers.
    command = [sys.executable, "-c", WITHOUT_QUARANTINE, "run", file, *TOYS]
    ended = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, check=False, timeout=200)
    assert ended.returncode
    assert re.search(message, ended.stderr)
    (folder,) = tmp_path.glob("small-*")
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"


@pytest.mark.exhaustive("kills")
def test_a_termination_notice_saves_every_trial_and_the_search_goes_on_from_its_copy(tmp_path):
    # No checkpoint is due before the notice comes.
    settings = {"rounds": 40, "search__pack": "off", "search__ahead": 100, "search__concurrency": 4}
    settings |= {"resources": {"cpus_per_actor": 0.25}}
    checkpoints = {"every": 1000, "storage": (tmp_path / "there").as_uri()}
    (tmp_path / "file.yaml").write_text(plan(tmp_path / "here", checkpoints=checkpoints, **settings).dump())
    driver = hedgerow("search", str(tmp_path / "file.yaml"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ThreadPoolExecutor() as pool:
        expected = pool.submit(one_after_the_other, plan(tmp_path / "alone", **settings))
        while not any(len(RunLog(f).read()) >= 4 for f in (tmp_path / "here").glob("small-*/metrics.jsonl")):
            assert driver.poll() is None, "the search ended before it could be interrupted"
            time.sleep(0.01)
        driver.terminate()
        assert driver.wait(timeout=120) == 143
        shutil.rmtree(tmp_path / "here")
        (copy,) = (tmp_path / "there").iterdir()
        assert json.loads((copy / "run.json").read_text())["status"] == "interrupted"
        saved = [latest_checkpoint(expert / "checkpoints") for expert in sorted((copy / "experts").iterdir())]
        assert len(saved) == 4
        rounds = [int(checkpoint.name.removeprefix("round-")) for checkpoint, _ in saved]
        assert min(rounds) >= 4
        # A fast expert may have finished before the notice arrived, but not all of them.
        assert min(rounds) < 40
        resumed = resume_search(copy.as_uri())
    assert resumed.hedge == expected.result()
    assert [len(trial.records) for trial in resumed.trials] == [40] * 4
