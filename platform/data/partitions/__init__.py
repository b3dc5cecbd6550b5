"""Partition schemes and laws of client sizes, by the names that an experiment file gives them."""

PARTITIONS = {
    "iid": "hedgerow.platform.data.partitions.random_splits:IID",
    "dirichlet": "hedgerow.platform.data.partitions.random_splits:Dirichlet",
    "dirichlet_by_class": "hedgerow.platform.data.partitions.class_splits:DirichletByClass",
    "labels": "hedgerow.platform.data.partitions.class_splits:Labels",
    "shards": "hedgerow.platform.data.partitions.class_splits:Shards",
    "distribution": "hedgerow.platform.data.partitions.class_splits:GivenShares",
    "natural": "hedgerow.platform.data.partitions.natural_clients:Natural",
    "acid": "hedgerow.platform.data.partitions.diversity:ACID",
    "alid": "hedgerow.platform.data.partitions.diversity:ALID",
    "stream": "hedgerow.platform.data.partitions.task_stream:Stream",
}

SIZE_LAWS = {
    "list": "hedgerow.platform.data.partitions.size_laws:ListedSizes",
    "lognormal": "hedgerow.platform.data.partitions.size_laws:LognormalSizes",
    "power_law": "hedgerow.platform.data.partitions.size_laws:PowerLawSizes",
    "exponential": "hedgerow.platform.data.partitions.size_laws:ExponentialSizes",
    "linear": "hedgerow.platform.data.partitions.size_laws:LinearSizes",
    "square": "hedgerow.platform.data.partitions.size_laws:SquareSizes",
    "dirichlet": "hedgerow.platform.data.partitions.size_laws:DirichletSizes",
}
"""Laws of client sizes by the name that `task.partition.sizes.kind` takes."""
