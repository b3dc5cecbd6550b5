"""Shared trainings of table rows: one run serves every row whose experiment differs only in its scoring."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import read_experiment
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
    """Fingerprint of all settings that determine the rounds of a run."""
    values = json.dumps(experiment.model_dump(mode="json", exclude=SCORING), sort_keys=True)
    return hashlib.sha256(values.encode()).hexdigest()


def trainings(search: SearchSpec) -> list[str]:
    """Fingerprint of each configuration of a search."""
    return [training(search.trial(overrides)) for overrides in search.configurations]


def trained(folder: RunFolder) -> dict[str, RunFolder]:
    """Finished trials of a line's search, by their fingerprints."""
    experts = {
        fingerprint: expert_folder(folder.path, number)
        for number, fingerprint in enumerate(folder.record()["table"].get("trainings", []))
    }
    return {
        fingerprint: expert
        for fingerprint, expert in experts.items()
        if expert.exists and expert.record()["status"] == "finished"
    }


def trained_before(output: Path, lines: Sequence[str]) -> dict[str, RunFolder]:
    """Finished trials of earlier commands under `output` that ran in this environment, by their fingerprints.

    lines: lines to run now. Excludes their own earlier runs, and runs that continued another run: a line that is run
    again is trained again. Also excludes runs of the user's own classes, whose source may have changed. Returns no
    trials if the commit of this package is unknown or has uncommitted changes.
    """
    commit, runs = source_commit(), dict[str, RunFolder]()
    if commit is None or commit.endswith("-dirty"):
        return runs
    here = {"status": "finished", "versions": versions(), "source_commit": commit}
    for file in sorted(output.glob("*/run.json")):
        # Skips damaged files, and files that do not belong to a run of a table.
        with suppress(UserError, OSError, KeyError, TypeError):
            folder = RunFolder(file.parent)
            record = folder.record()
            table = record["table"]
            same = all(record.get(key) == value for key, value in here.items())
            if same and table["line"] not in lines and not table.get("taken_from"):
                runs |= {one: run for one, run in trained(folder).items() if not _names_own_class(run)}
    return runs


def taken_over(search: SearchSpec, data: Data, found: Mapping[str, RunFolder]) -> dict[int, RunFolder]:
    """Runs that trials continue instead of training from scratch, by the number of the trial."""
    trials = [search.trial(overrides) for overrides in search.configurations]
    runs = {number: found.get(training(trial)) for number, trial in enumerate(trials)}
    content = [content_hash(one) for one in data] if any(runs.values()) else []
    return {number: run for number, run in runs.items() if run and _can_continue(run, trials[number], content)}


def _can_continue(run: RunFolder, experiment: Experiment, content: list[str]) -> bool:
    """Whether a finished run can continue as this experiment: it ran on the same data, its last checkpoint and its
    metrics are intact, and the experiment would not have stopped before.

    content: hashes of data set and partition.
    """
    with suppress(UserError, OSError):
        known, records = run.record().get("data") or {}, RunLog(run.metrics).read()
        latest = latest_checkpoint(run.checkpoints)
        return (
            latest is not None
            and bool(records)
            and round_of(latest[0]) == records[-1]["round"]
            and not is_done(experiment, records[:-1])
            and [known.get("dataset"), known.get("partition")] == content
        )
    return False


def _names_own_class(run: RunFolder) -> bool:
    """Whether the experiment of a run names a class by its dotted path."""
    experiment = read_experiment(run.experiment)
    task = experiment.task
    sections = [experiment.algorithm, task.model, task.problem, task.teacher and task.teacher.model]
    slots = [experiment.aggregation.rule, *experiment.transforms, experiment.objective]
    names = [getattr(section, "name", "") for section in sections]
    return any("." in name for name in [*names, *(slot.kind for slot in slots if slot)])
