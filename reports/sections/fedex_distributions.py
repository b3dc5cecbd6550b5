"""Distributions from which the clients of a run draw their hyperparameters by FedEx."""

from collections.abc import Sequence

from hedgerow.algorithms.slots.fedex import FedEx
from hedgerow.platform.runs.seed_groups import SeedGroup
from hedgerow.platform.ui.charts import Chart
from hedgerow.searchspaces.results.fedex_theta import distributions
from hedgerow.searchspaces.results.search_plots import theta_chart


def distribution_figures(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Stacked areas of each distribution over the rounds, of the first seed of each experiment with FedEx."""
    return [
        theta_chart(one, f": {group.label}, seed {group.first.seed}")
        for group in groups
        if (section := group.first.values.get("fedex"))
        for one in distributions(FedEx.model_validate(section), group.first.records)
    ]
