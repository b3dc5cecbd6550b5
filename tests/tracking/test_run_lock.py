"""One process at a time runs or resumes what is stored in a run folder."""

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from preloaded import PreloadedPython
from ray_runs import small
from searches import plan

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.runner import open_coordinator, resume, run
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.storage import run_lock
from hedgerow.platform.storage.run_lock import RunLock
from hedgerow.platform.tracking.run_folder import RunFolder, new_run
from hedgerow.searchspaces.results.finished_search import FinishedSearch

INLINE = {"resources__executor": "inline"}
TRIALS = 8

CONTENDER = """
import sys
from contextlib import ExitStack
from pathlib import Path
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.storage.run_lock import RunLock
with ExitStack() as held:
    for line in sys.stdin:
        try:
            held.enter_context(RunLock(Path(line.strip())))
            print("held", flush=True)
        except UserError as error:
            print(error, flush=True)
"""


def contender() -> subprocess.Popen:
    """A process that locks the folders whose names it reads, and holds them."""
    return PreloadedPython(["-c", CONTENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen, folder: Path) -> None:
    process.stdin.write(f"{folder}\n")
    process.stdin.flush()


def claim(folder: Path) -> Path:
    """The only claim on a folder."""
    (file,) = (folder / ".lock").iterdir()
    return file


def rename(file: Path, **values) -> Path:
    """Change what a claim says of its holder."""
    fields = dict(zip(("since", "host", "pid", "home", "token"), file.name.split("~"), strict=True)) | values
    return file.rename(file.with_name("~".join(fields.values())))


def take_away(folder: Path) -> None:
    """Let another process take over the lock of a folder."""
    rename(claim(folder), token="other")


def refusal(*arguments: str) -> str:
    """What the command says that ends with exit code 2."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    return result.output


def test_of_many_processes_at_once_exactly_one_takes_over_the_lock_of_a_killed_one(tmp_path):
    folders = [tmp_path / str(trial) for trial in range(TRIALS)]
    victim, contenders = contender(), [contender() for _ in range(8)]
    try:
        for folder in folders:
            folder.mkdir()
            ask(victim, folder)
            assert victim.stdout.readline() == "held\n"
        ask(contenders[0], folders[0])
        (refused,) = (contenders[0].stdout.readline(),)
        assert f"{folders[0]} is being run by process {victim.pid} on {os.uname().nodename} since 20" in refused
        assert f"`hedgerow resume {folders[0]}`" in refused
        # Not waited for, so that its process number still stands in the table of processes.
        victim.kill()
        while Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        for folder in folders:
            for process in contenders:
                ask(process, folder)
            answers = [process.stdout.readline().strip() for process in contenders]
            assert answers.count("held") == 1, answers
            winner = contenders[answers.index("held")].pid
            assert all(f"is being run by process {winner} " in answer for answer in answers if answer != "held")
    finally:
        for process in (victim, *contenders):
            process.kill()
            process.communicate()


def test_a_process_number_that_another_process_has_now_does_not_hold_the_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "TIMEOUT_SECONDS", 0.5)
    with RunLock(tmp_path):
        held = claim(tmp_path).name
    # Of the process that started this one, which is alive.
    rename(claim(tmp_path).rename(tmp_path / ".lock" / held), pid=str(os.getppid()))
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize("elsewhere", [{"host": "far"}, {"home": "other", "host": os.uname().nodename}, {"home": ""}])
def test_a_holder_on_another_machine_or_in_another_container_is_judged_by_its_signs_of_life(
    tmp_path, monkeypatch, elsewhere
):
    monkeypatch.setattr(run_lock, "TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.05)
    with RunLock(tmp_path) as lock:
        # Its own process touches it, and no other one can look that up. The clock there is an hour ahead.
        lock.claim = run_lock.Claim(rename(claim(tmp_path), **elsewhere))
        host = elsewhere.get("host", os.uname().nodename)
        with pytest.raises(UserError, match=f"process {os.getpid()} on {host} since"), RunLock(tmp_path):
            pass
        left = lock.claim.file
    # Released, and so free at once.
    monkeypatch.setattr(run_lock, "TIMEOUT_SECONDS", 1e6)
    with RunLock(tmp_path):
        pass
    claim(tmp_path).rename(left)
    os.utime(left, (time.time() + 3600,) * 2)
    monkeypatch.setattr(run_lock, "TIMEOUT_SECONDS", 0.5)
    outcomes: list[str] = []
    over = threading.Event()

    def contend() -> None:
        try:
            with RunLock(tmp_path):
                outcomes.append("held")
                over.wait()
        except UserError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(outcomes) < len(threads):
        time.sleep(0.01)
    over.set()
    for thread in threads:
        thread.join()
    assert outcomes.count("held") == 1, outcomes


def test_a_copy_of_a_running_runs_folder_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "TIMEOUT_SECONDS", 0.5)
    (tmp_path / "run").mkdir()
    with RunLock(tmp_path / "run") as first:
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with RunLock(tmp_path / "copy") as second:
            assert not first.claim.is_lost
            assert not second.claim.is_lost


@pytest.mark.parametrize("name", ["torn", "a~b~c~d~e"])
def test_the_damaged_file_of_a_lock_hinders_nobody(tmp_path, monkeypatch, name):
    monkeypatch.setattr(run_lock, "TIMEOUT_SECONDS", 0.5)
    (tmp_path / ".lock").mkdir()
    with RunLock(tmp_path):
        pass
    claim(tmp_path).rename(tmp_path / ".lock" / name)
    with RunLock(tmp_path) as lock:
        assert claim(tmp_path) == lock.claim.file


def test_a_new_run_is_locked_before_it_has_a_record(tmp_path):
    with new_run(small(tmp_path), None) as (folder, _):
        before = folder.experiment.stat().st_mtime_ns
        assert claim(folder.path).stat().st_mtime_ns <= before
        with pytest.raises(UserError, match="is being run by process"), RunLock(folder.path):
            pass


def test_a_run_that_is_running_cannot_be_resumed(tmp_path):
    said: list[str] = []

    def meddle(record):
        if record["round"] == 3:
            (folder,) = tmp_path.glob("small-*")
            with pytest.raises(UserError) as caught:
                resume(str(folder))
            said.extend([str(caught.value), refusal("resume", str(folder))])

    finished = run(small(tmp_path, rounds=9, **INLINE), show=meddle)
    assert [record["round"] for record in finished.records] == list(range(1, 10))
    assert f"is being run by process {os.getpid()} on {os.uname().nodename} since " in said[0]
    assert said[1].endswith(f"hedgerow: {said[0]}\n")


def test_a_run_that_was_taken_over_while_it_was_suspended_leaves_the_folder_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    left: set[str] = set()

    def take_over(record):
        if record["round"] == 3:
            (folder,) = tmp_path.glob("small-*")
            take_away(folder)
            # The other process has come further.
            shutil.copytree(folder / "checkpoints" / "round-00000002", folder / "checkpoints" / "round-00000020")
            left.update(path.name for path in (folder / "checkpoints").iterdir())

    with pytest.raises(UserError, match=r"was taken over by another process, since this one gave no sign of life"):
        run(small(tmp_path, rounds=10**6, **INLINE), show=take_over)
    (folder,) = tmp_path.glob("small-*")
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    assert {path.name for path in (folder / "checkpoints").iterdir()} == left


@pytest.mark.usefixtures("ray_here")
def test_a_coordinator_on_ray_writes_nothing_once_its_run_was_taken_over(tmp_path):
    """It may be suspended alone, while it saves."""
    experiment = small(tmp_path)
    with RunLock(tmp_path) as lock:
        settings = {"notify": pytest.fail, "claim": lock.claim}
        with open_coordinator(
            experiment, *check(experiment, None), tmp_path / "checkpoints", None, **settings
        ) as driver:
            driver.advance(0.0)
            driver.save()
            before = {path.name for path in (tmp_path / "checkpoints").iterdir()}
            take_away(tmp_path)
            with pytest.raises(UserError, match="was taken over by another process"):
                driver.advance(60.0)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == before


def test_the_rounds_of_another_process_stay_when_this_one_was_suspended_in_a_write(tmp_path):
    wanted = small(tmp_path, **INLINE)
    with RunLock(tmp_path) as lock:
        coordinator = build_coordinator([wanted], *check(wanted, None), [tmp_path / "checkpoints"], lock.claim)
        coordinator.run_round()
        coordinator.save()
        store = coordinator.executor.stores[0]
        save = store.save

        def suspended(folder):
            linked = save(folder)
            take_away(tmp_path)
            shutil.copytree(tmp_path / "checkpoints" / "round-00000001", tmp_path / "checkpoints" / "round-00000020")
            return linked

        store.save = suspended
        with pytest.raises(UserError, match="was taken over by another process"):
            coordinator.run_round()
    assert (tmp_path / "checkpoints" / "round-00000020").exists()


def test_a_search_that_is_running_cannot_be_resumed_nor_any_of_its_trials(tmp_path):
    wanted = plan(tmp_path)
    with new_run(wanted.experiment, None, wanted.dump()) as (folder, _):
        folder.update(kind="search")
        trial = folder.path / "experts" / "000"
        trial.mkdir(parents=True)
        (trial / "experiment.yaml").write_text(wanted.dump())
        RunFolder(trial).update(name="000", status="running", overrides={})
        assert "is being run by process" in refusal("resume", str(folder))
        told = refusal("resume", str(trial))
        assert f"{trial} is a trial of a search: `hedgerow resume {folder}` continues all trials" in told
        assert len(FinishedSearch.read(folder).trials) == 1


def test_a_folder_that_cannot_be_written_cannot_be_locked():
    with (
        pytest.raises(UserError, match=r"^/proc/self cannot be written \(.*\); make it writable, or copy it"),
        RunLock(Path("/proc/self")),
    ):
        pass
