"""A function of one's own returns the data: by its dotted path, in runs, searches and resumed runs."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from command_line import hedgerow
from own_formats import CLIENTS, X, Y, accuracy, experiment, loaded, refusal
from PIL import Image
from torch.utils.data import ChainDataset, ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from hedgerow import api
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import dump_experiment, load_experiment, parse_experiment, read_experiment
from hedgerow.platform.data import Dataset as OwnDataset
from hedgerow.platform.data.content_hash import content_hash
from hedgerow.platform.runs import runner
from hedgerow.platform.runtime.factory import task_on
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.spaces.search_file import load_search

MODULE = '''
"""Three blobs."""

import numpy as np


def load(samples=90, spread=1.0):
    rng = np.random.default_rng(SEED)
    y = rng.integers(0, 3, samples)
    x = 3 * rng.normal(size=(3, 6))[y] + spread * rng.normal(size=(samples, 6))
    return (x[20:], y[20:]), (x[:20], y[:20])


def by_client(root, clients=4):
    (x, y), test = load()
    return {f"client {k}": ((x[k::clients], y[k::clients]), test) for k in range(clients)} if root.is_dir() else None


def broken():
    return [][0]
'''.replace("SEED", "0")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with the module, from which commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sources_of_mine.py").write_text(MODULE)
    sys.modules.pop("sources_of_mine", None)
    yield tmp_path
    sys.modules.pop("sources_of_mine", None)


LOAD = {"name": "sources_of_mine.load"}


class Pairs(Dataset):
    """A map-style data set whose items are made one by one."""

    def __init__(self, item=lambda i: (X[i], int(Y[i])), length=60):
        self.item, self.length = item, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.item(i)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def returns(value, monkeypatch, **data):
    """The data set that a function's result becomes."""
    monkeypatch.setitem(sys.modules, "made", type(sys)("made"))
    sys.modules["made"].load = lambda: value
    return loaded(name="made.load", **data)


PAIR, TEST = (X, Y), (X[:20], Y[:20])
TENSORS = TensorDataset(torch.tensor(X), torch.tensor(Y))
STORED = X.astype(np.float32)


@pytest.mark.parametrize(
    "value",
    [
        (PAIR, TEST),
        ([X, Y], [X[:20], Y[:20]]),
        {"x_train": X, "y_train": Y, "x_test": X[:20], "y_test": Y[:20]},
        (TENSORS, TensorDataset(torch.tensor(X[:20]), torch.tensor(Y[:20]))),
        (Pairs(), Pairs(length=20)),
        (Pairs(lambda i: (torch.tensor(X[i]), torch.tensor(Y[i]))), TEST),
    ],
    ids=["arrays", "lists", "dictionary", "tensors", "items", "items of tensors"],
)
def test_the_forms_of_a_training_and_a_test_part_are_equal(value, monkeypatch):
    data = returns(value, monkeypatch)
    assert np.array_equal(data.x_train, STORED)
    assert np.array_equal(data.x_test, STORED[:20])
    assert data.y_train.tolist() == Y.tolist()
    assert data.y_test.tolist() == Y[:20].tolist()
    assert (data.name, data.classes, data.train_clients) == ("made.load", 3, None)


@pytest.mark.parametrize(
    "value", [PAIR, {"x_train": X, "y_train": Y}, TENSORS, Pairs()], ids=lambda v: type(v).__name__
)
def test_without_a_test_part_a_share_of_each_class_is_for_testing(value, monkeypatch):
    data = returns(value, monkeypatch, test_fraction=0.4)
    assert np.bincount(data.y_test).tolist() == [8, 8, 8]
    assert sorted(map(tuple, np.concatenate([data.x_train, data.x_test]))) == sorted(map(tuple, STORED))


