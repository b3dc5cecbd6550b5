"""Files that are read again later, with one bit altered: the result is the same, or one sentence."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import records

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.storage.atomic_file import Altered
from hedgerow.platform.storage.history import History
from hedgerow.platform.storage.sealed_json import seal, unseal
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.hedge.async_rounds import HedgeRounds
from hedgerow.searchspaces.hedge.deployment import STATE, DeployedState
from hedgerow.searchspaces.hedge.weights import Hedge
from hedgerow.searchspaces.results.recording import Recording

RECORD = {"status": "finished", "created": "", "data_root": None, "versions": {}, "git_commit": None}
SUMMARY = {"test_accuracy": 0.478, "test_loss": 1.25, "rounds": 3, "to_target": {"0.4": {"rounds": 2}}}


def run_record(folder: Path):
    """Its file, and a function that reads it."""
    run = RunFolder(folder)
    run.update(**RECORD, summary=SUMMARY)
    return folder / "run.json", run.record


def experiment(folder: Path):
    """The file of a finished run."""
    run = RunFolder(folder)
    run.experiment.write_text("name: x\nevaluation:\n  targets: [0.8, 0.9]\n")
    run.update(**RECORD)
    return run.experiment, lambda: (run.record(), run.experiment.read_text())


def metrics(folder: Path):
    log = RunLog(folder / "metrics.jsonl")
    for record in records([0.478, None, 0.5]):
        log.append(record)
    return log.path, log.read


def partition(folder: Path):
    run = RunFolder(folder)
    run.keep_partition({"clients": 2, "samples": 5, "sizes": [2, 3], "class_names": ["a"], "counts": [[2], [3]]})
    return folder / "partition.json", run.partition


def recording(folder: Path):
    rounds = {name: [1, 2] for name in ("round", "client_rounds", "sample_gradients")}
    rounds |= {"configuration": [0, 0], "validation_accuracy": [0.25, 0.478]}
    one, file = Recording("x", {"seed": 1}, [{"algorithm.lr": 0.1}], rounds), folder / "recording.json"
    one.write(file)
    return file, lambda: Recording.read(file)


def journal(folder: Path):
    file = folder / "losses.jsonl"

    def read():
        history: list[dict] = []
        content = file.read_bytes() if file.exists() else None
        buffer = HedgeRounds(Hedge(2), "test_accuracy", "max", journal=file, on_round=history.append)
        if content:
            file.write_bytes(content)
        return buffer, history

    buffer, _ = read()
    buffer.enter(0, "lr=0.1")
    for round in (1, 2, 3):
        buffer.report(1, round, {"test_accuracy": 0.3})
        buffer.report(0, round, {"test_accuracy": 0.478})
    buffer.retire(1, penalised=True)

    def found():
        buffer, history = read()
        return history, buffer.weights.tolist(), buffer.latest.tolist(), buffer.retired

    return file, found


def deployed(folder: Path):
    model = {"w": {"a": torch.arange(20.0), "b": torch.tensor([1.5])}}
    DeployedState(7, "mixture", {0: 0.25, 3: 0.75}, {0: model, 3: model}).write(folder)

    def read():
        state = DeployedState.read(folder)
        leaves = [(name, leaf.numpy().tobytes()) for one in state.models.values() for name, leaf in one["w"].items()]
        return state.round, state.policy, state.weights, list(state.models), leaves

    return folder / STATE, read


def saved_records(folder: Path):
    """The records that a checkpoint refers to."""
    history = History(records([0.478, None, 0.5]))
    file = folder / "metrics.jsonl"
    position = history.save(file)
    history.settle()

    def read():
        try:
            return list(History.read(file, position))
        except Altered as error:
            raise UserError(str(error)) from None

    return file, read


KINDS = [run_record, experiment, metrics, partition, recording, journal, deployed, saved_records]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_one_altered_bit_changes_no_result_in_silence(kind, tmp_path):
    file, read = kind(tmp_path)
    content, whole, draw = file.read_bytes(), read(), random.Random(kind.__name__)
    refusals = []
    for _ in range(100):
        altered = bytearray(content)
        altered[draw.randrange(len(altered))] ^= 1 << draw.randrange(8)
        file.write_bytes(altered)
        try:
            assert read() == whole
        except UserError as error:
            refusals.append(str(error))
    assert len(refusals) > 90
    assert not any("\n" in refusal for refusal in refusals)
    file.write_bytes(content)
    assert read() == whole


@pytest.mark.parametrize("kind", [metrics, journal], ids=lambda kind: kind.__name__)
def test_a_line_that_a_crash_cut_off_is_left_out_and_one_with_another_end_is_not(kind, tmp_path):
    file, read = kind(tmp_path)
    content = file.read_bytes()
    last = content.rstrip(b"\n").rpartition(b"\n")[2]
    before = content[: -len(last) - 1]
    file.write_bytes(before)
    expected = read()
    for length in range(1, len(last)):
        file.write_bytes(before + last[:length])
        assert read() == expected
    for end in range(8):
        file.write_bytes(before + last + bytes([ord("\n") ^ 1 << end]))
        with pytest.raises(UserError, match=f"{file.name}.* is damaged"):
            read()


def test_a_journal_continues_after_a_line_that_was_cut_off(tmp_path):
    file, read = journal(tmp_path)
    expected, content = read(), file.read_bytes()
    file.write_bytes(content[:-1])
    assert read() == expected
    for cut in (content[:20], content[:-30]):
        file.write_bytes(cut)
        HedgeRounds(Hedge(2), "test_accuracy", "max", journal=file).retire(1, penalised=True)
        assert read()[-1] == {1: True}


def test_the_checksum_is_of_the_object_and_not_of_its_text():
    values = {"a": [1, 2.5, None, float("nan")], "b": {"c": "ü"}, "d": True}
    text = seal(values)
    assert list(json.loads(text)) == ["a", "b", "d", "sha256"]
    for same in (text, seal(values, indent=2), json.dumps(json.loads(text), indent=7, ensure_ascii=False)):
        np.testing.assert_equal(unseal(json.loads(same)), values)
    for other in ({"a": 1}, {"d": 1}, {"e": 0}, {"sha256": "0" * 16}):
        with pytest.raises(Altered):
            unseal(json.loads(text) | other)
    with pytest.raises(Altered):
        unseal(values)
