"""The sections of slots of an experiment file, and `aggregation` with the rules that it can name."""

from typing import Any

from pydantic import Field

from hedgerow.algorithms.slots.slots import Aggregation
from hedgerow.platform.config.registries import AggregatorConfig, aggregators

SLOT_SECTIONS = ("aggregation", "transforms", "objective")
"""Top-level sections of the slots around an algorithm."""

MEAN: Any = aggregators.section("mean")


class AggregationConfig(Aggregation):
    """Aggregation of the clients' updates on the server, and the step that the server takes."""

    rule: AggregatorConfig = Field(MEAN(), description="rule that combines the clients' updates")
