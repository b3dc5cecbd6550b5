"""MLflow for real, on an SQLite store; and a server that is down."""

import json
import time

import mlflow
import numpy as np
import pytest
import torch
from mlflow.tracking import MlflowClient

from hedgerow.platform.experiment import Experiment
from hedgerow.platform.experiment_file import parse_experiment
from hedgerow.platform.mlflow_store import default_uri
from hedgerow.platform.runner import push, run
from hedgerow.platform.tracking import RunLog, Tracker, flatten_params


def small(output, **tracking) -> Experiment:
    return parse_experiment(
        {
            "name": "tracked",
            "rounds": 5,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "iid", "clients": 10, "samples_per_client": 20},
                "model": {"name": "mlp", "hidden": [8]},
            },
            "algorithm": {"name": "fedavg", "lr": 0.2},
            "resources": {"executor": "inline"},
            "engine": {"mode": "vmap", "chunk": 2},
            "tracking": tracking,
            "output": str(output),
        }
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(small(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def recorded(finished):
    client = MlflowClient(default_uri(finished.folder.path.parent))
    return client, client.get_run(finished.folder.record()["mlflow_run_id"])


def test_the_store_lies_beside_the_runs(finished):
    output = finished.folder.path.parent
    assert finished.warning is None
    assert (output / "hedgerow.db").exists()
    assert (output / "mlartifacts").is_dir()


def test_every_round_parameter_and_tag_arrives(finished, recorded):
    client, entry = recorded
    assert entry.info.status == "FINISHED"
    assert entry.info.run_name == finished.folder.name
    for key in ("test_accuracy", "train_loss", "transmissions", "client_accuracy_worst10", "scalars_up"):
        history = client.get_metric_history(entry.info.run_id, key)
        assert [m.step for m in history] == [1, 2, 3, 4, 5]
        assert [m.value for m in history] == [record[key] for record in finished.records]
    assert entry.data.params["algorithm.lr"] == "0.2"
    assert entry.data.params["task.partition.clients"] == "10"
    assert entry.data.params["algorithm.momentum"] == "0.0"
    assert entry.data.tags["torch"] == torch.__version__.split("+")[0]
    assert "git_commit" in entry.data.tags


def test_the_files_arrive(recorded):
    client, entry = recorded
    names = {file.path for file in client.list_artifacts(entry.info.run_id)}
    assert {"experiment.yaml", "run.json", "metrics.jsonl", "figures"} <= names
    figures = {file.path for file in client.list_artifacts(entry.info.run_id, "figures")}
    assert "figures/curves_by_round.png" in figures


def test_the_model_loads_and_predicts_the_same(finished, recorded):
    client, entry = recorded
    (model,) = client.search_logged_models([entry.info.experiment_id])
    assert model.source_run_id == entry.info.run_id
    previous = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(default_uri(finished.folder.path.parent))
    try:
        loaded = mlflow.pyfunc.load_model(model.model_uri)
    finally:
        mlflow.set_tracking_uri(previous)
    assert loaded.metadata.signature.inputs is not None
    w = {name: torch.tensor(value) for name, value in finished.parameters.items()}
    x = np.random.default_rng(0).uniform(0, 1, (5, 1, 8, 8)).astype(np.float32)
    hidden = torch.relu(torch.tensor(x).flatten(1) @ w["1.weight"].T + w["1.bias"])
    expected = hidden @ w["3.weight"].T + w["3.bias"]
    assert np.abs(loaded.predict(x) - expected.numpy()).max() < 1e-5


def test_pushing_again_records_nothing_twice(finished, recorded):
    client, entry = recorded
    push(str(finished.folder.path))
    assert len(client.get_metric_history(entry.info.run_id, "test_accuracy")) == 5
    assert client.get_run(entry.info.run_id).info.status == "FINISHED"


def test_a_server_that_is_down_delays_nothing_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    start = time.time()
    lost = run(small(tmp_path, uri="http://127.0.0.1:9"))
    assert time.time() - start < 60
    assert lost.folder.record()["status"] == "finished"
    assert len(RunLog(lost.folder.metrics).read()) == 5
    assert "nothing is lost" in lost.warning
    assert f"hedgerow push {lost.folder.path}" in lost.warning
    # Once there is a server (here: a store), everything is sent.
    text = lost.folder.experiment.read_text().replace("uri: http://127.0.0.1:9", f"uri: {default_uri(tmp_path)}")
    lost.folder.experiment.write_text(text)
    push(str(lost.folder.path))
    client = MlflowClient(default_uri(tmp_path))
    run_id = lost.folder.record()["mlflow_run_id"]
    assert len(client.get_metric_history(run_id, "test_accuracy")) == 5
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_run_that_fails_is_not_left_running(tmp_path):
    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small(tmp_path), show=stop)
    (folder,) = tmp_path.glob("tracked-*")
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "interrupted"
    client = MlflowClient(default_uri(tmp_path))
    assert client.get_run(record["mlflow_run_id"]).info.status == "KILLED"


def test_logging_never_waits_for_the_store():
    received = []

    class Slow:
        def log(self, records):
            time.sleep(0.2)
            received.extend(records)

    tracker = Tracker(Slow)
    start = time.perf_counter()
    for number in range(100):
        tracker.log({"round": number})
    assert time.perf_counter() - start < 0.2
    tracker.finish(lambda store: None)
    assert [record["round"] for record in received] == list(range(100))
    assert tracker.error is None


def test_parameters_are_flattened():
    assert flatten_params({"a": {"b": 0.1, "c": {"d": None}}, "e": [1]}) == {"a.b": "0.1", "a.c.d": "None", "e": "[1]"}
