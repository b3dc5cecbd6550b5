"""The logger that records a run or a search in MLflow, during it or afterwards."""

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import torch

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.common.errors import Interrupted, UserError, first_line
from hedgerow.platform.common.servers import require_named
from hedgerow.platform.common.signals import signal_of
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.data import Dataset
from hedgerow.platform.loggers.logger import LoggedRun, Logger, Record
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runs.finished_run import saved_parameters
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runs.trained_model import filled
from hedgerow.platform.runtime.factory import Data, build_module, task_on
from hedgerow.platform.tracking.run_description import NOTE, run_text, tags
from hedgerow.platform.tracking.run_folder import RunFolder, find_run
from hedgerow.platform.tracking.tracker import RunLog, Tracker

PUSHES = 10
"""Multiple of `tracking.patience` that a push waits, since it may have to send all rounds."""

RECORDING = "recording in MLflow ... (Ctrl-C ends the wait)"


@runtime_checkable
class Noted(Protocol):
    """Display that also shows a sentence about the current activity."""

    def note(self, text: str) -> None: ...


class MlflowLogger(Logger):
    """Records a run or a search in MLflow, from a thread of its own.

    open_store: opens the store; the first call creates the MLflow run. save: writes the final model into a folder that
    it creates, if there is a model. patience: see Tracker. show: a display; if it is `Noted`, it shows that the end may
    take a while. warnings: receives a sentence for each part that MLflow did not take.
    """

    def __init__(
        self,
        folder: RunFolder,
        open_store: Callable[[], Any],
        save: Callable[[Path], None],
        patience: float,
        show: object,
        warnings: list[str],
    ):
        self.folder, self.save, self.show, self.warnings = folder, save, show, warnings
        self._tracker = Tracker(open_store, patience)

    def start(self, run: LoggedRun) -> None:
        for record in run.history:
            self.log(record)

    def log(self, record: Record) -> None:
        self._tracker.log(record)

    def end(self, status: str, summary: dict[str, Any]) -> None:
        if status != "finished":
            self._tracker.finish(lambda store: store.end("FAILED" if status == "failed" else "KILLED"))
            return
        if isinstance(self.show, Noted):
            self.show.note(RECORDING)
        with TemporaryDirectory(prefix="hedgerow-model-", ignore_cleanup_errors=True) as temporary:
            models: list[Path] = []
            try:
                # Not in the tracker's thread: a thread that is abandoned inside torch can abort the process.
                self.save(Path(temporary) / "model")
                models += Path(temporary).iterdir()
            except Exception as error:  # a model that cannot be exported must not end a run
                self.warnings.append(f"the final model cannot be recorded in MLflow ({first_line(error)})")
            self._tracker.finish(lambda store: store.finish(models))
        if self.error:
            self.warnings.append(self.error)

    @property
    def error(self) -> str | None:
        """Sentence on what MLflow did not take; None if it has everything."""
        return self._tracker.error and (
            f"tracking.uri: MLflow did not take the run ({self._tracker.error}); nothing is lost: it is all in "
            f"{self.folder}; once the server is up, or its file can be written, `hedgerow push {self.folder}` sends it"
        )

    def push(self, records: Iterable[Record]) -> list[str]:
        """Send the records of a run that has ended, and its end; returns a sentence if there is no final model. Raises
        UserError if MLflow does not take the rest.
        """
        for record in records:
            self.log(record)
        try:
            self.end(self.folder.record()["status"], {})
        except KeyboardInterrupt as error:
            advice = f"`hedgerow push {self.folder}` continues"
            raise Interrupted(self.folder.path, signal_of(error), advice) from None
        if self.error:
            raise UserError(self.error)
        return self.warnings


def logger_of_run(
    folder: RunFolder, data: Data | None, show: object, warnings: list[str], times: int = 1
) -> MlflowLogger:
    """Logger of a run. data: its data set and partition; None: read when its model is saved. times: multiple of
    `tracking.patience` to wait for MLflow.
    """
    experiment = load_experiment(folder.experiment)

    def open_store() -> Any:
        # Imported only here, in the tracker's thread, since mlflow takes seconds to import.
        from hedgerow.platform.tracking.mlflow_store import MlflowStore

        run_tags = tags(folder.record(), experiment) | {NOTE: run_text(folder)}
        return MlflowStore(experiment, folder.name, experiment.model_dump(mode="json"), run_tags, folder)

    def save(target: Path) -> None:
        known = data or same_data(folder, experiment, None, fix="load")
        save_final_model(experiment, known[0], saved_parameters(experiment, folder, known), target, folder.constants)

    return MlflowLogger(folder, open_store, save, times * experiment.tracking.patience, show, warnings)


def push(name: str, show: object = None) -> list[str]:
    """Send the records and the final model of a run that an unreachable server missed, see `MlflowLogger.push`."""
    folder = find_run(name)
    require_named(load_experiment(folder.experiment).tracking.uri, str(folder))
    return logger_of_run(folder, None, show, [], PUSHES).push(RunLog(folder.metrics).read())


def save_final_model(
    experiment: Experiment, dataset: Dataset, parameters: Tree, folder: Path, constants: str | None = None
) -> None:
    """Write the model with these parameters (arrays), which may be those of a sub-model, in MLflow's format.

    Frozen parameters are not among them, and have the values that the model's constructor gives them.
    constants: their fingerprint in the run's record, see `compare_constants`. Raises UserError if they differ.
    """
    from hedgerow.platform.tracking.mlflow_store import save_model

    module = build_module(experiment, dataset)
    compare_constants(module, constants)
    samples = task_on(dataset, module).prepare(torch.tensor(dataset.x_train[:2])).numpy()
    trained = filled(module, parameters)
    trained.train_mode = None  # type: ignore[assignment]  # a copy that is not recorded
    save_model(trained, samples, folder)
