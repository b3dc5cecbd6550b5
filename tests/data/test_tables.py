"""Tables of one's own, in CSV and Parquet files."""

import gzip
import re

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from own_formats import CLIENTS, X, Y, accuracy, experiment, loaded, refusal

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
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
    assert data.input_names == (*(f"pixels[{i}]" for i in range(5)), "age")
    table.pixels = [row[: 4 + i % 2] for i, row in enumerate(X)]
    write(tmp_path, "parquet", table)
    assert "column 'pixels' of" in refusal(tmp_path, name="parquet", path=path, label="number")
    TABLE.to_csv(tmp_path / "semicolons.csv", index=False, sep=";")
    data = loaded(tmp_path, name="csv", path="semicolons.csv", separator=";", label="number", features=["x1"])
    assert data.sample_shape == (1,)


def csv_of(folder, *rows, name="table.csv", separator=","):
    (folder / name).write_text("\n".join(separator.join(map(str, row)) for row in rows) + "\n")
    return name


@pytest.mark.parametrize(
    "ids",
    [
        ["007", "7", "070", "70"], ["1e2", "100", "1e3", "1000"], ["True", "true", "False", "false"],
        ["9007199254740992", "9007199254740993", "12345678901234567890", "12345678901234567891"],
        ["1.2", "1.20", "1.7", "-1.2"], ["0x10", "16", "1_6", "+16"], ["1", "2", "10", "-3"], ["1", "a", "01", "10"],
    ],
)  # fmt: skip
def test_ids_in_csv_files_are_as_different_as_their_text(tmp_path, ids):
    x = np.arange(60) * 1.0
    path = csv_of(tmp_path, ["v", "y", "who"], *([x[i], i % 2, ids[i % 4]] for i in range(60)))
    test = csv_of(tmp_path, ["v", "y", "who"], [0, 0, ids[3]], [0, 1, f" {ids[2]}"], [0, 1, 99], name="test.csv")
    data = loaded(tmp_path, name="csv", path=path, label="y", client="who", test=test)
    order = sorted(ids, key=int if ids == ["1", "2", "10", "-3"] else None)
    assert data.train_clients.tolist() == [order.index(ids[i % 4]) for i in range(60)]
    assert data.test_clients.tolist() == [order.index(ids[3]), order.index(ids[2]), -1]
    # The same as a category, and as a label.
    test = csv_of(tmp_path, ["v", "y", "who"], *([0, i % 2, ids[i % 4]] for i in range(4)), name="test.csv")
    data = loaded(tmp_path, name="csv", path=path, label="y", one_hot=["who"], test=test)
    assert data.x_train[:, 1:].tolist() == np.eye(4)[[order.index(ids[i % 4]) for i in range(60)]].tolist()
    assert np.array_equal(data.x_test[:, 1:], data.x_train[:4, 1:])


def test_labels_in_csv_files_are_of_one_type_in_all_files(tmp_path):
    def read(train, test):
        csv_of(tmp_path, ["v", "y"], *([i, label] for i, label in enumerate(train * 10)))
        csv_of(tmp_path, ["v", "y"], *([i, label] for i, label in enumerate(test)), name="test.csv")
        data = loaded(tmp_path, name="csv", path="table.csv", label="y", test="test.csv")
        return data.targets, data.class_names, data.y_train[: len(train)].tolist(), data.y_test.tolist()

    assert read(["10", "9", " 9"], ["9"]) == ("classes", ("9", "10"), [1, 0, 0], [0])
    assert read(["01", "1", "10"], ["1"]) == ("classes", ("01", "1", "10"), [0, 1, 2], [1])
    assert read(["1", "2"], ["other"]) == ("classes", ("1", "2", "other"), [0, 1], [2])
    assert read(["true", "false"], ["true"]) == ("classes", ("False", "True"), [1, 0], [1])
    assert read(["1", "2"], ["1e2", "-.5"]) == ("numbers", (), [1, 2], [100, -0.5])
    assert read(["1.0", "2.0"], ["1"]) == ("numbers", (), [1, 2], [1])
    table = pd.DataFrame({"v": X[:, 0], "a": Y > 0, "b": Y > 1})
    path = write(tmp_path, "csv", table)
    data = loaded(tmp_path, name="csv", path=path, label=["a", "b"], test=path)
    assert (data.targets, data.y_train.tolist()) == ("labels", np.stack([Y > 0, Y > 1], 1).astype(int).tolist())


