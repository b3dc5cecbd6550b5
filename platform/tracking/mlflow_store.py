"""The MLflow side of tracking: one MLflow run per run folder. Imports mlflow, which takes seconds."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

# Detects an unreachable server within seconds instead of minutes; must be set before mlflow is imported.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
# MLflow's own usage statistics, as Ray's.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import mlflow
import numpy as np
import torch
from filelock import FileLock
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LifecycleStage,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    RunTag,
)
from mlflow.exceptions import MlflowException
from mlflow.models import Model, infer_signature
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.tracking import MlflowClient

from hedgerow.platform.common.errors import UserError, unwritable
from hedgerow.platform.common.servers import is_local, is_named, server_uri
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import read_experiment
from hedgerow.platform.loggers.metric_groups import COUNTS, grouped
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import flat_settings
from hedgerow.platform.tracking.run_description import NOTE, data_digest, data_name, run_text
from hedgerow.platform.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

# "Creating initial MLflow database tables..." would interrupt the progress display.
logging.getLogger("mlflow").setLevel(logging.WARNING)
# Errors of a database are raised, too, and the tracker reports them in one sentence instead of a traceback.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)

MARK = "hedgerow_folder"
"""Tag that identifies the MLflow run of a folder."""

SETTINGS = "hedgerow_settings"
"""Tag with a hash of the settings that determine the numbers of a run."""

FREE = ("name", "output", "resources", "checkpoints", "tracking")
"""Sections and keys that may change in a run and keep its numbers."""

UPLOADED: tuple[str, ...] = ("experiment.yaml", "run.json", "metrics.jsonl", "partition.json")
UPLOADED += ("results.csv", "results.md", "recording.json", "losses.jsonl")
"""Files of a run folder that MLflow gets. A link may lead to any file of the user, so that no link is followed."""

_PER_CALL = 1000
"""Maximum number of metrics that MLflow accepts in one call."""


SHARED_VIEW = "hedgerow"
"""Name of the view of the list of runs that an experiment has, as its button *Share* makes one."""

VIEW_TAG = f"mlflow.sharedViewState.{SHARED_VIEW}"

COLUMNS = ("tags.`algorithm`", "tags.`dataset`", "metrics.`test_accuracy`")
"""Columns of this view."""

EXPERIMENT = {
    NOTE: "Federated learning with Hedgerow. Trials are nested under searches, rows under published tables.",
    # Without this tag, the page asks for the kind of the experiment.
    "mlflow.experimentKind": "custom_model_development",
    VIEW_TAG: json.dumps({"selectedColumns": COLUMNS}),
}
"""Tags of the MLflow experiment."""


def default_uri(output: Path) -> str:
    """URI of the SQLite store of an output folder, whatever characters its path has."""
    from sqlalchemy.engine import URL

    # With the driver: MLflow would create the folders of "sqlite:///a%3Fb/..." under this name, quotes included.
    return URL.create("sqlite+pysqlite", database=str((output / "hedgerow.db").absolute())).render_as_string()


def client_for(experiment: Experiment) -> MlflowClient:
    """Client of the store that an experiment names; null: an SQLite store, hedgerow.db, in `output`. Raises UserError
    if this user has not named the store.
    """
    uri = experiment.tracking.uri
    return open_client(default_uri(Path(experiment.output)) if uri is None else server_uri(uri))


def open_client(uri: str) -> MlflowClient:
    """Client of a store. A missing SQLite store is created first. Raises UserError if it cannot be written."""
    if uri.startswith("sqlite"):
        _prepare_database(uri)
    return MlflowClient(uri)


def _prepare_database(uri: str) -> None:
    """Create the database of a store if there is none. Raises UserError if it cannot be written."""
    from sqlalchemy.engine import make_url

    url = make_url(uri)
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        return
    file = Path(url.database).absolute()
    try:
        if not _is_filled(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(file.with_name(f".{file.name}.lock")):
                if not _is_filled(file):
                    _create_database(url, file)
        # Not by opening it: when it is closed again, SQLite's locks of this process would be released.
        elif not os.access(file, os.W_OK):
            raise PermissionError("it is read-only")
    except OSError as error:
        raise unwritable("MLflow", file, error) from None


def _is_filled(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _create_database(url: "URL", file: Path) -> None:
    """Create a database completely or not at all.

    MLflow creates its tables one by one. Several processes at once, or a process that ends meanwhile, would leave a
    database that no later process can open.
    """
    # Takes half a second to import, and a server needs none of it.
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as folder:
        aside = Path(folder) / file.name
        new_uri = url.set(database=str(aside)).render_as_string()
        SqlAlchemyStore(new_uri, str(file.parent / "mlartifacts")).engine.dispose()
        aside.replace(file)


def store_uri(folder: RunFolder) -> str:
    """URI of the store of a run: the one in its file, or the SQLite store above its folder, from any working directory.

    The folder of a trial is two levels below its search. Raises FileNotFoundError if there is no store, and UserError
    if this user has not named it.
    """
    uri = read_experiment(folder.experiment).tracking.uri
    above = folder.path.resolve().parents[:3]
    local = next((place for place in above if (place / "hedgerow.db").exists()), None)
    if uri is None and local is None:
        raise FileNotFoundError(f"there is no hedgerow.db next to {folder.path}")
    return default_uri(local or above[0]) if uri is None else server_uri(uri)


class MlflowStore:
    """One MLflow run, new or continued. Uses run ids throughout, never MLflow's global active run.

    folder: run folder whose record has the id of the MLflow run.
    """

    clock = "transmissions"
    """Metric that every round has."""

    named: Callable[[str], str] = staticmethod(grouped)
    """Name of a metric in MLflow."""

    def __init__(
        self, experiment: Experiment, name: str, params: dict[str, Any], tags: dict[str, str], folder: RunFolder
    ):
        self.experiment, self.folder = experiment, folder
        identity = f"{folder.path.absolute()} {folder.record()['created']}"
        texts = {MARK: identity, SETTINGS: json.dumps([params.get(key) for key in sorted(params) if key not in FREE])}
        self._marks = {tag: sha256(text.encode()).hexdigest()[:16] for tag, text in texts.items()}
        self.client = client_for(experiment)
        run_id = folder.record().get("mlflow_run_id")
        if not run_id or not self._continues(run_id):
            run_id = self._made() or self._make(name)
            # Recorded at once, so that this run is continued even if the server fails next.
            folder.update(mlflow_run_id=run_id)
        self.run_id: str = run_id
        require_local_artifacts(self.client, experiment.tracking.uri, run_id)
        inputs = self.client.get_run(run_id).inputs
        if inputs is None or not inputs.dataset_inputs:
            self._introduce(params, tags)
        self.client.update_run(self.run_id, "RUNNING")
        # The rounds of a resumed run before its checkpoint are recorded already, and are skipped.
        history = self.client.get_metric_history(run_id, self.named(self.clock))
        self._last = max((metric.step for metric in history), default=0)
        self._latest: tuple[RoundRecord, set[str]] = {}, set()
        """Latest record, and its metrics that were not recorded because they had not changed."""
        self._first: RoundRecord = {}
        self._constant: set[str] = set()
        """First record, and its metrics that have not changed since."""

    def log(self, records: list[RoundRecord]) -> None:
        """Record rounds, except those that are recorded already, each at the time of its training."""
        batch: list[Metric] = []
        for record in records:
            counts = (COUNTS & record.keys()) - {self.clock}
            if not self._first:
                self._first, self._constant = record, counts
            before, held = self._latest
            # Counts that change are recorded in the first round, and in the rounds before and after a change.
            unchanged = {key for key in counts if record is self._first or before.get(key) == record[key]}
            changed = held - unchanged
            starts = {key: before[key] for key in changed & self._constant if before is not self._first}
            self._latest, self._constant = (record, unchanged), self._constant - changed
            if record["round"] <= self._last:
                continue
            # Each call has whole rounds, the clock last: after a failed call it shows which rounds have arrived.
            names = sorted(record.keys() - {"round"} - unchanged, key=lambda key: key == self.clock)
            metrics = self._metrics(self._first, starts) + self._metrics(before, {key: before[key] for key in changed})
            metrics += self._metrics(record, {key: record[key] for key in names})
            if len(batch) + len(metrics) > _PER_CALL:
                self._send_rounds(batch)
                batch = []
            batch += metrics
        self._send_rounds(batch)

    def _metrics(self, record: RoundRecord, values: dict[str, Any]) -> list[Metric]:
        """Values as metrics of the round of a record."""
        seconds = record.get("seconds")
        time = _end_time(self.folder) if seconds is None else _start_time(self.folder) + round(1000 * seconds)
        return [Metric(self.named(key), float(value), time, record["round"]) for key, value in values.items()]

    def _send_rounds(self, metrics: list[Metric]) -> None:
        self._send(metrics)
        self._last = max([self._last, *(metric.step for metric in metrics)])

    def _send(self, metrics: list[Metric]) -> None:
        for start in range(0, len(metrics), _PER_CALL):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + _PER_CALL])

    def log_points(self, points: Iterable[tuple[str, float, int]], model_id: str | None = None) -> None:
        """Record (name, value, round) at the time of the run's end. model_id: model that has the values, too."""
        time = _end_time(self.folder)
        self._send([Metric(name, float(value), time, step, model_id) for name, value, step in points])

    def finish(self, models: list[Path]) -> None:
        """Record files, description, results and models (at most one) of a finished run, and its end."""
        self.log_files()
        self.client.set_tag(self.run_id, NOTE, run_text(self.folder))
        scores = final_scores(self.folder)
        self.log_points(scores)
        for model in models:
            self.log_points(scores, log_model(model, self, [self]))
        self.end("FINISHED")

    def log_files(self) -> None:
        """Record the files of the run folder (the resolved experiment, the record, the metrics) and the figures."""
        folder = self.folder.path
        for file in (folder / name for name in UPLOADED):
            if file.is_file() and not file.is_symlink():
                self.client.log_artifact(self.run_id, str(file))
        figures = folder / "figures"
        for file in () if figures.is_symlink() else sorted(figures.glob("*")):
            if file.suffix in (".png", ".svg") and file.is_file() and not file.is_symlink():
                self.client.log_artifact(self.run_id, str(file), "figures")

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED, at the time of its own end."""
        self.client.set_terminated(self.run_id, status, _end_time(self.folder))

    def _continues(self, run_id: str) -> bool:
        """Whether MLflow has the run, with the same settings: parameters and rounds that it has cannot change.

        The run of other settings is deleted. The run of the folder that this one was copied from stays.
        """
        try:
            run = self.client.get_run(run_id)
        except MlflowException as error:
            # Any other error may mean that the server is unreachable.
            if error.error_code != ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
                raise
            return False
        if run.info.lifecycle_stage != LifecycleStage.ACTIVE:
            return False
        found = run.data.tags
        if found.get(SETTINGS) == self._marks[SETTINGS]:
            return True
        if found.get(MARK) == self._marks[MARK]:
            self.client.delete_run(run_id)
        return False

    def _made(self) -> str | None:
        """Id of the run that an earlier call created for a folder, if the answer to that call was lost."""
        home = experiment_id(self.client, self.experiment)
        query = " and ".join(f"tags.{tag} = '{value}'" for tag, value in self._marks.items())
        runs = self.client.search_runs([home], query, max_results=1)
        return runs[0].info.run_id if runs else None

    def _make(self, name: str) -> str:
        home, start = experiment_id(self.client, self.experiment), _start_time(self.folder)
        return self.client.create_run(home, start_time=start, tags=self._marks, run_name=name).info.run_id

    def _introduce(self, params: dict[str, Any], tags: dict[str, str]) -> None:
        """Record parameters, tags and data set before the first round; may be repeated."""
        flat = [Param(key, str(value)[:6000]) for key, value in flat_settings(params).items() if value is not None]
        self.client.log_batch(self.run_id, params=flat, tags=[RunTag(key, value) for key, value in tags.items()])
        record = self.folder.record()
        digest, source = data_digest(record, self.experiment)
        dataset = Dataset(data_name(record, self.experiment), digest, "hedgerow", source)
        self.client.log_inputs(self.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def require_local_artifacts(client: MlflowClient, uri: str | None, run_id: str) -> None:
    """Raises UserError if the local store of a run folder keeps artifacts elsewhere.

    A store from other people could name a server, to which MLflow would send the user's credentials. uri: the key
    `tracking.uri`.
    """
    if uri is not None and is_named(uri):
        return
    run = client.get_run(run_id)
    for place in (run.info.artifact_uri, client.get_experiment(run.info.experiment_id).artifact_location):
        if place and not is_local(place):
            raise UserError(
                f"MLflow's store {uri or 'hedgerow.db'} keeps its artifacts at {place}, which is not on this machine; "
                "move the store away, and `hedgerow push` records the run in a new one"
            )


def log_model(saved: Path, source: MlflowStore, stores: Sequence[MlflowStore]) -> str:
    """Record the model that `save_model` wrote, loadable with mlflow.pytorch.load_model; returns its identifier.

    saved: its folder, with the name that the model gets; a run has one model of a name. source: the run that trained
    it, whose parameters the model gets. stores: runs that have it, the one that decides whether it is recorded last.
    """
    client = source.client
    outputs = client.get_run(stores[-1].run_id).outputs
    for output in outputs.model_outputs if outputs else []:
        if client.get_logged_model(output.model_id).name == saved.name:
            return output.model_id
    run = client.get_run(source.run_id)
    home, params = run.info.experiment_id, run.data.params
    logged_model = client.create_logged_model(home, saved.name, source_run_id=source.run_id, params=params)
    description = Model.load(saved)
    description.model_uuid = description.model_id = logged_model.model_id
    description.run_id, description.artifact_path = source.run_id, logged_model.artifact_location
    description.save(str(saved / MLMODEL_FILE_NAME))
    client.log_model_artifacts(logged_model.model_id, str(saved))
    client.finalize_logged_model(logged_model.model_id, LoggedModelStatus.READY)
    # Last: a run that has an output has a complete model.
    for store in stores:
        client.log_outputs(store.run_id, [LoggedModelOutput(logged_model.model_id, step=0)])
    return logged_model.model_id


def final_scores(folder: RunFolder) -> list[tuple[str, float, int]]:
    """Final test and validation scores of a finished run with their names, and its last round."""
    summary = folder.record().get("summary") or {}
    names = [name for name in summary if name.startswith(("test_", "validation_")) and summary[name] is not None]
    return [(name, summary[name], summary["rounds"]) for name in names]


def save_model(module: torch.nn.Module, sample: np.ndarray, folder: Path) -> None:
    """Write a model in MLflow's format into a new folder, without a server. sample: prepared inputs (n, ...)."""
    with torch.no_grad():
        logits = module(torch.from_numpy(sample)).numpy()
    mlflow.pytorch.save_model(
        module,
        str(folder),
        signature=infer_signature(sample, logits),
        # The example traces the model into a format without pickle, for any number of samples.
        input_example=sample,
        # Given explicitly: MLflow would start a process to infer them.
        pip_requirements=[f"torch=={torch.__version__.split('+')[0]}", f"mlflow=={mlflow.__version__}"],
    )


