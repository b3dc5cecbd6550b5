"""Ctrl-C, SIGTERM and SIGHUP, in commands of their own: saved, one sentence, and the exit code of the signal."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from families import INLINE
from processes import hedgerow
from ray_runs import small
from searches import plan

from hedgerow.cluster import job_client as job_server
from hedgerow.platform.actors.session import ray_session, trouble_at
from hedgerow.platform.common import signals
from hedgerow.platform.common.errors import Interrupted, UserError
from hedgerow.platform.storage.checkpoint import latest_checkpoint
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.tune.search_runner import search

ENDLESS = {"rounds": 10**6, "checkpoints__every": 0}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """No cluster, whatever the environment says."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def written(folder: Path, name: str, **settings) -> str:
    """The path of an experiment file, whose runs are stored next to it."""
    file = folder / f"{name}.yaml"
    values = small(folder / "runs", **settings).model_dump(mode="json") | {"name": name}
    file.write_text(yaml.safe_dump(values))
    return str(file)


def started(*arguments: str, **settings) -> subprocess.Popen:
    """A command in a process group of its own, as a shell starts it, in which Ctrl-C interrupts."""
    return hedgerow(
        *arguments,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **settings,
    )


def until(command: subprocess.Popen, look: Callable[[], list[Any]]) -> list[Any]:
    """What `look` returns once it returns something."""
    while not (found := look()):
        assert command.poll() is None, command.stderr.read()
        time.sleep(0.02)
    return found


def trained(command: subprocess.Popen, folder: Path, name: str, rounds: int = 3) -> Path:
    """The folder of the run, once so many of its rounds are recorded."""
    files = lambda: folder.glob(f"runs/{name}-*/metrics.jsonl")  # noqa: E731
    return until(command, lambda: [file for file in files() if len(RunLog(file).read()) >= rounds])[0].parent


def status(run: Path) -> str:
    return json.loads((run / "run.json").read_text())["status"]


def ended(command: subprocess.Popen, code: int) -> str:
    """What it has printed to standard error, which is one line."""
    _, said = command.communicate(timeout=200)
    assert command.returncode == code, said
    assert said.count("\n") == 1, said
    return said


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_round_at_hand_of_the_run_at_hand(number, code, tmp_path):
    files = [written(tmp_path, "first", rounds=1, **INLINE), written(tmp_path, "second", **INLINE, **ENDLESS)]
    command = started("run", *files, written(tmp_path, "third", **INLINE))
    run = trained(command, tmp_path, "second")
    os.killpg(command.pid, number)
    assert ended(command, code) == (
        f"hedgerow: interrupted; `hedgerow resume {run}` continues from the last checkpoint\n"
    )
    assert status(run) == "interrupted"
    records = RunLog(run / "metrics.jsonl").read()
    found = latest_checkpoint(run / "checkpoints")
    assert found is not None
    assert int(found[0].name.removeprefix("round-")) == len(records)
    assert not list(tmp_path.glob("runs/third-*"))


def test_a_terminal_that_is_closed_saves_the_round_at_hand(tmp_path):
    # The terminal and its shell both send the signal, also to the processes that the command forked.
    command = started("run", written(tmp_path, "ours", **ENDLESS))
    run = trained(command, tmp_path, "ours")
    for _ in range(2):
        os.killpg(command.pid, signal.SIGHUP)
    assert ended(command, 129) == (
        f"hedgerow: interrupted; `hedgerow resume {run}` continues from the last checkpoint\n"
    )
    assert status(run) == "interrupted"
    found = latest_checkpoint(run / "checkpoints")
    assert found is not None
    assert int(found[0].name.removeprefix("round-")) == len(RunLog(run / "metrics.jsonl").read())


@pytest.mark.exhaustive("processes")
@pytest.mark.timeout(600)
def test_on_ray_a_signal_leaves_neither_processes_nor_words_of_its_own(tmp_path):
    settings = {"resources__executor": "ray", **ENDLESS}
    command = started("run", written(tmp_path, "ours", **settings))
    run = trained(command, tmp_path, "ours")
    family = psutil.Process(command.pid).children(recursive=True)
    assert any("gcs_server" in process.name() for process in family)
    command.terminate()
    assert str(run) in ended(command, 143)
    assert status(run) == "interrupted"
    records = RunLog(run / "metrics.jsonl").read()
    found = latest_checkpoint(run / "checkpoints")
    assert found is not None
    assert int(found[0].name.removeprefix("round-")) == len(records)
    assert not psutil.wait_procs(family, timeout=60)[1]


@pytest.mark.exhaustive("kills")
@pytest.mark.timeout(600)
def test_two_signals_end_a_run_at_once(tmp_path):
    # The first round takes many minutes.
    command = started("run", written(tmp_path, "long", algorithm__epochs=10**5, **INLINE, **ENDLESS))
    (run,) = until(
        command, lambda: [file.parent for file in tmp_path.glob("runs/*/run.json") if '"parts"' in file.read_text()]
    )
    for _ in range(2):
        time.sleep(0.5)
        os.killpg(command.pid, signal.SIGINT)
    assert str(run) in ended(command, 130)
    assert status(run) == "interrupted"


