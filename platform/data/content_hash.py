"""Content hashes of data sets and partitions: equal for equal arrays, regardless of their source."""

import hashlib
import json
from dataclasses import fields
from typing import Any

import numpy as np

from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import Partition

WORDS = {"name", "class_names", "input_names"}
"""Fields of a data set that do not affect any number."""


def content_hash(data: Dataset | Partition) -> str:
    """SHA-256 of all fields that affect numbers: type, shape and bytes of an array, the value of any other field."""
    digest = hashlib.sha256(type(data).__name__.encode())
    for field in fields(data):
        if field.name in WORDS:
            continue
        value = getattr(data, field.name)
        is_array = isinstance(value, np.ndarray)
        about: list[Any] = [field.name, value.dtype.str, value.shape] if is_array else [field.name, value]
        digest.update(json.dumps(about, default=lambda scalar: scalar.item()).encode())
        if is_array:
            digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def names_hash(names: tuple[str, ...]) -> str | None:
    """SHA-256 of the names of classes, in their order; None if they have none."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest() if names else None
