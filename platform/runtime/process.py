"""Initialisation of every process that hosts clients, and its memory use."""

import ctypes
import gc
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

from hedgerow.algorithms.core.precision import Precision
from hedgerow.platform.common.quiet import quiet_libraries
from hedgerow.platform.config.resources import Resources

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

CONTEXT = 0.5e9
"""Bytes that a process typically uses on a GPU before its first tensor; torch's limit does not count them."""


def init_process(threads: int, resources: Resources | None = None, precision: Precision = "float32") -> None:
    """Limit torch's threads and its share of a GPU's memory, and keep freed memory in the process.

    resources: of the client actor in this process; None: no clients compute here.

    A round allocates and frees the same few megabytes thousands of times; glibc would return each of them to the kernel
    and fetch it again, page by page, which costs a fifth of the time of small models. Without glibc, nothing needs to
    be done.
    """
    quiet_libraries()
    torch.set_num_threads(threads)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        # Older versions of glibc refuse more than 32 MB.
        mallopt(_M_MMAP_THRESHOLD, 2**30) or mallopt(_M_MMAP_THRESHOLD, 2**25)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    on_gpu = resources is not None and bool(resources.gpu) and torch.cuda.is_available()
    _choose_algorithms(resources if on_gpu else None, precision)
    if resources is not None and on_gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(memory_fraction(resources.gpu, total))


_defaults: list[tuple[bool, bool, bool]] = []
"""PyTorch's settings in this process before its first run on a GPU."""


def _choose_algorithms(resources: Resources | None, precision: Precision) -> None:
    """Choose PyTorch's algorithms on GPUs; None: those of the process before its first run on a GPU."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if resources is not None:
        if not _defaults:
            _defaults.append((torch.are_deterministic_algorithms_enabled(), matmul.allow_tf32, cudnn.allow_tf32))
        chosen = resources.deterministic, precision == "tf32", precision == "tf32"
        if resources.deterministic:
            # cuBLAS reads this variable at its first call.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            # Uninitialised memory is never read, so that filling it would only take time.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    elif _defaults:
        chosen = _defaults[0]
    else:
        return
    torch.use_deterministic_algorithms(chosen[0], warn_only=True)
    matmul.allow_tf32, cudnn.allow_tf32 = chosen[1:]


def free_memory() -> None:
    """Return freed memory to the system, so that this process holds little more than a new one."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def memory_fraction(gpus: float, total: float) -> float:
    """Fraction of a GPU's memory (`total` bytes) for the tensors of a process that has reserved `gpus`.

    On a shared GPU, this is the reserved fraction minus the process's own context, so that all processes fit together,
    but at least half of the reserved fraction.
    """
    return 1.0 if gpus >= 1 else max(gpus - CONTEXT / total, gpus / 2)


def memory_in_use(device: torch.device) -> float:
    """Memory that this process currently holds on a device, in MB; shared memory does not count."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device) / 1e6
    return _status("VmRSS") - _status("RssShmem") if sys.platform == "linux" else peak(device)


_file_pages = {"at reset": float("inf")}
"""Memory mapped from files when the measurement of `peak` began, in MB."""


def reset_peak(device: torch.device) -> None:
    """Restart the measurement of `peak`, where the system supports it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        _file_pages["at reset"] = _status("RssFile")


def peak(device: torch.device) -> float:
    """Peak memory of this process on a device, in MB. Data that were read from mapped files since do not count."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if sys.platform == "linux":
        return _status("VmHWM") - _status("RssShmem") - max(0.0, _status("RssFile") - _file_pages["at reset"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # bytes on macOS


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{field}:"))
