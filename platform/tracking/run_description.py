"""Tags and Markdown description of a run for MLflow's page. Does not import mlflow."""

import getpass
import hashlib
import json
from pathlib import Path
from typing import Any

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.platform.common.numbers import short_percent
from hedgerow.platform.common.table import Table
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.tracking.formatting import summary_table
from hedgerow.platform.tracking.run_folder import RunFolder

NOTE = "mlflow.note.content"
"""Tag that holds the description of a run."""


def tags(record: dict[str, Any], experiment: Experiment) -> dict[str, str]:
    """Tags with the origin of a run's numbers, and the settings to filter runs by. record: its run.json."""
    task, commit = experiment.task, record["git_commit"]
    return {
        "git_commit": commit or "none",
        **record["versions"],
        "algorithm": experiment.algorithm.name,
        "dataset": data_name(record, experiment),
        "partition": task.partition.kind,
        "model": str(getattr(task.model, "name", "")),
        "seed": str(experiment.seed),
        **({"clients": str(clients)} if (clients := _clients(experiment)) else {}),
        "mlflow.user": _user(),
        **({"mlflow.source.git.commit": commit.removesuffix("-dirty")} if commit else {}),
        **_source(record["command"]),
    }


def data_name(record: dict[str, Any], experiment: Experiment) -> str:
    """Name of the data set: of the caller's arrays if the run was given any, else the one in the file."""
    entry = record.get("data") or {}
    return entry["name"] if entry.get("own") else experiment.task.data.name


def data_digest(record: dict[str, Any], experiment: Experiment) -> tuple[str, str]:
    """Joined short content hashes of data set and partition, and their source as JSON. record: run.json of the run.

    If no hash is recorded, in old run folders and for partitions that a trial draws, the configuration is hashed.
    """
    entry = record.get("data") or {}
    task = experiment.task.model_dump(mode="json", include={"data", "partition"}) | {"seed": experiment.seed}
    configured = hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()
    parts = [(entry.get(name) or configured)[:8] for name in ("dataset", "partition")]
    return "-".join(parts), json.dumps(task | {"content": entry}, sort_keys=True)


def run_text(folder: RunFolder) -> str:
    """Description of a run: its task, the result if there is one, and the settings."""
    experiment, record = load_experiment(folder.experiment), folder.record()
    summary = record.get("summary")
    result = f"\n{_pairs(summary_table([('', summary)]).texts[0])}" if summary else ""
    return f"{sentence(record, experiment)}{result}{settings(experiment)}\nFolder: `{folder.path.absolute()}`\n"


def sentence(record: dict[str, Any], experiment: Experiment) -> str:
    """Sentence about the algorithm and the task of a run. record: its run.json."""
    task, clients, share = experiment.task, _clients(experiment), experiment.clients_per_round
    who = f"{clients} clients by `{task.partition.kind}`" if clients else f"`{task.partition.kind}`"
    data = data_name(record, experiment)
    part = f"{short_percent(share) if isinstance(share, float) else share} of them"
    return (
        f"**{experiment.algorithm.name}** learns `{getattr(task.model, 'name', '')}` on `{data}`: {who}"
        f"{f', {part} in a round' if clients else ''}, {experiment.rounds} rounds, seed {experiment.seed}.\n"
    )


def settings(experiment: Experiment) -> str:
    """Table of the settings that differ from the defaults."""
    task = experiment.task
    sections = {"algorithm": experiment.algorithm, "model": task.model, "data": task.data, "partition": task.partition}
    rows = {name: text for name, section in sections.items() if (text := _settings(section))}
    if experiment.aggregation.is_filled:
        rows["aggregation"] = _settings(experiment.aggregation)
    slots: dict[str, Settings] = {f"transforms.{i}": transform for i, transform in enumerate(experiment.transforms)}
    slots |= {} if experiment.objective is None else {"objective": experiment.objective}
    rows |= {
        name: ", ".join(filter(None, [getattr(slot, "kind", ""), _settings(slot)])) for name, slot in slots.items()
    }
    return f"\n## Settings\n\n{_pairs(rows)}" if rows else ""


def _pairs(rows: dict[str, str]) -> str:
    return Table([{"": name, " ": text} for name, text in rows.items()]).markdown()


def _settings(section: Settings) -> str:
    values = section.model_dump(mode="json", exclude_defaults=True, exclude={"name", "kind"})
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())


def _clients(experiment: Experiment) -> int | None:
    """Number of clients in the file; None for natural partitions and streams."""
    clients = getattr(experiment.task.partition, "clients", None)
    return clients if isinstance(clients, int) else None


def _source(command: list[str]) -> dict[str, str]:
    """Tags with the program that started the run: a command, or the kernel of a notebook."""
    program = Path(command[0]).name if command else ""
    if program.startswith("ipykernel"):
        return {"mlflow.source.type": "NOTEBOOK", "mlflow.source.name": "notebook"}
    return {"mlflow.source.type": "LOCAL", "mlflow.source.name": " ".join([program, *command[1:]])[:500]}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
