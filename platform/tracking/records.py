"""Reads and writes the JSON files of runs, and reports damaged ones in one sentence.

Each object has a checksum, so that one with the right checksum is the object that was written.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.storage.atomic_file import Altered, write_whole
from hedgerow.platform.storage.sealed_json import is_cut_off, seal, unseal

RESTORE_FIX = "restore it from a copy, or run the experiment again"
"""Advice about a damaged file."""

BLOCKS = "blocks.jsonl"
"""Name of the file of the blocks of a search that promotes experts."""


def write_object(file: Path, values: Mapping[str, Any], indent: int | None = None) -> None:
    """Replace a JSON file by an object with its checksum, atomically; compressed if its name ends with .gz.

    indent: as of `json.dumps`.
    """
    text = seal(values, indent) + "\n"
    write_whole(file, gzip.compress(text.encode(), mtime=0) if file.suffix == ".gz" else text)


def read_object(file: Path) -> dict[str, Any]:
    """Returns the object in a JSON file of `write_object`. Raises UserError."""
    try:
        return _checked(_text(file))
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}); {RESTORE_FIX}") from None


def read_objects(file: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file with one object of `seal` per line, without a last line that a crash cut off.

    Raises UserError.
    """
    try:
        *lines, last = _text(file).split("\n")
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}); {RESTORE_FIX}") from None
    if not is_cut_off(last):
        lines.append(last)
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_checked(line))
        except ValueError as error:
            raise UserError(f"{file}:{number} is damaged ({error}); remove the line, or {RESTORE_FIX}") from None
    return records


def _text(file: Path) -> str:
    try:
        content = file.read_bytes()
        return (gzip.decompress(content) if file.suffix == ".gz" else content).decode()
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"it is not a complete .gz file: {first_line(error)}") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({first_line(error)})") from None


def _checked(text: str) -> dict[str, Any]:
    """Returns the object of a JSON text. Raises ValueError with the first mistake."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {first_line(error)}") from None
    if not isinstance(values, dict):
        raise ValueError("it is not an object with keys")
    try:
        return unseal(values)
    except Altered as error:
        raise ValueError(f"it {error}") from None
