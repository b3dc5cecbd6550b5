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

    needs_bound: ClassVar[bool] = False
    """Whether a clip must bound the norm of the updates that it receives."""

    is_clip: ClassVar[bool] = False
    """Whether it bounds the norm of an update over all of its parts, see `bound`."""

    sparsifies: ClassVar[bool] = False
    """Whether it sets most entries to 0, which are not sent."""

    quantizes: ClassVar[bool] = False
    """Whether it rounds entries to few levels, which later transforms must not change."""

    receives: ClassVar[tuple[str, ...]] = ()
    """Entries of the server's state that every client receives, as entries of `state` in the client part."""

    reports: ClassVar[tuple[str, ...]] = ()
    """Entries that the client part adds to its state, 0-d tensors of one bit each, which are not kept but sent: their
    mean over the clients is in `state` in the server part."""

    @property
    def expected_clients(self) -> float | None:
        """Expected number of clients, by which the server part divides a noisy sum; None: their actual number."""
        return None

    @property
    def may_accumulate(self) -> bool:
        """Whether its server noise is wanted even where the server state accumulates it."""
        return False

    @property
    def keeps_bound(self) -> bool:
        """Whether it never makes an update longer, so that an earlier clip still bounds its norm."""
        return self.is_clip

    def bound(self, state: Tree) -> float | None:
        """Returns the largest norm of an update after a clip, given the server's state; None: it is not a clip."""
        return None

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

    def server(
        self, update: Tree, state: Tree, like: Tree, key: int, clients: int, bound: float | None = None
    ) -> tuple[Tree, Tree]:
        """Server part: returns (the aggregated update, the new state).

        like: a tree with the shape of the update.
        key: a seed below 2^63.
        clients: number of updates that were aggregated.
        bound: largest norm of a client's update, by the clip before this transform; None: there is no clip.
        """
        return update, state

    def wire(self, wire: Wire) -> Wire:
        """Message size of a part (if `joint`: of the first part) after this transform. wire: its size before."""
        return wire
