"""Values of an experiment file with every default filled in, and the origin of each other value."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.composition import annotated
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment, read_file
from hedgerow.platform.config.old_spellings import modernize


def resolved(file: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns a file's values with every default as `document`, and with the origin of each other value as `text`.

    has_data: whether the answer depends on the files of its data set or its model.
    """
    values, lines = read_file(file, overrides)
    note: dict[str, str] = {}
    foreign = False
    if "search" in values:
        # Imported here, since it imports Ray.
        from hedgerow.searchspaces.spaces.search_file import parse_search

        document = parse_search(values, lines, str(file)).resolved
    else:
        experiment = parse_experiment(values, lines, str(file))
        foreign = experiment.task.model.is_foreign
        document, note = experiment.model_dump(mode="json"), _loop_note(experiment) if foreign else {}
    modernize(values, lines)
    text = annotated(document, values, lines)
    for reason in note.values():
        text += f"# Clients run one after the other, since the model cannot be batched: {reason}.\n"
    return {"document": document | note, "text": text, "has_data": foreign}


def _loop_note(experiment: Experiment) -> dict[str, str]:
    """Why clients run one after the other, for a foreign model; {} if they can be batched, or data are missing."""
    from hedgerow.platform.runs.own_data import loop_note
    from hedgerow.platform.runtime.factory import build_data

    try:
        return loop_note(experiment, build_data(experiment, None)[0])
    except UserError:
        # `show` explains the file, also where data or modules are not available.
        return {}
