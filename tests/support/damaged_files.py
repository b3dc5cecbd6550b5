"""What a lost file system, a cut download or a single flipped bit leaves of a file."""

import os
import struct
import zlib
from pathlib import Path


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "other").touch()


DAMAGES = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"0"),
    "a folder": _folder,
}
"""Kinds of damage: functions that damage a file in place."""


def flipped(content: bytes, bit: int) -> bytes:
    """Content with one bit flipped."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def png(width, height):
    """A small file of a black image; its pixels are there for up to 10 million."""
    rows = zlib.compress(bytes(min(height * (width + 1), 10**7)), 9)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", rows), (b"IEND", b"")]
    parts = [struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c)) for kind, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