@pytest.mark.parametrize(
    ("labels", "types"),
    [
        ((["true", "false"], ["1", "0"]), ("truth values such as true", "numbers or text")),
        ((["TRUE"], ["maybe"]), ("truth values such as TRUE", "numbers or text")),
        ((["True"], ["false"]), ("truth values such as True", "truth values such as true")),
    ],
)
def test_labels_of_several_types_in_csv_files_are_refused(tmp_path, labels, types):
    (tmp_path / "parts").mkdir()
    for name, of_file in zip(("a.csv", "b.csv"), labels, strict=True):
        csv_of(tmp_path / "parts", ["v", "y"], *([i, label] for i, label in enumerate(of_file * 10)), name=name)
    assert refusal(tmp_path, name="csv", path="parts", label="y") == (
        f"task.data.label: column 'y' has {types[0]} in {tmp_path}/parts/a.csv and {types[1]} in "
        f"{tmp_path}/parts/b.csv; store one type in all files"
    )


def test_lists_are_labels_of_parquet_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROWS", 7)
    for kind, y in (("labels", np.eye(3, dtype=int)[Y]), ("numbers", X)):
        path = write(tmp_path, "parquet", pd.DataFrame({"v": X[:, 0], "tags": list(y), "one": y[:, 0]}))
        data = loaded(tmp_path, name="parquet", path=path, label="tags", features=["v"], test=path)
        assert data.targets == kind
        assert np.array_equal(data.y_train, y.astype(data.y_train.dtype))
        data = loaded(tmp_path, name="parquet", path=path, label=["one", "tags"], features=["v"], test=path)
        assert np.array_equal(data.y_train, np.c_[y[:, 0], y].astype(data.y_train.dtype))
    for tags, sentence in (
        ([[0, 1][: 1 + i // 30] for i in range(60)], "has lists of different lengths; give every row as many"),
        ([[0, 1][: 1 + i % 2] for i in range(60)], "task.data.label: column 'tags' of"),
        ([["a", "b"]] * 60, "has y_train of <U1 (60, 2); give one or several numbers for each sample"),
        ([{"a": 1}] * 60, "has a value of type dict among objects in y_train, entry 0"),
        ([[[0], [1]]] * 60, "has a value of type ndarray among objects in y_train, entry 0"),
    ):
        path = write(tmp_path, "parquet", pd.DataFrame({"v": X[:, 0], "tags": tags}))
        assert sentence in refusal(tmp_path, name="parquet", path=path, label="tags", test=path)
        wrong = refusal(tmp_path, name="parquet", path=path, label="v", one_hot=["tags"])
        assert wrong.startswith("task.data.one_hot: column 'tags' of")
        assert wrong.endswith("; give numbers or text")
    days = pd.date_range("2020-01-01", periods=60)
    path = write(tmp_path, "parquet", pd.DataFrame({"v": X[:, 0], "day": days, "y": Y}))
    assert "has values of type datetime64" in refusal(tmp_path, name="parquet", path=path, label="y", client="day")


def test_an_index_is_no_feature_unless_it_is_named(tmp_path, capsys):
    table = TABLE[["x0", "x1", "number"]].sample(frac=1, random_state=0)
    table.to_parquet(tmp_path / "a.parquet")
    table.set_index("x1").to_parquet(tmp_path / "named.parquet")
    TABLE.set_index("ward")[["x0", "x1", "number"]].to_parquet(tmp_path / "client.parquet")
    table.to_csv(tmp_path / "a.csv")
    pd.read_csv(tmp_path / "a.csv").to_csv(tmp_path / "twice.csv")
    for path, features, index in (
        ("a.parquet", ["x0", "x1"], "__index_level_0__"),
        ("named.parquet", ["x0"], "x1"),
        ("a.csv", ["x0", "x1"], "Unnamed: 0"),
        ("twice.csv", ["x0", "x1"], "Unnamed: 0.1"),
    ):
        kind = path.rpartition(".")[2]
        data = loaded(tmp_path, name=kind, path=path, label="number", test=path)
        assert data.name == path
        assert np.array_equal(data.x_train, table[features].to_numpy(np.float32))
        assert f"the index {index!r} of {tmp_path / path} is not used; name it if" in capsys.readouterr().err
        data = loaded(tmp_path, name=kind, path=path, label="number", test=path, features=[index])
        assert data.sample_shape == (1,)
        assert not capsys.readouterr().err
    data = loaded(tmp_path, name="parquet", path="client.parquet", label="number", client="ward", test="client.parquet")
    assert data.train_clients.tolist() == np.unique(CLIENTS, return_inverse=True)[1].tolist()
    assert data.sample_shape == (2,)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (["1,000,52,well"], "(line 4 has 4 fields, and the header has 3; a field that contains ',' needs quotation"),
        (["1,well"], "(line 4 has 2 fields, and the header has 3;"),
        (['"a', 'b",2,3', "", "1,2,3,4"], "(line 7 has 4 fields, and the header has 3;"),
        ([",,,"], "(line 4 has 4 fields, and the header has 3; remove the ',' at its end); write it again"),
        (["1,2,ill,,"], "(line 4 has 5 fields, and the header has 3; remove the ',' at its end); write it again"),
        (["1,2,ill,,3"], "(line 4 has 5 fields, and the header has 3; a field that contains ',' needs quotation"),
        (["", "5,6,ill", ",,", ",,"], "(line 6 has only empty fields; remove it); write it again"),
        ([" ,,\t"], "(line 4 has only empty fields; remove it); write it again"),
    ],
)
def test_a_row_with_other_fields_than_the_header_is_refused(tmp_path, rows, sentence):
    (tmp_path / "a.csv").write_text("\n".join(["v,w,y", "1,2,ill", "3,4,well", *rows, "5,6,ill", ""]))
    for settings in ({"features": ["v"]}, {}):
        found = refusal(tmp_path, name="csv", path="a.csv", label="y", **settings)
        assert found.startswith(f"task.data.path: {tmp_path / 'a.csv'} is not a readable CSV file {sentence}")
    # The first row, or every row, is longer than the header: pandas takes the first column for an index.
    (tmp_path / "a.csv").write_text("v,y\n,,\n" + "1,2\n" * 9)
    assert "line 2 has 3 fields, and the header has 2" in refusal(tmp_path, name="csv", path="a.csv", label="y")
    (tmp_path / "a.csv").write_text("v,y\n" + "1,2,ill\n" * 9)
    assert "line 2 has 3 fields, and the header has 2" in refusal(tmp_path, name="csv", path="a.csv", label="y")
    (tmp_path / "a.csv").write_text("v,y,v\n" + "1,2,3\n" * 9)
    assert "(two columns are named 'v'); write it again" in refusal(tmp_path, name="csv", path="a.csv", label="y")
    pyarrow.parquet.write_table(pyarrow.table([[1.0], [2.0], [3]], ["v", "v", "y"]), tmp_path / "a.parquet")
    assert "(two columns are named 'v')" in refusal(tmp_path, name="parquet", path="a.parquet", label="y")


def test_unusual_csv_files_are_read(tmp_path):
    """With a mark of the byte order, quotation marks, empty lines and compression."""
    text = '\ufeffv,"y"\r\n\r\n' + '1.5,"a, ""b"""\r\n  \r\n2.5,"c\nd"\r\n' * 10
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    for path in ("a.csv", "a.csv.gz"):
        data = loaded(tmp_path, name="csv", path=path, label="y", test=path)
        assert data.class_names == ('a, "b"', "c\nd")
        assert data.x_train.ravel().tolist() == [1.5, 2.5] * 10


def test_what_counts_as_missing_is_named(tmp_path):
    rows = [[i, "NA" if i == 3 else "FR", "DE"] for i in range(9)]
    path = csv_of(tmp_path, ["v", "country", "y"], *rows)
    for settings in ({"label": "country"}, {"label": "y", "client": "country"}, {"label": "y", "one_hot": ["country"]}):
        found = refusal(tmp_path, name="csv", path=path, **settings)
        assert f"column 'country' of {tmp_path / path} has 'NA', which counts as a missing value, in row 4; " in found
        assert found.endswith("or remove the row or the column, or write it in another way if it is text")
    # In a Parquet file, text is text.
    path = write(tmp_path, "parquet", pd.DataFrame(rows, columns=["v", "country", "y"]))
    assert loaded(tmp_path, name="parquet", path=path, label="country", features=["v"]).class_names == ("FR", "NA")


@pytest.mark.parametrize("blank", ["  ", ""])
def test_text_of_blanks_is_a_missing_value(tmp_path, kind, blank):
    table = pd.DataFrame({"v": np.arange(9.0), "who": ["a", "b", "c"] * 3, "y": ["p", "q", "r"] * 3})
    for column, settings in (("y", {}), ("who", {"client": "who"}), ("who", {"one_hot": ["who"]}), ("v", {})):
        path = write(tmp_path, kind, table.astype({column: str}).replace({column: {str(table[column][4]): blank}}))
        found = refusal(
            tmp_path, name=kind, path=path, label="y", features=["v", *settings.get("one_hot", [])], **settings
        )
        row = 5 if column == "v" else 2
        assert f"column {column!r} of {tmp_path / path} has no value in row {row}; fill it in" in found


def test_a_folder_has_files_of_any_case_and_no_hidden_ones(tmp_path, kind):
    (tmp_path / "parts").mkdir()
    for name, rows in (("a", 10), ("b", 20), (".hidden", 40)):
        write(tmp_path / "parts", kind, TABLE[:rows], name)
    (tmp_path / "parts" / f"b.{kind}").rename(tmp_path / "parts" / f"b.{kind.upper()}")
    data = loaded(tmp_path, name=kind, path="parts", label="number", features=["x0"], test=write(tmp_path, kind))
    assert len(data.x_train) == 30


def test_folders_in_a_folder_of_tables_are_not_read(tmp_path, kind):
    folder = tmp_path / "parts" / f"out.{kind}"
    folder.mkdir(parents=True)
    write(folder, kind, TABLE[:20], "part-00000")
    (folder / "_SUCCESS").touch()
    settings = {"name": kind, "label": "number", "features": ["x0"], "test": f"parts/out.{kind}"}
    assert refusal(tmp_path, path="parts", **settings) == (
        f"task.data.path: there is no file {tmp_path}/parts, nor a folder with *.{kind}; give the path of the table, "
        f"such as the folder out.{kind} in it, or --data-root"
    )
    write(tmp_path / "parts", kind, TABLE[:30], "a")
    data = loaded(tmp_path, path="parts", **settings)
    assert (len(data.x_train), len(data.x_test)) == (30, 20)


def test_parts_of_parquet_without_an_ending_are_read(tmp_path):
    (tmp_path / "parts").mkdir()
    for name, rows in (("part-00000", 10), ("part-00001", 20), ("_metadata", 40)):
        TABLE[:rows].to_parquet(tmp_path / "parts" / name)
    (tmp_path / "parts" / "_SUCCESS").touch()
    settings = {"label": "number", "features": ["x0"], "test": "parts"}
    assert len(loaded(tmp_path, name="parquet", path="parts", **settings).x_train) == 30
    assert "nor a folder with *.csv; give" in refusal(tmp_path, name="csv", path="parts", **settings)


def test_what_cannot_be_opened_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "clients" / "anna" / "old.csv").mkdir(parents=True)
    assert refusal(tmp_path, name="client_folders", path="clients", label="number") == (
        f"task.data: {tmp_path}/clients/anna/old.csv cannot be read (Is a directory); restore the file, or its "
        "permissions"
    )


