"""TensorBoard: the metrics of a run as an event file in its folder."""

import shutil
from typing import Any

from tensorboardX import SummaryWriter

from hedgerow.platform.loggers.logger import LoggedRun, Logger, Record
from hedgerow.platform.loggers.metric_groups import grouped


class TensorBoardLogger(Logger):
    """Writes `tensorboard/` in the run folder; `tensorboard --logdir runs` shows all runs."""

    def start(self, run: LoggedRun) -> None:
        folder = run.folder / "tensorboard"
        # A resumed run repeats rounds after its checkpoint, so its file is written anew from the records.
        shutil.rmtree(folder, ignore_errors=True)
        self.writer = SummaryWriter(str(folder), flush_secs=10)
        for record in run.history:
            self.log(record)

    def log(self, record: Record) -> None:
        for name, value in record.items():
            if name != "round":
                self.writer.add_scalar(grouped(name), value, record["round"])

    def end(self, status: str, summary: dict[str, Any]) -> None:
        self.writer.close()
