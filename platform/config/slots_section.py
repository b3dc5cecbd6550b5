"""The section `aggregation` of an experiment file, with the rules that it may name."""

from typing import Any

from pydantic import Field

from hedgerow.algorithms.slots.slots import Aggregation
from hedgerow.platform.config.registries import AggregatorConfig, aggregators

MEAN: Any = aggregators.section("mean")


class AggregationConfig(Aggregation):
    """How the server combines what clients send, and the step that it takes."""

    rule: AggregatorConfig = Field(MEAN(), description="how the clients' updates are combined")