def test_all_files_have_the_same_columns_unless_features_are_named(tmp_path, kind):
    (tmp_path / "parts").mkdir()
    table = TABLE[["x0", "number"]]
    write(tmp_path / "parts", kind, table, "a")
    write(tmp_path / "parts", kind, table.assign(dose=1.0), "b")
    settings = {"name": kind, "path": "parts", "label": "number"}
    assert refusal(tmp_path, **settings) == (
        f"task.data.features: {tmp_path}/parts/a.{kind} has no column 'dose' (columns: x0, number); name columns that "
        "all files have"
    )
    assert loaded(tmp_path, **settings, features=["x0"]).sample_shape == (1,)


def test_a_file_without_rows_changes_no_type_of_labels(tmp_path, kind):
    (tmp_path / "parts").mkdir()
    for name, rows in (("a", 0), ("b", 30)):
        write(tmp_path / "parts", kind, TABLE[["x0", "number"]][:rows], name)
    data = loaded(tmp_path, name=kind, path="parts", label="number", test="parts")
    assert (data.targets, len(data.y_train)) == ("classes", 30)


def test_labels_in_parquet_files_are_of_one_type_in_all_files(tmp_path):
    (tmp_path / "parts").mkdir()
    types = {"whole numbers": Y, "floats": Y * 1.0, "truth values": Y > 0, "text": WORDS}
    for one, other in (("whole numbers", "floats"), ("text", "truth values"), ("text", "whole numbers")):
        for name, values in (("a", types[one]), ("b", types[other])):
            write(tmp_path / "parts", "parquet", pd.DataFrame({"v": X[:, 0], "y": values}), name)
        assert refusal(tmp_path, name="parquet", path="parts", label="y") == (
            f"task.data.label: column 'y' has {one} in {tmp_path}/parts/a.parquet and {other} in "
            f"{tmp_path}/parts/b.parquet; store one type in all files"
        )


