"""What an experiment file may name: one registry per kind of thing."""

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.platform.common.registry import Registry

algorithms = Registry(ALGORITHMS, Algorithm, "algorithm.name")
