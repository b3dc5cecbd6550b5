"""Text as data: LEAF's files, plays by speaker, blocks; and the next-character model learns from them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import DataConfig
from hedgerow.platform.data.sources.cache import load_dataset
from hedgerow.platform.data.sources.text import LETTERS, speakers
from hedgerow.platform.runs.runner import run

PLAY = (
    "First Citizen:\nBefore we proceed,\nhear me.\n\nAll:\nSpeak, speak: now.\n\n"
    "First Citizen:\nResolved?\n\nAll:\nYes.\n"
)
LEAF_FILES = {"shakespeare/train/a.json": "[", "shakespeare/test/a.json": "{}"}


def source(name: str, **options):
    return TypeAdapter(DataConfig).validate_python({"name": name, **options})


def leaf(folder: Path, lines: dict[str, int], width: int = 80) -> None:
    """LEAF's files: each role has so many training samples and a fifth of them to test."""
    text = (LETTERS * 40)[: width + max(lines.values()) + 1]
    for part, share in (("train", 1.0), ("test", 0.2)):
        users = {}
        for shift, (role, count) in enumerate(lines.items()):
            n = int(count * share)
            starts = [(shift + i) % len(LETTERS) for i in range(n)]
            users[role] = {"x": [text[s : s + width] for s in starts], "y": [text[s + width] for s in starts]}
        (folder / part).mkdir(parents=True)
        content = {"users": list(users), "num_samples": [len(u["y"]) for u in users.values()], "user_data": users}
        (folder / part / f"all_data_{part}.json").write_text(json.dumps(content))


def test_speakers_have_their_own_words_in_order():
    assert speakers(PLAY) == {
        "First Citizen": "Before we proceed,\nhear me.\nResolved?\n",
        "All": "Speak, speak: now.\nYes.\n",
    }


def test_a_sample_is_followed_by_its_label_and_parts_do_not_overlap(tmp_path):
    words = {"A": "abcdefghij" * 5, "B": "zyxwv" * 10}
    (tmp_path / "play.txt").write_text("".join(f"{name}:\n{text}\n\n" for name, text in words.items()))
    config = source("text", path="play.txt", clients=2, length=4, samples=20, test_samples=5)
    data = load_dataset(config, tmp_path)
    letters = "".join("\n" if name == "\\n" else name for name in data.class_names)
    for x, y, client in zip(data.x_train, data.y_train, data.train_clients, strict=True):
        sample = "".join(letters[i] for i in x) + letters[y]
        assert sample in words["AB"[client]]
    assert (data.x_train.dtype, data.y_train.dtype, data.is_tokens) == (np.uint8, np.int64, True)
    assert np.bincount(data.train_clients).tolist() == [20, 20]
    assert len(data.y_test) == 10
    assert data.classes == len(set("".join(f"{text}\n" for text in (*words.values(), *words, ":"))))


def test_windows_of_both_parts_share_no_character(tmp_path):
    # A text without repetitions: every window says where it stands.
    text = "".join(chr(0x100 + i) for i in range(200))
    (tmp_path / "plain.txt").write_text(text)
    config = source("text", path="plain.txt", by="block", clients=1, length=8, samples=1000, test_samples=200, stride=3)
    data = load_dataset(config, tmp_path)
    train, test = np.unique(data.x_train), np.unique(data.x_test)
    assert not set(np.append(train, data.y_train)) & set(np.append(test, data.y_test))
    assert set(np.diff(np.sort(data.x_train[:, 0]))) == {3}


def test_a_byte_order_mark_is_no_letter_and_no_part_of_a_speaker(tmp_path):
    (tmp_path / "play.txt").write_text("".join(f"{name}:\nabc\n\n" for name in "AB" * 10), encoding="utf-8-sig")
    data = load_dataset(source("text", path="play.txt", clients=2, length=4), tmp_path)
    assert data.class_names == ("\\n", ":", "A", "B", "a", "b", "c")
    assert np.bincount(data.train_clients).tolist() == [27, 27]
    with pytest.raises(UserError, match="has 2 speakers with enough text, not 3; lower it"):
        load_dataset(source("text", path="play.txt", clients=3, length=4), tmp_path)


def test_leafs_files_give_one_client_per_role(tmp_path):
    leaf(tmp_path / "shakespeare", {"HAMLET": 40, "OPHELIA": 30, "YORICK": 5})
    data = load_dataset(source("shakespeare", clients=2, samples=30, test_samples=4), tmp_path)
    assert data.x_train.shape == (60, 80)
    assert np.bincount(data.train_clients).tolist() == [30, 30]
    assert (len(data.y_test), data.classes) == (8, 80)
    # The text runs through the alphabet, so the label follows the last character.
    assert (data.y_train == (data.x_train[:, -1] + 1) % 80).all()
    fewer = load_dataset(source("shakespeare", clients=3, samples=30), tmp_path)
    assert sorted(np.bincount(fewer.train_clients)) == [5, 30, 30]