@pytest.mark.parametrize("name", ["a.pq", "a.PARQUET", "a"])
def test_parquet_files_of_any_ending_are_read(tmp_path, name):
    TABLE.to_parquet(tmp_path / name)
    data = loaded(tmp_path, name="parquet", path=name, label="state", features=["x0"], test=name)
    assert data.x_train[:, 0].tolist() == X[:, 0].astype(np.float32).tolist()
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-50])
    assert f"{tmp_path / name} is not a readable Parquet file" in refusal(
        tmp_path, name="parquet", path=name, label="y"
    )


@pytest.mark.parametrize("separator", ["é", "\n"])
def test_characters_that_cannot_separate_columns_are_refused(separator):
    with pytest.raises(
        UserError, match=re.escape(f"task.data.separator: {separator!r} cannot separate columns; use an ASC")
    ):
        parse_experiment(experiment({"name": "csv", "path": "a.csv", "label": "y", "separator": separator}))


def test_one_value_in_two_spellings_is_refused(tmp_path):
    path = csv_of(tmp_path, ["v", "who", "y"], *([i, i % 3, i % 2] for i in range(9)))
    test = csv_of(tmp_path, ["v", "who", "y"], [0, "1.0", 1], name="test.csv")
    for settings in ({"client": "who"}, {"one_hot": ["who"]}):
        found = refusal(tmp_path, name="csv", path=path, test=test, label="y", **settings)
        assert f"column 'who' of {tmp_path / test} has '1.0', and there is '1', too; write a value in one way" in found


