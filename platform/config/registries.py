"""Registries of everything that an experiment file can name, and the types of the keys that name it."""

from typing import TYPE_CHECKING

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.aggregators import AGGREGATORS
from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.attacks import ATTACKS
from hedgerow.algorithms.attacks.attack import Attack
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.objectives import OBJECTIVES
from hedgerow.algorithms.objectives.objective import Objective
from hedgerow.algorithms.transforms import TRANSFORMS
from hedgerow.algorithms.transforms.transform import Transform
from hedgerow.platform.common.registry import Registry
from hedgerow.platform.config.problem_section import PROBLEMS, Problem
from hedgerow.platform.data.partitions import PARTITIONS
from hedgerow.platform.data.partitions.scheme import PartitionScheme
from hedgerow.platform.data.sources import DATASETS
from hedgerow.platform.data.sources.data_function import DataFunction
from hedgerow.platform.data.sources.source import Source
from hedgerow.platform.models import MODELS
from hedgerow.platform.models.model import CustomModel, Model

algorithms = Registry(ALGORITHMS, Algorithm, "algorithm.name")
transforms = Registry(TRANSFORMS, Transform, "transforms.kind")
aggregators = Registry(AGGREGATORS, Aggregator, "aggregation.rule.kind")
attacks = Registry(ATTACKS, Attack, "simulation.attack.kind")
objectives = Registry(OBJECTIVES, Objective, "objective.kind")
datasets = Registry(DATASETS, Source, "task.data.name", function=DataFunction)
partitions = Registry(PARTITIONS, PartitionScheme, "task.partition.kind")
models = Registry(MODELS, Model, "task.model.name", own=CustomModel)
problems = Registry(PROBLEMS, Problem, "task.problem.kind")

if TYPE_CHECKING:
    DataConfig = Source
    PartitionConfig = PartitionScheme
    ModelConfig = Model | CustomModel
    ProblemConfig = Problem
    TransformConfig = Transform
    AggregatorConfig = Aggregator
    AttackConfig = Attack
    ObjectiveConfig = Objective
    AlgorithmConfig = HyperParameters
else:
    DataConfig = datasets.choice()
    PartitionConfig = partitions.choice()
    ModelConfig = models.choice()
    ProblemConfig = problems.choice()
    TransformConfig = transforms.choice()
    AggregatorConfig = aggregators.choice()
    AttackConfig = attacks.choice()
    ObjectiveConfig = objectives.choice()
    AlgorithmConfig = algorithms.choice()


def algorithm_class(name: str, place: str = "algorithm.name") -> type[Algorithm]:
    """Algorithm class of a name or a dotted path. Raises UserError."""
    return algorithms.resolve(name, place)
