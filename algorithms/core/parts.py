"""What a client's answer consists of, as far as slots around an algorithm may touch it, and what it costs to send."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

from hedgerow.algorithms.core.pytree import Tree, count, leaves

Kind = Literal["value", "difference", "opaque"]


class Part(NamedTuple):
    """One entry of a client's answer.

    like: the entry of the server's state that has its shape.
    kind: "value", a new value of `like`, which the client received under that name: its update is the difference;
        "difference": it is the update itself; "opaque": it is averaged as it is, and no slot changes it.
    """

    like: str
    kind: Kind


Parts = Mapping[str, Mapping[str, Part]]
"""Step -> entry of its answer -> what that is."""


class Wire(NamedTuple):
    """What a client sends of a part: `values` numbers of `value_bits` bits each, and `others`, such as indices, which
    take `other_bits` bits together.
    """

    values: int
    value_bits: int = 32
    others: int = 0
    other_bits: int = 0

    @classmethod
    def of(cls, tree: Tree) -> Self:
        """Of an entry that is sent as it is."""
        numbers = count(tree)
        bits = 8 * sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))
        return cls(numbers, bits // max(numbers, 1))

    @property
    def scalars(self) -> int:
        return self.values + self.others

    @property
    def bits(self) -> int:
        return self.values * self.value_bits + self.other_bits


class MessageSize(NamedTuple):
    """What each client sends in an exchange, where its trees do not show it. The bits are padded to whole bytes."""

    scalars: int
    bits: int

    @property
    def bytes(self) -> int:
        return -(-self.bits // 8)
