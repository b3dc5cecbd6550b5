"""Executors: carry out the exchanges of a round on workers, in this process or on Ray."""

from pathlib import Path
from typing import Protocol

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.planning import Cost
from hedgerow.platform.worker import Answer, Order, Worker


class WorkerLost(Exception):  # noqa: N818
    """A worker died; its client states since the last checkpoint are gone. The executor has already replaced it."""


class Deadly(Exception):  # noqa: N818
    """A worker died while it worked on one client alone, of this expert."""

    def __init__(self, expert: int, client: int, reason: str):
        super().__init__(reason)
        self.expert, self.client = expert, client


class Executor(Protocol):
    """Runs orders on its workers. Every method may raise WorkerLost."""

    workers: int

    def run(self, orders: list[list[Order]], downs: list[Tree]) -> list[list[Answer]]:
        """orders: for each worker its share of each exchange; downs: the broadcast of each exchange (torch)."""

    def measure(self, orders: list[list[Order]], downs: list[Tree], steps: int | None) -> Cost:
        """What a chunk of kin orders takes under their plan, with all workers at work; see Worker.measure."""

    def save_states(self, expert: int, folder: Path, round: int) -> None:
        """Commit `round` of an expert and write every worker's share of its client states into `folder`."""

    def load_states(self, expert: int, folder: Path | None) -> None:
        """Replace an expert's client states by those in `folder`, or by the initial ones."""

    def close(self) -> None:
        """Give back everything."""


class Unmeasured(Exception):  # noqa: N818
    """A plan has to be measured, and not here."""


class InlineExecutor:
    """One worker in this process: no Ray, no copies. Also the reference that Ray must equal.

    workers: whose shares it carries out, one after the other; with as many it has the same bits as so many actors.
    measures: False: raise Unmeasured where a plan is not known yet.
    """

    def __init__(self, worker: Worker, workers: int = 1, measures: bool = True):
        self.worker, self.workers, self.measures = worker, workers, measures

    def run(self, orders: list[list[Order]], downs: list[Tree]) -> list[list[Answer]]:
        answers = iter(self.worker.run([order for mine in orders for order in mine], downs * self.workers))
        return [[next(answers) for _ in mine] for mine in orders]

    def measure(self, orders: list[list[Order]], downs: list[Tree], steps: int | None) -> Cost:
        if not self.measures:
            raise Unmeasured
        return self.worker.measure(max(orders, key=lambda mine: len(mine[0].clients)), downs, steps)

    def save_states(self, expert: int, folder: Path, round: int) -> None:
        self.worker.save_states(folder, expert, round)

    def load_states(self, expert: int, folder: Path | None) -> None:
        self.worker.load_states(folder, expert)

    def close(self) -> None:
        pass
