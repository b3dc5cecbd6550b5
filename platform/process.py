"""What every process that hosts clients does first."""

import ctypes
import sys

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def settle(threads: int, import_path: list[str] | None = None) -> None:
    """Bound torch's threads, make the user's modules importable, and keep freed memory in the process.

    A round allocates and frees the same few megabytes thousands of times; glibc would give each back to the kernel and
    fetch it again, page by page, which costs a fifth of the time of small models. Elsewhere than on glibc nothing
    needs to be done.
    """
    torch.set_num_threads(threads)
    sys.path[:0] = [entry for entry in import_path or [] if entry not in sys.path]
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 2**30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
