"""`hedgerow watch` on runs and searches that run, stop and have ended, and `hedgerow demo`."""

import json
import os
import shutil
import signal
import subprocess
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import GOOD, hedgerow
from preloaded import PreloadedPython
from reported_runs import small

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.storage.sealed_json import seal
from hedgerow.reports.demo_command import RECORDS
from hedgerow.reports.watch_command import NewRecords

ROUNDS = 3000


@contextmanager
def started(folder, command, text):
    """Runs a command on a file in another process; yields the folder of what has begun, and the process."""
    (folder / "good.yaml").write_text(text)
    words = ["-m", "hedgerow", command, "good.yaml"]
    with PreloadedPython(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        # A run has begun with its first record.
        begun = "good-*/metrics.jsonl" if command == "run" else "good-*/run.json"
        while not (found := list(folder.glob(begun))):
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.05)
        yield found[0].parent, process
        process.kill()


@pytest.fixture
def running(tmp_path):
    """Folder of a run in another process, which has begun, and this process."""
    with started(tmp_path, "run", GOOD.replace("rounds: 3", f"rounds: {ROUNDS}\noutput: {tmp_path}")) as run:
        yield run


def test_a_watched_run_goes_on_when_its_watchers_stop_and_is_followed_to_its_end(running):
    folder, process = running
    words = ["-m", "hedgerow", "watch", str(folder), "--every", "0.1"]
    with PreloadedPython(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout.readline() == f"good: {ROUNDS} rounds\n"
        assert watcher.stdout.readline().startswith(f"good: round 1/{ROUNDS}  ")
        watcher.send_signal(signal.SIGINT)
        _, errors = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, errors
    assert "keeps running" in errors
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    result = hedgerow("watch", folder, "--every", "0.1")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1].startswith(f"{folder}: interrupted; `hedgerow resume ")


@pytest.mark.exhaustive("processes")
def test_a_killed_run_is_reported_as_interrupted(running):
    folder, process = running
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    result = hedgerow("watch", folder, "--every", "0.1")
    assert result.output.splitlines()[-1] == f"{folder}: interrupted; `hedgerow resume {folder}` continues it"


def test_a_finished_run_is_shown_at_once_and_its_page_does_not_reload(tmp_path):
    folder = small(tmp_path, "plain", 0)
    result = hedgerow("watch", folder.path)
    assert result.output.splitlines()[0] == "plain: 6 rounds"
    assert "plain: round 6/6  test accuracy" in result.output
    assert result.output.splitlines()[-1] == f"{folder.path}: finished"
    result = hedgerow("watch", folder.path, "--page")
    assert f"page: {folder.path / 'report.html'}" in result.output
    assert 'http-equiv="refresh"' not in (folder.path / "report.html").read_text()


@pytest.mark.exhaustive("processes")
def test_the_page_of_a_run_that_goes_on_reloads_itself(running):
    folder, process = running
    words = ["-m", "hedgerow", "watch", str(folder), "--page", "--every", "0.1"]
    with PreloadedPython(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout.readline() == f"page: {folder / 'report.html'}\n"
        assert '<meta http-equiv="refresh" content="15">' in (folder / "report.html").read_text()
        process.send_signal(signal.SIGINT)
        out, errors = watcher.communicate(timeout=120)
    assert watcher.returncode == 0, errors
    assert "interrupted" in out
    assert 'http-equiv="refresh"' not in (folder / "report.html").read_text()


def test_a_search_is_shown_as_its_own_table(tmp_path):
    with zipfile.ZipFile(RECORDS) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / "digits-hedge"
    lines = hedgerow("watch", folder).output.splitlines()
    assert lines[0] == "digits-hedge: 8 trials of 40 rounds"
    assert any("round 40/40  expected validation accuracy" in line and "leader lr=" in line for line in lines)
    assert lines[-1] == f"{folder}: finished"


@pytest.mark.exhaustive("processes")
def test_a_running_search_is_followed_to_its_end(tmp_path):
    search = "search: {kind: hedge, space: {algorithm.lr: [0.05, 0.1]}}\n"
    text = GOOD.replace("rounds: 3", f"rounds: 200\noutput: {tmp_path}").replace(
        "resources: {executor: inline}\n", search
    )
    with started(tmp_path, "search", text) as (folder, process):
        lines = hedgerow("watch", folder, "--every", "0.2").output.splitlines()
        assert process.wait(60) == 0
    assert lines[0] == "good: 2 trials of 200 rounds"
    assert any(line.startswith("good: round 200/200  expected validation accuracy") for line in lines)
    assert lines[-1] == f"{folder}: finished"


def test_a_search_that_has_just_begun_is_followed(tmp_path):
    with zipfile.ZipFile(RECORDS) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / "digits-hedge"
    (folder / "metrics.jsonl").write_text("")
    for expert in (folder / "experts").iterdir():
        if expert.name != "000":
            shutil.rmtree(expert)
    assert "8 trials of 40 rounds" in hedgerow("watch", folder).output


def test_new_records_are_whole_lines_and_begin_again_when_rounds_were_removed(tmp_path):
    file = tmp_path / "metrics.jsonl"
    records = NewRecords(file)
    assert records.read() == []
    first, second = (seal({"round": round}) + "\n" for round in (1, 2))
    file.write_text(first + '{"rou')
    assert records.read() == [{"round": 1}]
    file.write_text(first + second)
    assert records.read() == [{"round": 2}]
    file.write_text(first)
    assert records.read() == [{"round": 1}]
    file.write_text(first + second.replace("2", "3", 1))
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged \(a line does not match its checksum\)"):
        records.read()


def test_other_folders_are_refused(tmp_path):
    result = hedgerow("watch", tmp_path)
    assert result.exit_code == 2
    assert "is not a run" in result.output


def test_the_demo_is_the_report_of_a_real_search(tmp_path):
    file = tmp_path / "pages" / "demo.html"
    result = hedgerow("demo", "-o", file)
    assert result.output == f"demo: {file}\n"
    html = file.read_text()
    assert "digits-hedge" in html
    assert "regret" in html
    assert "/tmp" not in html
    assert RECORDS.stat().st_size < 100_000
    names = {Path(name).name for name in zipfile.ZipFile(RECORDS).namelist()}
    assert names == {"run.json", "experiment.yaml", "metrics.jsonl", "partition.json"}
