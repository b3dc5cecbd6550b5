"""How calls reach workers. Here in this process; `actors/forked.py` and `actors/ray_transport.py` have the others."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.platform.runtime.aggregation import sum_trees
from hedgerow.platform.runtime.state_store import MappedMemory, Memory
from hedgerow.platform.runtime.worker import Worker


@dataclass(frozen=True)
class Answer:
    """Answer to the last call of a worker: its value, the error that it raised, or the cause of its loss."""

    worker: int
    value: Any = None
    error: Exception | None = None
    lost: str | None = None
    """Sentence with the worker's name and the cause; the worker has to be started again."""


class Transport(Protocol):
    """Starts workers, calls their methods and waits for the answers. Each worker has at most one call at a time.

    A start is a call of its own: its answer has no value.
    """

    @property
    def memory(self) -> Callable[[Tensor, int], Memory]:
        """Where the states of clients are, see StateStore."""

    @property
    def workers(self) -> int:
        """Number of workers that a run may have."""

    def start(self, worker: int) -> None:
        """Begin to start a worker, which has not been started or was lost."""

    def publish(self, trees: list[Tree]) -> Any:
        """Trees in a form that several calls may pass, each as `broadcasts`."""

    def call(self, worker: int, method: str, arguments: tuple[Any, ...], shared: Any = None) -> None:
        """Begin to call a method of a worker. shared: result of `publish`, passed as `broadcasts`; None: nothing."""

    def wait(self, seconds: float) -> list[Answer]:
        """Answers that have arrived; waits for the first of them, at most for some seconds."""

    def sum_up(self, totals: list[Any], scale: float) -> Tree:
        """Scaled sum of the sums that workers returned; see `sum_trees`."""

    def name(self, worker: int) -> str:
        """Name of a worker for the user, such as "process 2 (pid 4711)"."""

    def kill(self, worker: int) -> None:
        """End a worker that does not answer: it counts as lost."""

    def close(self) -> None:
        """End all workers."""


def arrays_of(trees: list[Tree]) -> list[Tree]:
    """NumPy arrays of trees of tensors. A tensor that several trees have is one array, which a message has once."""
    arrays: dict[int, np.ndarray] = {}

    def array_of(leaf: Tensor) -> np.ndarray:
        if id(leaf) not in arrays:
            arrays[id(leaf)] = np.asarray(leaf.numpy(), order="C")
        return arrays[id(leaf)]

    return [tree_map(array_of, tree) for tree in trees]


class InProcess:
    """Workers in this process, which run one call after the other.

    build: makes a worker. workers: their number.
    """

    memory = MappedMemory

    def __init__(self, build: Callable[[], Worker], workers: int = 1):
        self.build, self.workers = build, workers
        self.built: dict[int, Worker] = {}
        self._calls: deque[tuple[int, str, tuple[Any, ...], Any]] = deque()

    def start(self, worker: int) -> None:
        self.built[worker] = self.build()
        self.built[worker].keeps_sums = True
        self._calls.append((worker, "start", (), None))

    def publish(self, trees: list[Tree]) -> Any:
        return trees

    def call(self, worker: int, method: str, arguments: tuple[Any, ...], shared: Any = None) -> None:
        self._calls.append((worker, method, arguments, shared))

    def wait(self, seconds: float) -> list[Answer]:
        worker, method, arguments, shared = self._calls.popleft()
        if method == "start":
            return [Answer(worker)]
        extra = {} if shared is None else {"broadcasts": shared}
        try:
            return [Answer(worker, getattr(self.built[worker], method)(*arguments, **extra))]
        except Exception as error:
            return [Answer(worker, error=error)]

    def sum_up(self, totals: list[Any], scale: float) -> Tree:
        return sum_trees(totals, scale)

    def name(self, worker: int) -> str:
        return f"worker {worker}"

    def kill(self, worker: int) -> None:
        """See Transport."""

    def close(self) -> None:
        self.built.clear()
        self._calls.clear()
