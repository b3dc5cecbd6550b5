"""The logger of a run in MLflow, during the run or afterwards, and its final model."""

from pathlib import Path
from typing import Any

import torch

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.common.servers import require_named
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.data import Dataset
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runs.finished_run import saved_parameters
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runs.trained_model import filled
from hedgerow.platform.runtime.factory import Data, build_module, task_on
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
    module = build_module(experiment, dataset)
    compare_constants(module, constants)
    save_module(filled(module, parameters), dataset, folder)


def save_module(module: torch.nn.Module, dataset: Dataset, folder: Path) -> None:
    """Write a trained model in MLflow's format."""
    # mlflow takes seconds to import.
    from hedgerow.platform.tracking.mlflow_store import save_model

    samples = task_on(dataset, module).prepare(torch.tensor(dataset.x_train[:2])).numpy()
    for part in module.modules():
        if hasattr(part, "train_mode"):
            part.train_mode = None  # type: ignore[assignment]  # a copy that is not recorded
    save_model(module, samples, folder)
