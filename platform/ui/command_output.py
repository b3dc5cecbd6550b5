"""What a command has to say in the end: to people, or to machines as one JSON document."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True)
class Answer:
    """The result of a command. document: everything, for machines; tell: prints it for people."""

    document: dict[str, Any]
    tell: Callable[[], None]

    def print_json(self) -> None:
        """The document alone, on standard output."""
        click.echo(json.dumps(_plain(self.document), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    """What JSON can say: paths as text, NumPy's numbers as Python's, and NaN and infinity, which it lacks, as null."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
