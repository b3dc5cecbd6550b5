"""Data sets as arrays, and their partition over clients."""

from hedgerow.platform.data.cache import cache_folder, load_dataset
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import SHARES, Partition, PartitionConfig, Slices, make_partition
from hedgerow.platform.data.partitions.diversity import ACID, with_test_samples
from hedgerow.platform.data.partitions.task_stream import Stream, make_stream
from hedgerow.platform.data.public_pool import Public, hold_back, with_public
from hedgerow.platform.data.sources.source import DataConfig

__all__ = [
    "ACID",
    "SHARES",
    "DataConfig",
    "Dataset",
    "Partition",
    "PartitionConfig",
    "Public",
    "Slices",
    "Stream",
    "cache_folder",
    "hold_back",
    "load_dataset",
    "make_partition",
    "make_stream",
    "with_public",
    "with_test_samples",
]
