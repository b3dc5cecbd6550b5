"""HeteroFL (Diao, Ding, Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients", 2021, Algorithm 1).
"""

from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.heterogeneous.partial_training import PartialTraining
from hedgerow.algorithms.nn.submodel import Channels


class HeteroFL(PartialTraining):
    """A client of capacity r trains the first r of each layer's channels, rounded up, so small models are nested
    [Diao2021].

    The scored model is the largest one that is trained. With a single capacity, all clients train the same model; this
    gives the references for the smallest and the largest model.
    """

    def channels(self, capacity: float, cohort: Cohort, client: int) -> Channels:
        return self.layout.nested(capacity)

    def evaluate_params(self, server: Tree) -> Tree:
        return self.layout.part(server["w"], self.layout.nested(max(self.hyper.capacities)))
