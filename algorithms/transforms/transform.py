"""The base class of transforms: a client's half, a server's half, and what an update costs to send."""

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.parts import Wire
from hedgerow.algorithms.core.pytree import Tree


class Transform(Settings):
    """One step of the pipeline between the clients' updates and their aggregate. Its fields are its hyperparameters.

    An update is a tree: one part of a client's answer, or, where `joint`, all of its parts by name. The clients' halves
    run in the order of the file, then updates are aggregated, then the servers' halves run in reverse.
    """

    kind: str = Field("", description="which transform: its name, or the dotted path of your own")

    joint: ClassVar[bool] = False
    """Whether it sees all parts of an answer at once, such as to clip their joint norm."""

    is_random: ClassVar[bool] = False
    """Whether the client's half draws random numbers, from `key`."""

    encodes: ClassVar[bool] = False
    """Whether the client's half returns another tree than an update, of which the server's half makes one again. It is
    linear, the last transform, and aggregated by the mean."""

    adds_server_noise: ClassVar[bool] = False
    """Whether the server's half adds noise, which would accumulate in a server's memory."""

    @property
    def has_error_feedback(self) -> bool:
        """Whether a client remembers what it did not send, and sends it later."""
        return False

    def incompatibility(self, like: Tree) -> str | None:
        """Why it cannot transform updates of this shape: "FIELD: the reason; the fix". None: it can."""
        return None

    def init_client(self, like: Tree) -> Tree:
        """A client's state of this transform; {}: it has none."""
        return {}

    def init_server(self, like: Tree) -> Tree:
        """The server's state of this transform; {}: it has none."""
        return {}

    def client(self, hp: Any, update: Tree, state: Tree, key: Tensor | None) -> tuple[Tree, Tree]:
        """One client's half, (the update to send, the new state). It runs in a loop and under torch.func.vmap.

        hp: this transform's hyperparameters, floats as numbers or 0-d tensors. key: where `is_random`, 64 bits (see
        `chance`) that depend on seed, round, exchange, client and transform alone; else None.
        """
        return update, state

    def server(self, update: Tree, state: Tree, like: Tree, key: int, clients: int) -> tuple[Tree, Tree]:
        """The server's half, (the aggregated update, the new state).

        like: a tree of the update's shape. key: a seed below 2^63. clients: how many updates were aggregated.
        """
        return update, state

    def wire(self, wire: Wire) -> Wire:
        """What a client sends of a part, given what it would send without this transform. If `joint`: of the first."""
        return wire
