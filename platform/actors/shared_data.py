"""Data sets for the processes of a Ray cluster: one copy per node, without a copy in any process."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hedgerow.platform.actors.session import node_resources
from hedgerow.platform.data import Dataset
from hedgerow.platform.data.mapped_arrays import ArrayFile, shared_file


@dataclass(frozen=True)
class SharedArray:
    """A large array in a file on a node."""

    file: ArrayFile
    node: str


def put_dataset(dataset: Dataset) -> Any:
    """Reference to a data set in Ray's object store, for `opened`.

    On a cluster of one node, large arrays that are mapped from files stay there, and only their names are in the object
    store. With several nodes all arrays are in the object store, since other nodes may not have the files.
    """
    values = dict(vars(dataset))
    if len(node_resources()) == 1:
        node = ray.get_runtime_context().get_node_id()
        for name, value in values.items():
            if isinstance(value, np.ndarray) and (file := shared_file(value)):
                values[name] = SharedArray(file, node)
    return ray.put(values)


def opened(values: dict[str, Any]) -> Dataset:
    """Data set from the values in the object store. Its arrays are read-only views of the store or of files."""
    fields: dict[str, Any] = {name: _read(v) if isinstance(v, SharedArray) else v for name, v in values.items()}
    return Dataset(**fields)


def _read(shared: SharedArray) -> np.ndarray:
    """The array of a file; on a node that joined later and does not have it, a copy in the object store."""
    try:
        return shared.file.open()
    except OSError:
        there = NodeAffinitySchedulingStrategy(shared.node, soft=False)
        array: np.ndarray = ray.get(_send.options(scheduling_strategy=there).remote(shared.file))
        return array


@ray.remote(num_cpus=0)
def _send(file: ArrayFile) -> np.ndarray:
    return file.open()
