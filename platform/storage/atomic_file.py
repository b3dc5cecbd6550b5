"""Files that are either complete or absent, and whose contents can be verified."""

import os
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

CHUNK = 2**20

Fingerprint = dict[str, Any]
"""Length and SHA-256 of a file, or of its beginning: {"bytes": ..., "sha256": ...}."""


class Altered(ValueError):  # noqa: N818
    """Raised when the contents of a file do not match its fingerprint. The message continues the file's name."""


def write_whole(file: Path, content: str | bytes) -> None:
    """Replace a file's contents atomically and durably. A failed write leaves only the old file."""
    # No other thread, process or host writes to this name.
    aside = file.with_name(f".{file.name}.{os.getpid()}-{token_hex(4)}.tmp")
    try:
        aside.write_bytes(content.encode() if isinstance(content, str) else content)
        sync(aside)
        aside.replace(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(file.parent)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fingerprint(file: Path) -> Fingerprint:
    """Length and SHA-256 of a file."""
    with file.open("rb") as stream:
        return _fingerprint(stream)


def _fingerprint(stream: BinaryIO, copy: BytesIO | None = None) -> Fingerprint:
    """Length and SHA-256 of the rest of a stream, which is also written to `copy` if given."""
    digest, length = sha256(), 0
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
        length += len(chunk)
        if copy is not None:
            copy.write(chunk)
    return {"bytes": length, "sha256": digest.hexdigest()}


def compare(found: Fingerprint, expected: Fingerprint) -> None:
    """Raise Altered if two fingerprints differ."""
    if found["bytes"] != expected["bytes"]:
        raise Altered("is truncated" if found["bytes"] < expected["bytes"] else "is too long")
    if found["sha256"] != expected["sha256"]:
        raise Altered("does not match its SHA-256")


def read_verified(file: Path, expected: Fingerprint) -> bytes:
    """Contents of a file. Raises Altered if they do not match `expected`, OSError if they cannot be read."""
    raw = BytesIO()
    with file.open("rb") as stream:
        compare(_fingerprint(stream, raw), expected)
    # CPython returns the buffer without a copy.
    return raw.getvalue()
