"""Partition schemes by the name that `task.partition.kind` takes."""

PARTITIONS = {
    "iid": "hedgerow.platform.data.partitions.random_splits:IID",
    "dirichlet": "hedgerow.platform.data.partitions.random_splits:Dirichlet",
    "labels": "hedgerow.platform.data.partitions.random_splits:Labels",
    "natural": "hedgerow.platform.data.partitions.random_splits:Natural",
    "acid": "hedgerow.platform.data.partitions.diversity:ACID",
    "alid": "hedgerow.platform.data.partitions.diversity:ALID",
    "stream": "hedgerow.platform.data.partitions.task_stream:Stream",
}
