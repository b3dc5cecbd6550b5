"""No damage to a checkpoint is used without a word, and no crash leaves a run without one."""

import json
import os
import random
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import blobs, identical, model, partition, run_inline, small_task, without_clock
from processes import no_more_files
from toys import Stateful

from hedgerow.algorithms.core.pytree import flatten, tree_map, unflatten
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Evaluation
from hedgerow.platform.runtime.state_store import StateStore
from hedgerow.platform.storage import atomic_file as files
from hedgerow.platform.storage import checkpoint
from hedgerow.platform.storage.atomic_file import write_whole
from hedgerow.platform.storage.checkpoint import (
    DamagedCheckpoint,
    checkpoint_warnings,
    checkpoints,
    flaw,
    latest_checkpoint,
    load_sealed,
    parse_tree,
    prune,
    read_checkpoint,
    read_progress,
    read_states,
    save_tree,
    write_checkpoint,
)
from hedgerow.platform.storage.history import History
from hedgerow.platform.storage.sealed_json import seal
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.searchspaces.tune import trainable
from hedgerow.searchspaces.tune.trainable import FederatedTrainable


def start(checkpoints: Path | None, rounds: int = 6, **settings):
    """A run of clients with states, which goes on from the checkpoints in a folder."""
    folder = checkpoints and checkpoints.parent
    data, hyper = blobs(), {"lr": 0.1, "batch_size": 8, "clip_norm": 0.5, "pull": 0.3}
    clients = partition(np.full(8, 20), seed=0)
    return run_inline(Stateful, small_task(data), data, clients, hyper, folder, rounds=rounds, **settings)


def left_after(run, *rounds: int) -> None:
    """Run, and save after each of these rounds."""
    for round in rounds:
        while run.round < round:
            next(run)
        run.save()


def clockless(run) -> list[dict]:
    return without_clock(run.servers[0].history)


