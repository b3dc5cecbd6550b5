"""FedEx search: one run, whose clients draw their hyperparameters from distributions that the run learns."""

from math import prod
from typing import Any, ClassVar

from pydantic import Field

from hedgerow.algorithms.slots.fedex import FedEx, FedExSteps
from hedgerow.algorithms.slots.fedex_rounds import incompatibility
from hedgerow.algorithms.slots.support import without_task
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.searchspaces.spaces.search_section import Overrides, SearchKind, SearchSetup


class FedExSearch(FedExSteps, SearchKind):
    """FedEx: clients draw configurations of their local training within one run (Khodak et al. 2021)."""

    is_one_run: ClassVar[bool] = True

    joint: bool = Field(
        False,
        description="one distribution over all combinations, not one for each key; always so with `samples`",
    )

    def build(self, setup: SearchSetup) -> tuple[None, None]:
        """Returns no searcher and no scheduler: the only trial runs to completion."""
        return None, None

    def check(self, experiment: Experiment) -> None:
        """Raises UserError when clients cannot draw the values of the space, or cannot score them."""
        if experiment.task.partition.is_stream:
            raise UserError("search.kind: fedex draws values for clients, and a stream has none; set it to hedge")
        if experiment.task.validation and experiment.task.validation.is_at_server:
            raise UserError(
                "task.validation.from: kind fedex scores each client's model on validation samples of the client; set "
                "it to clients"
            )
        if experiment.task.main_metric != "accuracy":
            raise UserError(
                "search.kind: fedex scores the accuracy of clients' models, which is not the main metric of this task; "
                "choose another kind"
            )
        if self.metric != "validation_accuracy":
            raise UserError(
                f"search.metric: kind fedex minimises the error on the clients' validation samples, not {self.metric}; "
                "remove `metric`"
            )
        algorithm = without_task(algorithm_class(experiment.algorithm.name), experiment.algorithm)
        if reason := incompatibility(algorithm, list(self.space), self.score):
            raise UserError(f"search.space: {reason}")
        for key, dimension in self.space.items():
            if dimension.when:
                raise UserError(f"search.space.{key}.when: with kind fedex every client draws every key; remove `when`")
            if any(not isinstance(value, int | float) or isinstance(value, bool) for value in dimension.values):
                raise UserError(f"search.space.{key}: kind fedex draws only numbers; remove the other values")

    def within_run(self, values: dict[str, Any], configurations: list[Overrides]) -> dict[str, Any]:
        """Returns the file with the section `fedex`. Raises UserError."""
        if prod(len(factor) for factor in self._factors(configurations)) < 2:
            raise UserError("search.space: kind fedex needs at least 2 configurations, and there is 1; add values")
        steps = self.model_dump(include=set(FedExSteps.model_fields))
        section = FedEx(factors=self._factors(configurations), **steps).model_dump(mode="json")
        if values.get("fedex") not in (None, section):
            raise UserError("fedex: a search of kind fedex sets this section; remove it")
        return {**values, "fedex": section}

    def _factors(self, configurations: list[Overrides]) -> list[list[dict[str, float]]]:
        if self.joint or self.samples is not None:
            return [[{key: float(value) for key, value in one.items()} for one in configurations]]
        return [
            [{key: value} for value in dict.fromkeys(float(value) for value in dimension.values)]
            for key, dimension in self.space.items()
        ]
