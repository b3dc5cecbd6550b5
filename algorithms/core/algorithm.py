"""Base class of algorithms: the server part of a round is a generator of exchanges, the client part is pure functions.

This module is independent of Ray, MLflow and files. An executor drives the generator:

    generator = algorithm.round(server, cohort)
    exchange = next(generator)            # the message, the client step and the addressed clients
    ...                                   # the clients run the step, their updates are aggregated
    exchange = generator.send(aggregate)  # until the generator returns the new server state
"""

from collections.abc import Callable, Generator
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import ONCE, Batch, ClientData
from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.core.inference import Inference, infer
from hedgerow.algorithms.core.messages import PREDICTIONS, Aggregate, Cohort, Exchange, Exchanges, Weighting
from hedgerow.algorithms.core.parts import Parts
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.core.task import Task

Need = Literal[
    "all_clients", "bilevel", "classes", "cleaning", "early_exit", "feature_maps", "public", "teacher", "validation"
]
"""Words for the needs of an algorithm. all_clients: participation of all clients in every round. bilevel: a
BilevelTask. classes: one class per sample, with logits as outputs. cleaning: `task.problem.kind: cleaning`. early_exit:
a network with an early exit. feature_maps: model and teacher that expose their feature maps. public: public samples,
see `public_samples`. teacher: `task.teacher`. validation: a validation split of each client."""


