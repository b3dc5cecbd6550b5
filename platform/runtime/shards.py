"""The message from the executor to a worker: its share of one exchange, in a form that travels between processes."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.algorithms.core.messages import Reduction
from hedgerow.algorithms.core.pytree import Tree

EVALUATION = 1_000_000
"""Exchanges are numbered within their round; those of the evaluation start here."""

Place = Literal["clients", "test", "pool"]
"""Where a step runs, see `Exchange.on`."""


@dataclass(frozen=True)
class ExecutionPlan:
    """How a step is run: one client after the other, or `chunk` clients at once under vmap."""

    mode: Literal["loop", "vmap"]
    chunk: int = 1
    compiled: bool = False
    """Under vmap: with torch.compile, which fuses what is not a matrix product."""


@dataclass(frozen=True)
class WorkShard:
    """A worker's share of one exchange: NumPy arrays, and the step by its name. The broadcast travels apart."""

    step: str
    clients: np.ndarray
    round: int = 1
    position: int = 0
    """Number of the exchange within its round; index streams differ from one to the next."""
    on: Place = "clients"
    per_client: Tree = field(default_factory=dict)
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """One per client, float64."""
    batches: dict[str, BatchSpec] = field(default_factory=dict)
    reduce: Reduction = "mean"
    plan: ExecutionPlan = ExecutionPlan("loop")
    keep_states: bool = True
    """False: client states that the step returns are dropped (evaluation)."""
    number: int = 0
    """Number of the share: shares stay apart even where one process carries out several."""
    variant: int = 0
    """Whose hyperparameters and client states: an executor may serve several variants of an experiment at once."""
    begins: bool = True
    """Of exchange 0: False where another shard of this exchange has begun the round before."""
    committed_round: int = 0
    """The last round of this variant whose client states are final. States of a later round that is not this one are
    dropped: that round is being replayed."""
    keyed: bool = False
    """See Exchange."""
    constants: str | None = None
    """Fingerprint of the server's model: a worker refuses to continue with another one."""

    @property
    def fusion_key(self) -> tuple[Any, ...]:
        """Shards that agree in this are carried out together: the same step for several variants."""
        batches = tuple(self.batches.items())
        where = (self.number, self.on, self.round, self.position)
        return self.step, *where, self.reduce, self.plan, self.keep_states, self.keyed, batches


class WorkerLost(Exception):  # noqa: N818
    """A worker died; its client states since the last checkpoint are gone. The executor has already replaced it."""


class ClientCrashed(Exception):  # noqa: N818
    """A worker died while it worked on this client of this variant alone."""

    def __init__(self, variant: int, client: int, reason: str):
        super().__init__(reason)
        self.variant, self.client = variant, client
