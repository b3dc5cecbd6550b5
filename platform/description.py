"""What MLflow's page says of a run, beside its numbers: tags and a Markdown text. Does not import mlflow."""

import getpass
import hashlib
import json
from pathlib import Path
from typing import Any

from hedgerow.platform.experiment import Experiment
from hedgerow.platform.experiment_file import load_experiment
from hedgerow.platform.runs import RunFolder
from hedgerow.platform.section import Section
from hedgerow.platform.terminal import summary_cells

NOTE = "mlflow.note.content"
"""The tag that holds a run's description."""


def tags(record: dict[str, Any], experiment: Experiment) -> dict[str, str]:
    """Where the numbers of a run come from, and what of its file one looks for in a list. record: its run.json."""
    task, commit = experiment.task, record["git_commit"]
    return {
        "git_commit": commit or "none",
        **record["versions"],
        "algorithm": experiment.algorithm.name,
        "data": task.data.name,
        "partition": task.partition.kind,
        "model": str(getattr(task.model, "name", "")),
        "seed": str(experiment.seed),
        **({"clients": str(clients)} if (clients := _clients(experiment)) else {}),
        "mlflow.user": _user(),
        **({"mlflow.source.git.commit": commit.removesuffix("-dirty")} if commit else {}),
        **_source(record["command"]),
    }


def data_digest(experiment: Experiment) -> tuple[str, str]:
    """What tells apart the data of two runs (8 digits), and what it is made of, as JSON."""
    task = experiment.task.model_dump(mode="json", include={"data", "partition"}) | {"seed": experiment.seed}
    text = json.dumps(task, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8], text


def run_text(folder: RunFolder) -> str:
    """The description of a run: what is learnt, the result, once there is one, and the settings."""
    experiment, summary = load_experiment(folder.experiment), folder.record().get("summary")
    result = f"\n{markdown_pairs(summary_cells(summary))}" if summary else ""
    return f"{sentence(experiment)}{result}{settings(experiment)}\nFolder: `{folder.path.absolute()}`\n"


def sentence(experiment: Experiment) -> str:
    """What is learnt."""
    task, clients, share = experiment.task, _clients(experiment), experiment.participation
    who = f"{clients} clients by `{task.partition.kind}`" if clients else f"`{task.partition.kind}`"
    part = f"{share:.0%} of them" if share is not None else f"{experiment.clients_per_round} of them"
    return (
        f"**{experiment.algorithm.name}** learns `{getattr(task.model, 'name', '')}` on `{task.data.name}`: {who}"
        f"{f', {part} in a round' if clients else ''}, {experiment.rounds} rounds, seed {experiment.seed}.\n"
    )


def settings(experiment: Experiment) -> str:
    """A table of the settings that are not the defaults."""
    task = experiment.task
    sections = {"algorithm": experiment.algorithm, "model": task.model, "data": task.data, "partition": task.partition}
    rows = {name: text for name, section in sections.items() if (text := _settings(section))}
    return f"\n## Settings\n\n{markdown_pairs(rows)}" if rows else ""


def markdown_pairs(rows: dict[str, str]) -> str:
    """A table of two columns without headings."""
    lines = [f"| {key} | {' '.join(value.replace('|', '/').split())} |\n" for key, value in rows.items()]
    return "".join(["| | |\n", "|---|---|\n", *lines])


def _settings(section: Section) -> str:
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
