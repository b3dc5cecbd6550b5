"""A report among the artifacts of the runs that it is about. Imports mlflow, which takes seconds."""

from collections.abc import Sequence
from pathlib import Path

from hedgerow.platform.common.errors import first_line
from hedgerow.platform.tracking.mlflow_store import MlflowClient, store_uri
from hedgerow.platform.tracking.run_folder import RunFolder


def log_page(folders: Sequence[RunFolder], page: Path) -> list[str]:
    """Log the page as `report/NAME.html` of each run; returns a sentence for each that did not take it."""
    sentences = []
    for folder in folders:
        try:
            MlflowClient(store_uri(folder)).log_artifact(folder.record()["mlflow_run_id"], str(page), "report")
        except Exception as error:  # the tracking server's troubles must never cost the page
            sentences.append(f"MLflow did not take the page for {folder.name} ({first_line(error)}); it lies in {page}")
    return sentences
