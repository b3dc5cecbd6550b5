"""Message from the executor to a worker: its share of one exchange, in a form that can be sent to another process."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.algorithms.core.messages import Reduction
from hedgerow.algorithms.core.pytree import Tree, tree_map

EVALUATION = 1_000_000
"""Position of the first exchange of an evaluation; the exchanges of a round are numbered from 0."""

Place = Literal["clients", "test", "pool", "validation"]
"""Place where a step runs, see `Exchange.on`."""


@dataclass(frozen=True)
class ExecutionPlan:
    """How a step runs: one client after the other, or `chunk` clients at once under vmap."""

    mode: Literal["loop", "vmap"]
    chunk: int = 1
    compiled: bool = False
    """Under vmap: use torch.compile, which fuses everything except matrix products."""


@dataclass(frozen=True)
class WorkShard:
    """A worker's share of one exchange: NumPy arrays, and the step by its name. The broadcast is sent separately."""

    step: str
    clients: np.ndarray
    round: int = 1
    position: int = 0
    """Position of the exchange within its round; index streams differ between positions."""
    on: Place = "clients"
    per_client: Tree = field(default_factory=dict)
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """One per client, float64."""
    weighted_by: str | None = None
    """See Exchange."""
    batches: dict[str, BatchSpec] = field(default_factory=dict)
    reduce: Reduction = "mean"
    plan: ExecutionPlan = ExecutionPlan("loop")
    keep_states: bool = True
    """False: client states that the step returns are dropped (evaluation)."""
    number: int = 0
    """Index of the share: shares stay separate even if one process runs several."""
    variant: int = 0
    """Index of the variant to run: an executor may serve several variants of an experiment at once."""
    begins: bool = True
    """For exchange 0: False if another shard of this exchange has already begun the round."""
    committed_round: int = 0
    """Last round of this variant whose client states are final. States of any later round except this one are dropped,
    because that round is being replayed.
    """
    keyed: bool = False
    """See Exchange."""
    constants: str | None = None
    """Fingerprint of the server's model: a worker with another model refuses to continue."""

    @property
    def fusion_key(self) -> tuple[Any, ...]:
        """Shards with the same key run together: the same step for several variants."""
        batches = tuple(self.batches.items())
        where = (self.number, self.on, self.round, self.position)
        return self.step, *where, self.reduce, self.plan, self.keep_states, self.keyed, batches


@dataclass(frozen=True)
class MovedStates:
    """Client states that travel between workers: NumPy arrays, with a leading dimension of the clients."""

    variant: int
    round: int
    clients: np.ndarray
    states: Tree
    lent: bool
    """True: final states, lent to another worker for a round. False: new states of the round, back at their worker."""


@dataclass(frozen=True)
class CopiedStates:
    """Client states that a worker copies to another one, as records of bytes; see `ClientStates`."""

    variant: int
    since: int
    """Round of the checkpoint that the copies continue; 0: the initial states."""
    clients: np.ndarray
    records: np.ndarray


def step_name(step: str, place: Place) -> str:
    """Name of a step and the place where it runs, under which its plan is stored.

    An evaluation that returns its predictions runs under the same plan as one that does not, with the same bits.
    """
    return f"{step.replace('predict_client', 'evaluate_client')}/{place}"


class ChunkTooLarge(Exception):  # noqa: N818
    """A chunk of several clients does not fit into a worker's memory.

    step: see `step_name`. plan: the plan under which it ran. reason: message of the failed allocation.
    """

    def __init__(self, step: str, plan: ExecutionPlan, reason: str):
        super().__init__(step, plan, reason)
        self.step, self.plan, self.reason = step, plan, reason

    def __str__(self) -> str:
        return f"{self.step} does not fit into memory with {self.plan.chunk} clients at once: {self.reason}"


def to_wire(states: Tree) -> Tree:
    """NumPy leaves, except for types that NumPy does not have, such as bfloat16."""
    return tree_map(lambda leaf: leaf.cpu() if leaf.dtype == torch.bfloat16 else leaf.cpu().numpy(), states)


class WorkerLost(Exception):  # noqa: N818
    """A worker died, and its client states with it. The executor has already replaced it."""


class ClientCrashed(Exception):  # noqa: N818
    """A worker died while it ran only this client of this variant."""

    def __init__(self, variant: int, client: int, reason: str):
        super().__init__(reason)
        self.variant, self.client = variant, client
