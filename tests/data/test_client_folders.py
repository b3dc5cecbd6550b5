"""A folder for each client, with tables, arrays or images."""

import numpy as np
import pandas as pd
import pytest
from own_formats import CLIENTS, IMAGES, X, Y, accuracy, loaded, refusal
from PIL import Image

NAMES = sorted(set(CLIENTS))
LABELS = np.array(["a", "b", "c"])[Y]


def write(folder, kind, client, rows, part="train"):
    """Writes samples of a client."""
    home = folder / client
    home.mkdir(parents=True, exist_ok=True)
    if kind == "npz":
        np.savez(home / f"{part}.npz", x=X[rows], y=LABELS[rows])
    elif kind == "images":
        for row in rows:
            place = home / part / LABELS[row]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(IMAGES[row]).save(place / f"{row}.png")
    else:
        table = pd.DataFrame(X[rows], columns=[f"x{i}" for i in range(5)]).assign(
            label=LABELS[rows], sex=np.array(["m", "f"])[rows % 2]
        )
        file = home / f"{part}.{kind}"
        table.to_csv(file, index=False) if kind == "csv" else table.to_parquet(file)


@pytest.fixture(params=["csv", "parquet", "npz", "images"])
def kind(request):
    return request.param


def settings(kind):
    tables = {"label": "label", "one_hot": ["sex"]} if kind in ("csv", "parquet") else {}
    return {"name": "client_folders", "path": "clients", **tables}


def test_each_folder_is_a_client(tmp_path, kind):
    for name in NAMES:
        write(tmp_path / "clients", kind, name, np.flatnonzero(name == CLIENTS))
    (tmp_path / "clients" / ".hidden").mkdir()
    data = loaded(tmp_path, **settings(kind))
    sizes = [(name == CLIENTS).sum() for name in NAMES]
    assert (np.bincount(data.train_clients) + np.bincount(data.test_clients)).tolist() == sizes
    assert data.sample_shape == {"images": (1, 8, 8), "npz": (5,)}.get(kind, (7,))
    assert data.class_names == ("a", "b", "c")
    known = IMAGES.reshape(60, -1) if kind == "images" else X.astype(np.float32)
    for x, y, client in zip(data.x_train, data.y_train, data.train_clients, strict=True):
        (row,) = np.flatnonzero((known == x.ravel()[: known.shape[1]]).all(1))
        assert (Y[row], CLIENTS[row]) == (y, NAMES[client])


def test_clients_have_test_samples_of_their_own(tmp_path, kind):
    for name in NAMES:
        rows = np.flatnonzero(name == CLIENTS)
        write(tmp_path / "clients", kind, name, rows[3:])
        if name != "bert":
            write(tmp_path / "clients", kind, name, rows[:3], "test")
    data = loaded(tmp_path, **settings(kind))
    assert np.bincount(data.test_clients).tolist() == [3, 0, 3, 3]
    assert np.bincount(data.train_clients).tolist() == [(name == CLIENTS).sum() - 3 for name in NAMES]


def test_capitals_and_hidden_files(tmp_path, kind):
    """`Test.CSV` has test samples, and what is hidden is not read."""
    for name in NAMES:
        rows = np.flatnonzero(name == CLIENTS)
        write(tmp_path / "clients", kind, name, rows[3:], "Train")
        write(tmp_path / "clients", kind, name, rows[:3], "Test")
        for file in [*(tmp_path / "clients" / name).rglob("Te*.*"), *(tmp_path / "clients" / name).rglob("*.png")]:
            # The reader of tables takes `.PARQUET` for CSV.
            file.rename(file.with_suffix(file.suffix if kind == "parquet" else file.suffix.upper()))
        write(tmp_path / "clients", kind, name, rows[:1], ".hidden")
    write(tmp_path / "clients", kind, "__MACOSX", np.arange(3))
    data = loaded(tmp_path, **settings(kind))
    assert np.bincount(data.test_clients).tolist() == [3, 3, 3, 3]
    assert np.bincount(data.train_clients).tolist() == [(name == CLIENTS).sum() - 3 for name in NAMES]
    assert data.class_names == ("a", "b", "c")


def test_the_top_folder_of_a_client_is_the_class(tmp_path):
    for client, label in (("anna", "cat"), ("bert", "cat"), ("bert", "dog")):
        for year in ("2021", "2022"):
            for number in range(3):
                place = tmp_path / "clients" / client / label / year
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(IMAGES[number]).save(place / f"{number}.png")
    data = loaded(tmp_path, **settings("images"))
    assert data.class_names == ("cat", "dog")
    assert (np.bincount(data.train_clients) + np.bincount(data.test_clients)).tolist() == [6, 12]


def test_a_client_without_samples_is_refused(tmp_path, kind):
    for name in NAMES:
        write(tmp_path / "clients", kind, name, np.flatnonzero(name == CLIENTS))
    (tmp_path / "clients" / "eve").mkdir()
    assert "client eve has no training samples in " in refusal(tmp_path, **settings(kind))
    write(tmp_path / "clients", kind, "eve", np.arange(3), "test")
    assert "client eve has no training " in refusal(tmp_path, **settings(kind))


def test_mistakes_are_refused_in_one_sentence(tmp_path):
    assert f"task.data.path: {tmp_path}/clients is no folder with a folder for each" in refusal(
        tmp_path, **settings("npz")
    )
    for number, name in enumerate(NAMES):
        rows = np.flatnonzero(name == CLIENTS)
        write(tmp_path / "clients", "npz", name, rows)
        write(tmp_path / "tables", "csv", name, rows)
        size = 8 if number else 6
        place = tmp_path / "images" / name / LABELS[rows[0]]
        place.mkdir(parents=True)
        Image.fromarray(IMAGES[0, :size, :size]).save(place / "0.png")
    assert "clients/anna/train.npz has no array 'z' (arrays: x, y)" in refusal(tmp_path, **settings("npz"), x="z")
    unnamed = refusal(tmp_path, name="client_folders", path="tables")
    assert f"task.data.label: {tmp_path}/tables has tables; name the column of the label" in unnamed
    uneven = refusal(tmp_path, name="client_folders", path="images")
    assert f"task.data.size: the images under {tmp_path}/images have different sizes; set one size" in uneven
    for part in ("Train", "test"):
        write(tmp_path / "parts", "npz", part, np.arange(3))
    assert "parts has the folders train/ and test/, which would be two clients; put both into the folder of each" in (
        refusal(tmp_path, **settings("npz") | {"path": "parts"})
    )
    write(tmp_path / "clients", "csv", "anna", np.arange(3))
    assert "has files of several formats (.csv, .npz); use one" in refusal(tmp_path, **settings("npz"))


def test_a_run_learns_from_the_clients_folders(tmp_path):
    for name in NAMES:
        write(tmp_path / "clients", "csv", name, np.flatnonzero(name == CLIENTS))
    assert accuracy(tmp_path, settings("csv"), {"kind": "natural"}) > 0.5
