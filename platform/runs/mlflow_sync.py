"""Sends the records and the final model of a run to MLflow, during the run or afterwards."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
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
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runs.finished_run import saved_parameters
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runs.trained_model import filled
from hedgerow.platform.runtime.factory import build_module, task_on
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


def open_store(folder: RunFolder) -> Any:
    """Open the MLflow run of a run folder. The first call creates it and stores its id in run.json."""
    # Imported only here, in the tracker's thread, since mlflow takes seconds to import.
    from hedgerow.platform.tracking.mlflow_store import MlflowStore

    experiment, record = load_experiment(folder.experiment), folder.record()
    run_tags = tags(record, experiment) | {NOTE: run_text(folder)}
    return MlflowStore(experiment, folder.name, experiment.model_dump(mode="json"), run_tags, folder)


def push(name: str, show: object = None) -> list[str]:
    """Send local records that an unreachable server missed to MLflow, and the final model of a finished run.

    show: see `close_tracking`. Returns a sentence if the final model could not be created. Raises UserError if MLflow
    does not take the rest.
    """
    folder = find_run(name)
    experiment = load_experiment(folder.experiment)
    require_named(experiment.tracking.uri, str(folder))
    tracker = Tracker(lambda: open_store(folder), PUSHES * experiment.tracking.patience)
    for record in RunLog(folder.metrics).read():
        tracker.log(record)

    def save(target: Path) -> None:
        data = same_data(folder, experiment, None, fix="load")
        save_final_model(experiment, data[0], saved_parameters(experiment, folder, data), target)

    return finish_push(tracker, folder, save, partial(log_result, folder=folder), show)


def finish_push(
    tracker: Tracker, folder: RunFolder, save: Callable[[Path], None], result: Callable[[Any], None], show: object
) -> list[str]:
    """Close the MLflow run with the status of the run. Arguments: see `close_tracking`; result and errors: `push`."""
    status = folder.record()["status"]
    mlflow_status = {"finished": "FINISHED", "failed": "FAILED"}.get(status, "KILLED")
    try:
        warnings = _finish(tracker, mlflow_status, save if status == "finished" else None, result, show)
    except KeyboardInterrupt as error:
        raise Interrupted(folder, signal_of(error), f"`hedgerow push {folder.path}` continues") from None
    if tracker.error:
        raise UserError(
            f"tracking.uri: MLflow did not take the run ({tracker.error}); once its server is up, or its file can be "
            f"written, `hedgerow push {folder.path}` continues"
        )
    return warnings


def close_tracking(
    tracker: Tracker,
    folder: RunFolder,
    save: Callable[[Path], None] | None,
    result: Callable[[Any], None],
    show: object,
) -> list[str]:
    """Record the results of a finished run or search; returns a sentence for each part that MLflow did not take.

    save: writes the final model into a folder that it creates; None: there is no model. result: records files and
    description, given the store. show: a display; if it is `Noted`, it shows that this may take a while.
    """
    warnings = _finish(tracker, "FINISHED", save, result, show)
    if tracker.error:
        warnings.append(
            f"MLflow did not take everything ({tracker.error}); nothing is lost: it is all in {folder.path}, and "
            f"`hedgerow push {folder.path}` sends it later"
        )
    return warnings


def _finish(
    tracker: Tracker,
    status: str,
    save: Callable[[Path], None] | None,
    result: Callable[[Any], None],
    show: object,
) -> list[str]:
    warnings: list[str] = []
    models: list[Path] = []

    def closing(store: Any) -> None:
        result(store)
        for model in models:
            store.log_model(model)
        store.end(status)

    if isinstance(show, Noted):
        show.note(RECORDING)
    with ExitStack() as opened:
        try:
            # Not in the tracker's thread: a thread that is abandoned inside torch can abort the process.
            if save:
                temporary = TemporaryDirectory(prefix="hedgerow-model-", ignore_cleanup_errors=True)
                folder = Path(opened.enter_context(temporary))
                save(folder / "model")
                models += folder.iterdir()
        except Exception as error:  # a model that cannot be exported must not end a run
            warnings.append(f"the final model cannot be recorded in MLflow ({first_line(error)})")
        tracker.finish(closing)
    return warnings


def log_result(store: Any, folder: RunFolder) -> None:
    store.log_files(folder.path)
    store.describe(run_text(folder))


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
