"""Checkpoints: one atomic folder each, in a format that executes nothing when it is read."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hedgerow.algorithms.trees import Tree, flatten, unflatten


def save_tree(tree: Tree, file: Path) -> None:
    """Write a tree of tensors (safetensors), and the order of its keys, which the format itself does not keep."""
    flat = flatten(tree)
    save_file({key: leaf.contiguous() for key, leaf in flat.items()}, file, {"keys": json.dumps(list(flat))})


def load_tree(file: Path, branch: str | None = None) -> Tree:
    """Read what `save_tree` wrote, keys in the same order: sums over leaves then have the same bits.

    branch: read only what lies under this key of the tree.
    Raises OSError, KeyError or SafetensorError when the file is damaged.
    """
    with safe_open(file, "pt") as stored:
        keys = json.loads((stored.metadata() or {})["keys"])
        wanted = [key for key in keys if branch is None or key.split("/")[0] == branch]
        return unflatten({key: stored.get_tensor(key) for key in wanted})


def write_checkpoint(folder: Path, server: Tree, progress: dict[str, Any], save_states: Callable[[Path], None]) -> None:
    """Write a checkpoint aside, force it to the disk, and rename it to `folder`.

    server: the server's state. progress: everything else, as JSON (round, ledger, plans, metrics so far).
    save_states: writes the client states into the folder that it is given.
    """
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_tree(server, aside / "server.safetensors")
    branches = [key for key, child in server.items() if child == {}]
    (aside / "progress.json").write_text(json.dumps({**progress, "empty_branches": branches}))
    save_states(aside)
    for file in aside.iterdir():
        _force(file)
    _force(aside)
    if folder.exists():
        shutil.rmtree(folder)
    aside.rename(folder)
    _force(folder.parent)


def read_checkpoint(folder: Path) -> tuple[Tree, dict[str, Any]]:
    """The server's state and the progress of a checkpoint."""
    progress = json.loads((folder / "progress.json").read_text())
    server = {**{branch: {} for branch in progress.pop("empty_branches")}, **load_tree(folder / "server.safetensors")}
    return server, progress


def checkpoints(parent: Path) -> list[Path]:
    """The checkpoint folders under `parent`, oldest first."""
    return sorted(parent.glob("round-*"))


def latest_checkpoint(parent: Path) -> tuple[Path, list[str]] | None:
    """The newest checkpoint that can be read, and the names of newer ones that cannot; None when there is none."""
    damaged: list[str] = []
    for folder in reversed(checkpoints(parent)):
        try:
            read_checkpoint(folder)
        except (OSError, ValueError, KeyError, SafetensorError):
            damaged.append(folder.name)
        else:
            return folder, damaged
    return None


def prune(parent: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, and what interrupted writes left behind."""
    for folder in [*checkpoints(parent)[:-keep], *parent.glob(".round-*")]:
        shutil.rmtree(folder)


def _force(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
