"""Members of zip files, which may be damaged, encrypted, or far larger than they look."""

import zlib
from lzma import LZMAError
from typing import IO
from zipfile import BadZipFile, ZipFile

from hedgerow.platform.common.errors import UserError

UNREADABLE = (BadZipFile, OSError, EOFError, ValueError, KeyError, RuntimeError, zlib.error, LZMAError)
"""Exceptions of a zip file that is damaged, encrypted, or packed by an unknown method."""

HARMLESS = 2**27
"""Size in bytes up to which anything is unpacked."""

RATIO = 200
"""Largest ratio of unpacked to packed bytes beyond that size; photographs and measurements have 1 to 20."""


def opened(archive: ZipFile, name: str, place: str) -> IO[bytes]:
    """Opens a member. Raises UserError if it would become much larger, and one of `UNREADABLE` if it is damaged.

    place: of the zip file in the experiment file, for messages.
    """
    info = archive.getinfo(name)
    require_plausible(
        info.file_size,
        info.compress_size,
        f"{place}: {name} in {archive.filename}",
        "if that is right, unpack the file and give the folder, or pack it without compression",
    )
    return archive.open(info)


def require_plausible(unpacked: int, packed: int, what: str, fix: str) -> None:
    """Raises UserError if a few bytes would become very many, as in a file that was made to fill memory or disk."""
    if unpacked > max(HARMLESS, RATIO * packed):
        raise UserError(f"{what} has {packed / 1e6:.3g} MB and would become {unpacked / 1e6:,.0f} MB; {fix}")
