"""Checkpoints: each is an atomic, verified folder in a format that executes no code when it is read.

A checkpoint is a folder `round-00000010`, or `round-00000010.2` if its round is saved a second time. Its commit marker,
`progress.json`, contains the SHA-256 of every other file and of itself, and a position in the run's metrics.jsonl.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path, PurePath
from secrets import token_hex
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file

from hedgerow.algorithms.core.pytree import Tree, flatten, tree_map
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.storage.atomic_file import Altered, Fingerprint, compare, fingerprint, read_verified, sync
from hedgerow.platform.storage.history import METRICS, History
from hedgerow.platform.storage.remote import SEAL
from hedgerow.platform.storage.sealed_json import seal, unseal

SERVER = "server.safetensors"

SAVED = "HEDGEROW_SAVED"
"""Environment variable: file to create when a round is saved for the first time."""

NAME = re.compile(r"round-(\d+)(?:\.(\d+))?")

DAMAGE = {errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EISDIR, errno.ENOTDIR}
"""Errors of a file system that mean that a file is damaged. After other errors, the file may be readable later."""


class DamagedCheckpoint(UserError):  # noqa: N818
    """Raised for a checkpoint that cannot be used. reason: the file and its damage."""

    def __init__(self, folder: Path, reason: str):
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return f"the checkpoint {self.folder} is damaged ({self.reason}); delete it to use the one before it"


# ---- trees of tensors -----------------------------------------------------------------------------------------------


def save_tree(tree: Tree, file: Path, **notes: str) -> None:
    """Write a tree of tensors (safetensors), and the tree of their names: the format itself stores no order of keys
    and no empty branch.

    notes: further texts in the header of the file.
    """
    flat = {key: leaf.contiguous() for key, leaf in flatten(tree).items()}
    owners = {leaf.untyped_storage().data_ptr(): key for key, leaf in flat.items()}
    # The format refuses leaves that share memory.
    leaves = {
        key: leaf if owners[leaf.untyped_storage().data_ptr()] == key else leaf.clone() for key, leaf in flat.items()
    }
    rest = iter(flat)
    names = tree_map(lambda leaf: next(rest), tree)
    try:
        save_file(leaves, file, {**notes, "tree": json.dumps(names)})
    except SafetensorError as error:
        # Only the message contains the error number of the operating system.
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from None
        raise


def save_sealed(tree: Tree, file: Path, **notes: Any) -> None:
    """Write a tree of tensors with checksums of the notes and of each branch. notes: JSON values."""
    branches = {branch: _branch_checksum(child) for branch, child in tree.items()}
    save_tree(tree, file, sealed=seal({"notes": notes, "branches": branches}))


def load_sealed(file: Path, branch: str | None = None) -> tuple[Tree, dict[str, Any]]:
    """Verified tree and notes of a file of `save_sealed`. branch: read and verify only the leaves under this key.

    Raises OSError, KeyError, ValueError, TypeError or SafetensorError when the file is damaged.
    """
    # Opened once: the file may be replaced meanwhile.
    with _opened(file) as stored:
        notes = stored.metadata() or {}
        header, names = unseal(json.loads(notes["sealed"])), json.loads(notes["tree"])
        tree = tree_map(stored.get_tensor, {key: child for key, child in names.items() if branch in (None, key)})
    expected = {key: digest for key, digest in header["branches"].items() if branch in (None, key)}
    if {key: _branch_checksum(child) for key, child in tree.items()} != expected:
        raise Altered("does not match its SHA-256")
    return tree, header["notes"]


def _branch_checksum(branch: Tree) -> str:
    """SHA-256 of the names, types, shapes and values of a branch's leaves."""
    digest = sha256()
    for key, leaf in flatten(branch).items():
        digest.update(json.dumps([key, str(leaf.dtype), list(leaf.shape)]).encode())
        digest.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open a file of `save_tree`. Raises OSError with its error number, which the library's OSErrors do not have."""
    file.open("rb").close()
    try:
        stored = safe_open(file, "pt")
    except FileNotFoundError:
        file.stat()
        raise
    with stored:
        yield stored


def parse_tree(raw: bytes) -> Tree:
    """Tree in the bytes of a file of `save_tree`, with keys in the same order: sums over leaves have the same bits.

    The contents are not verified. Raises KeyError or SafetensorError when they are damaged.
    """
    stored = load(raw)
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    # Copies have the alignment of torch's own tensors, on which the bits of a computation may depend.
    return tree_map(lambda name: stored.pop(name).clone(), json.loads(header["__metadata__"]["tree"]))


# ---- one checkpoint -------------------------------------------------------------------------------------------------