class Finaliser:
    """Receives a signal while it is deleted, where Python ignores exceptions."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@contextmanager
def handled(handler):
    """Context in which Ctrl-C is handled. A shell starts background commands with SIGINT ignored, which stays so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with signals.handling(handler, signal.SIGINT):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interruption_where_python_ignores_exceptions_is_raised_again(capfd):
    hook = sys.unraisablehook
    for handler in (signals.interrupt, signal.default_int_handler):
        with handled(handler):
            finaliser = Finaliser()
            del finaliser
            with pytest.raises(KeyboardInterrupt):
                time.sleep(20)
    assert sys.unraisablehook is hook
    assert capfd.readouterr().err == ""


def test_a_second_signal_that_code_swallows_is_sent_again(monkeypatch):
    monkeypatch.setattr(signals, "REPEAT", 0.05)
    termination = signals.Termination()
    termination.saves = True
    with handled(termination):
        signal.raise_signal(signal.SIGINT)
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(20)
        termination.is_handled = True


class Impatient:
    """Presses Ctrl-C after the third round of a search."""

    labels = [""] * 4
    trial = state = staticmethod(lambda *told: None)

    def hedge(self, record):
        if record["round"] == 3:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.exhaustive("kills")
@pytest.mark.usefixtures("ray_here")
def test_ctrl_c_saves_the_trials_of_a_search(tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(Interrupted):
            search(plan(tmp_path, rounds=10**4, search__pack="off", checkpoints={"every": 0}), show=Impatient())
    finally:
        signal.signal(signal.SIGINT, before)
    (run,) = tmp_path.glob("small-*")
    assert status(run) == "interrupted"
    experts = sorted((run / "experts").iterdir())
    assert len(experts) == 4
    assert all(latest_checkpoint(expert / "checkpoints") for expert in experts)


@pytest.mark.exhaustive("processes")
def test_a_signal_while_mlflow_does_not_answer_leaves_a_finished_run(mute, tmp_path):
    tracked = {"tracking__enabled": True, "tracking__uri": f"http://127.0.0.1:{mute}"}
    command = started("run", written(tmp_path, "ours", rounds=1, **INLINE, **tracked))
    (file,) = until(command, lambda: [f for f in tmp_path.glob("runs/*/run.json") if '"finished"' in f.read_text()])
    os.killpg(command.pid, signal.SIGINT)
    assert ended(command, 130) == (
        f"hedgerow: interrupted; {file.parent} is finished; `hedgerow push {file.parent}` records it in MLflow\n"
    )
    assert status(file.parent) == "finished"


@pytest.fixture
def mute():
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.exhaustive("processes")
def test_a_signal_ends_the_wait_for_a_cluster_that_does_not_answer(mute, tmp_path):
    command = started("run", written(tmp_path, "ours"), "--address", f"127.0.0.1:{mute}")
    until(command, lambda: psutil.Process(command.pid).net_connections())
    command.terminate()
    assert ended(command, 143).startswith("hedgerow: interrupted")


@pytest.mark.exhaustive("processes")
def test_an_address_at_which_nobody_answers_is_one_sentence(tmp_path):
    command = started("run", written(tmp_path, "ours"), "--address", "127.0.0.1:1")
    assert ended(command, 2) == (
        "hedgerow: no Ray cluster answers at '127.0.0.1:1' (Connection refused); start one there, or leave the address "
        "out to use this machine\n"
    )


def test_what_answers_is_ray_or_not(mute, ray_here):
    assert trouble_at(ray_here.get_runtime_context().gcs_address, 60) is None
    assert trouble_at(f"127.0.0.1:{mute}", 0.2) == "no answer within 0.2 s"
    assert trouble_at("127.0.0.1:1", 60) == "Connection refused"
    assert trouble_at("nonsense", 60) is not None


def test_a_job_server_that_does_not_answer_is_one_sentence(mute, monkeypatch):
    monkeypatch.setattr(job_server, "ANSWERING", 0.2)
    monkeypatch.setenv(job_server.VARIABLE, "")
    with pytest.raises(UserError, match=f"no job server answers at http://127.0.0.1:{mute};"):
        job_server.JobClient(f"http://127.0.0.1:{mute}")


@pytest.mark.parametrize(
    ("address", "kind"), [("ray://127.0.0.1:1", "for Ray Client"), ("http://127.0.0.1:1", "a job server")]
)
def test_an_address_of_another_kind_is_refused_before_any_connection(address, kind, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    for option, name in ((address, "--address"), (None, "RAY_ADDRESS")):
        with pytest.raises(UserError, match=f"^{name}: {address} is .*{kind}; .*hedgerow submit"), ray_session(option):
            pass
