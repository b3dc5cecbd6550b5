"""Large arrays in files are opened by every process of a machine."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import blobs

from hedgerow.platform.actors.ray_transport import put_dataset
from hedgerow.platform.data import Dataset
from hedgerow.platform.data.content_hash import content_hash
from hedgerow.platform.data.mapped_arrays import ArrayFile


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """A data set whose training samples are in a file."""
    monkeypatch.setattr("hedgerow.platform.data.mapped_arrays.LARGE", 1000)
    data = blobs()
    np.save(tmp_path / "x.npy", data.x_train)
    return replace(data, x_train=np.load(tmp_path / "x.npy", mmap_mode="r"))


@pytest.mark.exhaustive("processes")
def test_other_processes_open_the_file_and_get_no_copy(mapped, tmp_path, ray_here):
    reference = put_dataset(mapped)
    values = ray_here.get(reference)
    assert {name for name, value in values.items() if isinstance(value, ArrayFile)} == {"x_train"}

    def look(values):
        data = Dataset.opened(values)
        return content_hash(data), "x.npy" in Path("/proc/self/maps").read_text(), data.x_train.flags.writeable

    found = ray_here.get(ray_here.remote(num_cpus=1)(look).remote(reference))
    assert found[0] == content_hash(mapped)
    assert found[1] or not Path("/proc/self/maps").exists()
    assert not found[2]