class Algorithm:
    """Base class of an algorithm: the server and the client part of one round. Each algorithm is a subclass in its own
    file.

    hyper: the validated hyperparameters.
    task: model and loss.
    """

    Hyper: ClassVar[type[HyperParameters]] = HyperParameters

    needs: ClassVar[frozenset[Need]] = frozenset()
    """Requirements on task, data and participation: words of `Need`."""

    trains_on: ClassVar[Literal["clients", "pool", "stream"]] = "clients"
    """Where a round trains: on clients; on all clients' samples in one place, without any client; or on the next task
    of a stream."""

    is_personal: bool = False
    """Whether each client has its own model, scored on its held-out samples, and there is no shared model."""

    weighting: ClassVar[Weighting | Literal["own"] | None] = None
    """Client weights of the published method, which `weights` returns unless the experiment file sets others; None:
    samples. "own": they are part of the method, such as numbers of samples with right labels, and
    `aggregation.weighting` is refused."""

    accumulates: ClassVar[bool] = False
    """Whether the server accumulates client updates over rounds. Aggregation rules other than the mean, weights by
    sample count and server noise are refused, because they would permanently bias or disturb the accumulated state."""

    refuses_server_momentum: ClassVar[bool] = False
    """Whether the algorithm diverges with server momentum."""

    def __init__(self, hyper: Any, task: Task):
        self.hyper = hyper
        self.task = task

    def init_server(self) -> Tree:
        """Returns the server state before round 1. By convention `w` holds the model."""
        return {"w": self.task.init()}

    def init_client(self) -> Tree:
        """Returns the persistent state of a client before its first participation; {} if clients are stateless.

        Keys that a step adds to its state and that are not returned here are discarded at the end of the round.
        """
        return {}

    # ---- inferred from a round on a tiny task, and declared where that is wrong --------------------------------------

    @cached_property
    def inferred(self) -> Inference:
        """Findings of a round on a tiny task."""
        return infer(type(self), self.hyper)

    @cached_property
    def parts(self) -> Parts:
        """Step -> entry of its result -> Part, for steps whose results are averaged. Slots such as aggregation rules
        and transforms need it. A step must have all entries of its result. {}: the algorithm takes no such slots.

        Inferred if a round is one exchange: an entry with the name and the shapes of one that clients receive is a
        value. An entry with the shapes of just one that clients receive and do not send is a difference to it. An entry
        with the name and the shapes of one that only the server has is opaque.
        """
        return self.inferred.parts

    @cached_property
    def training_steps(self) -> tuple[str, ...]:
        """Steps that minimise `task.loss`, which an objective may replace. They run the model in training mode, and
        call it by `Task.loss` and `Task.logits` only; without such steps, models with batch norm or dropout are
        refused.

        Inferred: the steps that call `task.loss` and return the client's model.
        """
        return self.inferred.training_steps

    @cached_property
    def single_exchange(self) -> bool:
        """Whether a round is one exchange with all clients of the cohort, and the server step depends only on the
        server state, on the averaged `parts` and on `Aggregate.clients`. Asynchronous schedules and differential
        privacy need it.
        """
        return self.inferred.single_exchange

    @cached_property
    def optimizes(self) -> str | None:
        """Entry of the server state that a server optimiser may update after each round; None: no optimiser.

        Inferred: `w`, if clients send it or a difference to it.
        """
        return "w" if any(part.like == "w" for parts in self.parts.values() for part in parts.values()) else None

    # ---- the round ---------------------------------------------------------------------------------------------------

    def weights(self, cohort: Cohort) -> np.ndarray | None:
        """Returns the weight of each of the cohort's clients in a mean; None: all equal."""
        by_samples = (cohort.weighting or self.weighting or "samples") == "samples"
        # Clients without any sample have changed nothing, and weights that are all 0 have no mean.
        return cohort.sizes if by_samples and cohort.sizes.any() else None

    def client_model(self, down: Tree, state: Tree) -> Tree:
        """Returns the model from which a training step starts. down, state: inputs of the step."""
        return down["w"]

    def keeps_buffer(self, name: str) -> bool:
        """Whether each client keeps its own values of a buffer that training changes, such as running statistics, also
        if the model's buffers are averaged otherwise.
        """
        return False

    def remember(self, hp: Any, down: Tree, sent: Tree, state: Tree) -> Tree:
        """Returns entries of a client's new state that depend on the update as sent: `sent`, in the form of the step's
        result.

        state: the client's state before the step. If transforms change an update, the returned entries replace those of
        the step's new state.
        """
        return {}

    def project(self, server: Tree) -> Tree:
        """Projects a server state, or an aggregate with some of its entries, onto the feasible set."""
        return server

    @property
    def supports_async(self) -> bool:
        """Whether the server may step before all clients of a cohort have answered."""
        return self.trains_on == "clients" and self.single_exchange and bool(self.parts) and not self.accumulates

    @property
    def supports_privacy(self) -> bool:
        """Whether all that clients send in a round is one update, which a clip and noise can cover."""
        if self.trains_on != "clients" or "all_clients" in self.needs or self.weighting == "own":
            return False
        return self.single_exchange and bool(self.parts) and not self.has_opaque_parts

    @property
    def has_opaque_parts(self) -> bool:
        """Whether clients also send values that no slot changes, so that no noise can cover them."""
        return any(part.kind == "opaque" for parts in self.parts.values() for part in parts.values())

    @property
    def public_samples(self) -> int:
        """Minimum number of public samples that the algorithm needs; 0: none."""
        return 0

    def incompatibility(self) -> str | None:
        """Returns the reason why the algorithm cannot learn this task, and the fix, in one sentence; None if it can."""
        return None

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        """Runs one round: yields exchanges and returns the new server state. Depends on its arguments only."""
        raise NotImplementedError

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        """Scores the server's model on the shared test set (unless models are personal) and on `cohort.clients`.

        Returns the two Aggregates.
        """
        down = self.scored(server)
        down = {**down, "w": (yield from self.calibrate_batch_norm(down["w"], cohort))}
        shards = np.arange(0 if self.is_personal or not self.task.is_scored else cohort.test_shards)
        clients = cohort.clients if self.task.is_scored else cohort.clients[:0]
        return (
            yield [
                Exchange(self.evaluate_client, down, shards, batches={"test": ONCE}, site="test"),
                Exchange(self.evaluate_client, down, clients, batches={"test": replace(ONCE, split="held_out")}),
            ]
        )

    def calibrate_batch_norm(self, w: Tree, cohort: Cohort) -> Generator[Exchange, Any, Tree]:
        """Returns the model for scoring. A model with static batch normalisation gets its statistics from the cohort's
        clients: weighted averages over the mini-batches of training samples.
        """
        if not self.task.is_static:
            return w
        aggregate = yield Exchange(
            self.batch_norm_statistics, {"w": w}, cohort.clients, batches={"statistics": ONCE}, weights=cohort.sizes
        )
        return {**w, **aggregate.up}

    def batch_norm_statistics(
        self, hp: Any, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step before an evaluation: computes the statistics of static batch normalisation."""
        return mean_statistics(lambda batch: self.task.statistics(down["w"], batch), data), state, {}

    def scored(self, server: Tree) -> Tree:
        """Returns the broadcast for scoring; `w` is the model of `evaluate_params`."""
        return {"w": self.evaluate_params(server)}

    def evaluate_params(self, server: Tree) -> Tree:
        """Returns the parameters that are reported and saved as the run's model."""
        return server["w"]

    def personal_model(self, w: Tree, state: Tree) -> Tree | None:
        """Returns the own model of a client with this state, given that of `evaluate_params`; None: there is none."""
        return None

    def evaluation_metrics(self, server: Tree, test: Aggregate) -> dict[str, float]:
        """Returns additional metrics by name. test: result on the test shards, or on the clients of personal models."""
        return {}

    def server_metrics(self, server: Tree) -> dict[str, float]:
        """Returns additional metrics of the server state by name, computed at each evaluation."""
        return {}

    def round_metrics(self, server: Tree) -> dict[str, float]:
        """Returns additional metrics of the server state by name, recorded after each round."""
        return {}

    def histograms(self, server: Tree) -> dict[str, dict[str, Tensor]]:
        """Returns values in [0, 1] to plot as histograms: title -> group -> (number,)."""
        return {}

    def evaluate_client(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step of evaluation: returns the sums of `Task.score` over all batches, by default the summed loss,
        correct predictions and sample count.
        """
        return {}, state, self.task.tally(lambda batch: self.task.score(down["w"], batch), data)

    def predict_client(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Same as `evaluate_client`; the metrics also have the predictions on all batches, under `PREDICTIONS`: the
        logarithms of the probabilities (samples, classes), the labels, a mask of the real samples and, if a metric
        needs them, the outputs. A client without samples has none.
        """
        scored: list[tuple[Tensor, Batch]] = []
        recording = copy(self)
        recording.task = self.task.with_scored(scored)
        up, state, metrics = recording.evaluate_client(hp, down, state, data)
        if not scored:
            return up, state, metrics
        predictions = {
            "log_probabilities": torch.cat([logits.log_softmax(-1) for logits, _ in scored]),
            "labels": torch.cat([batch.y for _, batch in scored]),
            "real": torch.cat([_real(batch) for _, batch in scored]),
        }
        if self.task.scoring.sees_all:
            predictions["outputs"] = torch.cat([outputs for outputs, _ in scored])
        return up, state, {**metrics, PREDICTIONS: predictions}


def _real(batch: Batch) -> Tensor:
    """Mask (bool) of the real samples of a batch."""
    return (
        torch.ones(len(batch.y), dtype=torch.bool, device=batch.y.device) if batch.mask is None else batch.mask.bool()
    )


def mean_statistics(statistics: Callable[[Batch], Tree], data: ClientData) -> Tree:
    """Mean over the mini-batches of the stream "statistics"."""
    per_batch = [statistics(batch) for batch in data.batches("statistics")]
    return tree_map(lambda *parts: torch.stack(parts).mean(0), *per_batch)
