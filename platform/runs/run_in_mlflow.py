"""The logger of a run in MLflow, during the run or afterwards, and its final model."""

from pathlib import Path
from typing import Any

import torch

from hedgerow.platform.common.servers import require_named
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.data import Dataset
from hedgerow.platform.runs.finished_run import saved_parameters
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runs.trained_model import TrainedModel
from hedgerow.platform.runtime.factory import Data, build_algorithms, task_on
from hedgerow.platform.tracking.run_description import NOTE, run_text, tags
from hedgerow.platform.tracking.run_folder import RunFolder, find_run
from hedgerow.platform.tracking.tracker import MlflowLogger, RunLog

PUSHES = 10
"""Multiple of `tracking.patience` that a push waits, since it may have to send all rounds."""


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
        save_final_model(folder, experiment, data or same_data(folder, experiment, None, fix="load"), target)

    return MlflowLogger(folder, open_store, save, times * experiment.tracking.patience, show, warnings)


def push(name: str, show: object = None) -> list[str]:
    """Send the records and the final model of a run that an unreachable server missed, see `MlflowLogger.push`."""
    folder = find_run(name)
    require_named(load_experiment(folder.experiment).tracking.uri, str(folder))
    return logger_of_run(folder, None, show, [], PUSHES).push(RunLog(folder.metrics).read())


def save_final_model(folder: RunFolder, experiment: Experiment, data: Data, target: Path) -> None:
    """Write the model of a run's last checkpoint in MLflow's format. Raises UserError, see `TrainedModel.module`."""
    (algorithm,) = build_algorithms([experiment], *data)
    trained = TrainedModel(folder.path, algorithm, saved_parameters(algorithm, folder))
    save_module(trained.module(experiment, data[0], folder.constants), data[0], target)


def save_module(module: torch.nn.Module, dataset: Dataset, folder: Path) -> None:
    """Write a trained model in MLflow's format."""
    # mlflow takes seconds to import.
    from hedgerow.platform.tracking.mlflow_store import save_model

    samples = task_on(dataset, module).prepare(torch.tensor(dataset.x_train[:2])).numpy()
    for part in module.modules():
        if hasattr(part, "train_mode"):
            part.train_mode = None  # type: ignore[assignment]  # a copy that is not recorded
    save_model(module, samples, folder)
