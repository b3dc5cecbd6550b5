"""Data sources by the name that `task.data.name` takes. A source's section and its loader share a module."""

DATASETS = {
    "digits": "hedgerow.platform.data.sources.digits:Digits",
    "mnist": "hedgerow.platform.data.sources.vision:MNIST",
    "emnist_letters": "hedgerow.platform.data.sources.vision:EMNISTLetters",
    "fashion_mnist": "hedgerow.platform.data.sources.vision:FashionMNIST",
    "cifar10": "hedgerow.platform.data.sources.vision:CIFAR10",
    "cifar100": "hedgerow.platform.data.sources.vision:CIFAR100",
    "image_folder": "hedgerow.platform.data.sources.image_folder:ImageFolder",
    "csv": "hedgerow.platform.data.sources.tables:CsvTable",
    "parquet": "hedgerow.platform.data.sources.tables:ParquetTable",
    "npz": "hedgerow.platform.data.sources.npz_file:NpzFile",
    "client_folders": "hedgerow.platform.data.sources.client_folders:ClientFolders",
    "huggingface": "hedgerow.platform.data.sources.huggingface:HuggingFace",
    "omniglot": "hedgerow.platform.data.sources.omniglot:Omniglot",
    "synthetic": "hedgerow.platform.data.sources.synthetic_data:Synthetic",
    "quadratic": "hedgerow.platform.data.sources.quadratic_data:QuadraticData",
    "intervals": "hedgerow.platform.data.sources.toy_data:IntervalsData",
    "gaussians": "hedgerow.platform.data.sources.toy_data:GaussiansData",
    "shakespeare": "hedgerow.platform.data.sources.text:LeafShakespeare",
    "text": "hedgerow.platform.data.sources.text:TextFile",
}
