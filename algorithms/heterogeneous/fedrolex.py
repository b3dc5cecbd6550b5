"""FedRolex (Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction",
2022, Algorithm 1).
"""

import torch

from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.heterogeneous.partial_training import PartialTraining
from hedgerow.algorithms.nn.submodel import Channels


class FedRolex(PartialTraining):
    """A client of capacity r trains a window of a share r of each layer's channels [Alam2022].

    The window moves by one channel per round.
    """

    def channels(self, capacity: float, cohort: Cohort, client: int) -> Channels:
        sizes = self.layout.thinned
        return {
            space: ((cohort.round - 1 + torch.arange(number)) % sizes[space]).sort().values
            for space, number in self.layout.counts(capacity).items()
        }
