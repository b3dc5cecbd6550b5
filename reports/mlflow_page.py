"""A report among the artifacts of the runs that it is about. Imports mlflow, which takes seconds."""

from collections.abc import Sequence
from pathlib import Path

from hedgerow.platform.errors import first_line
from hedgerow.platform.experiment_file import read_experiment
from hedgerow.platform.mlflow_store import MlflowClient, MlflowPlace, default_uri
from hedgerow.platform.runs import RunFolder


def log_page(folders: Sequence[RunFolder], page: Path) -> list[str]:
    """Log the page as `report/NAME.html` of each run; returns a sentence for each that did not take it."""
    sentences = []
    for folder in folders:
        try:
            MlflowClient(_store(folder)).log_artifact(folder.record()["mlflow_run_id"], str(page), "report")
        except Exception as error:  # the tracking server's troubles must never cost the page
            sentences.append(f"MLflow did not take the page for {folder.name} ({first_line(error)}); it lies in {page}")
    return sentences


def _store(folder: RunFolder) -> str:
    """Where the run is recorded: what its file says, or the store that lies above it, wherever this command was called.

    A trial lies two folders deeper than its search.
    """
    uri = MlflowPlace.of(read_experiment(folder.experiment)).uri
    above = folder.path.resolve().parents[:3]
    beside = next((place for place in above if (place / "hedgerow.db").exists()), None)
    if uri is None and beside is None:
        raise FileNotFoundError(f"there is no store beside {folder.path}")
    return uri or default_uri(beside or above[0])
