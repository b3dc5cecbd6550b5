"""A run's folder kept a second time: whole at any time, and enough to go on from when the first is lost."""

import json
import math
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from helpers import identical, without_clock
from processes import FILE, hedgerow, no_more_files, outcome
from ray_runs import same, small
from searches import plan

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.runs.runner import resume, run
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.storage.checkpoint import latest_checkpoint, prune, read_checkpoint, save_tree, write_checkpoint
from hedgerow.platform.storage.history import History
from hedgerow.platform.storage.mirror import Mirror
from hedgerow.platform.storage.remote import Storage, check_storage, inside, uri_of
from hedgerow.platform.tracking.run_folder import find_run, new_run


def uri(folder: Path) -> str:
    return folder.absolute().as_uri()


def checkpoint(folder: Path, round: int) -> None:
    """One with two files of client states."""

    def states(aside: Path) -> dict:
        for part in (0, 1):
            save_tree({"of": torch.tensor([round, part])}, aside / f"states-{part:04d}.safetensors")
        return {}

    server, found = {"w": {"a": torch.full((3,), float(round))}}, latest_checkpoint(folder / "checkpoints")
    history = read_checkpoint(found[0])[1]["history"] if found else History()
    for _ in range(len(history), round):
        history.append({"round": len(history) + 1})
    write_checkpoint(folder / "checkpoints" / f"round-{round:08d}", server, {"round": round}, states, history)
    prune(folder / "checkpoints", 2)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the locks, which are of one machine and are not copied."""
    locks = folder.rglob("*lock"), folder.rglob(".lock/*")
    files = set(filter(Path.is_file, folder.rglob("*"))).difference(*locks)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "here" / "x-1"
    folder.mkdir(parents=True)
    for name in ("experiment.yaml", "run.json"):
        (folder / name).write_text("{}")
    return folder


# ---- copies ----------------------------------------------------------------------------------------------------------


def test_a_copy_has_what_the_folder_has_and_no_more(folder, tmp_path):
    copy = tmp_path / "there" / "x-1"
    mirror = Mirror(folder, uri(tmp_path / "there"))
    for name in ("tune/trial/result.json", ".hidden/file", "experts/000/run.json"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("{}")
    (folder / "run.json.tmp").write_text("{")
    for round in (1, 2, 3, 4):
        checkpoint(folder, round)
        mirror.copy()
        expected = contents(folder)
        for name in ("tune/trial/result.json", ".hidden/file", "run.json.tmp"):
            del expected[name]
        assert contents(copy) == expected
    there = sorted(path.name.partition(".")[0] for path in (copy / "checkpoints").iterdir())
    assert there == ["round-00000003", "round-00000004"]


class Failing(Storage):
    """Fails permanently after some operations; one that is being written stays half written."""

    def __init__(self, uri: str, left: int):
        super().__init__(uri)
        self.left = left

    def _pay(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError("the network is gone")

    def write(self, path, source):
        self._pay()
        super().write(path, source)

    def unseal(self, checkpoint):
        self._pay()
        super().unseal(checkpoint)

    def delete(self, checkpoint):
        self.unseal(checkpoint)
        shutil.rmtree(Path(self.path) / checkpoint / "server.safetensors", ignore_errors=True)
        self._pay()
        super().delete(checkpoint)


def test_a_copy_that_is_cut_off_anywhere_holds_a_whole_checkpoint(folder, tmp_path):
    found = set()
    for left in range(18):
        there = tmp_path / str(left)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        checkpoint(folder, 1)
        mirror = Mirror(folder, uri(there))
        mirror.copy()
        for round in (2, 3, 4):
            checkpoint(folder, round)
        mirror.storage = Failing(uri(there / "x-1"), left)
        mirror._attempt()
        last, _ = latest_checkpoint(there / "x-1" / "checkpoints")
        round = int(last.name[-8:])
        found.add(round)
        assert contents(last) == contents(folder / "checkpoints" / last.name) or round == 1
        assert {"server.safetensors", "states-0000.safetensors", "states-0001.safetensors"} < {*contents(last)}
        assert [record["round"] for record in read_checkpoint(last)[1]["history"]] == [*range(1, round + 1)]
        assert mirror.error == ("the network is gone" if mirror.storage.left < 0 else "")
        mirror.storage = Storage(uri(there / "x-1"))
        mirror._attempt()
        assert (mirror.error, contents(there / "x-1")) == ("", contents(folder))
    assert found == {1, 3, 4}
    # A process that goes on leaves the checkpoints that are there alone: three writes are those of the other files.
    again = Mirror(folder, uri(there))
    again.storage = Failing(uri(there / "x-1"), 3)
    again._attempt()
    assert again.error == ""


def test_an_intact_copy_of_a_checkpoint_outlives_the_damaged_one(folder, tmp_path):
    for round in (1, 5, 9):
        checkpoint(folder, round)
    Mirror(folder, uri(tmp_path / "there")).copy()
    home, there = folder / "checkpoints", tmp_path / "there" / "x-1" / "checkpoints"
    newest = there / "round-00000009"
    whole = contents(newest)
    (home / newest.name / "server.safetensors").write_bytes(b"")
    for action in (lambda: None, lambda: shutil.rmtree(home / newest.name), lambda: checkpoint(folder, 7)):
        action()
        # Of a process that resumes the run.
        mirror = Mirror(folder, uri(tmp_path / "there"))
        mirror._attempt()
        assert mirror.error == ""
        assert contents(newest) == whole
        assert latest_checkpoint(there) == (newest, [])
    assert sorted(path.name for path in there.glob("round-*")) == ["round-00000005", "round-00000007", newest.name]
    # The run reaches its round again, and passes it.
    for round in (9, 11):
        checkpoint(folder, round)
        mirror._attempt()
        assert mirror.error == ""
        assert latest_checkpoint(there) == (there / f"round-{round:08d}", [])
    assert contents(there.parent) == contents(folder)


def test_files_that_cannot_be_listed_are_not_deleted_from_the_copy(folder, tmp_path):
    checkpoint(folder, 1)
    mirror = Mirror(folder, uri(tmp_path / "there"))
    mirror._attempt()
    with no_more_files():
        mirror._attempt()
    assert "Too many open files" in mirror.error
    assert contents(tmp_path / "there" / "x-1") == contents(folder)


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a\\b", "", "a/\0"])
def test_names_stay_in_their_folder(path):
    with pytest.raises(UserError, match="is outside the run's folder"):
        inside(path)
    assert inside("checkpoints/round-00000001/server.safetensors") == "checkpoints/round-00000001/server.safetensors"


def test_settings_of_a_file_system_stay_behind_the_run():
    assert uri_of("s3://bucket/runs/?region=here", "x-1") == "s3://bucket/runs/x-1?region=here"
    assert uri_of("file:///disk/runs", "x-1") == "file:///disk/runs/x-1"


# ---- runs ------------------------------------------------------------------------------------------------------------


def kept(tmp_path: Path, **settings):
    """A small inline run with client states, whose copy is next to it."""
    output, there = tmp_path / "here", uri(tmp_path / "there")
    return small(output, resources__executor="inline", rounds=8, checkpoints__storage=there, **settings)


def leave_after(round: int, prepare=lambda: None):
    def show(record):
        if record["round"] == round:
            prepare()
            raise KeyboardInterrupt

    return show


@pytest.mark.exhaustive("kills")
def test_a_run_whose_folder_is_lost_goes_on_from_its_copy(tmp_path):
    calm = run(kept(tmp_path / "calm"))
    assert contents(tmp_path / "calm" / "there" / calm.folder.name) == contents(calm.folder.path)
    with pytest.raises(KeyboardInterrupt):
        run(kept(tmp_path), show=leave_after(5))
    (copy,) = (tmp_path / "there").iterdir()
    assert json.loads((copy / "run.json").read_text())["status"] == "interrupted"
    with pytest.raises(UserError, match="already exists: resume it, or move it away first"):
        resume(uri(copy))
    shutil.rmtree(tmp_path / "here")
    finished = resume(uri(copy))
    assert finished.folder.path == tmp_path / "here" / copy.name
    assert same(calm, finished)
    assert contents(copy) == contents(finished.folder.path)
    assert [path.name for path in (tmp_path / "here").iterdir()] == [copy.name]


@pytest.mark.exhaustive("kills")
def test_a_driver_killed_outright_goes_on_elsewhere(tmp_path):
    file = tmp_path / "killed.yaml"
    settings = {"rounds": 250, "resources": {"executor": "inline"}, "output": str(tmp_path / "killed")}
    checkpoints = {"every": 7, "storage": uri(tmp_path / "there")}
    file.write_text(yaml.safe_dump({**FILE, **settings, "checkpoints": checkpoints}))
    victim = hedgerow("run", str(file), stdout=subprocess.DEVNULL)
    while not (there := list((tmp_path / "there").glob("killed-*/checkpoints/round-*/progress.json"))):
        assert victim.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    copy = there[0].parents[2]
    shutil.rmtree(tmp_path / "killed")
    result = CliRunner().invoke(main, ["resume", uri(copy)])
    assert result.exit_code == 0, result.output
    (copied,) = (tmp_path / "killed").iterdir()
    assert f"copy: {uri(copy)}" in result.output
    calm = load_experiment(file)
    undisturbed = build_coordinator([calm], *check(calm, None), [tmp_path / "calm" / "checkpoints"])
    undisturbed.advance(math.inf)
    records, parameters = outcome(copied)
    assert records == without_clock(undisturbed.servers[0].history)
    assert identical(parameters, undisturbed.servers[0].state["w"])


@pytest.mark.exhaustive("kills")
def test_a_storage_that_fails_on_the_way_ends_no_run(tmp_path):
    def break_storage(record):
        if record["round"] == 3:
            shutil.rmtree(tmp_path / "there")
            (tmp_path / "there").write_text("no folder any more")

    finished = run(kept(tmp_path), show=break_storage)
    assert finished.summary["rounds"] == 8
    assert "checkpoints.storage: the copy is incomplete (" in finished.warning
    assert f"all files are in {finished.folder.path}" in finished.warning


def test_what_cannot_be_a_storage_ends_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    for bad, reason in (
        ("nosuch://bucket/runs", "cannot open 'nosuch://bucket/runs' (Unrecognized filesystem type"),
        (uri(tmp_path / "file" / "runs"), "cannot write to"),
        ("file://elsewhere/runs", "cannot open 'file://elsewhere/runs'"),
    ):
        with pytest.raises(UserError) as caught:
            check_storage(bad)
        assert str(caught.value).startswith(f"checkpoints.storage: {reason}")
        assert "give a URI that pyarrow supports" in str(caught.value)
        assert "\n" not in str(caught.value)
        with pytest.raises(UserError, match=r"checkpoints\.storage: cannot"):
            run(small(tmp_path / "here", checkpoints__storage=bad))
    assert not (tmp_path / "here").exists()


@pytest.mark.exhaustive("processes")
def test_missing_credentials_end_before_any_work(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    # A server that must not be asked: without credentials, or without a server, the result is the same.
    there = "s3://bucket/runs?endpoint_override=127.0.0.1:1&scheme=http&region=here"
    with pytest.raises(UserError, match=r"checkpoints\.storage: cannot write to .* credentials in the environment"):
        run(small(tmp_path / "here", checkpoints__storage=there))
    assert not (tmp_path / "here").exists()


def test_what_is_no_run_is_refused_by_its_uri(tmp_path):
    result = CliRunner().invoke(main, ["resume", uri(tmp_path)])
    assert result.exit_code == 2
    assert "is not a run: give the folder of a run in its `checkpoints.storage`" in result.output
    result = CliRunner().invoke(main, ["resume", "nosuch://x"])
    assert result.exit_code == 2
    assert "RUN: cannot open 'nosuch://x'" in result.output
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_search_comes_back_as_it_was(tmp_path):
    wanted = plan(tmp_path / "here", checkpoints__storage=uri(tmp_path / "there"))
    with new_run(wanted.experiment, None, wanted.dump()) as (folder, _):
        folder.update(kind="search")
        (folder.path / "losses.jsonl").write_text("{}")
        checkpoint(folder.path / "experts" / "000", 3)
        with Mirror(folder.path, wanted.experiment.checkpoints.storage):
            checkpoint(folder.path / "experts" / "001", 5)
    before = contents(folder.path)
    shutil.rmtree(tmp_path / "here")
    found = find_run(uri(tmp_path / "there" / folder.name))
    assert found.is_search
    assert found.path == folder.path
    assert contents(found.path) == before
