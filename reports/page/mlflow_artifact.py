"""Logs a report as an artifact of its runs. Imports mlflow, which takes seconds."""

from collections.abc import Sequence
from pathlib import Path

from hedgerow.platform.common.errors import first_line
from hedgerow.platform.tracking.mlflow_store import MlflowClient, store_uri
from hedgerow.platform.tracking.run_folder import RunFolder


def log_page(folders: Sequence[RunFolder], page: Path) -> list[str]:
    """Log the page as `report/NAME.html` of each run; returns a sentence for each failure."""
    sentences = []
    for folder in folders:
        try:
            MlflowClient(store_uri(folder)).log_artifact(folder.record()["mlflow_run_id"], str(page), "report")
        except Exception as error:  # a failure of the tracking server must not lose the page
            sentences.append(
                f"MLflow did not accept the page for {folder.name} ({first_line(error)}); the page is stored in {page}"
            )
    return sentences
