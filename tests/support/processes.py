"""Commands in separate processes, and their results."""

import resource
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import torch
from helpers import without_clock
from paths import SUPPORT
from preloaded import PreloadedPython

from hedgerow.platform.storage.checkpoint import latest_checkpoint, parse_tree
from hedgerow.platform.tracking.tracker import RunLog

ROUNDS = 400
FILE = {
    "name": "killed",
    "rounds": ROUNDS,
    "clients_per_round": 0.5,
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "dirichlet", "clients": 12, "alpha": 0.5, "samples_per_client": 20},
        "model": {"name": "mlp", "hidden": [8]},
    },
    "algorithm": {"name": "toys.Stateful", "batch_size": 8},
    "engine": {"mode": "vmap", "chunk": 2},
    # A client state takes 3 kB: three states are kept in memory, the others in a file.
    "resources": {"actors": 1},
    "checkpoints": {"every": 7},
    "tracking": {"enabled": False},
}


TOYS = ["--import", "toys"]
"""Option of a command that runs in the folder of the toy algorithms."""


def hedgerow(*arguments: str, **options) -> subprocess.Popen:
    """Run the command in a separate process, in the folder of the toy algorithms."""
    toys = TOYS if arguments[0] in ("run", "search", "resume", "plan", "push", "export") else []
    return PreloadedPython(["-m", "hedgerow", *arguments, *toys], cwd=SUPPORT, **options)


def outcome(folder: Path) -> tuple[list[dict], dict[str, torch.Tensor]]:
    """Metrics without the clock, and the final server state."""
    records = without_clock(RunLog(folder / "metrics.jsonl").read())
    return records, parse_tree((latest_checkpoint(folder / "checkpoints")[0] / "server.safetensors").read_bytes())["w"]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def no_more_files():
    """Context in which no file can be opened: the process has reached its limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
