"""What an algorithm is: the server's half of a round as a generator of exchanges, the client's half as pure functions.

Nothing here knows Ray, MLflow or files. An executor drives the generator:

    generator = algorithm.round(server, cohort)
    exchange = next(generator)            # what the server sends, and to whom
    ...                                   # the clients work, their answers are reduced
    exchange = generator.send(result)     # until the generator returns the new server state
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import SCORED, Batch, Batches, ClientData
from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges, Result
from hedgerow.algorithms.core.pytree import Tree, count, tree_map
from hedgerow.algorithms.core.task import Task


def beyond(tree: Tree, key: str, number: int) -> str | None:
    """The objection to a hyperparameter that counts parameters of `tree` and asks for more than there are."""
    d = count(tree)
    return None if number <= d else f"algorithm.{key}: {number} is more than the model's {d} parameters; lower it"


class Algorithm:
    """The server's and the client's half of one round. Subclass it in one file per algorithm.

    hyper: the validated hyperparameters. task: model and loss.
    """

    Hyper: ClassVar[type[HyperParameters]] = HyperParameters

    requires_full_participation: ClassVar[bool] = False
    """Whether all clients must take part in every round."""

    is_centralized: ClassVar[bool] = False
    """Whether its rounds are on all clients' samples in one place, and no client takes part in them."""

    is_bilevel: ClassVar[bool] = False
    """Whether its task must be a BilevelTask."""

    learns_stream: ClassVar[bool] = False
    """Whether it learns a stream of tasks, one per round, in place of clients."""

    needs_validation: ClassVar[bool] = False
    """Whether clients need samples for validation."""

    needs_public: ClassVar[bool] = False
    """Whether it learns from public samples, see `public_samples`."""

    needs_teacher: ClassVar[bool] = False
    """Whether its task must have a teacher."""

    needs_feature_maps: ClassVar[bool] = False
    """Whether model and teacher must be networks that show their feature maps."""

    needs_early_exit: ClassVar[bool] = False
    """Whether the model must be a network with an early exit."""

    needs_cleaning: ClassVar[bool] = False
    """Whether its task must be data cleaning, `task.problem.kind: cleaning`."""

    is_personal: bool = False
    """Whether clients have models of their own, which are scored on what each holds out, and no common one."""

    takes_side: ClassVar[bool] = False
    """Whether it learns with the side loss that its hyperparameters may name."""

    has_client_models: ClassVar[bool] = False
    """Whether the training step shows each client's own model among its metrics, under `MODEL`; `w` of the server's
    state is then a model of the same kind, in whose place their average can be scored."""

    def __init__(self, hyper: Any, task: Task):
        self.hyper = hyper
        self.task = task

    def init_server(self) -> Tree:
        """The server's state before round 1. By convention `w` holds the model."""
        return {"w": self.task.init()}

    def init_client(self) -> Tree:
        """The persistent state of a client before it first takes part; {} when clients are stateless.

        Keys that a step adds to its state and that are not named here last until the round ends.
        """
        return {}

    @property
    def public_samples(self) -> int:
        """How many public samples it needs, at least; 0: none."""
        return 0

    def incompatibility(self) -> str | None:
        """Why it cannot learn this task, and the fix, in a sentence; None: it can."""
        return None

    def objective(self, hp: Any) -> Callable[[Any, Batch], Tensor]:
        """What a client minimises on a mini-batch, (w, batch) -> a 0-d tensor."""
        return self.task.loss

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        """One round: yields exchanges, returns the new server state. A function of its arguments alone."""
        raise NotImplementedError

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        """Score the server's model on the shared test set, unless models are personal, and on `cohort.clients`.

        Returns the two Results.
        """
        down = self.scored(server)
        down = {**down, "w": (yield from self.settled(down["w"], cohort))}
        shards = np.arange(0 if self.is_personal or not self.task.is_scored else cohort.test_shards)
        clients = cohort.clients if self.task.is_scored else cohort.clients[:0]
        once = Batches(SCORED, shuffle=False)
        return (
            yield [
                Exchange(self.score, down, shards, batches={"test": once}, on="test"),
                Exchange(self.score, down, clients, batches={"test": replace(once, share="held_out")}),
            ]
        )

    def settled(self, w: Tree, cohort: Cohort) -> Generator[Exchange, Any, Tree]:
        """The model as it is scored: one that normalises statically gets its statistics from the cohort's clients,
        their averages over the mini-batches of training samples.
        """
        if not self.task.is_static:
            return w
        once = {"statistics": Batches(SCORED, shuffle=False)}
        found = yield Exchange(self.look_at, {"w": w}, cohort.clients, batches=once, weights=cohort.sizes)
        return {**w, **found.up}

    def look_at(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step before an evaluation: the statistics of static normalisation."""
        found = [self.task.statistics(down["w"], batch) for batch in data.batches("statistics")]
        return tree_map(lambda *parts: torch.stack(parts).mean(0), *found), state, {}

    def scored(self, server: Tree) -> Tree:
        """What clients receive to score; `w` is the model of `evaluate_params`."""
        return {"w": self.evaluate_params(server)}

    def evaluate_params(self, server: Tree) -> Tree:
        """The parameters that are reported and saved as the run's model."""
        return server["w"]

    def found(self, server: Tree, test: Result) -> dict[str, float]:
        """What else the scores say, by name. test: of the shards of the test set, or of personal models' owners."""
        return {}

    def report(self, server: Tree) -> dict[str, float]:
        """What else there is to say about the server's state when it is evaluated, by name."""
        return {}

    def histograms(self, server: Tree) -> dict[str, dict[str, Tensor]]:
        """Numbers between 0 and 1 whose histograms tell something: what they are -> of whom -> (number,)."""
        return {}

    def score(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step of evaluation: summed loss, correct predictions and sample count of all batches."""
        totals = torch.zeros(3, device=data.x.device)
        for batch in data.batches("test"):
            totals = totals + self.task.score(down["w"], batch)
        loss, correct, samples = totals.unbind(0)
        return {}, state, {"loss": loss, "correct": correct, "samples": samples}
