"""Data sets for the processes of Ray: one copy per node, without a copy in any process."""

from typing import Any

import numpy as np
import ray

from hedgerow.platform.actors.session import node_resources, on_cluster
from hedgerow.platform.data import Dataset
from hedgerow.platform.data.mapped_arrays import shared_file


def put_dataset(dataset: Dataset) -> Any:
    """Reference to a data set in Ray's object store, for `Dataset.opened`.

    On a Ray of this machine, large arrays that are mapped from files stay there, and only their names are in the object
    store. On a cluster all arrays are in the object store, since other nodes may not have the files.
    """
    values = dict(vars(dataset))
    has_files = not on_cluster() and len(node_resources()) == 1
    for name, value in values.items():
        if has_files and isinstance(value, np.ndarray) and (file := shared_file(value)):
            values[name] = file
    return ray.put(values)
