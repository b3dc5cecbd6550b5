"""Every reader of files: what is damaged, cut or in the place of a file ends in one sentence."""

import io
import json
import shutil
import zipfile

import numpy as np
import pytest
from damaged_files import DAMAGES, flipped
from own_formats import RNG, X, Y, loaded
from PIL import Image

from hedgerow.platform.common.errors import UserError

PARTS = ("train", "test")
WRITERS = ("u1", "u2")


def leaf(root, folder, clients):
    files = []
    for part in PARTS:
        (root / folder / part).mkdir(parents=True)
        files.append(root / folder / part / "all.json")
        files[-1].write_text(json.dumps({"user_data": clients}))
    return files


def hdf5(root, stem, fields):
    h5py = pytest.importorskip("h5py")
    files = []
    for part in PARTS:
        files.append(root / f"{stem}_{part}.h5")
        with h5py.File(files[-1], "w") as file:
            for writer in WRITERS:
                for name, values in fields.items():
                    file[f"examples/{writer}/{name}"] = values
    return files


def picture():
    content = io.BytesIO()
    Image.fromarray(RNG.integers(0, 255, (6, 6, 3), dtype=np.uint8)).save(content, "PNG")
    return content.getvalue()


def pictures():
    return {f"{label}/{i}.png": picture() for label in "ab" for i in range(3)}


def csv(root):
    (root / "t.csv").write_text(
        "a,b,y\n" + "".join(f"{a:.3f},{b:.3f},{y}\n" for (a, b), y in zip(X[:, :2], Y, strict=True))
    )
    return [root / "t.csv"], {"name": "csv", "path": "t.csv", "label": "y"}


def parquet(root):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"a": X[:, 0], "y": Y}).to_parquet(root / "t.parquet", index=False)
    return [root / "t.parquet"], {"name": "parquet", "path": "t.parquet", "label": "y"}


def text(root):
    (root / "t.txt").write_text("\n\n".join(f"{name}:\n" + "abc def " * 40 for name in ("ANNA", "BERT", "CARL")))
    return [root / "t.txt"], {"name": "text", "path": "t.txt", "clients": 2, "samples": 20, "length": 10}


def femnist_of_leaf(root):
    writer = {"x": RNG.random((3, 784)).round(2).tolist(), "y": [1, 2, 3]}
    return leaf(root, "femnist", dict.fromkeys(WRITERS, writer)), {"name": "femnist"}


def femnist_of_tff(root):
    (root / "femnist").mkdir()
    fields = {"pixels": RNG.random((3, 28, 28)).astype(np.float32), "label": np.arange(3)}
    return hdf5(root / "femnist", "fed_emnist", fields), {"name": "femnist"}


def shakespeare(root):
    role = {"x": ["a" * 80] * 3, "y": ["b"] * 3}
    return leaf(root, "shakespeare", dict.fromkeys(WRITERS, role)), {"name": "shakespeare", "clients": 2}


def stackoverflow(root):
    (root / "stackoverflow").mkdir()
    posts = {"tokens": [b"how do i do this", b"this is how you do it"]}
    return hdf5(root / "stackoverflow", "stackoverflow", posts), {"name": "stackoverflow", "clients": 2}


def client_arrays(root):
    for writer in WRITERS:
        (root / "d" / writer).mkdir(parents=True)
        np.savez(root / "d" / writer / "a.npz", x=X, y=Y)
    return [root / "d" / "u1" / "a.npz"], {"name": "client_folders", "path": "d"}


def client_pictures(root):
    for writer in WRITERS:
        for name, content in pictures().items():
            (root / "d" / writer / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "d" / writer / name).write_bytes(content)
    return [root / "d" / "u1" / "a" / "0.png"], {"name": "client_folders", "path": "d"}


def zipped_pictures(root):
    with zipfile.ZipFile(root / "x.zip", "w") as archive:
        for name, content in pictures().items():
            archive.writestr(name, content)
    return [root / "x.zip"], {"name": "image_folder", "path": "x.zip"}


def omniglot(root):
    (root / "omniglot-py").mkdir()
    file = root / "omniglot-py" / "images_background.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in pictures().items():
            archive.writestr(f"images_background/Greek/{name}", content)
    return [file], {"name": "omniglot"}


SOURCES = (
    csv, parquet, text, femnist_of_leaf, femnist_of_tff, shakespeare, stackoverflow, client_arrays, client_pictures,
    zipped_pictures, omniglot,
)  # fmt: skip


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_damaged_files_are_refused_in_one_sentence_or_read(tmp_path, source):
    files, section = source(tmp_path)
    assert len(loaded(tmp_path, **section).y_train)
    rng = np.random.default_rng(0)
    refused = 0

    def attempt():
        nonlocal refused
        try:
            loaded(tmp_path, **section)
        except UserError as error:
            refused += 1
            return str(error)
        return ""

    for file in files:
        sound = file.read_bytes()

        def restore(file=file, sound=sound):
            shutil.rmtree(file, ignore_errors=True)
            file.unlink(missing_ok=True)
            file.write_bytes(sound)

        for name, damage in DAMAGES.items():
            damage(file)
            message = attempt()
            assert "\n" not in message
            # A picture, and a text, may be missing, or be shorter.
            if name in ("zeros", "empty"):
                assert message.startswith("task.data")
            restore()
        # Two links to each other cannot be opened, whatever the user's rights.
        file.unlink()
        file.symlink_to(file)
        assert "\n" not in attempt()
        restore()
        for _ in range(12):
            file.write_bytes(flipped(sound, int(rng.integers(8 * len(sound)))))
            assert "\n" not in attempt()
            restore()
    assert refused >= 4
    assert len(loaded(tmp_path, **section).y_train)


def test_a_small_hdf5_file_does_not_fill_the_memory(tmp_path):
    h5py = pytest.importorskip("h5py")
    femnist_of_tff(tmp_path)
    with h5py.File(tmp_path / "femnist" / "fed_emnist_train.h5", "a") as file:
        del file["examples/u1/pixels"]
        file["examples/u1"].create_dataset("pixels", (10**7, 28, 28), np.float32, chunks=True)
    with pytest.raises(
        UserError, match=r"pixels of client 'u1' has 0 MB and would become 31,360 MB; download the file"
    ):
        loaded(tmp_path, name="femnist")


def test_a_small_parquet_file_does_not_fill_the_memory(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    rows = 20_000_000
    table = pandas.DataFrame({"a": np.zeros(rows, np.int8), "y": np.zeros(rows, np.int8)})
    table.to_parquet(tmp_path / "t.parquet", index=False)
    assert (tmp_path / "t.parquet").stat().st_size < 2e5
    monkeypatch.setattr("hedgerow.platform.common.memory.system_memory", lambda: 1e8)
    with pytest.raises(UserError, match=r"labels in .*t\.parquet take at least 0\.32 GB, but this machine has 0\.1"):
        loaded(tmp_path, name="parquet", path="t.parquet", label="y")
