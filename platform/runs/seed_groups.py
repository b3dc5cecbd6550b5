"""Groups the runs of one experiment, which differ only in their seeds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.runs.same_settings import changed_settings_warnings
from hedgerow.platform.tracking.formatting import flat_settings, short_label, short_names

NOT_COMPARED = ("name", "seed", "seeds", "output", "resources", "engine", "checkpoints", "tracking")
"""Keys of the file that do not distinguish experiments: numbers differ only by the seed and in the last bits."""


CONTENT = "task.data.content"
"""Key of the content hash of the data set among an experiment's settings."""


@dataclass(frozen=True)
class SeedGroup:
    """Runs of the same experiment, one per seed, in the order of their seeds."""

    label: str
    runs: list[Run]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def key(self) -> str:
        """The key of the experiment, equal for all its runs."""
        return experiment_key(self.first)

    def mean(self, key: str) -> float:
        """Mean over the seeds of a number in the summary."""
        return float(np.mean([run.summary[key] for run in self.runs]))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the experiment by dotted key."""
        return flat_settings(_described(self.first))


def group_by_seed(runs: Sequence[Run]) -> tuple[list[SeedGroup], list[str]]:
    """Returns the experiments, in the order of their first runs, and sentences about runs that repeat a seed or have
    continued with other settings.

    Files that differ only in keys of `NOT_COMPARED` belong to one experiment. Among runs with the same seed, the last
    finished one counts, or the last one if none has finished.
    """
    runs_by_seed: dict[str, dict[int, Run]] = {}
    notes: list[str] = []
    for run in sorted(runs, key=lambda run: str(run.record.get("created", ""))):
        group_runs = runs_by_seed.setdefault(experiment_key(run), {})
        previous = group_runs.get(run.seed)
        if previous and previous.is_finished and not run.is_finished:
            notes.append(
                f"{run.folder.path} repeats {previous.folder.path} with the same seed and is not finished: "
                "only the earlier run is shown."
            )
            continue
        if previous:
            notes.append(f"{run.folder.path} repeats {previous.folder.path} with the same seed: only it is shown.")
        group_runs[run.seed] = run
    order = dict.fromkeys(experiment_key(run) for run in runs)
    groups = [SeedGroup("", [runs_by_seed[key][seed] for seed in sorted(runs_by_seed[key])]) for key in order]
    for run in (run for group in groups for run in group.runs):
        notes += [f"{run.folder.path}: {sentence}." for sentence in changed_settings_warnings(run.record)]
    return [replace(group, label=label) for group, label in zip(groups, _labels(groups), strict=True)], notes


def differing_settings(groups: Sequence[SeedGroup]) -> list[dict[str, Any]]:
    """One row per key of the file in which experiments differ: the key, and the value of each experiment by label."""
    return [
        {"key": key} | {group.label: group.settings.get(key) for group in groups} for key in _differing_keys(groups)
    ]


def _content(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.values.items() if key not in NOT_COMPARED}


def experiment_key(run: Run) -> str:
    """Key that is equal for the runs of one experiment and differs between experiments."""
    content = _content(run)
    if data_record := run.record.get("data"):
        # Equal arrays are the same task, whatever their names. A partition that is drawn depends on the seed.
        task = content["task"] | {"data": data_record["dataset"]}
        content["task"] = task if data_record["drawn"] else task | {"partition": data_record["partition"]}
    return json.dumps([run.heading, content], sort_keys=True)


def _described(run: Run) -> dict[str, Any]:
    """The content of a run's file, with names and content hashes of arrays that the caller passed."""
    content = _content(run)
    if data_record := run.record.get("data"):
        data = content["task"]["data"] | {"content": data_record["dataset"][:8]}
        task = content["task"] | {"data": data | {"name": data_record["name"]} if data_record["own"] else data}
        own = {} if data_record["drawn"] else {"partition": {"kind": "own", "content": data_record["partition"][:8]}}
        content["task"] = task | own
    return content


def _differing_keys(groups: Sequence[SeedGroup]) -> list[str]:
    settings = [group.settings for group in groups]
    keys = dict.fromkeys(key for one in settings for key in one)
    differing = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
    # If names or options of the data sets differ, they suffice to distinguish them.
    option_keys = [key for key in differing if key != CONTENT]
    return option_keys if any(key.startswith("task.data.") for key in option_keys) else differing


def _labels(groups: list[SeedGroup]) -> list[str]:
    """Shortest distinct labels, built from the name, the method's name in a table, the algorithm, then settings."""
    labels = [""] * len(groups)
    steps = [lambda g: g.first.name, lambda g: g.first.heading, lambda g: g.first.values["algorithm"]["name"]]

    def name(some: list[int], said: list[str], level: int) -> None:
        if len(some) == 1:
            labels[some[0]] = " ".join(said) or groups[some[0]].first.name
            return
        if level == len(steps):
            keys = _differing_keys([groups[i] for i in some])
            names = short_names(keys)
            for i in some:
                settings = {key: groups[i].settings[key] for key in keys if key in groups[i].settings}
                labels[i] = " ".join([*said, short_label(settings, names)])
            return
        parts: dict[str, list[int]] = {}
        for i in some:
            parts.setdefault(steps[level](groups[i]), []).append(i)
        for part, members in parts.items():
            name(members, [*said, part] if len(parts) > 1 and part else said, level + 1)

    name(list(range(len(groups))), [], 0)
    return labels
