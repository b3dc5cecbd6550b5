"""Common part of the proxies that carry out the rounds of an algorithm in another way."""

from typing import Any

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.task import Task


class AlgorithmProxy:
    """Stands for an algorithm, with or without slots. Attributes that a proxy does not define are the algorithm's."""

    algorithm: Algorithm

    def __getattr__(self, name: str) -> Any:
        if name == "algorithm":
            # `copy` creates the object before it sets `algorithm`.
            raise AttributeError(name)
        return getattr(self.algorithm, name)

    @property
    def hyper(self) -> Any:
        return self.algorithm.hyper

    @hyper.setter
    def hyper(self, hyper: Any) -> None:
        self.algorithm.hyper = hyper

    @property
    def task(self) -> Task:
        return self.algorithm.task

    @task.setter
    def task(self, task: Task) -> None:
        self.algorithm.task = task
