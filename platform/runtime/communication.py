"""Communication cost of the protocol, independent of how the machine carries it out."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from hedgerow.algorithms.core.pytree import Tree, leaves


@dataclass
class CommunicationCost:
    """Scalars and bytes that clients receive (down) and send (up), and the number of exchanges with them.

    Also the peak GPU memory of a worker so far, which is not part of the protocol.
    """

    scalars_down: int = 0
    scalars_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    exchanges: int = 0
    """Number of communication rounds: broadcast, client work, answer."""
    gpu_peak_mb: float = 0.0

    def add(self, parallel: Iterable[Self]) -> None:
        """Add the costs of exchanges that ran in parallel: together they are one communication round."""
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
        """Add the scalars and bytes that clients sent."""
        self.scalars_up += scalars
        self.bytes_up += size

    def discount_padding(self, down: np.ndarray | None, up: np.ndarray | None) -> None:
        """Subtract padding, given as a number of float32 values per client."""
        for direction, numbers in (("down", down), ("up", up)):
            padding = 0 if numbers is None else int(numbers.sum())
            setattr(self, f"scalars_{direction}", getattr(self, f"scalars_{direction}") - padding)
            setattr(self, f"bytes_{direction}", getattr(self, f"bytes_{direction}") - 4 * padding)

    def as_dict(self) -> dict[str, float]:
        """All figures by name; `gpu_peak_mb` only if a GPU was used."""
        figures = asdict(self)
        return figures if self.gpu_peak_mb else {k: v for k, v in figures.items() if k != "gpu_peak_mb"}

    def transmissions(self, clients: int, model_size: int) -> float:
        """Cost in units of one FedAvg round with as many clients: one model down, one up (thesis, table 2.1)."""
        return (self.scalars_down + self.scalars_up) / (2 * clients * model_size)
