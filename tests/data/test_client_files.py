"""Data sets by client in the formats of LEAF and TensorFlow Federated: femnist, shakespeare and stackoverflow."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import DataConfig
from hedgerow.platform.data.sources.cache import load_dataset
from hedgerow.platform.data.sources.text import LETTERS
from hedgerow.platform.runs.runner import run

SENTENCES = {"ann": ["how do i sort a list", "how do i sort"], "bob": ["a list of a list"], "eve": ["sort a list"]}


def source(name: str, **options):
    return TypeAdapter(DataConfig).validate_python({"name": name, **options})


def leaf_file(folder: Path, part: str, users: dict[str, dict]) -> Path:
    """One file as LEAF's preprocess.sh writes it."""
    file = folder / part / f"all_data_0_niid_0_keep_0_{part}_9.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(fields["y"]) for fields in users.values()]
    file.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": users}))
    return file


def writer(labels: list[int], grey: int = 0) -> dict:
    """A writer's images: pixel i of sample n is (i + n + grey) / 255, modulo 256."""
    images = (np.arange(784) + np.arange(len(labels))[:, None] + grey) % 256
    return {"x": (images / 255).tolist(), "y": labels}


def h5_file(file: Path, clients: dict[str, dict]) -> Path:
    """One file as TensorFlow Federated has it: a group for each client in the group `examples`."""
    h5py = pytest.importorskip("h5py")
    file.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(file, "w") as content:
        for client, fields in clients.items():
            group = content.create_group(f"examples/{client}")
            for name, values in fields.items():
                group.create_dataset(name, data=values)
    return file


def posts(folder: Path, **options) -> dict:
    """Small Stack Overflow files; the test file has the training sentences of each user in reverse."""
    for part, step in (("train", 1), ("test", -1)):
        users = {
            user: {"tokens": [text.encode() for text in texts[::step]], "tags": [b"python|list"] * len(texts)}
            for user, texts in SENTENCES.items()
        }
        h5_file(folder / "stackoverflow" / f"stackoverflow_{part}.h5", users)
    return {"name": "stackoverflow", "clients": 3, "length": 4, **options}


# ---- LEAF ------------------------------------------------------------------------------------------------------------


def test_femnist_of_leaf_has_one_client_per_writer_and_its_own_splits(tmp_path):
    folder = tmp_path / "femnist"
    leaf_file(folder, "train", {"f1": writer([3, 61, 10]), "f2": writer([0], grey=7)})
    leaf_file(folder, "val", {"f2": writer([5, 5]), "f9": writer([1])})
    leaf_file(folder, "test", {"f2": writer([1, 2]), "f1": writer([9]), "f3": writer([4])})
    data = load_dataset(source("femnist"), tmp_path)
    assert (data.x_train.shape, data.x_train.dtype) == ((6, 1, 28, 28), np.uint8)
    assert (data.x_train[1].ravel() == (np.arange(784) + 1) % 256).all()
    assert data.y_train.tolist() == [3, 61, 10, 0, 5, 5]
    assert data.train_clients.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.splits.tolist() == [0, 0, 0, 0, 1, 1]
    assert dict(zip(data.y_test.tolist(), data.test_clients.tolist(), strict=True)) == {9: 0, 1: 1, 2: 1, 4: -1}
    assert (data.classes, data.class_names[9:12], data.class_names[-1]) == (62, ("9", "A", "B"), "z")
    one = load_dataset(source("femnist", clients=1), tmp_path)
    # Writers without training samples stay in the test set; the other writer is left out altogether.
    assert set(one.train_clients) == {0}
    assert sorted(one.y_test.tolist()) in ([4, 9], [1, 2, 4])


def test_shakespeares_roles_keep_their_test_and_validation_samples(tmp_path):
    folder = tmp_path / "shakespeare"
    text = LETTERS * 3

    def role(start: int, number: int) -> dict:
        ends = range(start + 80, start + 80 + number)
        return {"x": [text[end - 80 : end] for end in ends], "y": [text[end] for end in ends]}

    leaf_file(folder, "train", {"LEAR": role(0, 3), "KENT": role(5, 2)})
    leaf_file(folder, "validation", {"KENT": role(9, 1)})
    leaf_file(folder, "test", {"KENT": role(20, 1), "LEAR": role(30, 2)})
    data = load_dataset(source("shakespeare", clients=2), tmp_path)
    assert data.train_clients.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.splits.tolist() == [0, 0, 0, 0, 0, 1]
    assert data.test_clients.tolist() == [0, 0, 1]
    assert data.y_test.tolist() == [30, 31, 20]


