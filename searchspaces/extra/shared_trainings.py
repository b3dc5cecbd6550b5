"""Shared trainings of table rows: one run serves every row whose experiment differs only in its scoring."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data.content_hash import content_hash
from hedgerow.platform.runtime.factory import Data
from hedgerow.platform.storage.checkpoint import latest_checkpoint, round_of
from hedgerow.platform.tracking.run_folder import RunFolder, source_commit, versions
from hedgerow.platform.tracking.summary import is_done
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.spaces.search_file import SearchSpec

SCORING: Any = {"name": True, "output": True, "tracking": True, "evaluation": {"targets", "target_metric", "stop"}}
"""Keys of an experiment that do not change its rounds, only their names, scores, records and number: a run that stopped
early at other targets continues from its last checkpoint, see `taken_over`."""


def training(experiment: Experiment) -> str:
    """Fingerprint of all settings that determine the rounds of a run; empty if some name the user's own classes, whose
    source may change."""
    values = experiment.model_dump(mode="json", exclude=SCORING)
    return "" if _names_own_class(values) else hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _names_own_class(value: Any, key: str = "") -> bool:
    if isinstance(value, dict):
        return any(_names_own_class(part, name) for name, part in value.items())
    if isinstance(value, list):
        return any(_names_own_class(part, key) for part in value)
    return key in ("name", "kind") and "." in value


def trainings(search: SearchSpec) -> list[str]:
    """Fingerprint of each configuration of a search."""
    return [training(search.trial(overrides)) for overrides in search.configurations]


def trained(folder: RunFolder) -> dict[str, RunFolder]:
    """Finished trials of a line's search, by their fingerprints."""
    experts = {
        fingerprint: expert_folder(folder.path, number)
        for number, fingerprint in enumerate(folder.record()["table"]["trainings"])
        if fingerprint
    }
    return {one: run for one, run in experts.items() if run.exists and run.record()["status"] == "finished"}


def trained_before(output: Path, lines: Sequence[str]) -> dict[str, RunFolder]:
    """Finished trials of earlier commands under `output` that ran in this environment, by their fingerprints.

    lines: lines to run now. Excludes their own earlier runs, and runs that continued another run: a line that is run
    again is trained again. Returns no trials if the commit of this package is unknown or has uncommitted changes.
    """
    commit, runs = source_commit(), dict[str, RunFolder]()
    if commit is None or commit.endswith("-dirty"):
        return runs
    here = {"status": "finished", "versions": versions(), "source_commit": commit}
    for file in sorted(output.glob("*/run.json")):
        # Skips damaged files, and files that do not belong to a run of a table.
        with suppress(UserError, OSError, KeyError, TypeError):
            record = RunFolder(file.parent).record()
            same = all(record.get(key) == value for key, value in here.items())
            if same and record["table"]["line"] not in lines and not record["table"].get("taken_from"):
                runs |= trained(RunFolder(file.parent))
    return runs


def taken_over(search: SearchSpec, data: Data, found: Mapping[str, RunFolder]) -> dict[int, RunFolder]:
    """Runs that trials continue instead of training from scratch, by the number of the trial.

    A run can continue as a trial if it ran on the same data, its last checkpoint and its metrics are intact, and the
    trial would not have stopped before.
    """
    trials = [search.trial(overrides) for overrides in search.configurations]
    runs = {number: found[one] for number, trial in enumerate(trials) if (one := training(trial)) in found}
    content = [content_hash(one) for one in data] if runs else []
    taken: dict[int, RunFolder] = {}
    for number, run in runs.items():
        with suppress(UserError, OSError):
            known, records = run.record().get("data") or {}, RunLog(run.metrics).read()
            latest = latest_checkpoint(run.checkpoints)
            ends = latest is not None and records and round_of(latest[0]) == records[-1]["round"]
            same = [known.get("dataset"), known.get("partition")] == content
            if ends and same and not is_done(trials[number], records[:-1]):
                taken[number] = run
    return taken
