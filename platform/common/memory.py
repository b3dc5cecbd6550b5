"""Checks that data fit into memory, before they are allocated if their size is known."""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.ray_private import system_memory

SURELY_FREE = 2**28
"""Bytes that every machine is assumed to have free: smaller requests are not checked."""

_NO_ROOM = "can't allocate memory"
_EXHAUSTED = (_NO_ROOM, "Storage size calculation overflowed", "Overflow when unpacking")
# On a CPU, PyTorch raises plain RuntimeErrors and TypeErrors for these: only the text identifies them.


def require(needed: float, what: str, advice: str) -> None:
    """Raises UserError if `needed` bytes are more than this machine has free.

    what: place in the file and the objects that take the memory, as the plural subject of the message.
    """
    if needed <= SURELY_FREE:
        return
    # Ray knows the limit of a container.
    free = min(psutil.virtual_memory().available, system_memory())
    if needed > free:
        raise UserError(f"{what} take at least {gigabytes(needed)}, but this machine has {gigabytes(free)}; {advice}")


@contextmanager
def fits(place: str) -> Iterator[None]:
    """Context manager that turns a failed allocation into a UserError about `place`."""
    try:
        yield
    except (MemoryError, RuntimeError, TypeError) as error:
        if not is_exhausted(error):
            raise
        raise UserError(f"{place}: not enough memory on this machine; lower its sizes") from None


def is_exhausted(error: BaseException) -> bool:
    """Whether the error is a failed allocation, on a CPU or a GPU, in this process or in an actor."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(part in str(error) for part in _EXHAUSTED)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was missing for an allocation that smaller sizes might not need."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _NO_ROOM in str(error)


def gigabytes(count: float) -> str:
    """Number of bytes in human-readable form, such as 1.5 GB."""
    return f"{count / 1e9:.3g} GB"
