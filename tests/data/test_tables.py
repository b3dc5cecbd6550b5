"""Tables of one's own, in CSV and Parquet files."""

import numpy as np
import pandas as pd
import pytest
from own_formats import CLIENTS, X, Y, accuracy, loaded, refusal

from hedgerow.platform.data.sources import tables

WORDS = np.array(["ill", "well", "unknown"])[Y]
TABLE = pd.DataFrame({f"x{i}": X[:, i] for i in range(5)} | {"ward": CLIENTS, "state": WORDS, "number": Y})


@pytest.fixture(params=["csv", "parquet"])
def kind(request):
    return request.param


def write(folder, kind, table=TABLE, name="table"):
    """Writes a table; returns the name of its file."""
    file = folder / f"{name}.{kind}"
    table.to_csv(file, index=False) if kind == "csv" else table.to_parquet(file)
    return file.name


def test_columns_are_features_label_and_client(tmp_path, kind):
    path = write(tmp_path, kind)
    data = loaded(tmp_path, name=kind, path=path, test=path, label="state", client="ward", features=["x3", "x0"])
    assert np.array_equal(data.x_train, X[:, [3, 0]].astype(np.float32))
    assert np.array_equal(data.x_test, data.x_train)
    assert data.class_names == ("ill", "unknown", "well")
    assert [data.class_names[label] for label in data.y_train] == WORDS.tolist()
    assert data.train_clients.tolist() == np.unique(CLIENTS, return_inverse=True)[1].tolist()
    assert data.test_clients.tolist() == data.train_clients.tolist()
    assert np.allclose(data.mean, X[:, [3, 0]].mean(0), atol=1e-6)
    # All other columns are features by default.
    every = loaded(tmp_path, name=kind, path=path, label="state", client="ward")
    assert every.sample_shape == (6,)
    assert len(every.x_train) + len(every.x_test) == 60


def test_categories_are_features_of_0_and_1(tmp_path, kind):
    path = write(tmp_path, kind)
    test = write(tmp_path, kind, TABLE[TABLE.ward != "anna"].assign(number=7), "test")
    data = loaded(tmp_path, name=kind, path=path, test=test, label="state", one_hot=["ward", "number"],
                  features=["x0", "ward", "number"])  # fmt: skip
    wards = (CLIENTS[:, None] == np.unique(CLIENTS)).astype(np.float32)
    numbers = (Y[:, None] == [0, 1, 2, 7]).astype(np.float32)
    assert np.array_equal(data.x_train, np.c_[X[:, 0].astype(np.float32), wards, numbers])
    assert (data.x_test[:, -1] == 1).all()


def test_rows_are_read_a_few_at_a_time(tmp_path, kind, monkeypatch):
    path = write(tmp_path, kind)
    settings = {"path": path, "label": "state", "one_hot": ["ward"], "client": None}
    whole = loaded(tmp_path, name=kind, **settings)
    monkeypatch.setattr(tables, "ROWS", 7)
    # Another section, so that it is not read from the cache.
    parts = loaded(tmp_path, name=kind, **settings | {"test_fraction": 0.2000001})
    assert np.array_equal(whole.x_train, parts.x_train)
    assert whole.y_train.tolist() == parts.y_train.tolist()


def test_the_files_of_a_folder_are_one_table_and_a_change_is_read(tmp_path, kind):
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts", kind, TABLE[:30], "a")
    write(tmp_path / "parts", kind, TABLE[30:], "b")
    settings = {"name": kind, "path": "parts", "label": "state", "one_hot": ["ward"], "test": write(tmp_path, kind)}
    data = loaded(tmp_path, **settings)
    assert np.array_equal(data.x_train, data.x_test)
    write(tmp_path / "parts", kind, TABLE[30:45], "b")
    assert len(loaded(tmp_path, **settings).x_train) == 45


