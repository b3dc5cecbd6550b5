"""Refuses what does not fit into memory, before it is allocated where its size is known."""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.ray_private import system_memory

SURELY_FREE = 2**28
"""Bytes that every machine is assumed to have: smaller requests are not checked."""

_EXHAUSTED = ("can't allocate memory", "Storage size calculation overflowed", "Overflow when unpacking")
# PyTorch raises plain RuntimeErrors and TypeErrors for these on a CPU: only the text says what they are.


def require(needed: float, what: str, advice: str) -> None:
    """Raises UserError where `needed` bytes are more than this machine has free.

    what: the place in the file and what takes the memory, as the beginning of a sentence in the plural.
    """
    if needed <= SURELY_FREE:
        return
    # Ray knows the limit of a container.
    free = min(psutil.virtual_memory().available, system_memory())
    if needed > free:
        raise UserError(f"{what} take at least {gigabytes(needed)}, and this machine has {gigabytes(free)}; {advice}")


@contextmanager
def fits(place: str) -> Iterator[None]:
    """Turns an allocation that fails into a UserError about `place`."""
    try:
        yield
    except (MemoryError, RuntimeError, TypeError) as error:
        if not is_exhausted(error):
            raise
        raise UserError(f"{place}: this does not fit into the memory of this machine; lower its sizes") from None


def is_exhausted(error: BaseException) -> bool:
    """Whether an allocation failed, on a CPU or a GPU, here or in an actor."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(part in str(error) for part in _EXHAUSTED)


def gigabytes(count: float) -> str:
    """Bytes for people: 1.5 GB."""
    return f"{count / 1e9:.3g} GB"
