"""Values of an experiment file with every default filled in, and the origin of each other value."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hedgerow.platform.config.composition import annotated
from hedgerow.platform.config.loader import parse_experiment, read_file


def resolved(file: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns a file's values with every default as `document`, and with the origin of each other value as `text`.

    Imports the user's own classes, whose settings have defaults, and calls nothing.
    """
    values, lines = read_file(file, overrides)
    if "search" in values:
        # Imported here, since it imports Ray.
        from hedgerow.searchspaces.spaces.search_file import parse_search

        document = parse_search(values, lines, str(file)).resolved
    else:
        document = parse_experiment(values, lines, str(file)).model_dump(mode="json")
    return {"document": document, "text": annotated(document, values, lines)}