def write_checkpoint(
    folder: Path,
    server: Tree,
    progress: dict[str, Any],
    save_states: Callable[[Path], dict[str, Fingerprint]],
    history: History | None = None,
) -> Path:
    """Write a checkpoint to a temporary folder, flush it to disk, and rename it to `folder`. A failed write leaves
    nothing.

    Returns the folder. It has another name if a checkpoint of this round exists, which stays intact.

    server: server state. progress: JSON values (round, ledger, plans). save_states: function that writes the client
    states into a given folder, and returns the fingerprints that it knows. history: records so far; new ones are
    written to the run's file.
    """
    aside = folder.with_name(f".{folder.name}.{os.getpid()}-{token_hex(4)}")
    try:
        aside.mkdir(parents=True)
        save_tree(server, aside / SERVER)
        known = save_states(aside)
        content = {
            **progress,
            "files": {file.name: known.get(file.name) or fingerprint(file) for file in sorted(aside.iterdir())},
        }
        if history is not None:
            content["history"] = history.save(_metrics(folder))
        (aside / SEAL).write_bytes(_sealed(content))
        for file in aside.iterdir():
            sync(file)
        sync(aside)
        target = _unused(folder)
        aside.rename(target)
        if history is not None:
            history.settle()
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync(folder.parent)
    if target == folder and (saved := os.environ.get(SAVED)):
        # A node may not have its folder.
        with suppress(OSError):
            Path(saved).touch()
    return target


def read_checkpoint(folder: Path) -> tuple[Tree, dict[str, Any]]:
    """Server state and progress of a checkpoint whose files are all verified.

    progress["history"]: the records, as a sequence. Raises DamagedCheckpoint.
    """
    content = _marker(folder)
    server = _tree(folder, SERVER, content)
    _verify_files(folder, content, but=SERVER)
    if position := content.get("history"):
        content["history"] = _records(folder, position)
    del content["files"]
    return server, content


def read_progress(folder: Path) -> dict[str, Any]:
    """Verified progress of a checkpoint without its history. Raises DamagedCheckpoint."""
    content = _marker(folder)
    return {name: value for name, value in content.items() if name not in ("history", "files")}


def read_states(folder: Path) -> Iterator[tuple[np.ndarray, Tree]]:
    """Client states of a checkpoint, file by file: ids (n,), and a tree with n rows. Raises DamagedCheckpoint."""
    content = _marker(folder)
    for name in sorted(name for name in content["files"] if re.fullmatch(r"states.*\.safetensors", name)):
        tree = _tree(folder, name, content)
        yield tree["clients"].numpy(), tree["states"]


def files_of(folder: Path) -> dict[str, Fingerprint]:
    """Files of a checkpoint with their fingerprints; empty if its marker cannot be used."""
    with suppress(UserError):
        return _marker(folder)["files"]
    return {}


def flaw(folder: Path) -> str | None:
    """Reason why a checkpoint cannot be used, found by reading all of it; None if it is intact."""
    try:
        content = _marker(folder)
        _verify_files(folder, content)
        if position := content.get("history"):
            _records(folder, position)
    except DamagedCheckpoint as error:
        return error.reason
    return None


def is_complete(folder: Path) -> bool:
    """Whether the commit marker of a checkpoint is intact, and its files have the lengths that it names.

    Their contents are not read, since they may be large.
    """
    try:
        content = _marker(folder)
        for name, expected in content["files"].items():
            with _damage_in(folder, name):
                if (folder / name).stat().st_size != expected["bytes"]:
                    return False
    except DamagedCheckpoint:
        return False
    return True


# ---- a folder of checkpoints ----------------------------------------------------------------------------------------


