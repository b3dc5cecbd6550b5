"""Data sets as arrays, and their partition over clients."""

from hedgerow.platform.data.cache import cache_folder, load_dataset
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import Partition, PartitionConfig, make_partition
from hedgerow.platform.data.sources import DataConfig

__all__ = [
    "DataConfig",
    "Dataset",
    "Partition",
    "PartitionConfig",
    "cache_folder",
    "load_dataset",
    "make_partition",
]
