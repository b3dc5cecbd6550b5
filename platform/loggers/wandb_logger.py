"""Weights & Biases: the metrics and settings of a run as a run of a project."""

from hashlib import sha256
from typing import Any

from hedgerow.platform.common.errors import optional_package
from hedgerow.platform.loggers.logger import LoggedRun, Logger, Record
from hedgerow.platform.loggers.metric_groups import grouped


class WandbLogger(Logger):
    """Logs to Weights & Biases. A resumed run continues the same run there.

    project, entity: as in wandb.init. mode: online, offline or disabled; None: by the environment variable WANDB_MODE.
    """

    def __init__(self, project: str = "hedgerow", entity: str | None = None, mode: str | None = None):
        with optional_package("tracking.also: wandb needs the package `wandb`", "wandb"):
            import wandb
        self.wandb: Any = wandb
        self.place = {"project": project, "entity": entity, "mode": mode}

    def start(self, run: LoggedRun) -> None:
        self.run: Any = self.wandb.init(
            **self.place,
            id=sha256(str(run.folder).encode()).hexdigest()[:16],
            name=run.name,
            dir=run.folder,
            config=run.settings,
            resume="allow",
            reinit="create_new",
            settings=self.wandb.Settings(silent=True, console="off"),
        )
        # W&B ignores rounds that it has already.
        for record in run.history:
            self.log(record)

    def log(self, record: Record) -> None:
        values = {grouped(name): value for name, value in record.items() if name != "round"}
        self.run.log(values, step=record["round"])

    def end(self, status: str, summary: dict[str, Any]) -> None:
        self.run.finish(exit_code=0 if status == "finished" else 1)
