"""Federated Dropout (Caldas et al., "Expanding the Reach of Federated Learning by Reducing Client Resource
Requirements", 2018).
"""

import numpy as np
import torch

from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.heterogeneous.partial_training import PartialTraining
from hedgerow.algorithms.nn.submodel import Channels


class FederatedDropout(PartialTraining):
    """A client of capacity r trains a share r of each layer's channels, drawn at random for every client and round
    [Caldas2018].
    """

    alike = False

    def channels(self, capacity: float, cohort: Cohort, client: int) -> Channels:
        rng, sizes = np.random.default_rng([cohort.seed_for("channels"), client]), self.layout.thinned
        return {
            space: torch.from_numpy(np.sort(rng.choice(sizes[space], number, replace=False)))
            for space, number in self.layout.counts(capacity).items()
        }