def put(file: Path, raw: bytes) -> None:
    """Other contents of the same age, which nothing but the bytes shows."""
    stat = file.stat()
    file.write_bytes(raw)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def flip(file: Path, bit: int | None = None) -> None:
    """Flip one bit; None: the last one. The file is another one then, as after a copy."""
    raw = bytearray(file.read_bytes())
    at = len(raw) * 8 - 1 if bit is None else bit
    raw[at // 8] ^= 1 << at % 8
    aside = file.with_name("aside")
    aside.write_bytes(raw)
    aside.replace(file)


def cut(file: Path) -> None:
    """Remove the last byte of a file."""
    file.write_bytes(file.read_bytes()[:-1])


def written(parent: Path, round: int, value: float = 0.0, history: History | None = None) -> Path:
    """A checkpoint without client states."""
    server = {"w": {"a": torch.full((3,), value)}}
    return write_checkpoint(parent / f"round-{round:08d}", server, {"round": round}, lambda aside: {}, history)


def records(first: int, last: int) -> list[dict]:
    return [{"round": round, "loss": 1 / round, "nothing": float("inf")} for round in range(first, last + 1)]


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of rounds 2 and 4."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    left_after(start(folder), 2, 4)
    return folder


def test_no_flipped_bit_and_no_zeroed_half_is_used_without_a_word(saved):
    good, bad = checkpoints(saved)
    log = saved.parent / "metrics.jsonl"
    rng = random.Random(0)
    tensors = sorted(bad.glob("*.safetensors"))
    assert [file.name for file in tensors] == ["server.safetensors", "states-00000000.safetensors"]
    # The records of rounds 3 and 4 belong to the newer checkpoint alone.
    older = read_progress(good)
    begin = json.loads((good / "progress.json").read_text())["content"]["history"]["bytes"]
    assert older["round"] == 2
    for file, times, first in [*((file, 25, 0) for file in tensors), (bad / "progress.json", 15, 0), (log, 15, begin)]:
        whole = file.read_bytes()
        for _ in range(times):
            raw = bytearray(whole)
            raw[rng.randrange(first, len(raw))] ^= 1 << rng.randrange(8)
            put(file, raw)
            assert latest_checkpoint(saved) == (good, [bad.name])
            with pytest.raises(DamagedCheckpoint, match=rf"{bad.name} is damaged \({file.name} "):
                read_checkpoint(bad)
        # Of the records, only what the newer checkpoint alone has: their lengths differ from run to run.
        half = (first + len(whole)) // 2
        put(file, whole[:half] + bytes(len(whole) - half))
        reason = "cannot be read" if file.name == "progress.json" else "does not match its SHA-256"
        assert checkpoint_warnings(saved) == [f"the checkpoint {bad} is damaged ({file.name} {reason}) and is skipped"]
        put(file, whole)
        assert latest_checkpoint(saved) == (bad, [])
        read_checkpoint(bad)


def test_a_learner_goes_on_from_the_checkpoint_before_the_damaged_one(saved, tmp_path):
    shutil.copytree(saved.parent, tmp_path, dirs_exist_ok=True)
    _, bad = checkpoints(tmp_path / "checkpoints")
    flip(bad / "states-00000000.safetensors")
    run = start(tmp_path / "checkpoints")
    assert run.round == 2
    reason = "states-00000000.safetensors does not match its SHA-256"
    assert run.warnings() == [f"the checkpoint {bad} is damaged ({reason}) and is skipped"]
    left_after(run, 4, 6)
    calm = start(None)
    list(calm)
    assert identical(flatten(run.server), flatten(calm.server))
    assert clockless(run) == clockless(calm)
    # The damaged one was written again.
    assert [folder.name for folder in checkpoints(tmp_path / "checkpoints")] == ["round-00000004.2", "round-00000006"]


def test_damage_that_comes_after_the_check_is_found_where_the_states_are_used(saved, tmp_path, monkeypatch):
    shutil.copytree(saved.parent, tmp_path, dirs_exist_ok=True)
    _, bad = checkpoints(tmp_path / "checkpoints")
    load = StateStore.load

    def damaged_meanwhile(self, folder):
        if folder == bad:
            flip(bad / "states-00000000.safetensors")
        load(self, folder)

    monkeypatch.setattr(StateStore, "load", damaged_meanwhile)
    run = start(tmp_path / "checkpoints")
    monkeypatch.undo()
    assert run.round == 2
    assert len(run.warnings()) == 1
    list(run)
    calm = start(None)
    list(calm)
    assert identical(model(run), model(calm))


def test_damaged_checkpoints_do_not_count_among_those_that_are_kept(tmp_path):
    for round in (10, 20):
        written(tmp_path, round)
    cut(tmp_path / "round-00000020" / "server.safetensors")
    prune(tmp_path, 1)
    assert latest_checkpoint(tmp_path) == (tmp_path / "round-00000010", ["round-00000020"])
    # A run that went back to round 10 is not at round 20 any more.
    newest = written(tmp_path, 15)
    prune(tmp_path, 1, newest)
    assert checkpoints(tmp_path) == [newest]
    # The same where nothing was left to go back to.
    cut(newest / "server.safetensors")
    newest = written(tmp_path, 5)
    prune(tmp_path, 1, newest)
    assert checkpoints(tmp_path) == [newest]
    assert flaw(newest) is None


def test_the_best_checkpoint_is_kept_in_addition_to_the_newest_ones(tmp_path):
    rounds = {round: written(tmp_path, round) for round in (3, 5, 10, 15)}
    prune(tmp_path, 2, rounds[15], kept={3})
    assert checkpoints(tmp_path) == [rounds[3], rounds[10], rounds[15]]
    prune(tmp_path, 1, rounds[15], kept={15})
    assert checkpoints(tmp_path) == [rounds[10], rounds[15]]
    # One that is damaged, or that belongs to an abandoned course, is no best one.
    cut(rounds[10] / "server.safetensors")
    prune(tmp_path, 1, rounds[15], kept={10})
    assert checkpoints(tmp_path) == [rounds[15]]
    newest = written(tmp_path, 12)
    prune(tmp_path, 1, newest, kept={15})
    assert checkpoints(tmp_path) == [newest]


def test_large_checkpoints_are_not_read_again_to_prune(tmp_path, monkeypatch):
    written(tmp_path, 1)
    monkeypatch.setattr(
        "hedgerow.platform.storage.checkpoint.flaw", lambda folder: pytest.fail(f"{folder} is read again")
    )
    newest = written(tmp_path, 2)
    prune(tmp_path, 2, newest)
    assert len(checkpoints(tmp_path)) == 2


# ---- errors that may pass, and other processes -----------------------------------------------------------------------


def test_an_error_that_may_pass_is_not_taken_for_damage(saved, tmp_path):
    shutil.copytree(saved.parent, tmp_path, dirs_exist_ok=True)
    parent, run = tmp_path / "checkpoints", start(tmp_path / "checkpoints")
    _, newest = checkpoints(parent)
    before = sorted(path for path in parent.rglob("*"))
    actions = {
        "checkpoints": lambda: checkpoints(parent),
        "latest": lambda: latest_checkpoint(parent),
        "flaws": lambda: checkpoint_warnings(parent),
        "prune": lambda: prune(parent, 1, newest),
        "flaw": lambda: flaw(newest),
        "read": lambda: read_checkpoint(newest),
        "states": lambda: list(read_states(newest)),
        "load": lambda: run.load_newest(0, parent),
    }
    for name, action in actions.items():
        with no_more_files(), pytest.raises(UserError) as caught:
            action()
        said = str(caught.value)
        assert "cannot be read now (Too many open files)" in said, name
        assert said.endswith("remove the cause, then `hedgerow resume` continues from there")
        assert not isinstance(caught.value, DamagedCheckpoint), name
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        load_sealed(newest / "server.safetensors")
    assert sorted(path for path in parent.rglob("*")) == before
    assert latest_checkpoint(parent) == (newest, [])
    (newest / "server.safetensors").unlink()
    (newest / "server.safetensors").mkdir()
    assert flaw(newest) == "server.safetensors cannot be read"


def test_a_checkpoint_that_was_deleted_for_a_newer_one_is_not_called_damaged(saved, tmp_path, monkeypatch):
    parent = tmp_path / "checkpoints"
    shutil.copytree(saved.parent, tmp_path, dirs_exist_ok=True)
    other = start(parent)
    monkeypatch.setattr(checkpoint, "_marker", lambda folder, real=checkpoint._marker: (go_on(folder), real(folder))[1])

    def go_on(folder):
        """Another process saves, and deletes the one that is being read."""
        if other.round == 4:
            monkeypatch.undo()
            left_after(other, 6)
            shutil.rmtree(parent / "round-00000002", ignore_errors=True)
            prune(parent, 1)

    run = start(parent)
    assert (run.round, run.warnings()) == (6, [])
    # The folder goes before its files are looked at.
    folder = parent / "round-00000006"
    folder.rename(tmp_path / "gone")
    with pytest.raises(DamagedCheckpoint, match=r"progress\.json is missing"):
        read_checkpoint(folder)
    assert start(parent).warnings() == []


def test_a_trial_takes_a_newer_checkpoint_of_another_one_where_that_one_has_gone_on(saved, tmp_path):
    parent = tmp_path / "theirs" / "checkpoints"
    shutil.copytree(saved.parent, parent.parent)
    good, gone = checkpoints(parent)
    mine = start(tmp_path / "mine" / "checkpoints")
    folder = RunFolder(tmp_path / "mine")
    folder.update(status="running", created="", data_root=None, versions={}, git_commit=None)
    # It takes over its first model. What a copy writes into the folder of the run is tested with the search.
    members = [SimpleNamespace(folder=folder)]
    rounds_before: list[int] = []
    become = lambda variant, member, trained: rounds_before.append(trained)  # noqa: E731
    trial = SimpleNamespace(coordinator=mine, members=members, copies=1, _become=become)
    token = {"folder": str(tmp_path / "theirs"), "checkpoint": str(parent / "round-00000003"), "reported": 3}
    (tmp_path / "experts.json").write_text(json.dumps([token]))
    FederatedTrainable.load_checkpoint(trial, tmp_path)
    assert (mine.round, trial.members[0].reported, rounds_before) == (4, 3, [0])
    assert [folder.name for folder in checkpoints(tmp_path / "mine" / "checkpoints")] == [gone.name]
    # One that is damaged is no reason to take another one.
    flip(good / "server.safetensors")
    (tmp_path / "experts.json").write_text(json.dumps([token | {"checkpoint": str(good)}]))
    with pytest.raises(DamagedCheckpoint):
        FederatedTrainable.load_checkpoint(trial, tmp_path)


def test_a_trial_notes_the_rounds_that_it_has_only_from_copies(tmp_path, monkeypatch):
    monkeypatch.setattr(trainable, "dump_experiment", lambda experiment: "")
    folder = RunFolder(tmp_path)
    folder.update(status="running", created="", data_root=None, versions={}, git_commit=None)
    member = SimpleNamespace(folder=folder, experiment=None, overrides={})
    # It had trained 3 rounds and takes a model of round 7, then 9 and takes one of round 8.
    for copies, (trained, taken) in enumerate([(3, 7), (9, 8)], 1):
        run = SimpleNamespace(servers=[SimpleNamespace(round=taken)])
        trial = SimpleNamespace(coordinator=run, copies=copies, lineage=[{"donor": 1}])
        FederatedTrainable._become(trial, 0, member, trained)
    # Its records have 8 rounds. It has trained 3 and 2.
    assert folder.record()["copied"] == 8 - 5


def test_a_checkpoint_that_cannot_be_written_says_what_helps(tmp_path):
    run = start(tmp_path / "checkpoints")
    left_after(run, 2)
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text().replace('"round": 1', '"round": 7', 1) + "\n")
    next(run)
    reason = rf"\({file} does not match its SHA-256\); stop other programs from writing to this file, then "
    with pytest.raises(UserError, match=reason):
        run.save()
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(UserError, match=r"make sure that its folder can be read and written, then"):
        run.save()


