"""MLflow for real, on an SQLite store; and a server that is down."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import mlflow
import numpy as np
import psutil
import pytest
import torch
from mlflow.tracking import MlflowClient
from preloaded import PreloadedPython
from tracked_runs import small

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.loggers.metric_groups import SAMPLES, grouped, hedge_grouped
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.run_in_mlflow import push
from hedgerow.platform.runs.runner import run
from hedgerow.platform.tracking.mlflow_store import MlflowStore, default_uri
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.tracker import MlflowLogger, RunLog
from hedgerow.platform.ui.mlflow_server import PAGE_SETTINGS


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
    for key in ("test_accuracy", "train_loss", "transmissions", "client_accuracy_worst10", "seconds"):
        history = client.get_metric_history(entry.info.run_id, grouped(key))
        assert [m.step for m in history] == [1, 2, 3, 4, 5]
        assert [m.value for m in history] == [record[key] for record in finished.records]
    assert entry.data.params["algorithm.lr"] == "0.2"
    assert entry.data.params["task.partition.clients"] == "10"
    assert entry.data.params["algorithm.momentum"] == "0.0"
    assert "None" not in entry.data.params.values()
    for key in ("test_accuracy", "test_loss"):
        (result,) = client.get_metric_history(entry.info.run_id, key)
        assert (result.step, result.value) == (5, finished.summary[key])
    assert (entry.data.tags["algorithm"], entry.data.tags["dataset"]) == ("fedavg", "digits")
    assert entry.data.tags["torch"] == torch.__version__.split("+")[0]
    assert "git_commit" in entry.data.tags


def test_counts_are_recorded_if_they_change_and_where_they_do(tmp_path):
    done = run(small(tmp_path, enabled=False))
    store = MlflowStore(done.experiment, done.folder.name, {}, {}, done.folder)
    dropped = [0, 0, 0, 0, 2, 2, 2, 1, 0, 0]
    records = [{**done.records[0], "round": i, "dropped": value} for i, value in enumerate(dropped, start=1)]
    # In two calls, as they come while a run trains.
    store.log(records[:5])
    store.log(records[5:])
    for key, expected in {
        "dropped": [(1, 0), (4, 0), (5, 2), (7, 2), (8, 1), (9, 0)],
        "participants": [],
        "test_accuracy": [(i, done.records[0]["test_accuracy"]) for i in range(1, 11)],
    }.items():
        history = store.client.get_metric_history(store.run_id, grouped(key))
        assert [(metric.step, metric.value) for metric in history] == expected


def test_the_files_arrive(recorded):
    client, entry = recorded
    names = {file.path for file in client.list_artifacts(entry.info.run_id)}
    assert names == {"experiment.yaml", "run.json", "metrics.jsonl", "partition.json", "figures"}
    figures = {file.path for file in client.list_artifacts(entry.info.run_id, "figures")}
    assert "figures/curves_by_round.png" in figures


def test_the_model_loads_and_predicts_the_same(finished, recorded):
    client, entry = recorded
    (model,) = client.search_logged_models([entry.info.experiment_id])
    assert model.source_run_id == entry.info.run_id
    assert model.params == entry.data.params
    assert {metric.key: metric.value for metric in model.metrics} == {
        key: finished.summary[key] for key in ("test_accuracy", "test_loss")
    }
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
    assert push(str(finished.folder.path)) == []
    assert len(client.search_logged_models([entry.info.experiment_id])) == 1
    assert len(client.get_metric_history(entry.info.run_id, "test/accuracy")) == 5
    assert client.get_run(entry.info.run_id).info.status == "FINISHED"


@pytest.mark.exhaustive("kills")
def test_a_server_that_is_down_delays_nothing_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    start = time.time()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    lost = run(small(tmp_path, uri="${env:MLFLOW_TRACKING_URI}"))
    assert time.time() - start < 60
    assert lost.folder.record()["status"] == "finished"
    assert len(RunLog(lost.folder.metrics).read()) == 5
    assert "nothing is lost" in lost.warning
    assert f"hedgerow push {lost.folder.path}" in lost.warning
    # Once there is a server (here: a store), everything is sent.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", default_uri(tmp_path))
    push(str(lost.folder.path))
    client = MlflowClient(default_uri(tmp_path))
    run_id = lost.folder.record()["mlflow_run_id"]
    assert len(client.get_metric_history(run_id, "test/accuracy")) == 5
    entry = client.get_run(run_id)
    assert entry.info.status == "FINISHED"
    (output,) = entry.outputs.model_outputs
    files = client.list_logged_model_artifacts(output.model_id)
    assert {"MLmodel", "data"} <= {file.path for file in files}


class Broken:
    """A server that never serves: it refuses every request, never answers, or sends its answer a byte at a time."""

    def __init__(self, kind):
        async def connect(reader, writer):
            with suppress(ConnectionError):
                if kind == "refuses":
                    while await reader.readuntil(b"\r\n\r\n"):
                        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
                        await writer.drain()
                await reader.readuntil(b"\r\n\r\n")
                if kind == "drips":
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not closing.is_set():
                    await asyncio.sleep(0.1)
                    if kind == "drips":
                        writer.write(b" ")
                        await writer.drain()
            writer.close()

        async def serve():
            async with await asyncio.start_server(connect, "127.0.0.1", 0) as listening:
                self.uri = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
                ready.set()
                while not closing.is_set():
                    await asyncio.sleep(0.1)

        ready, closing = threading.Event(), threading.Event()
        self.close = closing.set
        threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
        ready.wait()


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("kind", ["refuses", "hangs", "drips"])
@pytest.mark.exhaustive("processes")
def test_the_end_of_a_run_and_a_push_wait_for_a_broken_server_no_longer_than_their_patience(kind, tmp_path):
    notes, server = [], Broken(kind)

    class Display:
        def __call__(self, record):
            assert not notes

        def note(self, text):
            notes.append(text)

    start = time.monotonic()
    finished = run(small(tmp_path, uri=server.uri, patience=3), show=Display())
    assert time.monotonic() - start < 60
    assert notes == ["recording in MLflow ... (Ctrl-C ends the wait)"]
    assert finished.folder.record()["status"] == "finished"
    assert f"hedgerow push {finished.folder.path}" in finished.warning
    with pytest.raises(UserError, match=rf"MLflow did not take the run .*hedgerow push {finished.folder.path}"):
        push(str(finished.folder.path))
    assert time.monotonic() - start < 100
    server.close()


def test_ctrl_c_ends_the_wait_for_a_hanging_server_and_the_process(tmp_path):
    server = Broken("hangs")
    file = tmp_path / "exp.yaml"
    file.write_text(dump_experiment(small(tmp_path, uri=server.uri, patience=150)))
    command = ["-m", "hedgerow", "run", str(file)]
    with PreloadedPython(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "recording in MLflow" in line:
                # Also in the middle of the model's export, which comes first.
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, "".join(lines)
    server.close()
    text = "".join(lines)
    (folder,) = tmp_path.glob("tracked-*")
    assert f"{folder} is finished; `hedgerow push {folder}` records it in MLflow" in text
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


class Server:
    """A tracking server of its own: MLflow's, with an SQLite store."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.uri = folder, f"http://127.0.0.1:{self.port}"

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port),
             "--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}",
             "--artifacts-destination", str(self.folder / "artifacts")],
            env=os.environ | PAGE_SETTINGS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 90
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.1)

    def kill(self):
        processes = [*psutil.Process(self.process.pid).children(recursive=True), self.process]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes)


