"""A model of a round's seconds, of which benchmarks/scaling.py measures the constants (docs/performance.md).

seconds = per round + per actor * A + per MB * M + per actor and MB * A * M
          + per batched step * batched steps of the busiest core
          + (per client step + per client step and million parameters * P) * client steps of the busiest core

A: client actors. M: megabytes of the model. P: its millions of parameters. A batched step is a local step of a whole
chunk.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

CHUNK = 25
"""Clients at once at most, as in the measurements."""


@dataclass(frozen=True)
class Round:
    """What a round's seconds are taken to depend on. steps: mini-batches of a client."""

    parameters: int
    clients: int
    actors: int
    steps: float
    cores: int

    @property
    def chunk(self) -> int:
        """Clients at once."""
        return min(CHUNK, -(-self.clients // self.actors))

    @property
    def features(self) -> list[float]:
        """What each constant is multiplied by."""
        megabytes = 4e-6 * self.parameters
        chunks = -(-self.clients // (self.actors * self.chunk))
        busy = min(self.actors, self.cores)
        batched = self.steps * chunks * self.actors / busy
        # The last chunk is filled up.
        steps = batched * self.chunk
        return [1.0, self.actors, megabytes, self.actors * megabytes, batched, steps, steps * self.parameters / 1e6]

    def seconds(self) -> float:
        """As predicted."""
        return sum(constant * x for constant, x in zip(fitted()["seconds"].values(), self.features, strict=True))

    def beyond(self) -> list[str]:
        """In what it lies outside of what was measured."""
        return [
            f"{value:,} {name}"
            for name in ("parameters", "clients", "actors")
            if not fitted()[name][0] <= (value := getattr(self, name)) <= fitted()[name][1]
        ]


def exchange_seconds(parameters: int, actors: int) -> float:
    """Of an exchange, beside the clients' work."""
    known, megabytes = fitted()["seconds"], 4e-6 * parameters
    each = known["per actor"] + known["per actor and MB"] * megabytes
    return known["per round"] + actors * each + known["per MB"] * megabytes


@cache
def fitted() -> dict[str, Any]:
    """The constants, and what they were fitted to."""
    return json.loads((files("hedgerow.cluster") / "round_time.json").read_text())