# ---- crashes ---------------------------------------------------------------------------------------------------------

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link"}


def killed_at(step: int, action) -> bool:
    """Whether a process is killed before its change number `step` of the file system, while it does something."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    done = 0

    def hook(event, arguments):
        nonlocal done
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            done += 1
            if done > step:
                os._exit(9)

    sys.addaudithook(hook)
    action()
    os._exit(0)


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_wherever_a_process_is_killed_there_is_an_intact_checkpoint(tmp_path, another):
    """A round is saved a second time, with the records so far or with those of another run."""
    before, other = tmp_path / "before" / "checkpoints", tmp_path / "other" / "checkpoints"
    written(before, 4, 1.0, History(records(1, 4)))
    written(other, 4, 9.0, History(records(1, 4)))

    def again(parent: Path):
        _, progress = read_checkpoint((other if another else parent) / "round-00000004")
        prune(parent, 1, written(parent, 4, 2.0, progress["history"]))

    steps, values = 0, set()
    while True:
        parent = tmp_path / str(steps) / "checkpoints"
        shutil.copytree(before.parent, parent.parent)
        killed = killed_at(steps, lambda parent=parent: again(parent))
        newest, damaged = latest_checkpoint(parent)
        assert damaged == []
        server, progress = read_checkpoint(newest)
        values.add(server["w"]["a"][0].item())
        assert list(progress["history"]) == records(1, 4)
        progress["history"].append(records(5, 5)[0])
        prune(parent, 1, written(parent, 5, 5.0, progress["history"]))
        assert list(read_checkpoint(latest_checkpoint(parent)[0])[1]["history"]) == records(1, 5)
        assert sorted(path.name for path in parent.parent.iterdir()) == ["checkpoints", "metrics.jsonl"]
        assert [path.name.partition("-")[0] for path in parent.iterdir()] == ["round"]
        if not killed:
            break
        steps += 1
    assert steps >= 8
    assert values == {1.0, 2.0}


def test_a_file_is_forced_to_the_disk_before_it_replaces_another(tmp_path, monkeypatch):
    file, seen = tmp_path / "run.json", []
    fsync, replace = os.fsync, Path.replace

    def forced(descriptor):
        seen.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def replaced(path, target):
        seen.append(f"{path.name} replaces {Path(target).name}")
        return replace(path, target)

    monkeypatch.setattr(files.os, "fsync", forced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_whole(file, "{}")
    aside = seen[0]
    assert seen == [aside, f"{aside} replaces run.json", tmp_path.name]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_two_writers_of_a_file_do_not_disturb_each_other(tmp_path):
    file, errors = tmp_path / "run.json", []

    def write(text):
        try:
            for _ in range(20):
                write_whole(file, text)
        except OSError as error:
            errors.append(error)

    texts = [letter * 100_000 for letter in "ab"]
    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert file.read_text() in texts
    assert list(tmp_path.iterdir()) == [file]


# ---- records ---------------------------------------------------------------------------------------------------------


def test_a_history_is_a_sequence_whether_its_records_are_saved_or_not(tmp_path):
    history = History()
    for record in records(1, 4):
        history.append(record)
    file = tmp_path / "metrics.jsonl"
    history.save(file)
    assert not history.is_in(file)
    history.settle()
    assert history.is_in(file)
    position = history.save(file)
    for record in records(5, 6):
        history.append(record)
    expected = records(1, 6)
    assert (len(history), list(history)) == (6, expected)
    assert [history[i] for i in range(-6, 6)] == [expected[i] for i in range(-6, 6)]
    for start in range(7):
        for stop in (*range(7), None, -1):
            assert history[start:stop] == expected[start:stop]
    assert history[::-2] == expected[::-2]
    assert list(reversed(history)) == expected[::-1]
    with pytest.raises(IndexError):
        history[6]
    again = History.read(file, position)
    assert (list(again), again[-1]) == (expected[:4], expected[3])
    assert not History()


def test_a_checkpoint_has_the_same_size_in_round_10000_and_records_are_written_once(tmp_path):
    history, sizes = History(), {}
    for round in range(1, 10_001):
        history.append({"round": round, "loss": 0.5})
        if round in (10, 5_000, 10_000):
            folder = written(tmp_path / "checkpoints", round, 0.0, history)
            sizes[round] = (folder / "progress.json").stat().st_size
    assert sizes[10_000] < sizes[10] + 20
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(seal(record) + "\n" for record in history)
    # In memory are a position for each record, and the last record.
    assert history._unsaved == []
    for folder in checkpoints(tmp_path / "checkpoints"):
        assert len(read_checkpoint(folder)[1]["history"]) == int(folder.name[-8:])


def test_a_resume_cuts_off_the_records_after_the_position_of_its_checkpoint(tmp_path):
    parent, file = tmp_path / "checkpoints", tmp_path / "metrics.jsonl"
    history = History(records(1, 2))
    first = written(parent, 2, 0.0, history)
    for record in records(3, 4):
        history.append(record)
    second = written(parent, 4, 0.0, history)
    with file.open("a") as stream:
        stream.write('{"round": 5, "lo')
    for folder, rounds in ((second, 4), (first, 2)):
        back = read_checkpoint(folder)[1]["history"]
        assert list(back) == records(1, rounds)
        back.append({"round": rounds + 1, "other": True})
        third = written(parent, rounds + 1, 0.0, back)
        expected = [*records(1, rounds), {"round": rounds + 1, "other": True}]
        assert list(read_checkpoint(third)[1]["history"]) == expected
        assert file.read_text() == "".join(seal(record) + "\n" for record in expected)
    # Those before are as intact as ever.
    assert flaw(first) is None


def test_bytes_behind_the_saved_records_are_cut_off_before_others_are_written(tmp_path):
    """A process that was suspended may write a last record when another one has taken over its run."""
    history, file = History(records(1, 2)), tmp_path / "metrics.jsonl"
    history.save(file)
    history.settle()
    with file.open("a") as stream:
        stream.write(10 * '{"round": 3, "loss": 9.0}')
    history.append(records(3, 3)[0])
    history.write(file)
    assert file.read_text() == "".join(seal(record) + "\n" for record in records(1, 3))


@pytest.mark.parametrize("lines", [0, 2, 3])
def test_records_that_are_cut_off_between_lines_are_noticed(tmp_path, lines):
    folder = written(tmp_path / "checkpoints", 4, 0.0, History(records(1, 4)))
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:lines]))
    assert flaw(folder) == "metrics.jsonl is truncated"
    file.unlink()
    assert flaw(folder) == "metrics.jsonl is missing"


def test_a_resumed_run_has_no_records_of_later_rounds(tmp_path):
    first = start(tmp_path / "checkpoints", rounds=4)
    left_after(first, 2)
    while not first.done:
        first.advance(0.0)
    shutil.rmtree(tmp_path / "checkpoints" / "round-00000004")
    file = tmp_path / "metrics.jsonl"
    assert len(file.read_text().splitlines()) == 4
    # Nothing is left to do.
    again = start(tmp_path / "checkpoints", rounds=2)
    assert again.advance(0.0) == ([], True)
    assert len(file.read_text().splitlines()) == 2


def test_a_crash_between_two_checkpoints_leaves_the_records_of_the_last_one(tmp_path):
    """Records are written each round, and the process may be killed before the next checkpoint, or in a record."""
    parent, file = tmp_path / "checkpoints", tmp_path / "metrics.jsonl"
    history = History(records(1, 2))
    folder = written(parent, 2, 0.0, history)
    history.append(records(3, 3)[0])
    history.write(file)
    whole = file.read_bytes()
    begin = json.loads((folder / "progress.json").read_text())["content"]["history"]["bytes"]
    for length in range(len(whole), 0, -7):
        file.write_bytes(whole[:length])
        assert (flaw(folder) is None) == (length >= begin)


def test_records_follow_the_state_of_another_run_and_its_own_later_rounds_are_left(tmp_path):
    here, there = tmp_path / "mine" / "checkpoints", tmp_path / "theirs" / "checkpoints"
    mine, theirs = start(here), start(there)
    left_after(mine, 2, 4)
    left_after(theirs, 3)
    mine.load(0, checkpoints(there)[0])
    mine.save()
    assert clockless(mine) == clockless(theirs)
    shutil.rmtree(there.parent)
    again = start(here)
    assert again.round == 3
    assert [record["round"] for record in again.servers[0].history] == [1, 2, 3]
    left_after(again, 4)
    assert [folder.name[-1] for folder in checkpoints(here)][-2:] == ["3", "4"]


def test_a_run_ends_at_its_targets_after_a_resume_too(tmp_path):
    wanted = Evaluation(targets=[0.9, 0.95], stop=True)
    calm = start(None, rounds=50, evaluation=wanted)
    list(calm)
    assert calm.done
    assert 1 < calm.round < 50
    first = start(tmp_path / "checkpoints", rounds=50, evaluation=wanted)
    left_after(first, calm.round - 1)
    second = start(tmp_path / "checkpoints", rounds=50, evaluation=wanted)
    list(second)
    assert second.round == calm.round
    assert identical(model(second), model(calm))
    # The last round is saved, and nothing is left to do.
    second.save()
    assert start(tmp_path / "checkpoints", rounds=50, evaluation=wanted).done


def test_leaves_that_share_memory_are_saved(tmp_path):
    leaf = torch.arange(6.0)
    tree = {"a": leaf, "b": {"same": leaf, "part": leaf[2:4]}, "c": torch.zeros(0)}
    save_tree(tree, tmp_path / "tree.safetensors")
    assert identical(flatten(parse_tree((tmp_path / "tree.safetensors").read_bytes())), flatten(tree))


def test_names_with_slashes_and_empty_branches_read_back(tmp_path):
    leaf = torch.arange(3.0)
    state = {"none": {}, "m/v": leaf, "m": {"v": leaf + 1}, "w": {"parts.a/b.weight": leaf + 2, "~1": leaf, "": {}}}
    store = StateStore(state, 2)
    rows = store.rows(np.array([1]), keeps=True)
    rows.write(np.array([0]), tree_map(lambda leaf: leaf[None] + 5, state), store.layout)
    store.keep(np.array([1]), rows, np.array([True]), [])
    store.commit()
    folder = write_checkpoint(tmp_path / "round-00000001", state, {}, store.save)
    store.close()
    server, _ = read_checkpoint(folder)
    assert repr(server) == repr(state)
    other = StateStore(state, 2)
    other.load(folder)
    assert repr(other.layout.unpack(other.rows(np.array([1]), False).read(np.array([0])))) == repr(
        tree_map(lambda leaf: leaf[None] + 5, state)
    )
    other.close()
    assert repr(unflatten(flatten({"a/b": {"~": 1, "~1": 2}}))) == "{'a/b': {'~': 1, '~1': 2}}"
