"""Logs a report as an artifact of its runs. Imports mlflow, which takes seconds."""

from collections.abc import Sequence
from pathlib import Path

from hedgerow.platform.common.errors import first_line
from hedgerow.platform.config.loader import read_experiment
from hedgerow.platform.tracking.mlflow_store import MlflowClient, require_local_artifacts, store_uri
from hedgerow.platform.tracking.run_folder import RunFolder


def log_page(folders: Sequence[RunFolder], page: Path) -> list[str]:
    """Log the page as `report/NAME.html` of each run; returns a sentence for each failure."""
    sentences = []
    for folder in folders:
        try:
            client, run_id = MlflowClient(store_uri(folder)), folder.record()["mlflow_run_id"]
            require_local_artifacts(client, read_experiment(folder.experiment).tracking.uri, run_id)
            client.log_artifact(run_id, str(page), "report")
        except Exception as error:  # a failure of the tracking server must not lose the page
            sentences.append(
                f"MLflow did not accept the page for {folder.name} ({first_line(error)}); the page is stored in {page}"
            )
    return sentences