class Labelled(TensorDataset):
    """Joins two of the classes."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x, y % 2


class Transformed(Dataset):
    """Tensors with a transform, shorter than its tensors."""

    def __init__(self, transform):
        self.tensors, self.transform = TENSORS.tensors, transform

    def __len__(self):
        return 50

    def __getitem__(self, i):
        return self.transform(self.tensors[0][i]), self.tensors[1][i]


def test_items_of_a_torch_data_set_are_not_its_tensors(monkeypatch):
    data = returns((Labelled(*TENSORS.tensors), TEST), monkeypatch)
    assert np.array_equal(data.x_train, STORED)
    assert data.y_train.tolist() == (Y % 2).tolist()
    data = returns((Transformed(lambda x: 1 - x), TEST), monkeypatch)
    assert np.array_equal(data.x_train, (1 - X[:50]).astype(np.float32))
    assert data.y_train.tolist() == Y[:50].tolist()
    parts = ConcatDataset([Subset(Transformed(torch.neg), range(10)), Subset(TENSORS, range(10, 60))])
    data = returns((parts, TEST), monkeypatch)
    assert np.array_equal(data.x_train, np.concatenate([-STORED[:10], STORED[10:]]))
    # Items that are written into one buffer.
    x, y = np.zeros(5), np.zeros(2)

    def item(i):
        x[:], y[:] = X[i], (Y[i], -Y[i])
        return x, y

    data = returns((Pairs(item), (X, np.stack([Y, -Y], 1) * 1.0)), monkeypatch)
    assert np.array_equal(data.x_train, STORED)
    assert data.y_train.tolist() == np.stack([Y, -Y], 1).tolist()


def test_a_part_for_each_client_makes_natural_clients(monkeypatch):
    parts = {name: (X[name == CLIENTS], Y[name == CLIENTS]) for name in ("dora", "anna", "bert")}
    data = returns(parts, monkeypatch)
    sizes = [(name == CLIENTS).sum() for name in parts]
    assert (np.bincount(data.train_clients) + np.bincount(data.test_clients)).tolist() == sizes
    assert np.bincount(data.test_clients).tolist() == [round(0.2 * size) for size in sizes]
    assert content_hash(returns(list(parts.values()), monkeypatch)) == content_hash(data)
    # Some clients have test samples of their own, in either form.
    first, *others = parts.values()
    tested = [(first, TEST), {"train": others[0], "test": (X[:3], Y[:3])}, TensorDataset(*map(torch.tensor, others[1]))]
    data = returns(tested, monkeypatch)
    assert np.bincount(data.train_clients).tolist() == sizes
    assert np.bincount(data.test_clients).tolist() == [20, 3]
    assert np.array_equal(data.x_test, STORED[[*range(20), *range(3)]])


def test_arrays_come_with_what_is_known_about_them(monkeypatch):
    arrays = {
        "x_train": X,
        "y_train": Y,
        "train_clients": CLIENTS,
        "class_names": ["a", "b", "c"],
        "mean": 0,
        "std": 2.0,
    }
    data = returns(arrays, monkeypatch)
    assert data.class_names == ("a", "b", "c")
    assert (data.mean.tolist(), data.std.tolist()) == ([0] * 5, [2] * 5)
    assert set(data.train_clients) == {0, 1, 2, 3}
    tokens = returns({"x_train": np.arange(600).reshape(60, 10), "y_train": Y, "tokens": True}, monkeypatch)
    assert (tokens.is_tokens, tokens.x_train.dtype) == (True, np.int32)


@pytest.mark.parametrize("shape", [(60, 8, 8), (60, 8, 8, 3), (60, 64)])
@pytest.mark.parametrize("is_own", [False, True])
def test_a_mean_and_std_for_other_units_are_refused(shape, is_own, monkeypatch):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    def data(mean, std):
        arrays = {"x_train": x, "y_train": Y, "x_test": x, "y_test": Y, "mean": mean, "std": std}
        made = returns({**arrays, "mean": 0.0, "std": 1.0}, monkeypatch)
        assert made.std.max() == 1
        return replace(made, mean=np.float32(mean), std=np.float32(std)) if is_own else arrays

    made = returns(data(255 * 0.5, 255 * 0.25), monkeypatch)
    assert (set(made.mean.flat), set(made.std.flat)) == ({127.5}, {63.75})
    for mean, std, word in ((0.5, 0.25, "std"), (0, 0.3, "std"), (0.13, 60, "mean")):
        with pytest.raises(UserError, match=rf"name: made.load has `{word}` \d\S+, but its samples have [67891]\d+"):
            returns(data(mean, std), monkeypatch)
    if shape == (60, 64):
        return
    # Nearly black, in the units of the pixels.
    x[:] = 0
    x[::4, 0, 0] = 1
    assert set(returns(data(0.01, 0.1), monkeypatch).std.flat) == {np.float32(0.1)}


def test_a_data_set_is_taken_as_it_is(monkeypatch):
    mine = OwnDataset("mine", STORED, Y, STORED, Y, 3, STORED.mean(0), STORED.std(0), ("a", "b", "c"))
    assert returns(mine, monkeypatch) is mine
    monkeypatch.setattr(sys.modules["made"], "load", lambda: OwnDataset(*list(vars(mine).values())[:5], 2, *[None] * 3))
    assert "task.data.name: made.load has labels from 0 to 2 in y_train; number its 2 classes" in refusal(
        name="made.load"
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x_train": np.where(STORED[7, 2] == STORED, np.nan, STORED)}, "NaN or infinity in x_train, sample 7"),
        ({"x_test": np.where(STORED[9, 0] == STORED, np.inf, STORED)}, "NaN or infinity in x_test, sample 9"),
        ({"x_test": STORED[:, :4]}, "x_test of shape (60, 4), and x_train of (60, 5); give images (n, C, H, W)"),
        ({"x_train": STORED[:, 0], "x_test": STORED[:, 0]}, "x_train of shape (60,)"),
        ({"x_train": STORED.tolist()}, "x_train of type list; give a NumPy array"),
        ({"y_train": torch.from_numpy(Y)}, "y_train of type Tensor; give a NumPy array"),
        ({"train_clients": [0] * 60}, "train_clients of type list; give a NumPy array"),
        ({"splits": np.zeros(60)}, "other numbers in splits than 0"),
        ({"class_names": None}, "names 0 classes but has 3"),
        ({"x_train": STORED.astype(np.int32), "is_tokens": True}, "a token below 0 in x_train, sample 1"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_mistakes_in_a_data_set_are_named(change, sentence, monkeypatch):
    mine = OwnDataset("mine", STORED, Y, STORED, Y, 3, STORED.mean(0), STORED.std(0), ("a", "b", "c"))
    with pytest.raises(UserError) as caught:
        returns(replace(mine, **change), monkeypatch)
    assert sentence in str(caught.value)


def test_a_mean_in_double_precision_normalises_in_single():
    mean, std = X.mean(0), X.std(0)
    mine = OwnDataset("mine", STORED, Y, STORED, Y, 3, mean, std, ("a", "b", "c"))
    prepared = task_on(mine, torch.nn.Linear(5, 3)).prepare(torch.from_numpy(STORED))
    torch.testing.assert_close(prepared, torch.from_numpy(((X - mean) / std).astype(np.float32)))


def test_images_of_a_torch_data_set(monkeypatch):
    pictures = [Image.fromarray(np.full((5, 6, 3), i, np.uint8)) for i in range(60)]
    data = returns(Pairs(lambda i: (pictures[i], "xy"[i % 2])), monkeypatch)
    assert data.sample_shape == (3, 5, 6)
    assert data.class_names == ("x", "y")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "made.load gives NoneType; give (x_train, y_train), (x_test, y_test), a dictionary"),
        (X, "made.load gives ndarray; give"),
        ((X, Y, X), "made.load gives tuple; give"),
        ("path", "made.load gives str; give"),
        (Stream(), "made.load gives Stream, which has no length; give a map-style Dataset"),
        ([], "made.load gives no clients"),
        ([PAIR, (X[:0], Y[:0])], "made.load, client 1, has no samples; leave the client out"),
        ({"a": PAIR, "b": (X, Y[:4])}, "made.load, client b, has 60 samples and 4 labels"),
        ([PAIR, (X[:, :3], Y)], "made.load, client 1, has samples of shape (3,) and float64, and client 0 of (5,)"),
        ([PAIR, (X, Y.astype(str))], "made.load, client 1, has labels of <U21, and the clients before have int64"),
        ([PAIR, (X, np.eye(3, dtype=int)[Y])], "made.load, client 1, has labels of shape (3,), and the clients before"),
        ({"train": PAIR, "val": PAIR, "test": PAIR}, "made.load gives a part with keys train, val, test; use `train`"),
        ({"test": PAIR, "training": PAIR}, "made.load gives a part with keys test, training; use `train` and `test`"),
        ([X, Y], "made.load, client 0, gives ndarray; give (x, y) of each client, or ((x, y), (x_test, y_test))"),
        ({"a": {"trian": PAIR}}, "made.load, client a, gives a part with keys trian; use `train` and `test`"),
        ({"x_train": X, "y_train": Y, "xtest": X}, "gives the key 'xtest'; did you mean 'x_test'? (allowed: channel"),
        ({"x_train": X}, "gives x_train without y_train; give both"),
        ({"x_train": X, "y_train": Y, "y_test": Y}, "gives y_test without x_test; give both"),
        ({"x_train": X, "y_train": Y, "class_names": 3}, "gives class_names 3; give a list of names"),
        ({"x_train": X, "y_train": Y, "channels": "any"}, "gives channels 'any'; give first or last"),
        (Pairs(length=0), "gives a Pairs without items"),
        (ChainDataset([Stream()]), "gives a ChainDataset whose length fails: TypeError"),
        (Pairs(lambda i: X[i]), "gives a Pairs whose item 0 is no pair (x, y)"),
        (Pairs(lambda i: (X[i, : 3 + i], 0)), "of shape (3,) and float64 and, in item 1, (4,) and float64; give"),
        (Pairs(lambda i: ([1, i / 2 if i else 0], 0)), "(2,) and int64 and, in item 1, (2,) and float64; give"),
        (Pairs(lambda i: (X[i], None)), "made.load has a missing value in y in item 0 of Pairs"),
        (Pairs(lambda i: (X[i], 1 // (i - 2))), "gives a Pairs whose item 2 fails: ZeroDivisionError at "),
        ((X[:, 0], Y), "made.load has x_train of shape (60,)"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_other_results_are_refused_in_one_sentence(value, sentence, monkeypatch):
    with pytest.raises(UserError) as caught:
        returns(value, monkeypatch)
    assert str(caught.value).startswith("task.data.name: made.load")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mistakes_in_the_section_are_named_with_their_key():
    for data, sentence in (
        ({"name": "sources_of_mine.loda"}, "module 'sources_of_mine' has no 'loda'; did you mean 'load'?"),
        ({"name": "sources_of_mine.np"}, "is not a source; name a class that derives from Source, or a function"),
        (LOAD | {"args": 3}, "task.data.args must be a section with keys, not 3"),
        (LOAD | {"samples": 3}, "task.data.samples is not a key here (allowed: args, name, test_fraction)"),
        (LOAD | {"test_fraction": 1.0}, "task.data.test_fraction must be less than 1"),
    ):
        with pytest.raises(UserError) as caught:
            parse_experiment(experiment(data))
        assert sentence in str(caught.value)
    assert "task.data.args: sources_of_mine.load cannot be called with them (got an unexpected" in refusal(
        **LOAD, args={"sample": 3}
    )
    broken = refusal(name="sources_of_mine.broken")
    assert "sources_of_mine.broken fails: IndexError at " in broken
    assert "sources_of_mine.py:20" in broken


def test_a_function_gets_the_data_root_if_it_asks_for_it(here):
    assert loaded(here, name="sources_of_mine.by_client", args={"clients": 5}).train_clients.max() == 4
    assert accuracy(here, {"name": "sources_of_mine.by_client"}, {"kind": "natural"}) > 0.5


def test_its_experiment_reads_back_and_is_not_imported_where_nothing_is_run(here):
    (here / "own.yaml").write_text(yaml.safe_dump(experiment(LOAD | {"args": {"spread": 0.5}})))
    first = load_experiment("own.yaml", ["task.data.args.samples=80"])
    assert first.task.data.args == {"spread": 0.5, "samples": 80}
    (here / "again.yaml").write_text(dump_experiment(first))
    assert load_experiment("again.yaml") == first
    (here / "sources_of_mine.py").write_text("raise RuntimeError('imported')")
    del sys.modules["sources_of_mine"]
    assert read_experiment("again.yaml").model_dump()["task"] == first.model_dump()["task"]


def test_a_run_is_resumed_on_the_same_data_alone(here, monkeypatch):
    # The driver hears of every round by itself.
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)

    def stop(record):
        if record["round"] == 2:
            raise RuntimeError("stopped")

    (here / "own.yaml").write_text(yaml.safe_dump(experiment(LOAD, rounds=4)))
    calm = api.run("own.yaml", show=False, output="calm")
    with pytest.raises(RuntimeError, match="stopped"):
        api.run("own.yaml", show=stop)
    (folder,) = (here / "runs").glob("own-*")
    assert RunFolder(folder).record()["data"]["name"] == "sources_of_mine.load"
    (here / "sources_of_mine.py").write_text(MODULE.replace("default_rng(0)", "default_rng(12)"))
    sys.modules.pop("sources_of_mine")
    other = hedgerow("resume", str(folder))
    assert other.exit_code == 2
    assert "the data set of its file differs from what the run started with" in other.output
    (here / "sources_of_mine.py").write_text(MODULE)
    sys.modules.pop("sources_of_mine")
    resumed = api.resume(folder, show=False)
    assert resumed.frame["test_loss"].tolist() == calm.frame["test_loss"].tolist()


@pytest.mark.exhaustive("processes")
def test_a_search_uses_it_from_mapped_files(here, ray_here, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(here / "cache"))
    monkeypatch.setattr("hedgerow.platform.data.mapped_arrays.LARGE", 0)
    values = experiment(LOAD, resources={"actors": 1})
    values["search"] = {"kind": "grid", "space": {"algorithm.lr": [0.01, 0.3]}, "concurrency": 1}
    Path("search.yaml").write_text(yaml.safe_dump(values))
    done = hedgerow("search", "search.yaml", "--json")
    assert done.exit_code == 0, done.output
    folder = RunFolder(next((here / "runs").glob("own-*")))
    assert folder.record()["data"]["dataset"] == content_hash(loaded(**LOAD))
    assert list((here / "cache" / "scratch").rglob("*.npy"))
    for number, lr in enumerate((0.01, 0.3)):
        trial = expert_folder(folder.path, number).metrics.read_text().splitlines()
        settings = {"algorithm.lr": lr, "resources.executor": "inline"}
        alone = api.run(load_search("search.yaml").trial(settings), show=False)
        assert json.loads(trial[-1])["test_loss"] == alone.frame["test_loss"].iloc[-1]


@pytest.mark.parametrize(
    "value",
    [
        {"x": X, "y": Y, "x_test": X, "y_test": Y},
        {"train": (X, Y), "test": (X, Y)},
    ],
    ids=["arrays", "parts"],
)
def test_a_dictionary_of_arrays_or_parts_is_one_data_set_and_no_clients(value, monkeypatch):
    data = returns(value, monkeypatch)
    assert data.train_clients is None
    assert len(data.y_train) == len(data.y_test) == len(Y)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"x": X, "y": Y, "test_x": X, "test_y": Y}, "gives the key 'test_x'"),
        ({"x": X}, "gives x_train without y_train; give both"),
        ({"x": X, "x_train": X, "y": Y}, "gives both x and x_train; give one of them"),
        ({"y_test": Y, "x_test": X}, "gives no x_train; give x_train and y_train"),
    ],
)
def test_other_dictionaries_of_arrays_are_refused(value, sentence, monkeypatch):
    with pytest.raises(UserError, match=sentence):
        returns(value, monkeypatch)


def test_labels_of_the_test_part_alone_are_reported(monkeypatch, capsys):
    returns(((X, Y % 2), (X, Y)), monkeypatch)
    assert "has labels in y_test that never occur in y_train (2); they count as classes" in capsys.readouterr().err
    returns(((X, Y), (X, Y)), monkeypatch)
    assert not capsys.readouterr().err
