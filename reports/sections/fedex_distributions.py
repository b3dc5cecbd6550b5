"""Distributions from which the clients of a run draw their hyperparameters by FedEx."""

from collections.abc import Sequence

from hedgerow.algorithms.slots.fedex import FedEx
from hedgerow.reports.analysis.seed_groups import SeedGroup
from hedgerow.reports.charts.charts import Chart
from hedgerow.reports.sections.curves import SHOWN
from hedgerow.reports.sections.hedge_weights import stacked
from hedgerow.searchspaces.results.fedex_theta import distributions
from hedgerow.searchspaces.results.hedge_curves import WeightCurves


def distribution_figures(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Stacked areas of each distribution over the rounds, of the first seed of each experiment with FedEx."""
    return [
        stacked(
            f"Distribution of {one.name} by round: {group.label}, seed {group.first.seed}",
            WeightCurves.of(one.rounds, one.probabilities, SHOWN),
            one.labels,
            "probability",
        )
        for group in groups
        if (section := group.first.values.get("fedex"))
        for one in distributions(FedEx.model_validate(section), group.first.records)
    ]
