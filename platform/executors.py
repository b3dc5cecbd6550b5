"""Executors: carry out the exchanges of a round on workers, in this process or on Ray."""

from pathlib import Path
from typing import Protocol

from hedgerow.algorithms.trees import Tree
from hedgerow.platform.worker import Answer, Order, Worker


class WorkerLost(Exception):  # noqa: N818
    """A worker died; its client states since the last checkpoint are gone. The executor has already replaced it."""


class Executor(Protocol):
    """Runs orders on its workers. Every method may raise WorkerLost."""

    workers: int

    def run(self, orders: list[list[Order]], downs: list[Tree], committed: int) -> list[list[Answer]]:
        """orders: for each worker its share of each exchange; downs: the broadcast of each exchange (torch)."""

    def measure(self, order: Order, down: Tree) -> float:
        """Seconds per chunk of `order` under its plan, with all workers at work."""

    def save_states(self, folder: Path, round: int) -> None:
        """Commit `round` and write every worker's client states into `folder`."""

    def load_states(self, folder: Path | None) -> None:
        """Replace all client states by those in `folder`, or by the initial ones."""

    def close(self) -> None:
        """Give back everything."""


class InlineExecutor:
    """One worker in this process: no Ray, no copies. Also the reference that Ray must equal."""

    workers = 1

    def __init__(self, worker: Worker):
        self.worker = worker

    def run(self, orders: list[list[Order]], downs: list[Tree], committed: int) -> list[list[Answer]]:
        return [self.worker.run(orders[0], downs, committed)]

    def measure(self, order: Order, down: Tree) -> float:
        return self.worker.measure(order, down)

    def save_states(self, folder: Path, round: int) -> None:
        self.worker.save_states(folder, round)

    def load_states(self, folder: Path | None) -> None:
        self.worker.load_states(folder)

    def close(self) -> None:
        pass
