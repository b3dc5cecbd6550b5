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
    """Write a checkpoint aside, force it to the disk, and rename it to `folder`. What fails half-way leaves nothing.

    server: the server's state. progress: everything else, as JSON (round, ledger, plans, metrics so far).
    save_states: writes the client states into the folder that it is given.
    """
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        save_tree(server, aside / "server.safetensors")
        save_states(aside)
        branches = [key for key, child in server.items() if child == {}]
        sizes = {file.name: file.stat().st_size for file in sorted(aside.iterdir())}
        rest = {**progress, "empty_branches": branches, "files": sizes}
        (aside / "progress.json").write_text(json.dumps(rest))
        for file in aside.iterdir():
            _force(file)
        _force(aside)
        if folder.exists():
            shutil.rmtree(folder)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    _force(folder.parent)


def read_checkpoint(folder: Path) -> tuple[Tree, dict[str, Any]]:
    """The server's state and the progress of a checkpoint."""
    progress = json.loads((folder / "progress.json").read_text())
    progress.pop("files", None)
    server = {**{branch: {} for branch in progress.pop("empty_branches")}, **load_tree(folder / "server.safetensors")}
    return server, progress


def flaw(folder: Path) -> str | None:
    """What is wrong with a checkpoint, as far as the lengths and heads of its files tell; None: nothing."""
    try:
        sizes = json.loads((folder / "progress.json").read_text()).get("files", {})
    except (OSError, ValueError):
        return "progress.json cannot be read"
    for name in ["server.safetensors", *sizes]:
        file = folder / name
        try:
            if name in sizes and file.stat().st_size != sizes[name]:
                return f"{name} is truncated"
            if file.suffix == ".safetensors":
                with safe_open(file, "pt"):
                    pass
        except (OSError, SafetensorError):
            return f"{name} cannot be read" if file.exists() else f"{name} is missing"
    return None


def checkpoints(parent: Path) -> list[Path]:
    """The checkpoint folders under `parent`, oldest first."""
    return sorted(parent.glob("round-*"))


def round_of(checkpoint: Path) -> int:
    """After which round it was written."""
    return int(checkpoint.name.removeprefix("round-"))


def latest_checkpoint(parent: Path) -> tuple[Path, list[str]] | None:
    """The newest checkpoint that can be read, and the names of newer ones that cannot; None when there is none."""
    damaged: list[str] = []
    for folder in reversed(checkpoints(parent)):
        if flaw(folder) is None:
            return folder, damaged
        damaged.append(folder.name)
    return None


def tell_flaws(parent: Path) -> list[str]:
    """A sentence about each checkpoint under `parent` that cannot be used."""
    found = {folder: flaw(folder) for folder in checkpoints(parent)}
    return [f"the checkpoint {folder} is damaged ({what}) and passed over" for folder, what in found.items() if what]


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