class SlowLink:
    """A way to a server on which everything takes a while."""

    def __init__(self, port, seconds):
        async def serve():
            async def pipe(reader, writer):
                while data := await reader.read(65536):
                    await asyncio.sleep(seconds)
                    writer.write(data)
                    await writer.drain()
                writer.close()

            async def connect(reader, writer):
                there, back = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(pipe(reader, back), pipe(there, writer))

            listening = await asyncio.start_server(connect, "127.0.0.1", 0)
            self.uri = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            ready.set()
            await listening.serve_forever()

        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
        ready.wait()


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.mark.exhaustive("processes")
def test_a_server_that_goes_down_and_comes_back_or_is_slow_misses_nothing(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)

    def arrived(folder):
        client = MlflowClient(server.uri)
        entry = client.get_run(json.loads((folder / "run.json").read_text())["mlflow_run_id"])
        return entry.info.status, [m.step for m in client.get_metric_history(entry.info.run_id, "test/accuracy")]

    def kill_and_start(record):
        (folder,) = (tmp_path / "down").glob("tracked-*")
        if record["round"] == 2:
            while "mlflow_run_id" not in (folder / "run.json").read_text() or arrived(folder)[1] != [1]:
                time.sleep(0.1)
            server.kill()
        if record["round"] == 4:
            server.start()

    done = run(small(tmp_path / "down", uri=server.uri), show=kill_and_start)
    assert done.warning is None
    assert arrived(done.folder.path) == ("FINISHED", [1, 2, 3, 4, 5])
    done = run(small(tmp_path / "slow", uri=SlowLink(server.port, 0.05).uri))
    assert done.warning is None
    assert arrived(done.folder.path) == ("FINISHED", [1, 2, 3, 4, 5])
    client = MlflowClient(server.uri)
    assert len(client.search_runs([client.get_experiment_by_name("hedgerow").experiment_id])) == 2


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


def test_logging_never_waits_for_the_store(tmp_path):
    received = []

    class Slow:
        def log(self, records):
            time.sleep(0.2)
            received.extend(records)

        def finish(self, models):
            assert not models

    logger = MlflowLogger(RunFolder(tmp_path), Slow, lambda target: None, patience=300)
    start = time.perf_counter()
    for number in range(100):
        logger.log({"round": number})
    assert time.perf_counter() - start < 0.2
    logger.end("finished", {})
    assert [record["round"] for record in received] == list(range(100))
    assert logger.error is None


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("test_accuracy", "test/accuracy"),
        ("validation_loss", "validation/loss"),
        ("train_loss", "train/loss"),
        ("client_accuracy_worst10", "client/accuracy_worst10"),
        ("simple_test_accuracy", "test/simple_accuracy"),
        ("bytes_up", "traffic/bytes_up"),
        ("dropped", "cohort/dropped"),
        ("seconds", "cost/seconds"),
        ("spent_gradients", "cost/gradients"),
        ("cleaning_f1", "algorithm/cleaning_f1"),
        ("weight/003", "weight/003"),
    ],
)
def test_metrics_are_grouped_on_mlflow_s_page(name, group):
    assert grouped(name) == group


def test_the_how_to_on_loggers_names_the_recorded_groups():
    page = (Path(__file__).parents[2] / "docs/how-to/loggers.md").read_text()
    examples = re.findall(r"`(\w+)` is `(\w+/\w+)`", page)
    assert len(examples) == 5
    for name, shown in examples:
        assert shown == (hedge_grouped(name) if name.startswith("hedge_") else grouped(name))
    assert all(f"`{group}`" in page for group in (*SAMPLES, "traffic", "cohort", "cost", "hedge", "algorithm"))
