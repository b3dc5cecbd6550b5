"""A job as contenders read it: files that need only NumPy and torch.

    python job.py MODULE:FUNCTION JOB OUT

Loads the job in folder JOB, runs MODULE.FUNCTION on it and writes OUT.json (the moments) and OUT.npz (the parameters).
"""

import json
import sys
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Job:
    """A folder that `jobs.write_job` wrote: the same data, model, cohorts and mini-batches for every contender."""

    folder: Path

    @cached_property
    def settings(self) -> dict[str, Any]:
        return json.loads((self.folder / "job.json").read_text())

    @property
    def lr(self) -> float:
        return self.settings["lr"]

    @cached_property
    def cohorts(self) -> np.ndarray:
        """Client ids, (rounds, C)."""
        return np.load(self.folder / "cohorts.npy")

    @cached_property
    def rows(self) -> np.ndarray:
        """Rows of the training set: each client's mini-batches in order, (rounds, C, steps, batch)."""
        return np.load(self.folder / "rows.npy")

    def load(self) -> tuple[nn.Module, Tensor, Tensor]:
        """The module with its initial parameters, and the prepared training set, mapped from the page cache."""
        module = torch.load(self.folder / "module.pt", weights_only=False)
        # Mapped copy-on-write: nothing is written, and torch does not warn about read-only memory.
        x, y = (torch.from_numpy(np.load(self.folder / f"{name}.npy", mmap_mode="c")) for name in ("x", "y"))
        return module, x, y


def main() -> None:
    target, folder, out = sys.argv[1:]
    module, _, function = target.partition(":")
    outcome = getattr(import_module(module), function)(Job(Path(folder)))
    if outcome is not None:
        moments, parameters = outcome
        np.savez(f"{out}.npz", **parameters)
        Path(f"{out}.json").write_text(json.dumps({"moments": moments}))


if __name__ == "__main__":
    main()
