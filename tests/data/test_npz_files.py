"""NumPy arrays of one's own: .npz files, and folders of .npy files."""

import io
import zipfile

import numpy as np
import pytest
from damaged_files import DAMAGES, flipped
from own_formats import CLIENTS, IMAGES, RNG, X, Y, accuracy, loaded, refusal

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data import mapped_arrays
from hedgerow.platform.data.sources.npz_file import NpzFile


@pytest.fixture(params=[np.savez, np.savez_compressed, None], ids=["npz", "compressed", "folder"])
def write(request, tmp_path):
    """Writes arrays in one of the formats; returns the path."""

    def write(**arrays):
        if request.param:
            request.param(tmp_path / "arrays.npz", **arrays)
            return "arrays.npz"
        for name, array in arrays.items():
            (tmp_path / "arrays").mkdir(exist_ok=True)
            np.save(tmp_path / "arrays" / f"{name}.npy", array)
        return "arrays"

    return write


def test_arrays_have_their_usual_names_or_given_ones(write, tmp_path):
    path = write(x_train=IMAGES, y_train=Y, x_test=IMAGES[:9], y_test=Y[:9], who=CLIENTS, whose=CLIENTS[:9])
    data = loaded(tmp_path, name="npz", path=path, clients="who", test_clients="whose")
    assert np.array_equal(data.x_train[:, 0], IMAGES)
    assert data.y_test.tolist() == Y[:9].tolist()
    assert data.test_clients.tolist() == data.train_clients[:9].tolist()
    swapped = loaded(
        tmp_path, name="npz", path=path, x_train="x_test", y_train="y_test", x_test="x_train", y_test="y_train"
    )
    assert len(swapped.x_test) == 60
    split = loaded(tmp_path, name="npz", path=path, x_test=None, test_fraction=0.5)
    assert len(split.x_test) == 30


def test_without_test_arrays_a_part_is_for_testing(write, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_arrays, "BLOCK", 64)
    path = write(x_train=np.asfortranarray(X), y_train=np.array(["a", "b", "c"])[Y])
    data = loaded(tmp_path, name="npz", path=path)
    assert np.bincount(data.y_test).tolist() == [4, 4, 4]
    assert sorted(map(tuple, np.r_[data.x_train, data.x_test])) == sorted(map(tuple, X.astype(np.float32)))


def test_channels_are_where_they_are_said_to_be(write, tmp_path):
    x = RNG.normal(size=(60, 4, 7, 3))
    data = loaded(tmp_path, name="npz", path=write(x_train=x, y_train=Y), channels="last", test_fraction=0.4)
    right = x.transpose(0, 3, 1, 2).astype(np.float32)
    assert sorted(np.r_[data.x_train, data.x_test].reshape(60, -1).tolist()) == sorted(right.reshape(60, -1).tolist())


def test_tokens(write, tmp_path):
    tokens = np.arange(600).reshape(60, 10)
    data = loaded(tmp_path, name="npz", path=write(x_train=tokens, y_train=Y), tokens=True)
    assert (data.is_tokens, data.x_train.dtype) == (True, np.int32)


def test_mistakes_are_refused_in_one_sentence(write, tmp_path):
    path = write(x_train=X, y_train=Y, x_test=X[:3], objects=np.array([{}], object))

    def refused(**settings):
        return refusal(tmp_path, **{"name": "npz", "path": path} | settings)

    assert f"task.data.y_test: {tmp_path / path} has no array 'y_test'; did you mean 'x_test'? (arrays: " in refused()
    assert "task.data.x_train: " in refused(x_train="xtrain")
    assert "has no array 'xtrain'; did you mean 'x_train'?" in refused(x_train="xtrain")
    assert "task.data.clients: " in refused(clients="who")
    assert "task.data.x_train: the array 'objects' of" in refused(x_train="objects")
    assert "task.data.path: there is no " in refused(path="nothing.npz")
    (tmp_path / "text.npz").write_text("text")
    assert "text.npz is not an .npz file (File is not a zip file); write it" in refused(path="text.npz")
    assert "has 60 samples in x_train and 3 labels in y_train" in refused(y_train="x_test", x_test=None)


def npz(file, **contents):
    """An .npz file of these bytes."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"{name}.npy", content, zipfile.ZIP_DEFLATED)


def npy(array) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


@pytest.mark.parametrize("cut", [1, 479, 480, 481, 600, -1, -480])
def test_an_array_has_as_many_bytes_as_its_header_says(tmp_path, cut):
    """60 labels of 8 bytes after a header of 128 bytes."""
    y = npy(Y)
    assert len(y) == 128 + 480
    y = y[: len(y) - cut] if cut > 0 else y + bytes(-cut)
    npz(tmp_path / "a.npz", x_train=npy(X), y_train=y)
    message = refusal(tmp_path, name="npz", path="a.npz")
    assert message.startswith(f"task.data.y_train: the array 'y_train' of {tmp_path / 'a.npz'} cannot be read (")
    if cut < 481:
        assert f"its header announces 480 bytes, and {480 - cut} follow" in message
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "x_train.npy", X)
    (tmp_path / "folder" / "y_train.npy").write_bytes(y)
    assert refusal(tmp_path, name="npz", path="folder").startswith("task.data.y_train: the array 'y_train' of ")


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused_in_one_sentence(write, tmp_path, damage):
    path = tmp_path / write(x_train=X, y_train=Y)
    file = path / "y_train.npy" if path.is_dir() else path
    DAMAGES[damage](file)
    if (damage, path.suffix) == ("longer", ".npz"):
        # Nothing is lost.
        assert len(loaded(tmp_path, name="npz", path=path.name).x_train) == 48
    else:
        assert refusal(tmp_path, name="npz", path=path.name).startswith("task.data.")


@pytest.mark.filterwarnings("ignore:Data type alias")
def test_a_damaged_header_is_refused_in_one_sentence(tmp_path):
    y = npy(Y)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "x_train.npy", X)
    for bit in range(0, 8 * 75):
        (tmp_path / "folder" / "y_train.npy").write_bytes(flipped(y, bit))
        try:
            data = NpzFile(path="folder").load(tmp_path)
        except UserError:
            continue
        # Other numbers of the same length: a type such as >i8. A file of this format has no checksum.
        assert len(data.y_train) == 48


def test_a_small_file_does_not_fill_the_disk(tmp_path, monkeypatch):
    """Zeros of 200 MB in 0.2 MB, and a header that announces 8 TB."""
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y_train.npy", npy(Y))
        with archive.open("x_train.npy", "w") as member:
            member.write(npy(np.zeros((60, 0)))[:128])
            for _ in range(200):
                member.write(bytes(10**6))
    message = refusal(tmp_path, name="npz", path="a.npz")
    assert "task.data.x_train: x_train.npy in" in message
    assert "MB and would become 200 MB; if that is right, unpack the file and give the folder" in message
    huge = npy(np.zeros((60, 1))).replace(b"(60, 1), }           ", b"(1000000, 1000000), }")
    npz(tmp_path / "b.npz", x_train=huge, y_train=npy(Y))
    assert "its header announces 8000000000000 bytes, and 480 follow" in refusal(tmp_path, name="npz", path="b.npz")
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_a_run_learns_from_arrays(tmp_path):
    np.savez(tmp_path / "arrays.npz", x_train=X, y_train=Y, who=CLIENTS)
    assert accuracy(tmp_path, {"name": "npz", "path": "arrays.npz", "clients": "who"}, {"kind": "natural"}) > 0.5
