"""Distributions that a FedEx run has learnt, round by round, from the records of the run."""

from dataclasses import dataclass

import numpy as np

from hedgerow.algorithms.slots.fedex import FedEx
from hedgerow.platform.common.table import Table
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import short_label, short_names
from hedgerow.searchspaces.results.trials import Row


@dataclass(frozen=True)
class Distribution:
    """Distribution over the values of a key, or over configurations.

    name: short names of its keys. labels: one per value. probabilities, draws: (rounds, values); probabilities after
    each round, and numbers of draws so far.
    """

    name: str
    labels: list[str]
    rounds: list[int]
    probabilities: np.ndarray
    draws: np.ndarray

    @property
    def rows(self) -> list[Row]:
        """Values with their last probability and number of draws, most probable first."""
        order = np.argsort(-self.probabilities[-1], kind="stable")
        return [
            {
                "configuration": self.labels[j],
                "probability": float(self.probabilities[-1, j]),
                "draws": int(self.draws[-1, j]),
            }
            for j in order
        ]

    @property
    def table(self) -> Table:
        """`rows` for people."""
        return Table(self.rows, f"Distribution of {self.name}")


def distributions(settings: FedEx, records: list[RoundRecord]) -> list[Distribution]:
    """Distributions of a run. records: of its rounds, at least one."""
    names = short_names(settings.keys)
    result = []
    for i, factor in enumerate(settings.factors):
        probabilities, draws = (
            np.array([[record[f"{what}_{i}_{j}"] for j in range(len(factor))] for record in records], float)
            for what in ("theta", "draws")
        )
        labels = [short_label(dict(values), names) for values in factor]
        name = "_".join(names[key] for key in factor[0])
        result.append(Distribution(name, labels, [record["round"] for record in records], probabilities, draws))
    return result
