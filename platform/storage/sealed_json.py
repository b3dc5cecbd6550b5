"""JSON objects with a checksum of their own contents, and the files of runs with one of them, or with one per line.

An object with the right checksum is the object that was written. A damaged file is reported in one sentence.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.storage.atomic_file import Altered, write_whole

RESTORE_FIX = "restore it from a copy, or run the experiment again"
"""Advice about a damaged file."""

CHECKSUM = "sha256"
"""Last key of each object: first 16 digits of the SHA-256 of the object without it, as `json.dumps` writes that."""

DIGITS = 16


def seal(values: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON text of an object with its checksum. indent: as of `json.dumps`; None: one line."""
    content = {key: value for key, value in values.items() if key != CHECKSUM}
    return json.dumps(content | {CHECKSUM: _checksum(content)}, indent=indent)


def unseal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Object of a parsed text of `seal`, without its checksum. Raises Altered if it is not the object that was sealed.

    JSON allows several texts for one object, such as other spaces. They have the same checksum.
    """
    content = {key: value for key, value in values.items() if key != CHECKSUM}
    if values.get(CHECKSUM) != _checksum(content):
        raise Altered("does not match its checksum")
    return content


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
    # A complete object with further characters is damaged, not cut off: its line had an end, which was altered.
    with suppress(ValueError, RecursionError):
        json.JSONDecoder().raw_decode(last)
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


def _checksum(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content).encode()).hexdigest()[:DIGITS]
