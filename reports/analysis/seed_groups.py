"""Runs of one experiment with different seeds belong together."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hedgerow.reports.analysis.run_reader import Run
from hedgerow.searchspaces.results.trials import Trial, short_label, short_names

APART = ("name", "seed", "output", "resources", "engine", "checkpoints", "tracking")
"""Sections of the file that leave the numbers as they are, but for the seed and the last bits."""


CONTENT = "task.data.content"
"""Key of the content hash of the data set among an experiment's settings."""


@dataclass(frozen=True)
class Group:
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
        """The same for every run of the experiment."""
        return experiment_key(self.first)

    def mean(self, key: str) -> float:
        """Of a number that every run's summary has, over the seeds."""
        return float(np.mean([run.summary[key] for run in self.runs]))

    @property
    def settings(self) -> dict[str, Any]:
        """What makes the experiment, by dotted key."""
        return Trial("", _described(self.first), []).settings


def grouped(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """The experiments, in the order of their first runs; and sentences about runs that repeat another's seed.

    Files that agree but for their name, seed, and what `APART` lists besides, are of one experiment. Of runs that
    repeat a seed the last finished one counts, or the last where none is.
    """
    found: dict[str, dict[int, Run]] = {}
    notes: list[str] = []
    for run in sorted(runs, key=lambda run: str(run.record.get("created", ""))):
        mine = found.setdefault(experiment_key(run), {})
        before = mine.get(run.seed)
        if before and before.is_finished and not run.is_finished:
            notes.append(
                f"{run.folder.path} repeats {before.folder.path}, of the same seed, and is not finished: "
                "the earlier is shown alone."
            )
            continue
        if before:
            notes.append(f"{run.folder.path} repeats {before.folder.path}, of the same seed: it is shown alone.")
        mine[run.seed] = run
    order = dict.fromkeys(experiment_key(run) for run in runs)
    groups = [Group("", [found[key][seed] for seed in sorted(found[key])]) for key in order]
    return [replace(group, label=label) for group, label in zip(groups, _labels(groups), strict=True)], notes


def differing(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """One row per key of the file in which experiments differ: the key, then each one's value, by label."""
    return [
        {"key": key} | {group.label: group.settings.get(key) for group in groups} for key in _differing_keys(groups)
    ]


def _content(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.values.items() if key not in APART}


def experiment_key(run: Run) -> str:
    """What runs of one experiment, and no others, have in common."""
    content = _content(run)
    if known := run.record.get("data"):
        # Equal arrays are the same task, whatever they are called. The seed draws a partition of its own.
        task = content["task"] | {"data": known["dataset"]}
        content["task"] = task if known["drawn"] else task | {"partition": known["partition"]}
    return json.dumps([run.heading, content], sort_keys=True)


def _described(run: Run) -> dict[str, Any]:
    """The content of a run's file, with the names and the content of arrays that the caller gave."""
    content = _content(run)
    if known := run.record.get("data"):
        data = content["task"]["data"] | {"content": known["dataset"][:8]}
        task = content["task"] | {"data": data | {"name": known["name"]} if known["own"] else data}
        own = {} if known["drawn"] else {"partition": {"kind": "own", "content": known["partition"][:8]}}
        content["task"] = task | own
    return content


def _differing_keys(groups: Sequence[Group]) -> list[str]:
    settings = [group.settings for group in groups]
    keys = dict.fromkeys(key for one in settings for key in one)
    differing = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
    # Two data sets are told apart by their names and options where these differ.
    configured = [key for key in differing if key != CONTENT]
    return configured if any(key.startswith("task.data.") for key in configured) else differing


def _labels(groups: list[Group]) -> list[str]:
    """The shortest that tell them apart: by name, by what a table calls the method, by algorithm, then by setting."""
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
