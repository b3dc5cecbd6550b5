"""The base class of transforms: a client part, a server part, and the message size of an update."""

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.parts import Wire
from hedgerow.algorithms.core.pytree import Tree


class Transform(Settings):
    """One step of the pipeline between the clients' updates and their aggregate. Its fields are its hyperparameters.

    An update is a tree: one part of a client step's result, or, if `joint`, all of its parts by name. The client parts
    run in the order of the file, then updates are aggregated, then the server parts run in reverse order.
    """

    kind: str = Field("", description="transform: its name, or the dotted path of your own")

    joint: ClassVar[bool] = False
    """Whether the transform receives all parts of an update at once, for example to clip their joint norm."""

    is_random: ClassVar[bool] = False
    """Whether the client part draws random numbers from `key`."""

    encodes: ClassVar[bool] = False
    """Whether the client part returns an encoding in place of an update, which the server part decodes. The encoding
    must be linear, the transform must be the last one, and the aggregation rule must be the mean."""

    adds_server_noise: ClassVar[bool] = False
    """Whether the server part adds noise, which would accumulate in the server state."""

    @property
    def has_error_feedback(self) -> bool:
        """Whether a client stores the part of an update that it did not send, and sends it later."""
        return False

    def incompatibility(self, like: Tree) -> str | None:
        """Returns why it cannot transform updates of this shape: "FIELD: the reason; the fix". None if it can."""
        return None

    def init_client(self, like: Tree) -> Tree:
        """Returns a client's initial state of this transform; {}: stateless."""
        return {}

    def init_server(self, like: Tree) -> Tree:
        """Returns the server's initial state of this transform; {}: stateless."""
        return {}

    def client(self, hp: Any, update: Tree, state: Tree, key: Tensor | None) -> tuple[Tree, Tree]:
        """Client part: returns (the update to send, the new state). It runs in a loop and under torch.func.vmap.

        hp: this transform's hyperparameters, floats as numbers or 0-d tensors.
        key: if `is_random`, 64 bits (see `keyed_random`) that depend on seed, round, exchange, client and transform
        only; else None.
        """
        return update, state

    def server(self, update: Tree, state: Tree, like: Tree, key: int, clients: int) -> tuple[Tree, Tree]:
        """Server part: returns (the aggregated update, the new state).

        like: a tree with the shape of the update.
        key: a seed below 2^63.
        clients: number of updates that were aggregated.
        """
        return update, state

    def wire(self, wire: Wire) -> Wire:
        """Message size of a part (if `joint`: of the first part) after this transform. wire: its size before."""
        return wire