# ---- TensorFlow Federated --------------------------------------------------------------------------------------------


def test_femnist_of_tensorflow_federated_equals_that_of_leaf(tmp_path):
    users = {"train": {"f1": writer([3, 61, 10]), "f2": writer([0])}, "test": {"f1": writer([9]), "f2": writer([8])}}
    for part, writers in users.items():
        leaf_file(tmp_path / "leaf", part, writers)
        h5_file(
            tmp_path / "tff" / f"fed_emnist_{part}.h5",
            {
                name: {
                    "pixels": np.array(fields["x"], np.float32).reshape(-1, 28, 28),
                    "label": np.array(fields["y"], np.int32),
                }
                for name, fields in writers.items()
            },
        )
    leaf, tff = (load_dataset(source("femnist", path=name), tmp_path) for name in ("leaf", "tff"))
    for field in ("x_train", "y_train", "x_test", "y_test", "train_clients", "test_clients"):
        assert np.array_equal(getattr(leaf, field), getattr(tff, field))


def test_snippets_of_shakespeare_are_cut_into_windows(tmp_path):
    snippets = [LETTERS, "a lone line"]
    for part in ("train", "test"):
        roles = {"LEAR": {"snippets": [text.encode() for text in snippets]}, "KENT": {"snippets": [b"short"]}}
        h5_file(tmp_path / "shakespeare" / f"shakespeare_{part}.h5", roles)
    data = load_dataset(source("shakespeare", clients=1), tmp_path)
    text = "\n".join(snippets)
    assert data.x_train.shape == (len(text) - 80, 80)
    assert "".join(LETTERS[i] for i in data.x_train[3]) == text[3:83]
    assert "".join(LETTERS[i] for i in data.y_train) == text[80:]
    assert data.test_clients.tolist() == [0] * len(data.y_test)


def test_words_of_stack_overflow_are_predicted_from_those_before(tmp_path):
    data = load_dataset(source(**posts(tmp_path)), tmp_path)
    names = np.array(data.class_names)
    # All words are in the vocabulary, so that every word is a sample of its user.
    assert [(data.train_clients == k).sum() for k in range(3)] == [10, 5, 3]
    assert names[data.y_train[:6]].tolist() == SENTENCES["ann"][0].split()
    assert names[data.x_train[0]].tolist() == ["<pad>"] * 3 + ["<begin>"]
    assert names[data.x_train[5]].tolist() == ["do", "i", "sort", "a"]
    assert names[data.y_test[:4]].tolist() == SENTENCES["ann"][1].split()
    assert (data.is_tokens, data.x_train.dtype, data.test_clients.tolist()) == (
        True, np.int32, [0] * 10 + [1] * 5 + [2] * 3
    )  # fmt: skip
    # The most frequent words first, then in the order of the alphabet.
    assert data.class_names == ("<pad>", "<other>", "<begin>", "a", "list", "sort", "do", "how", "i", "of")


def test_rare_words_are_tokens_but_not_labels(tmp_path):
    data = load_dataset(source(**posts(tmp_path, vocabulary=2, samples=3)), tmp_path)
    assert data.class_names[3:] == ("a", "list")
    assert set(data.y_train.tolist()) == {3, 4}
    assert 1 in data.x_train
    assert np.bincount(data.train_clients).tolist() == [2, 3, 2]


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ({"x": [[0.0] * 783], "y": [1]}, r"client 'f1' has images of shape \(1, 783\), not 1 of 28 x 28"),
        ({"x": [[2.0] * 784], "y": [1]}, "client 'f1' has pixels outside 0 to 1"),
        ({"x": [[0.0] * 784], "y": [62]}, "client 'f1' has labels that are not whole numbers from 0 to 61"),
        ({"x": [[0.0] * 784], "y": [1.5]}, "client 'f1' has labels that are not whole numbers"),
        ({"x": [[0.0] * 784], "y": []}, "client 'f1' has `x` and `y` that are not lists of one length"),
        ({"x": [["a"] * 784], "y": [1]}, "client 'f1' could not convert string to float"),
        ({"y": [1]}, "client 'f1' has no `x` and `y`"),
    ],
)
def test_damaged_writers_are_refused(user, sentence, tmp_path):
    leaf_file(tmp_path / "femnist", "train", {"f1": {"y": [], **user}})
    leaf_file(tmp_path / "femnist", "test", {"f1": writer([1])})
    with pytest.raises(UserError, match=sentence) as error:
        load_dataset(source("femnist"), tmp_path)
    assert "all_data_0_niid_0_keep_0_train_9.json is not a JSON file in LEAF's format (" in str(error.value)