def _start_time(folder: RunFolder) -> int:
    """Time in milliseconds at which a run was created."""
    return _milliseconds(folder.record()["created"])


def _end_time(folder: RunFolder) -> int:
    """Time in milliseconds at which a run was finished; of any other one, that of its last record, if it has one."""
    finished = folder.record().get("finished")
    last = folder.metrics if folder.metrics.exists() else folder.experiment
    return _milliseconds(finished) if finished else round(1000 * last.stat().st_mtime)


def _milliseconds(time: str) -> int:
    return round(1000 * datetime.fromisoformat(time).timestamp())


def experiment_id(client: MlflowClient, experiment: Experiment) -> str:
    """Id of the MLflow experiment that an experiment names, which is created if it does not exist."""
    tracking = experiment.tracking
    known = client.get_experiment_by_name(tracking.experiment)
    if known is None:
        artifacts = None if tracking.uri else (Path(experiment.output) / "mlartifacts").absolute().as_uri()
        try:
            return client.create_experiment(tracking.experiment, artifact_location=artifacts, tags=EXPERIMENT)
        except MlflowException as error:
            # Another run has created it meanwhile.
            known = client.get_experiment_by_name(tracking.experiment)
            if known is None or error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
                raise
    if known.lifecycle_stage == LifecycleStage.DELETED:
        raise UserError(
            f"the MLflow experiment {tracking.experiment!r} is deleted; restore it by `mlflow experiments restore -x "
            f"{known.experiment_id}`, with this store in MLFLOW_TRACKING_URI, or set tracking.experiment to "
            "another name"
        )
    return known.experiment_id
