"""What MLflow's page says of a run, beside its numbers: tags and a Markdown text. Does not import mlflow."""

import getpass
import hashlib
import json
from pathlib import Path
from typing import Any

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.tracking.formatting import summary_cells
from hedgerow.platform.tracking.run_folder import RunFolder

NOTE = "mlflow.note.content"
"""The tag that holds a run's description."""


def tags(record: dict[str, Any], experiment: Experiment) -> dict[str, str]:
    """Where the numbers of a run come from, and what of its file one looks for in a list. record: its run.json."""
    task, commit = experiment.task, record["git_commit"]
    return {
        "git_commit": commit or "none",
        **record["versions"],
        "algorithm": experiment.algorithm.name,
        "data": data_name(record, experiment),
        "partition": task.partition.kind,
        "model": str(getattr(task.model, "name", "")),
        "seed": str(experiment.seed),
        **({"clients": str(clients)} if (clients := _clients(experiment)) else {}),
        "mlflow.user": _user(),
        **({"mlflow.source.git.commit": commit.removesuffix("-dirty")} if commit else {}),
        **_source(record["command"]),
    }


def data_name(record: dict[str, Any], experiment: Experiment) -> str:
    """Name of the data set: of the caller's arrays, where a run was given any, else the one that the file names."""
    known = record.get("data") or {}
    return known["name"] if known.get("own") else experiment.task.data.name


def data_digest(record: dict[str, Any], experiment: Experiment) -> tuple[str, str]:
    """Short content hashes of data set and partition, joined, and where they come from, as JSON. record: its run.json.

    Where no hash is recorded, in old run folders and for partitions that a trial draws, the configuration is hashed.
    """
    known = record.get("data") or {}
    task = experiment.task.model_dump(mode="json", include={"data", "partition"}) | {"seed": experiment.seed}
    configured = hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()
    parts = [(known.get(name) or configured)[:8] for name in ("dataset", "partition")]
    return "-".join(parts), json.dumps(task | {"content": known}, sort_keys=True)


def run_text(folder: RunFolder) -> str:
    """The description of a run: what is learnt, the result, once there is one, and the settings."""
    experiment, record = load_experiment(folder.experiment), folder.record()
    summary = record.get("summary")
    result = f"\n{markdown_pairs(summary_cells(summary))}" if summary else ""
    return f"{sentence(record, experiment)}{result}{settings(experiment)}\nFolder: `{folder.path.absolute()}`\n"


def sentence(record: dict[str, Any], experiment: Experiment) -> str:
    """What is learnt. record: run.json of the run."""
    task, clients, share = experiment.task, _clients(experiment), experiment.participation
    who = f"{clients} clients by `{task.partition.kind}`" if clients else f"`{task.partition.kind}`"
    data = data_name(record, experiment)
    part = f"{share:.0%} of them" if share is not None else f"{experiment.clients_per_round} of them"
    return (
        f"**{experiment.algorithm.name}** learns `{getattr(task.model, 'name', '')}` on `{data}`: {who}"
        f"{f', {part} in a round' if clients else ''}, {experiment.rounds} rounds, seed {experiment.seed}.\n"
    )


def settings(experiment: Experiment) -> str:
    """A table of the settings that are not the defaults."""
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
    return f"\n## Settings\n\n{markdown_pairs(rows)}" if rows else ""


def markdown_pairs(rows: dict[str, str]) -> str:
    """A table of two columns without headings."""
    lines = [f"| {key} | {' '.join(value.replace('|', '/').split())} |\n" for key, value in rows.items()]
    return "".join(["| | |\n", "|---|---|\n", *lines])


def _settings(section: Settings) -> str:
    values = section.model_dump(mode="json", exclude_defaults=True, exclude={"name", "kind"})
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())


def _clients(experiment: Experiment) -> int | None:
    """As many as the file says; of natural partitions it does not, and streams have none."""
    clients = getattr(experiment.task.partition, "clients", None)
    return clients if isinstance(clients, int) else None


def _source(command: list[str]) -> dict[str, str]:
    """What was started: a command, or the kernel of a notebook."""
    program = Path(command[0]).name if command else ""
    if program.startswith("ipykernel"):
        return {"mlflow.source.type": "NOTEBOOK", "mlflow.source.name": "notebook"}
    return {"mlflow.source.type": "LOCAL", "mlflow.source.name": " ".join([program, *command[1:]])[:500]}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