def test_writers_without_samples_and_too_few_writers_are_refused(tmp_path):
    leaf_file(tmp_path / "femnist", "train", {"f1": writer([1]), "f2": writer([])})
    leaf_file(tmp_path / "femnist", "test", {"f1": writer([])})
    with pytest.raises(UserError, match="have no samples for training or for testing; add them"):
        load_dataset(source("femnist"), tmp_path)
    with pytest.raises(UserError, match="has 1 writers, not 2; lower it"):
        load_dataset(source("femnist", clients=2), tmp_path)
    with pytest.raises(UserError, match=r"or fed_emnist_train\.h5 and fed_emnist_test\.h5"):
        load_dataset(source("femnist", path="nowhere"), tmp_path)
    leaf_file(tmp_path / "femnist", "val", {"f1": writer([1])}).rename(tmp_path / "femnist" / "train" / "b.json")
    with pytest.raises(UserError, match=r"b\.json: client 'f1' is also in another file; remove one of them"):
        load_dataset(source("femnist"), tmp_path)


@pytest.mark.parametrize(
    ("clients", "options", "sentence"),
    [
        ({"ann": {"title": [b"x"]}}, {}, "client 'ann' has no `tokens`"),
        ({"ann": {"tokens": [1.5]}}, {}, "client 'ann' has values that are not text"),
        ({"ann": {"tokens": [b"\xff a"]}}, {}, "client 'ann' has text that is not UTF-8"),
        ({"ann": {"tokens": [b"yes"]}}, {}, "have fewer than 2 words"),
        ({"ann": {"tokens": [b"a b"]}}, {"clients": 2}, "has 1 users with training and test samples, not 2; lower it"),
        ({}, {}, "it has no group `examples`"),
    ],
)
def test_damaged_posts_are_refused(clients, options, sentence, tmp_path):
    for part in ("train", "test"):
        h5_file(tmp_path / "stackoverflow" / f"stackoverflow_{part}.h5", clients)
    with pytest.raises(UserError, match=sentence):
        load_dataset(source("stackoverflow", **{"clients": 1, **options}), tmp_path)


def test_what_is_no_hdf5_file_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    for part in ("train", "test"):
        (tmp_path / f"stackoverflow_{part}.h5").write_text("no HDF5")
    with pytest.raises(UserError, match=r"is not an HDF5 file of TensorFlow Federated \(it cannot be opened\)"):
        load_dataset(source("stackoverflow", path=".", clients=1), tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(
        UserError, match=r"h5py, which cannot be imported .*; install it with `uv pip install -e '.\[hdf5"
    ):
        load_dataset(source("stackoverflow", path=".", clients=1), tmp_path)


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_personal_models_are_scored_on_the_users_own_test_samples(tmp_path):
    """No `client_test_fraction`: the personal method takes the test samples that the files give to each user."""
    experiment = parse_experiment({
        "name": "posts", "rounds": 2, "clients_per_round": "all", "output": str(tmp_path / "runs"),
        "task": {
            "data": posts(tmp_path), "partition": {"kind": "natural"},
            "model": {"name": "char_lstm", "hidden": 4, "layers": 1, "embedding": 3},
        },
        "algorithm": {"name": "pfldyn", "alpha": 0.1, "adapt": "none", "steps": 2, "batch_size": 4},
        "resources": {"executor": "inline"}, "tracking": {"enabled": False},
    })  # fmt: skip
    finished = run(experiment, data_root=tmp_path)
    assert 0 <= finished.summary["client_accuracy"] <= 1
