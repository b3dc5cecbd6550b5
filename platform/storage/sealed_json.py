"""JSON objects with a checksum of their own contents, for files that are read again later."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from hedgerow.platform.storage.atomic_file import Altered

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


def is_cut_off(text: str) -> bool:
    """Whether a text is the beginning of a JSON object, as after a crash while it was written.

    A complete object with further characters is damaged instead: its line had an end, which was altered.
    """
    try:
        json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return True
    return False


def _checksum(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content).encode()).hexdigest()[:DIGITS]
