"""`hedgerow ui`: which store it opens, on which port, and that nothing of it is left running."""

import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from mlflow.tracking import MlflowClient
from processes import free_port
from tracked_runs import small

from hedgerow.cli import main
from hedgerow.platform.tracking.mlflow_store import EXPERIMENT, default_uri
from hedgerow.platform.tracking.run_folder import new_run
from hedgerow.platform.ui.mlflow_server import hints


def refusal(*arguments: str) -> str:
    """What the command says when it refuses its arguments."""
    result = CliRunner().invoke(main, ["ui", *arguments])
    assert result.exit_code == 2, result.output
    (sentence,) = result.output.splitlines()
    return sentence


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A run in a folder with a space in its name, and its store, which is not the default one."""
    monkeypatch.chdir(tmp_path)
    experiment = small("my runs", experiment="mine")
    with new_run(experiment, None) as (folder, _):
        pass
    MlflowClient(default_uri(Path("my runs"))).create_experiment("mine", tags=EXPERIMENT)
    return experiment, folder.path


def test_a_store_that_does_not_exist_is_refused_and_not_created(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "there is no database missing.db" in refusal("--uri", "sqlite:///missing.db")
    assert "there is no runs/hedgerow.db here; run an experiment first" in refusal()
    assert "there is no store mlruns" in refusal("--uri", "mlruns")
    (tmp_path / "store.db").touch()
    assert "write sqlite:///store.db" in refusal("--uri", "store.db")
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]


def test_a_run_without_a_store_is_refused(recorded):
    _, folder = recorded
    (folder.parent / "hedgerow.db").unlink()
    assert f"`hedgerow push {folder}` records the run" in refusal(str(folder))
    assert "either RUN or --uri" in refusal(str(folder), "--uri", "sqlite:///any.db")


def test_a_taken_port_is_a_sentence(recorded):
    _, folder = recorded
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port: {port} is not free" in refusal(str(folder), "--port", str(port))


def test_a_hint_names_the_store_that_was_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [
        (small("runs"), Path("runs/a")),
        (small("runs"), Path("runs/b")),
        (small("other"), Path("other/c")),
        (small("runs", uri="http://server:1"), Path("runs/d")),
        (small("runs", enabled=False), Path("runs/e")),
    ]
    commands = ["hedgerow ui", "hedgerow ui other/c", "hedgerow ui runs/d"]
    assert hints(runs) == [f"`{command}` opens MLflow's page on these runs." for command in commands]


@pytest.mark.exhaustive("processes")
def test_the_hint_opens_the_runs_of_the_experiment_and_leaves_no_process_behind(recorded, monkeypatch):
    experiment, folder = recorded
    opened = folder.parent / "opened"
    monkeypatch.setenv(
        "BROWSER", f"{sys.executable} -c \"import sys; open({str(opened)!r}, 'w').write(sys.argv[1])\" %s"
    )
    (hint,) = hints([(experiment, folder)])
    arguments = [*shlex.split(hint.split("`")[1])[1:], "--port", str(free_port()), "--open"]
    command = [sys.executable, "-m", "hedgerow", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        children = psutil.Process(process.pid).children(recursive=True)
        try:
            address, _, page = line.removeprefix("MLflow's page: ").strip().partition("/#/")
            client = MlflowClient(default_uri(folder.parent))
            assert (
                page
                == f"experiments/{client.get_experiment_by_name('mine').experiment_id}/runs?viewStateShareKey=hedgerow"
            )
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert answer.status == 200
            # A tracking server has a page of its own.
            result = CliRunner().invoke(main, ["ui", "--uri", address])
            assert result.output == f"MLflow's page: {address}/\n"
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert children
        for child in children:
            with suppress(psutil.NoSuchProcess):
                assert child.status() == psutil.STATUS_ZOMBIE
    assert opened.read_text() == f"{address}/#/{page}"
