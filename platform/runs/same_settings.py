"""Checks that a run continues with the settings that it started with, as they are in run.json."""

from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import read_file
from hedgerow.platform.config.privacy_section import MECHANISM
from hedgerow.platform.config.resources import Device
from hedgerow.platform.storage.checkpoint import latest_checkpoint, round_of
from hedgerow.platform.tracking.run_folder import RunFolder, now

FREE = {"name", "output", "tracking", "checkpoints"}
"""Sections and keys without influence on the numbers of a run or a search."""

FREE_RESOURCES = {"executor", "actors", "cpus_per_actor", "gpus_per_actor", "placement", "timeout", "memory_mb"}
"""Keys of `resources` that do not change bits: a resumed run keeps its recorded number of parts, and its plans."""

FREE_OF_A_RUN = {"targets", "target_metric", "stop", "patience", "allow_test_selection", "confusion_matrix"}
"""Keys of `evaluation` that only decide when a run ends, and what it writes."""

NAMED = 5
"""Number of changed settings that a sentence names."""


def decisive_settings(experiment: Experiment, device: Device, search: dict[str, Any] | None = None) -> dict[str, Any]:
    """Values of the settings that determine an experiment's numbers, by dotted path.

    device: on which its clients compute. search: the section `search`, whose trials depend on rounds and targets, too.
    """
    values = _decisive(experiment.model_dump(mode="json"))
    values["resources"]["device"] = device
    if search is not None:
        return _flat(values | {"search": search})
    values["evaluation"] = {key: value for key, value in values["evaluation"].items() if key not in FREE_OF_A_RUN}
    privacy = experiment.privacy
    if not experiment.task.partition.is_stream and (privacy is None or privacy.target_epsilon is None):
        del values["rounds"]
    return _flat(values)


def same_settings(folder: RunFolder, settings: dict[str, Any], accept: bool) -> None:
    """Compare the settings in a run's or a search's file, see `decisive_settings`, with those that it started with.

    accept: record differences, and continue with the file. Raises UserError if there are differences otherwise, or if
    the rounds of a private run would not be alike.
    """
    record = folder.record()
    before = record.get("settings", settings)
    changes = changed_settings(before, settings)
    if not changes:
        return
    if "privacy.delta" in {**before, **settings}:
        keys = MECHANISM | {"rounds"} if settings.get("privacy.target_epsilon") is not None else MECHANISM
        if unlike := {key: values for key, values in changes.items() if key in keys}:
            raise UserError(
                f"{folder.experiment}: {changes_text(unlike)} cannot change during a private run, since epsilon is "
                "that of rounds that are alike; restore the file, or start a new run"
            )
    if not accept:
        verb = "differs" if len(changes) == 1 else "differ"
        raise UserError(
            f"{folder.experiment}: {changes_text(changes)} {verb} from what it started with; restore the file, "
            f"or continue with the new values: `hedgerow resume {folder} --changed`"
        )
    latest = latest_checkpoint(folder.checkpoints)
    note = {"time": now(), "settings": changes, **({"round": round_of(latest[0])} if latest else {})}
    folder.update(settings=settings, changes=[*record.get("changes", []), note])


def kept_settings_warning(folder: RunFolder, values: dict[str, Any]) -> str | None:
    """Sentence about the settings of a command that a run, which keeps its own, does not have; None if there are none.

    values: resolved file of the command.
    """
    known, _ = read_file(folder.experiment, imports=False)
    changes = changed_settings(*(_flat(_decisive(one)) for one in (known, values)))
    what = f"{folder} keeps its own settings, and this command has others: {changes_text(changes)}"
    return f"{what}; start a new run for them" if changes else None


def _decisive(values: dict[str, Any]) -> dict[str, Any]:
    """Sections and keys of a resolved file, without those that do not change results."""
    resources = {key: value for key, value in values["resources"].items() if key not in FREE_RESOURCES}
    return {key: value for key, value in values.items() if key not in FREE} | {"resources": resources}


def changed_settings_warnings(record: dict[str, Any]) -> list[str]:
    """A sentence for each time that a run has continued with other settings. record: its run.json."""
    sentences = []
    for note in record.get("changes", []):
        when = f"after round {note['round']}" if "round" in note else f"at {note['time']}"
        sentences.append(f"settings were changed {when}: {changes_text(note['settings'])}")
    return sentences


def changed_settings(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """Dotted path -> [value before, value now], of the settings that differ. A missing setting counts as null."""
    keys = dict.fromkeys([*before, *now])
    pairs = {key: [before.get(key), now.get(key)] for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def changes_text(changes: dict[str, list[Any]]) -> str:
    """Names of changed settings with their values, for a sentence."""
    named = [f"{key} ({_text(before)} -> {_text(now)})" for key, (before, now) in list(changes.items())[:NAMED]]
    others = len(changes) - len(named)
    return ", ".join(named) + (f" and {others} more" if others else "")


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Leaves of nested sections, and of lists of sections, by dotted path."""
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {path: value}
    return {
        key: leaf
        for name, entry in value.items()
        for key, leaf in _flat(entry, f"{path}.{name}" if path else str(name)).items()
    }
