"""NumPy arrays of one's own: .npz files, and folders of .npy files."""

import numpy as np
import pytest
from own_formats import CLIENTS, IMAGES, RNG, X, Y, accuracy, loaded, refusal

from hedgerow.platform.data import mapped_arrays


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
    assert "text.npz is not an .npz file; write it with numpy.savez" in refused(path="text.npz")
    assert "has 60 samples in x_train and 3 labels in y_train" in refused(y_train="x_test", x_test=None)


def test_a_run_learns_from_arrays(tmp_path):
    np.savez(tmp_path / "arrays.npz", x_train=X, y_train=Y, who=CLIENTS)
    assert accuracy(tmp_path, {"name": "npz", "path": "arrays.npz", "clients": "who"}, {"kind": "natural"}) > 0.5