def checkpoints(parent: Path) -> list[Path]:
    """Checkpoint folders under `parent`, oldest first. Raises UserError when `parent` cannot be read."""
    try:
        entries = list(parent.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(f"the folder of checkpoints {parent}", error) from None
    return sorted((folder for folder in entries if NAME.fullmatch(folder.name)), key=order_of)


def checkpoint_of(parent: Path, round: int) -> Path:
    """Newest checkpoint folder of a round under `parent`; if there is none, the name that it would have."""
    of_round = [folder for folder in checkpoints(parent) if round_of(folder) == round]
    return of_round[-1] if of_round else parent / f"round-{round:08d}"


def newest_first(parent: Path) -> Iterator[Path]:
    """Checkpoint folders under `parent`, newest first, including those that are written during the iteration."""
    tried: set[Path] = set()
    while candidates := [folder for folder in checkpoints(parent) if folder not in tried]:
        tried.add(candidates[-1])
        yield candidates[-1]


def round_of(checkpoint: Path) -> int:
    """Round after which a checkpoint was written."""
    return order_of(checkpoint)[0]


def latest_checkpoint(parent: Path) -> tuple[Path, list[str]] | None:
    """Newest intact checkpoint, and the names of newer damaged ones; None if there is none."""
    damaged: list[str] = []
    for folder in newest_first(parent):
        if flaw(folder) is None:
            return folder, damaged
        # A folder that no longer exists was deleted for a newer one.
        if folder.exists():
            damaged.append(folder.name)
    return None


def read_latest(parent: Path) -> tuple[Tree, dict[str, Any]] | None:
    """Same as `read_checkpoint`, for the newest intact checkpoint; None if there is none."""
    for folder in newest_first(parent):
        with suppress(DamagedCheckpoint):
            return read_checkpoint(folder)
    return None


def checkpoint_warnings(parent: Path) -> list[str]:
    """Sentence about each damaged checkpoint under `parent`.

    Raises UserError when there are checkpoints and all of them are damaged.
    """
    folders = checkpoints(parent)
    flaws = [passed_over(folder, reason) for folder in folders if (reason := flaw(folder))]
    if folders and len(flaws) == len(folders):
        raise UserError(
            f"{parent} has no checkpoint that can be used ({flaws[-1]}); restore one from a copy, or delete all "
            "of them to begin again at round 1"
        )
    return flaws


def passed_over(folder: Path, reason: str) -> str:
    """Sentence about a damaged checkpoint."""
    return f"the checkpoint {folder} is damaged ({reason}) and is skipped"


def prune(parent: Path, keep: int, newest: Path | None = None, kept: Collection[int] = ()) -> None:
    """Delete all but the newest `keep` complete checkpoints, and remains of interrupted writes.

    newest: the checkpoint that was just written. Checkpoints of later rounds belong to an abandoned course, because
    they were damaged or because the learner took over the state of another one, and are deleted, too. Damaged
    checkpoints after the newest complete one stay. kept: rounds whose checkpoints are kept in addition.
    """
    survivors: list[Path] = []
    for folder in reversed(checkpoints(parent)):
        abandoned = newest is not None and order_of(folder) > order_of(newest)
        if not abandoned and round_of(folder) in kept and is_complete(folder):
            continue
        if not abandoned and len(survivors) < keep and is_complete(folder):
            survivors.append(folder)
        elif abandoned or survivors:
            # Renamed first, so that a half-deleted folder is not taken for a damaged checkpoint.
            folder.rename(folder.with_name(f".{folder.name}.{token_hex(4)}"))
    for folder in parent.glob(".round-*"):
        shutil.rmtree(folder)
    for file in parent.parent.glob(f".{METRICS}.*"):
        file.unlink()


def order_of(folder: PurePath) -> tuple[int, int]:
    """Round of a checkpoint, and which save of this round it is, from 1."""
    match = NAME.fullmatch(folder.name)
    assert match is not None
    return int(match[1]), int(match[2] or 1)


def _unused(folder: Path) -> Path:
    """The folder, or the next free name for its round."""
    times = [time for round, time in map(order_of, checkpoints(folder.parent)) if round == order_of(folder)[0]]
    return folder.with_name(f"{folder.name}.{max(times) + 1}") if times else folder


# ---- verification ---------------------------------------------------------------------------------------------------


def _sealed(content: dict[str, Any]) -> bytes:
    """Commit marker with this content. Parsing and writing an intact marker again gives the same bytes."""
    return f"{seal({'content': content})}\n".encode()


def _marker(folder: Path) -> dict[str, Any]:
    """Verified content of a commit marker. Raises DamagedCheckpoint."""
    with _damage_in(folder, SEAL):
        raw = (folder / SEAL).read_bytes()
        content: dict[str, Any] = json.loads(raw)["content"]
        if raw != _sealed(content):
            raise Altered("does not match its SHA-256")
        return content


def _verify_files(folder: Path, content: dict[str, Any], but: str = "") -> None:
    for name, expected in content["files"].items():
        if name != but:
            with _damage_in(folder, name):
                compare(fingerprint(folder / name), expected)


def _tree(folder: Path, name: str, content: dict[str, Any]) -> Tree:
    with _damage_in(folder, name):
        return parse_tree(read_verified(folder / name, content["files"][name]))


def _metrics(folder: Path) -> Path:
    """Records of the run to which a checkpoint belongs."""
    return folder.parent.parent / METRICS


def _records(folder: Path, position: dict[str, Any]) -> History:
    with _damage_in(folder, METRICS):
        return History.read(_metrics(folder), position)


@contextmanager
def _damage_in(folder: Path, name: str) -> Iterator[None]:
    """Raise DamagedCheckpoint for any damage to a file, UserError if the file may still be intact."""
    try:
        yield
    except Altered as error:
        raise DamagedCheckpoint(folder, f"{name} {error}") from None
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise DamagedCheckpoint(folder, f"{name} is missing") from None
        if error.errno not in DAMAGE:
            raise _unreadable(f"{name} of the checkpoint {folder}", error) from None
        raise DamagedCheckpoint(folder, f"{name} cannot be read") from None
    except (ValueError, KeyError, TypeError, SafetensorError):
        raise DamagedCheckpoint(folder, f"{name} cannot be read") from None


def _unreadable(what: str, error: OSError) -> UserError:
    """Error for a read failure that may be temporary: no checkpoint counts as damaged, is skipped or is deleted."""
    return UserError(
        f"{what} cannot be read now ({error.strerror or error}), but may be intact; remove the cause, then "
        "`hedgerow resume` continues from there"
    )