def test_lists_in_parquet_and_other_separators_in_csv(tmp_path):
    table = pd.DataFrame({"pixels": list(X), "number": Y, "age": 3})
    path = write(tmp_path, "parquet", table)
    data = loaded(tmp_path, name="parquet", path=path, label="number", test=path)
    assert np.array_equal(data.x_train, np.c_[X, np.full(60, 3)].astype(np.float32))
    table.pixels = [row[: 4 + i % 2] for i, row in enumerate(X)]
    write(tmp_path, "parquet", table)
    assert "column 'pixels' of" in refusal(tmp_path, name="parquet", path=path, label="number")
    TABLE.to_csv(tmp_path / "semicolons.csv", index=False, sep=";")
    data = loaded(tmp_path, name="csv", path="semicolons.csv", separator=";", label="number", features=["x1"])
    assert data.sample_shape == (1,)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"label": "stat"}, "task.data.label: {file} has no column 'stat'; did you mean 'state'? (columns: x0, x1, x2"),
        ({"client": "wards"}, "task.data.client: {file} has no column 'wards'; did you mean 'ward'?"),
        ({"features": ["x9"]}, "task.data.features: {file} has no column 'x9'"),
        ({"features": ["state"]}, "task.data.features: 'state' is also the label or the client; remove it"),
        ({"one_hot": ["wad"]}, "task.data.one_hot: 'wad' is not one of the features; did you mean 'ward'? (features"),
        ({}, "column 'ward' of {file} has values that are not numbers, such as 'anna'; name it in task.data.one_hot"),
        ({"path": "none.{kind}"}, "task.data.path: there is no file {folder}/none.{kind}, nor a folder with *.{kind}"),
        ({"test": "none.{kind}"}, "task.data.test: there is no file {folder}/none.{kind}"),
        ({"path": "damaged.{kind}"}, "task.data.path: {folder}/damaged.{kind} is not a readable"),
        ({"path": "gap.{kind}", "features": ["x1"]}, "column 'x1' of {folder}/gap.{kind} has no value in row 18; fill"),
        ({"path": "gap.{kind}", "label": "ward", "features": ["x0"]}, "column 'ward' of {folder}/gap.{kind} has no"),
        ({"path": "empty.{kind}", "features": ["x1"]}, "{folder}/empty.{kind} has no samples in x_train"),
        ({"path": "text.{kind}", "features": ["x0"]}, "has values that are not numbers, such as 'high'"),
        ({"path": "short.{kind}", "features": ["x1"]}, "too few to split"),
        ({"test": "narrow.{kind}", "features": ["x0", "x1"]}, "task.data.features: {folder}/narrow.{kind} has no"),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes_are_refused_in_one_sentence(tmp_path, kind, settings, sentence):
    path = write(tmp_path, kind)
    gap = TABLE.copy()
    gap.loc[17, "x1"] = np.nan
    gap.loc[3, "ward"] = None
    write(tmp_path, kind, gap, "gap")
    write(tmp_path, kind, TABLE[:2], "short")
    write(tmp_path, kind, TABLE[:0], "empty")
    write(tmp_path, kind, TABLE.astype({"x0": str}).replace({"x0": {str(TABLE.x0[5]): "high"}}), "text")
    write(tmp_path, kind, TABLE[["x0", "state"]], "narrow")
    (tmp_path / f"damaged.{kind}").write_text('a,b\n"1')
    names = {"kind": kind, "folder": tmp_path, "file": tmp_path / path}
    settings = {key: value.format(**names) if isinstance(value, str) else value for key, value in settings.items()}
    found = refusal(tmp_path, **{"name": kind, "path": path, "label": "state"} | settings)
    assert sentence.format(**names) in found
    assert found.startswith("task.data.")


def test_a_run_learns_from_a_table(tmp_path, kind):
    data = {
        "name": kind,
        "path": write(tmp_path, kind),
        "label": "state",
        "client": "ward",
        "features": ["x0", "x1", "x2"],
    }
    assert accuracy(tmp_path, data, {"kind": "natural"}) > 0.5
