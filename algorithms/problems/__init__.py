"""Bilevel problems, one file each."""

from hedgerow.algorithms.problems.cleaning import Cleaning
from hedgerow.algorithms.problems.hyper_representation import HyperRepresentation
from hedgerow.algorithms.problems.quadratic import Quadratic, QuadraticModel

__all__ = ["Cleaning", "HyperRepresentation", "Quadratic", "QuadraticModel"]
