"""What the protocol transmits, whatever the machine does underneath."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from hedgerow.algorithms.core.pytree import Tree, leaves


@dataclass
class CommunicationCost:
    """Scalars and bytes that clients receive (down) and send (up), and the number of exchanges with them.

    Also the most memory that a worker has held on its GPU so far, which is no part of the protocol.
    """

    scalars_down: int = 0
    scalars_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    exchanges: int = 0
    """Communication rounds: broadcast, work, answer."""
    gpu_peak_mb: float = 0.0

    def add(self, parallel: Iterable[Self]) -> None:
        """Add the costs of exchanges that ran in parallel: they are one communication round."""
        exchanges = 0
        for cost in parallel:
            self.scalars_down += cost.scalars_down
            self.scalars_up += cost.scalars_up
            self.bytes_down += cost.bytes_down
            self.bytes_up += cost.bytes_up
            self.gpu_peak_mb = max(self.gpu_peak_mb, cost.gpu_peak_mb)
            exchanges = max(exchanges, cost.exchanges)
        self.exchanges += exchanges

    def add_download(self, tree: Tree, copies: int) -> None:
        """Add a tree that `copies` clients receive."""
        self.scalars_down += copies * sum(leaf.numel() for leaf in leaves(tree))
        self.bytes_down += copies * sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))

    def add_upload(self, scalars: int, size: int) -> None:
        """Add what clients sent: scalars, and bytes."""
        self.scalars_up += scalars
        self.bytes_up += size

    def discount_padding(self, down: np.ndarray | None, up: np.ndarray | None) -> None:
        """Subtract padding, in numbers of single precision per client."""
        for direction, numbers in (("down", down), ("up", up)):
            padding = 0 if numbers is None else int(numbers.sum())
            setattr(self, f"scalars_{direction}", getattr(self, f"scalars_{direction}") - padding)
            setattr(self, f"bytes_{direction}", getattr(self, f"bytes_{direction}") - 4 * padding)

    def as_dict(self) -> dict[str, float]:
        """All figures; without a GPU, those of the protocol."""
        figures = asdict(self)
        return figures if self.gpu_peak_mb else {k: v for k, v in figures.items() if k != "gpu_peak_mb"}

    def transmissions(self, clients: int, model_size: int) -> float:
        """In units of one FedAvg round with as many clients: each receives and sends one model (thesis, table 2.1)."""
        return (self.scalars_down + self.scalars_up) / (2 * clients * model_size)
