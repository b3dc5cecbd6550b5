"""Base class of stream learners: one task per round, scored before it is learnt, in one pass (thesis, chapter 5)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from hedgerow.algorithms.core.client_data import ONCE, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.parts import Parts
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.optim.local_sgd import LocalSolver, minimize
from hedgerow.algorithms.personalized.adaptation import Adaptation, Adapting


class OnlineSGD(LocalSolver, Adaptation):
    """Hyperparameters of stream learners: K steps of SGD per round, and the adaptation."""

    epochs: None = Field(None, description="not available for streams; set `steps`")
    steps: int = Field(10, ge=1, description="K, number of gradient steps per round")
    batch_size: int | None = Field(
        10, ge=1, description="samples per step, and as many again for adaptation; null: all samples"
    )
    weight_decay: float = Field(1e-3, ge=0, description="L2 penalty, added to the direction after clipping")


class Online(Adapting):
    """Base class of learners on a stream of tasks, numbered by arrival; a round's task is its cohort's only client.

    A round calls `learn` on some tasks and updates the server state from the result. Samples of earlier tasks are read
    only if `learn` names these tasks: the learner must keep them.
    """

    trains_on = "stream"
    parts: ClassVar[Parts] = {}

    Hyper: ClassVar[type[OnlineSGD]] = OnlineSGD

    def learn(self, down: Tree, cohort: Cohort, tasks: Sequence[int] | None = None) -> Exchange:
        """Exchange of K steps on the given tasks; None: the task of the round."""
        batches = {"train": self.mini_batches(tasks or (int(cohort.clients[0]),))}
        return Exchange(self.train, down, cohort.clients, batches=batches)

    def mini_batches(self, tasks: Sequence[int]) -> BatchSpec:
        """K mini-batches, each from one of the tasks, with samples to adapt on and as many to learn from."""
        hyper = self.hyper
        if hyper.solver == "newton":
            return BatchSpec(shuffle=False, pooled_from=tasks, mixed=True)
        both = 2 if hyper.learns_adapted else 1
        return BatchSpec(hyper.batch_size and both * hyper.batch_size, steps=hyper.steps, pooled_from=tasks)

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        w, loss = minimize(self.objective(hp), down["w"], data, hp)
        return {"w": w}, state, {"loss": loss}

    def kept(self, server: Tree, cohort: Cohort) -> int:
        """Number of tasks whose samples are kept after a round."""
        return 0

    def efficiency(self, server: Tree, cohort: Cohort, points: Sequence[int]) -> Exchanges:
        """Scores U(w) after adaptation to the first n training samples of the task; one Aggregate per n in `points`."""
        down = {"w": self.evaluate_params(server)}
        test = replace(ONCE, split="held_out")
        return (
            yield [
                Exchange(
                    self.evaluate_client if number else self.untouched,
                    down,
                    cohort.clients,
                    batches={"support": BatchSpec(number or 1, steps=1, shuffle=False), "test": test},
                )
                for number in points
            ]
        )

    def untouched(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Scores the meta-model without adaptation."""
        return {}, state, self.task.tally(lambda batch: self.task.score(down["w"], batch), data)

    def look(self, w: Params, cohort: Cohort) -> Exchange:
        """Exchange for the gradient of the task's F at w, from all of its training samples: up["gradient"]."""
        return Exchange(self.gradient, {"w": w}, cohort.clients, batches={"train": BatchSpec()})

    def gradient(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step: one gradient, with half of the samples used for adaptation."""
        slope, _ = gradient_and_value(self.objective(hp))(down["w"], next(data.batches("train")))
        return {"gradient": slope}, state, {}
