"""Client actors that return every sum to the coordinator, for benchmarks/fan_in.py. Ray's processes import it."""

from typing import Any

from hedgerow.platform.actors.client_actor import ClientActor


class Flat(ClientActor):
    """Returns large sums, too."""

    def _stored(self, total: Any) -> Any:
        return total
