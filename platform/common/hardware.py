"""Model names and sizes of the CPU and the GPU that a process computes on."""

import os
import platform as host
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_NAMES = ("model name", "cpu model", "cpu", "Hardware", "uarch")
_X86 = ("cpu family", "model", "stepping")
_ARM = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision")


def hardware(device: torch.device) -> dict[str, Any]:
    """Models and sizes of the hardware behind a device, equal on machines of the same kind.

    Keys: cpu, cores; on a GPU also gpu and its total memory in bytes, gpu_memory.
    """
    found: dict[str, Any] = {"cpu": cpu_model(), "cores": os.cpu_count()}
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        found |= {"gpu": torch.cuda.get_device_name(device), "gpu_memory": total}
    return found


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Model name of the CPU; the machine type, such as x86_64, where the system does not report one."""
    name = ""
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    else:
        with suppress(OSError):
            name = _in_cpuinfo(cpuinfo.read_text(encoding="utf-8", errors="replace"))
    return " ".join(name.split()) or host.processor() or host.machine()


def _in_cpuinfo(text: str) -> str:
    """Model name in the text of /proc/cpuinfo, and the numbers that identify the core; empty if there is neither.

    Virtual machines may report the same name for different models.
    """
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and value.strip():
            values.setdefault(key.strip(), value.strip())
    name = next((values[key] for key in _NAMES if key in values), "")
    return " ".join([name, *(f"{key} {values[key]}" for key in (*_X86, *_ARM) if key in values)])
