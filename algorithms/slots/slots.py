"""Settings of the slots around an algorithm, as in the experiment file: aggregation, transforms, an objective."""

from typing import Any, Self

from pydantic import Field, SerializeAsAny

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.aggregators.mean import Mean
from hedgerow.algorithms.attacks.attack import Attack
from hedgerow.algorithms.core.hyperparameters import HyperParameters, Settings
from hedgerow.algorithms.core.messages import Weighting
from hedgerow.algorithms.objectives.objective import Objective
from hedgerow.algorithms.optim.server_optimizer import ServerOptimizer
from hedgerow.algorithms.transforms.transform import Transform


class Aggregation(Settings):
    """Settings of the server: the rule that combines client updates, and the server step."""

    weighting: Weighting | None = Field(
        None,
        description="weight of a client: equal, or its number of training samples; null: the default of the algorithm, "
        "or equal with noise at the server and with rules other than the mean",
    )
    rule: SerializeAsAny[Aggregator] = Field(Mean(kind="mean"), description="rule that combines client updates")
    server_optimizer: ServerOptimizer = Field(
        ServerOptimizer(), description="server step towards the aggregated model of the round"
    )

    @property
    def is_filled(self) -> bool:
        return self.weighting is not None or not self.rule.is_mean or not self.server_optimizer.is_plain


class Slots(Settings):
    """All slots of an experiment."""

    aggregation: SerializeAsAny[Aggregation] = Aggregation()
    transforms: list[SerializeAsAny[Transform]] = Field([])
    objective: SerializeAsAny[Objective] | None = None
    attack: SerializeAsAny[Attack] | None = None
    """Attack of malicious clients: `simulation.attack` of the experiment file."""

    @property
    def are_filled(self) -> bool:
        """Whether any slot differs from its default, which is the algorithm alone."""
        others = (self.objective, self.attack)
        return self.aggregation.is_filled or bool(self.transforms) or any(slot is not None for slot in others)


class SlottedHyper(Slots, HyperParameters):
    """Hyperparameters of an algorithm and of its slots, with the names of the experiment file: `algorithm.lr`,
    `aggregation.server_optimizer.lr`, `transforms.0.norm`, `objective.alpha`.
    """

    algorithm: SerializeAsAny[HyperParameters]

    @classmethod
    def of(cls, hyper: Any, slots: Slots) -> "SlottedHyper":
        """Combines hyperparameters and slots without validation: both are already valid."""
        return cls.model_construct(name=hyper.name, algorithm=hyper, **dict(slots))

    def at(self, round: int) -> Self:
        algorithm = self.algorithm.at(round)
        update: dict[str, Any] = {"algorithm": algorithm}
        if self.objective is not None:
            update["objective"] = self.objective.at(round, self.algorithm, algorithm)
        return self.model_copy(update=update)
