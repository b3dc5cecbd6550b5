"""Parts of a client step's result that slots around an algorithm may change, and their size in messages."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

from hedgerow.algorithms.core.pytree import Tree, count, leaves

Kind = Literal["value", "difference", "opaque"]


class Part(NamedTuple):
    """One entry of a client step's result `up`.

    like: the entry of the server state with the same shape.
    kind: "value", a new value of `like`, which the client received under that name: its update is the difference;
    "difference": the entry is the update itself; "opaque": the entry is averaged as is, and no slot changes it.
    """

    like: str
    kind: Kind


Parts = Mapping[str, Mapping[str, Part]]
"""Step -> entry of its result -> Part."""


class ContractError(ValueError):
    """An algorithm does not do what it declares, such as a step that does not return its `parts`.

    key: key of the experiment file that names the user's code at fault; None: the algorithm itself.
    """

    def __init__(self, message: str, key: str | None = None):
        super().__init__(message)
        self.key = key


class Wire(NamedTuple):
    """Message size of one part: `values` numbers of `value_bits` bits each, and `others`, such as indices, with
    `other_bits` bits in total, and `scales` numbers of 32 bits, such as extremes. The part has `leaves` tensors.
    """

    values: int
    value_bits: int = 32
    others: int = 0
    other_bits: int = 0
    scales: int = 0
    leaves: int = 1

    @classmethod
    def of(cls, tree: Tree) -> Self:
        """Size of a tree that is sent unchanged."""
        numbers = count(tree)
        bits = 8 * sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))
        return cls(numbers, bits // max(numbers, 1), leaves=sum(1 for _ in leaves(tree)))

    @property
    def scalars(self) -> int:
        return self.values + self.others + self.scales

    @property
    def bits(self) -> int:
        return self.values * self.value_bits + self.other_bits + 32 * self.scales


class MessageSize(NamedTuple):
    """Size of each client's message in an exchange if its trees do not show it. The bits are padded to whole bytes."""

    scalars: int
    bits: int

    @property
    def bytes(self) -> int:
        return -(-self.bits // 8)
