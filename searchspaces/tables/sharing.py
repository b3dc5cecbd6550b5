"""Trainings that rows of tables share: one run serves every row whose experiment differs in its scoring only."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hedgerow.platform.errors import UserError
from hedgerow.platform.experiment import Experiment
from hedgerow.platform.runs import RunFolder, git_commit, versions
from hedgerow.searchspaces.expert import expert_folder
from hedgerow.searchspaces.search_file import SearchPlan

SCORING: Any = {"name": True, "output": True, "tracking": True, "evaluation": {"targets", "target_metric", "stop"}}
"""Keys of an experiment that do not change its rounds, only how they are named, scored and recorded, and how many
there are: a run that stopped early at other targets continues from its last checkpoint."""


def training(experiment: Experiment) -> str:
    """A fingerprint of all that decides the rounds of a run."""
    values = json.dumps(experiment.model_dump(mode="json", exclude=SCORING), sort_keys=True)
    return hashlib.sha256(values.encode()).hexdigest()


def trainings(search: SearchPlan) -> list[str]:
    """The fingerprint of each configuration of a search."""
    return [training(search.trial(overrides)) for overrides in search.configurations]


def trained(folder: RunFolder) -> dict[str, RunFolder]:
    """The finished trials of a line's search, by their fingerprints."""
    experts = {
        fingerprint: expert_folder(folder.path, number)
        for number, fingerprint in enumerate(folder.record()["table"].get("trainings", []))
    }
    return {
        fingerprint: expert
        for fingerprint, expert in experts.items()
        if expert.exists and expert.record()["status"] == "finished"
    }


def trained_before(output: Path, lines: Sequence[str], data_root: Path | None) -> dict[str, RunFolder]:
    """Finished trials of earlier commands under `output` that ran in this environment, by their fingerprints.

    lines: to be run now. Their own earlier runs are left out, and runs that continued another's: a line that is run
    again is trained again.
    """
    commit, found = git_commit(), dict[str, RunFolder]()
    if commit and commit.endswith("-dirty"):
        return found
    here = {
        "status": "finished",
        "versions": versions(),
        "git_commit": commit,
        "data_root": str(data_root.absolute()) if data_root else None,
    }
    for file in sorted(output.glob("*/run.json")):
        # A file that is torn, or of something else, is no run of a table.
        with suppress(UserError, OSError, KeyError, TypeError):
            folder = RunFolder(file.parent)
            record = folder.record()
            table = record["table"]
            alike = all(record.get(key) == value for key, value in here.items())
            if alike and table["line"] not in lines and not table.get("taken_from"):
                found |= trained(folder)
    return found


def taken_over(fingerprints: Sequence[str], found: Mapping[str, RunFolder]) -> dict[int, RunFolder]:
    """The run that each trial continues instead of being trained, by the trial's number, where there is one."""
    return {number: found[one] for number, one in enumerate(fingerprints) if one in found}
