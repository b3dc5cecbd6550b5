"""What an algorithm is: the server's half of a round as a generator of exchanges, the client's half as pure functions.

Nothing here knows Ray, MLflow or files. An executor drives the generator:

    generator = algorithm.round(server, cohort)
    exchange = next(generator)            # what the server sends, and to whom
    ...                                   # the clients work, their updates are aggregated
    exchange = generator.send(aggregate)  # until the generator returns the new server state
"""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import EVAL_BATCH_SIZE, BatchSpec, ClientData
from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.core.messages import ClientStep, Cohort, Exchange, Exchanges, Weighting
from hedgerow.algorithms.core.parts import Parts
from hedgerow.algorithms.core.pytree import Tree, count, tree_map
from hedgerow.algorithms.core.task import Task


def exceeds_model_size(tree: Tree, key: str, number: int) -> str | None:
    """Why a hyperparameter that counts parameters of `tree` is too large, in a sentence; None: it is not."""
    d = count(tree)
    return None if number <= d else f"algorithm.{key}: {number} is more than the model's {d} parameters; lower it"


@dataclass(frozen=True)
class Aggregate:
    """What came back from one exchange."""

    up: Tree
    """The reduced tree; empty when nobody was addressed or the step sends nothing up. A stack has one row per client
    that contributed."""
    contributed: np.ndarray
    """Per addressed client, in the order of `Exchange.clients`: whether it entered the reduction (bool). A client that
    diverged, with NaN or infinity in its answer, did not."""
    metrics: dict[str, np.ndarray]
    """One number per addressed client."""
    client_model_delta: Tree = field(default_factory=dict)
    """Where client models are tracked (`evaluation.model: clients`): the sum, over the clients that contributed, of how
    far each one's own model has moved since it last took part."""
    cost: Any = None
    """What the exchange transmitted, for the server's record (a CommunicationCost)."""


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

    has_client_models: ClassVar[bool] = False
    """Whether the training step shows each client's own model among its metrics, under `MODEL`; `w` of the server's
    state is then a model of the same kind, in whose place their average can be scored."""

    parts: ClassVar[Parts] = {}
    """Step -> entry of its answer -> what it is, of steps whose answers are averaged: what slots need to know, such as
    aggregation rules and transforms. All entries of such a step are named. {}: there are no slots around it."""

    training_steps: ClassVar[tuple[str, ...]] = ()
    """Steps that minimise `task.loss`, which an objective may replace. Clients show their models under `MODEL`."""

    optimizes: ClassVar[str | None] = None
    """The entry of the server's state on which a server optimiser may act after each round; None: there is none."""

    weighting: ClassVar[Weighting | None] = None
    """How clients count in its means unless `Cohort.weighting` says otherwise; None: as `Exchange.weights` has it."""

    accumulates: ClassVar[bool] = False
    """Whether the server adds up what clients send from round to round. Rules other than the mean, weights by samples
    and noise on the server would bias or disturb that memory for good, and are refused."""

    refuses_server_momentum: ClassVar[bool] = False
    """Whether it diverges with server momentum."""

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

    def remember(self, hp: Any, down: Tree, sent: Tree, state: Tree) -> Tree:
        """Entries of a client's new state that depend on what it sent: `sent`, in the form of its answer.

        state: before the step. Where transforms change an answer, these replace the entries that the step returned.
        """
        return {}

    def project(self, server: Tree) -> Tree:
        """The nearest feasible server state. Also given parts of it: the entries of an aggregate."""
        return server

    @property
    def inner(self) -> "Algorithm":
        """The algorithm inside its slots; itself where none is filled."""
        return self

    def client_step(self, name: str) -> ClientStep:
        """The client step of that name: exchanges name their steps, since methods do not travel."""
        step: ClientStep = getattr(self, name)
        return step

    @property
    def public_samples(self) -> int:
        """How many public samples it needs, at least; 0: none."""
        return 0

    def incompatibility(self) -> str | None:
        """Why it cannot learn this task, and the fix, in a sentence; None: it can."""
        return None

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        """One round: yields exchanges, returns the new server state. A function of its arguments alone."""
        raise NotImplementedError

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        """Score the server's model on the shared test set, unless models are personal, and on `cohort.clients`.

        Returns the two Aggregates.
        """
        down = self.scored(server)
        down = {**down, "w": (yield from self.calibrate_batch_norm(down["w"], cohort))}
        shards = np.arange(0 if self.is_personal or not self.task.is_scored else cohort.test_shards)
        clients = cohort.clients if self.task.is_scored else cohort.clients[:0]
        once = BatchSpec(EVAL_BATCH_SIZE, shuffle=False)
        return (
            yield [
                Exchange(self.evaluate_client, down, shards, batches={"test": once}, on="test"),
                Exchange(self.evaluate_client, down, clients, batches={"test": replace(once, split="held_out")}),
            ]
        )

    def calibrate_batch_norm(self, w: Tree, cohort: Cohort) -> Generator[Exchange, Any, Tree]:
        """The model as it is scored: one that normalises statically gets its statistics from the cohort's clients,
        their averages over the mini-batches of training samples.
        """
        if not self.task.is_static:
            return w
        once = {"statistics": BatchSpec(EVAL_BATCH_SIZE, shuffle=False)}
        found = yield Exchange(self.batch_norm_statistics, {"w": w}, cohort.clients, batches=once, weights=cohort.sizes)
        return {**w, **found.up}

    def batch_norm_statistics(
        self, hp: Any, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step before an evaluation: the statistics of static normalisation."""
        found = [self.task.statistics(down["w"], batch) for batch in data.batches("statistics")]
        return tree_map(lambda *parts: torch.stack(parts).mean(0), *found), state, {}

    def scored(self, server: Tree) -> Tree:
        """What clients receive to score; `w` is the model of `evaluate_params`."""
        return {"w": self.evaluate_params(server)}

    def evaluate_params(self, server: Tree) -> Tree:
        """The parameters that are reported and saved as the run's model."""
        return server["w"]

    def evaluation_metrics(self, server: Tree, test: Aggregate) -> dict[str, float]:
        """What else the scores say, by name. test: of the shards of the test set, or of personal models' owners."""
        return {}

    def server_metrics(self, server: Tree) -> dict[str, float]:
        """What else there is to say about the server's state when it is evaluated, by name."""
        return {}

    def histograms(self, server: Tree) -> dict[str, dict[str, Tensor]]:
        """Numbers between 0 and 1 whose histograms tell something: what they are -> of whom -> (number,)."""
        return {}

    def evaluate_client(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step of evaluation: summed loss, correct predictions and sample count of all batches."""
        totals = torch.zeros(3, device=data.x.device)
        for batch in data.batches("test"):
            totals = totals + self.task.score(down["w"], batch)
        loss, correct, samples = totals.unbind(0)
        return {}, state, {"loss": loss, "correct": correct, "samples": samples}