def test_a_character_that_leaf_does_not_know_is_its_last_one(tmp_path):
    leaf(tmp_path / "shakespeare", {"HAMLET": 10})
    file = tmp_path / "shakespeare" / "train" / "all_data_train.json"
    file.write_text(file.read_text().replace("B", "$"))
    data = load_dataset(source("shakespeare", clients=1, samples=10), tmp_path)
    assert LETTERS.index("B") not in data.x_train
    assert len(LETTERS) - 1 in data.x_train


@pytest.mark.parametrize("stride", [1, 7, 10, 13])
@pytest.mark.parametrize("characters", [162, 200, 331])
def test_every_client_has_samples_of_both_parts_which_share_no_character(tmp_path, stride, characters):
    (tmp_path / "plain.txt").write_text("".join(chr(0x100 + i) for i in range(min(characters, 256))))
    config = source("text", path="plain.txt", by="block", clients=1, length=20, stride=stride, samples=50)
    data = load_dataset(config, tmp_path)
    assert len(data.y_train) > 0 < len(data.y_test)
    train, test = np.append(data.x_train, data.y_train), np.append(data.x_test, data.y_test)
    assert not set(train.tolist()) & set(test.tolist())


def test_a_block_too_short_for_both_parts_is_told(tmp_path):
    (tmp_path / "plain.txt").write_text("abcdefghij" * 30)
    with pytest.raises(UserError, match="has 0 blocks with enough text, not 2"):
        load_dataset(source("text", path="plain.txt", by="block", clients=2, stride=100), tmp_path)


def without_y(user: dict) -> None:
    del user["y"]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (without_y, "is not a JSON file in LEAF's format"),
        (lambda user: user.update(y=3), "is not a JSON file in LEAF's format"),
        (lambda user: user.update(y=user["y"][:2]), "is not a JSON file in LEAF's format"),
        (lambda user: user.update(x=[3] * len(user["y"])), "is not a JSON file in LEAF's format"),
        (lambda user: user["x"].__setitem__(0, "short"), "do not all have the same length"),
        (lambda user: user.update(x=[""] * len(user["y"])), "do not all have the same length"),
        (lambda user: user.update(x=[], y=[]), "has 1 roles, not 2"),
    ],
)
def test_damaged_leaf_files_are_told(damage, sentence, tmp_path):
    leaf(tmp_path / "shakespeare", {"HAMLET": 10, "OPHELIA": 10})
    file = tmp_path / "shakespeare" / "train" / "all_data_train.json"
    content = json.loads(file.read_text())
    damage(content["user_data"]["HAMLET"])
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=sentence):
        load_dataset(source("shakespeare", clients=2), tmp_path)


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (None, {"name": "shakespeare"}, "it should contain train/*.json and test/*.json"),
        (None, {"name": "text", "path": "none.txt"}, "there is no file"),
        ({"play.txt": PLAY}, {"name": "text", "path": "play.txt", "length": 8}, "has 2 speakers with enough text"),
        ({"play.txt": "x" * 500}, {"name": "text", "path": "play.txt"}, "has 1 different characters"),
        (LEAF_FILES, {"name": "shakespeare"}, "not a JSON file in LEAF's"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told(make, options, sentence, tmp_path):
    for name, text in (make or {}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=sentence.replace("*", r"\*")):
        load_dataset(source(**options), tmp_path)


@pytest.mark.exhaustive("convergence")
def test_the_model_learns_from_a_play(tmp_path):
    words = ["to be or not to be ", "that is the question "]
    text = "".join(f"ROLE {i}:\n{(words[i % 2] * 20).strip()}\n\n" for i in range(4))
    (tmp_path / "play.txt").write_text(text)
    experiment = parse_experiment({
        "name": "play", "rounds": 8, "clients_per_round": "all", "output": str(tmp_path / "runs"),
        "task": {
            "data": {"name": "text", "path": "play.txt", "clients": 4, "length": 10, "samples": 120},
            "partition": {"kind": "natural"}, "model": {"name": "char_lstm", "hidden": 16, "layers": 1},
        },
        "algorithm": {"name": "fedavg", "lr": 2.0, "epochs": 3, "batch_size": 10, "clip_norm": 5.0},
        "engine": {"mode": "loop"}, "resources": {"executor": "inline"}, "tracking": {"enabled": False},
    })  # fmt: skip
    records = run(experiment, tmp_path).records
    assert records[-1]["test_accuracy"] > 0.4 > records[0]["test_accuracy"]


@pytest.mark.skipif("HEDGEROW_DATA_ROOT" not in os.environ, reason="HEDGEROW_DATA_ROOT names no real data")
def test_tiny_shakespeare_when_it_is_there():
    root = Path(os.environ["HEDGEROW_DATA_ROOT"])
    try:
        data = load_dataset(source("text", path="tinyshakespeare/input.txt"), root)
    except UserError as absent:
        pytest.skip(str(absent))
    assert (data.classes, data.x_train.shape[1], data.train_clients.max()) == (65, 80, 99)
    assert len(data.y_train) > 190_000
