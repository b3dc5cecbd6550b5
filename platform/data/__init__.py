"""Data sets as arrays, and their partitions over clients."""

from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import Partition

__all__ = ["Dataset", "Partition"]
