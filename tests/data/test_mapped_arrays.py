"""Arrays in files: recognised, opened again, built block by block, saved without a copy, and removed."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from own_formats import X, Y, loaded

from hedgerow.platform.data import mapped_arrays
from hedgerow.platform.data.mapped_arrays import array_file, empty, rewritten, save

HERE = f"hedgerow-{socket.gethostname()}"
"""First part of the names of this machine's folders."""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Every array is large, and blocks have a few rows. Returns the cache folder."""
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(mapped_arrays, "LARGE", 0)
    monkeypatch.setattr(mapped_arrays, "BLOCK", 100)
    return tmp_path / "cache"


def test_views_of_a_file_are_opened_again_where_they_begin(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for view in (mapped, np.asarray(mapped), mapped[3:9], np.asarray(mapped)[5:][:, None]):
        again = array_file(view).open()
        assert np.array_equal(again, view)
        assert not again.flags.writeable
    for other in (X, mapped[:, 1:], mapped.T, mapped + 1, np.load(tmp_path / "x.npy", mmap_mode="c")):
        assert array_file(other) is None
    file = array_file(mapped)
    np.save(tmp_path / "x.npy", X[:50])
    with pytest.raises(OSError, match="has changed"):
        file.open()


def test_copies_of_large_arrays_are_files(tiny):
    x = np.arange(60 * 12, dtype=np.int64).reshape(60, 2, 3, 2)
    rows = np.array([5, 3, 3, 50])
    copy = rewritten(x, np.dtype(np.float32), (0, 3, 1, 2), rows)
    assert np.array_equal(copy, x[rows].transpose(0, 3, 1, 2).astype(np.float32))
    assert Path(array_file(copy).path).is_relative_to(tiny / "scratch")
    assert rewritten(x, x.dtype) is x
    whole = empty((4, 5), np.dtype(np.int32))
    whole[:] = 7
    save(whole, tiny / "linked.npy")
    save(whole[:2], tiny / "copied.npy")
    assert (tiny / "linked.npy").samefile(array_file(whole).path)
    assert (np.load(tiny / "linked.npy") == 7).all()
    assert np.load(tiny / "copied.npy").shape == (2, 5)


def test_the_files_of_killed_processes_are_removed_later(tiny):
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, other, alive = (
        tiny / "scratch" / name
        for name in (f"{HERE}-{ended.pid}-a", f"hedgerow-elsewhere-{ended.pid}-a", f"{HERE}-1-a")
    )
    for folder in (left, other, alive):
        folder.mkdir(parents=True)
    empty((9,), np.dtype(np.uint8))
    assert (left.exists(), other.exists(), alive.exists()) == (False, True, True)


@pytest.mark.parametrize("why", ["a file in its place", "no room"])
def test_large_arrays_are_elsewhere_where_the_cache_has_no_room(tmp_path, why):
    code = (
        "import numpy as np, resource, sys; from hedgerow.platform.data import mapped_arrays as m; m.LARGE = 0\n"
        "if sys.argv[1] == 'no room': resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "x = m.empty((500, 10), np.dtype(np.int64)); x[:] = np.arange(10)\n"
        "file = m.array_file(x); print(file and file.path, x.sum())"
    )
    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if why != "no room":
        cache.write_text("a file")
    env = os.environ | {"HEDGEROW_CACHE": str(cache), "TMPDIR": str(elsewhere)}
    done = subprocess.run([sys.executable, "-c", code, why], capture_output=True, text=True, check=True, env=env)
    place, total = done.stdout.split()
    assert total == "22500"
    # Neither folder has room under a limit for all files: the array is in memory.
    assert place == "None" if why == "no room" else Path(place).is_relative_to(elsewhere)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != cache]


@pytest.mark.exhaustive("processes")
def test_the_files_of_a_process_are_removed_at_its_end(tiny):
    code = (
        "import numpy as np; from hedgerow.platform.data import mapped_arrays as m; m.LARGE = 0; "
        "file = m.array_file(m.empty((9,), np.dtype(np.uint8))).path; print(file, open(file, 'rb').read(6))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    file, content = done.stdout.split(maxsplit=1)
    assert "NUMPY" in content
    assert Path(file).parent.parent == tiny / "scratch"
    assert not Path(file).parent.exists()


def test_a_converted_data_set_is_mapped_from_the_cache_by_the_first_process_too(tiny, tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:9], y_test=Y[:9])
    for _ in range(2):
        data = loaded(tmp_path, name="npz", path="a.npz")
        assert Path(array_file(data.x_train).path).is_relative_to(tiny / "data")
        assert np.array_equal(data.x_train, X.astype(np.float32))
