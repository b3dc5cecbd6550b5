"""What an experiment file may name: one registry per kind of thing, and the types of the keys that name one."""

from typing import TYPE_CHECKING

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.platform.common.registry import Registry
from hedgerow.platform.config.problem_section import PROBLEMS, Problem
from hedgerow.platform.data.partitions import PARTITIONS
from hedgerow.platform.data.partitions.scheme import PartitionScheme
from hedgerow.platform.data.sources import DATASETS
from hedgerow.platform.data.sources.source import Source
from hedgerow.platform.models import MODELS
from hedgerow.platform.models.model import CustomModel, Model

algorithms = Registry(ALGORITHMS, Algorithm, "algorithm.name")
datasets = Registry(DATASETS, Source, "task.data.name")
partitions = Registry(PARTITIONS, PartitionScheme, "task.partition.kind")
models = Registry(MODELS, Model, "task.model.name", own=CustomModel)
problems = Registry(PROBLEMS, Problem, "task.problem.kind")

if TYPE_CHECKING:
    DataConfig = Source
    PartitionConfig = PartitionScheme
    ModelConfig = Model | CustomModel
    ProblemConfig = Problem
else:
    DataConfig = datasets.union()
    PartitionConfig = partitions.union()
    ModelConfig = models.union()
    ProblemConfig = problems.union()
