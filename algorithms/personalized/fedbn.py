"""FedBN (Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
2021).
"""

from functools import cached_property
from typing import ClassVar

from torch import nn

from hedgerow.algorithms.core.messages import Weighting
from hedgerow.algorithms.personalized.partly_shared import PartlyShared

BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FedBN(PartlyShared):
    """FedAvg on everything but batch normalisation: its parameters and running statistics are each client's own
    [Li2021b, Alg. 1]. The mean weights clients equally.
    """

    weighting: ClassVar[Weighting | None] = "uniform"

    @cached_property
    def normalisations(self) -> frozenset[str]:
        """Names of the layers of batch normalisation."""
        return frozenset(name for name, layer in self.task.module.named_modules() if isinstance(layer, BATCH_NORM))

    def is_shared(self, name: str) -> bool:
        return name.rpartition(".")[0] not in self.normalisations

    def incompatibility(self) -> str | None:
        if not self.normalisations:
            return (
                f"algorithm.name: {self.hyper.name} keeps batch normalisation on the clients, and this model has none; "
                "choose one of your own with layers such as torch.nn.BatchNorm2d, or another algorithm"
            )
        return super().incompatibility()