def test_digits_that_float32_does_not_keep_are_refused(tmp_path, kind):
    seconds = 1_700_000_000 + 40 * Y
    path = write(tmp_path, kind, TABLE.assign(seconds=seconds))
    settings = {"name": kind, "path": path, "label": "number", "test": path}
    found = refusal(tmp_path, **settings, features=["x0", "seconds"])
    assert (
        "in x_train, column 'seconds', that differ in digits which float32 does not keep: their mean is 1.7e+09"
        in found
    )
    write(tmp_path, kind, TABLE.assign(seconds=seconds - seconds.min()))
    data = loaded(tmp_path, **settings, features=["seconds"])
    assert data.x_train.ravel().tolist() == (40 * Y).tolist()
    write(tmp_path, kind, TABLE.assign(seconds=2**60 + Y))
    found = refusal(tmp_path, **settings, features=["seconds"])
    assert "column 'seconds'" in found
    assert "has whole numbers above 9e15 that differ in digits which floats do not keep" in found


def test_infinity_among_the_labels_of_a_regression_is_no_class(tmp_path):
    path = write(tmp_path, "csv", TABLE.assign(target=["inf", *(f"{y}.5" for y in Y[1:])]))
    found = refusal(tmp_path, name="csv", path=path, label="target", features=["x0"])
    assert "has NaN or infinity in y_train, sample 0" in found


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"label": "stat"}, "task.data.label: {file} has no column 'stat'; did you mean 'state'? (columns: x0, x1, x2"),
        ({"client": "wards"}, "task.data.client: {file} has no column 'wards'; did you mean 'ward'?"),
        ({"features": ["x0", "x0"]}, "task.data.features: 'x0' is named twice; name each column once"),
        ({"features": []}, "task.data.features: no columns of {file} are used; name or add at least one"),
        ({"label": []}, "task.data.label: no columns of {file} are used; name or add at least one"),
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
        ({"path": "digits.{kind}", "features": ["x0"]}, "has values that are not numbers, such as '1_000'"),
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
    for name, field in (("text", "high"), ("digits", "1_000")):
        write(tmp_path, kind, TABLE.astype({"x0": str}).replace({"x0": {str(TABLE.x0[5]): field}}), name)
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
