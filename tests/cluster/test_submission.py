"""Jobs on a real cluster's job server: what travels, what comes back, and what is refused in one sentence."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from paths import ROOT
from preloaded import PreloadedPython
from processes import free_port

from hedgerow.cli import main
from hedgerow.cluster.job_client import JobClient
from hedgerow.cluster.submission import stage_package
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.tracking.tracker import RunLog

EXPERIMENT = """\
name: sent
rounds: 2
task:
  data: {name: digits}
  partition: {kind: iid, clients: 4, samples_per_client: 20}
  model: {name: mlp, hidden: [4]}
algorithm: {name: my_method.Mine, lr: 0.1, batch_size: 8}
evaluation: {every: 2, clients: 0}
resources: {executor: ray, actors: 1}
engine: {mode: loop}
tracking: {enabled: false}
"""

METHOD = """\
from typing import Literal

from hedgerow.algorithms.federated.fedavg import FedAvg


class Mine(FedAvg):
    class Hyper(FedAvg.Hyper):
        name: Literal["mine"] = "mine"
"""


@pytest.fixture(scope="module")
def server():
    """The address of the job server of a Ray cluster of its own, on ports of its own, stopped at the end."""
    # Of several clusters on one machine, a job finds its own by their folder, whose path must be short for sockets.
    folder, port = tempfile.mkdtemp(prefix="ray-", dir="/tmp"), free_port()
    # A job's `python` is the one that the cluster was started with.
    bin = Path(sys.executable).parent
    path = os.pathsep.join([str(bin), os.environ["PATH"]])
    process = subprocess.Popen(
        [
            bin / "ray", "start", "--head", "--block", "--port=0", "--num-cpus=2", f"--temp-dir={folder}",
            "--dashboard-host=127.0.0.1", f"--dashboard-port={port}", f"--dashboard-agent-listen-port={free_port()}",
            f"--ray-client-server-port={free_port()}", "--disable-usage-stats",
        ],
        env={**os.environ, "PATH": path, "RAY_AUTH_MODE": "disabled"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            JobClient(f"http://127.0.0.1:{port}")
            break
        except UserError:
            time.sleep(0.5)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A user's folder, with a method of their own and data that must not travel."""
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_method", raising=False)
    (tmp_path / "exp.yaml").write_text(EXPERIMENT)
    (tmp_path / "my_method.py").write_text(METHOD)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large.bin").write_bytes(bytes(1000))
    return tmp_path


def hedgerow(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.exhaustive("processes")
def test_a_submitted_run_is_shown_leaves_its_folder_and_ends_with_its_exit_code(server, here, tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    sent = ("submit", "run", "exp.yaml", "--set", f"output={shared}", "--address", server)
    done = hedgerow(*sent)
    assert done.exit_code == 0, done.output
    assert "sent: round 2/2" in done.output
    (folder,) = shared.glob("sent-*")
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "finished"
    # The method came along, to the client actor, too.
    assert len(RunLog(folder / "metrics.jsonl").read()) == 2
    job = done.output.split()[1]
    listed = hedgerow("jobs", "--address", server)
    assert job in listed.output
    assert "succeeded" in listed.output
    (row,) = json.loads(hedgerow("jobs", "--address", server, "--json").stdout)["jobs"]
    assert (row["job"], row["status"]) == (job, "succeeded")
    assert "sent: round 2/2" in hedgerow("logs", job, "--address", server).output
    assert "had already ended (succeeded)" in hedgerow("stop", job, "--address", server).output


@pytest.mark.exhaustive("processes")
def test_the_command_of_the_kuberay_job_runs_own_code_and_continues_its_run_when_it_starts_again(server, tmp_path):
    """As its operator submits it, with folders of this machine instead of the volumes of the pods."""
    job = list(yaml.safe_load_all((ROOT / "cluster" / "files" / "kuberay-job.yaml").read_text()))[1]["spec"]
    shared, experiment = tmp_path / "shared", tmp_path / "experiment"
    (shared / "code").mkdir(parents=True)
    (shared / "code" / "my_method.py").write_text(METHOD)
    experiment.mkdir()
    (experiment / "experiment.yaml").write_text(EXPERIMENT + f"output: {shared}/runs\n")
    environment = yaml.safe_load(job["runtimeEnvYAML"].replace("/shared", str(shared)))
    command = job["entrypoint"].replace("/experiment/", f"{experiment}/") + " --import my_method"
    jobs, shown = JobClient(server), []
    for _ in range(2):
        assert jobs.follow(jobs.submit(command, environment, {}), shown.append) == 0, shown
    (folder,) = (shared / "runs").iterdir()
    assert folder.name == "sent-1"
    assert len(RunLog(folder / "metrics.jsonl").read()) == 2


@pytest.mark.exhaustive("processes")
def test_exit_codes_logs_and_stopping_are_the_job_s_own(server, here):
    jobs = JobClient(server)
    failing = jobs.submit("echo some words; exit 7", {}, {})
    lasting = jobs.submit("echo begun; sleep 1000", {}, {})
    done = hedgerow("logs", failing, "--follow", "--address", server)
    assert done.exit_code == 7
    assert "some words" in done.output
    assert "is being stopped" in hedgerow("stop", lasting, "--address", server).output
    assert hedgerow("logs", lasting, "--follow", "--address", server).exit_code == 130
    for command in ("logs", "stop"):
        unknown = hedgerow(command, "nosuch", "--address", server)
        assert unknown.exit_code == 2
        assert "nosuch: there is no such job" in unknown.output


@pytest.mark.exhaustive("processes")
def test_a_watched_job_goes_on_when_its_watcher_stops_and_ends_with_its_exit_code(server, here):
    end = here / "end"
    jobs = JobClient(server)
    job = jobs.submit(f"echo begun; until test -e '{end}'; do sleep 0.1; done; echo ended; exit 7", {}, {})
    words = ["-m", "hedgerow", "watch", job, "--address", server]
    with PreloadedPython(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
        lines = iter(watcher.stdout.readline, "")
        assert any(line == "begun\n" for line in lines)
        watcher.send_signal(signal.SIGINT)
        rest, errors = watcher.communicate(timeout=60)
    assert watcher.returncode == 130, errors
    assert f"{job} keeps running" in rest
    assert not jobs.job(job).status.is_terminal()
    end.touch()
    done = hedgerow("watch", job, "--address", server)
    assert done.exit_code == 7
    assert done.output.index("begun\n") < done.output.index("ended\n")
    unknown = hedgerow("watch", "raysubmit_none", "--address", server)
    assert unknown.exit_code == 2
    assert "raysubmit_none: there is no such job" in unknown.output


REFUSED = [
    (("submit", "run", "exp.yaml", "--address", "head:8265"), "is not the address of a job server"),
    (("submit", "run", "exp.yaml", "--address", "http://"), "is not the address of a job server"),
    (("submit", "run", "exp.yaml", "--address", "http://x:port"), "is not the address of a job server"),
    (("submit", "run", "exp.yaml"), "no job server answers at http://127.0.0.1:1"),
    (("jobs", "--address", "https://nowhere.invalid"), "no job server answers at https://nowhere.invalid"),
    (("logs", "some", "--address", "ray://127.0.0.1:10001"), "is not the address of a job server"),
    (("submit", "show", "exp.yaml"), "'show' cannot be submitted; write one of run, search, table, resume, plan"),
    (("submit", "run"), "Missing argument"),
    (("submit", "run", "exp.yaml", "--set"), "requires an argument"),
    (("submit", "run", "exp.yaml", "--rounds", "3"), "No such option"),
    (("submit", "run", "exp.yaml", "--set", "algorithm.lrr=3"), "did you mean 'lr'?"),
    (("submit", "run", "exp.yaml", "--set", "output=runs"), "'runs' would be inside the job's own folder"),
    (("submit", "run", "../exp.yaml"), "only the current folder is uploaded"),
    (("submit", "run", "absent.yaml"), "there is no such file"),
    (("submit", "search", "exp.yaml"), "there is no `search:` section"),
    (("submit", "table", "feddyn"), "give the name of a table to run"),
    (("submit", "table", "feddyn/T2.33"), "there is no such table"),
    (("submit", "table", "feddyn/T2.3/mnist-iid"), "give an absolute path that all nodes share: --output"),
    (("submit", "resume", "runs/sent"), "RUN: 'runs/sent' would be"),
    (("submit", "run", "exp.yaml", "--runtime-env", "exp.txt"), "--runtime-env exp.txt: cannot be read"),
    (("run", "exp.yaml", "--set", "resources.executor=ray", "--address", "http://head:8265"), "of a job server"),
]


@pytest.mark.parametrize(("arguments", "fragment"), REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_what_cannot_be_submitted_ends_in_one_sentence(arguments, fragment, here):
    if arguments[0] == "submit" and not any("output=" in word for word in arguments):
        (here / "exp.yaml").write_text(EXPERIMENT + "output: /shared/runs\n")
    result = hedgerow(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.output.splitlines()
    assert line.startswith("hedgerow: ")
    assert fragment in line


def test_a_folder_that_is_too_large_is_refused_before_it_is_uploaded(here):
    for name in ("big.npz", "data/big.npz", "results/big.npz", "results/keep.npz"):
        (here / name).parent.mkdir(exist_ok=True)
        with (here / name).open("wb") as file:
            file.truncate(300_000_000)
    refused = hedgerow("submit", "run", "exp.yaml", "--set", "output=/shared/runs")
    assert refused.exit_code == 2
    for fragment in ("900 MB", "big.npz (300 MB)", "results/big.npz (300 MB)", ".rayignore"):
        assert fragment in refused.output
    assert "data/big.npz" not in refused.output
    # Nothing listens at the address, to which only a folder that fits gets.
    (here / ".rayignore").write_text("/big.npz\n")
    (here / "results" / ".gitignore").write_text("*.npz\n!keep.npz\n")
    assert "MB of the working directory" not in hedgerow("submit", "run", "exp.yaml", "--set", "output=/s/runs").output
    (here / "results" / ".gitignore").unlink()
    assert "600 MB" in hedgerow("submit", "run", "exp.yaml", "--set", "output=/shared/runs").output


def test_what_is_sent_is_this_version_and_can_be_imported(tmp_path):
    code, told = stage_package(tmp_path)
    packed = {file.relative_to(code) for file in code.rglob("*.py")}
    for package in ("algorithms", "platform", "searchspaces", "cluster"):
        assert {file.relative_to(ROOT) for file in (ROOT / package).rglob("*.py")} <= packed
    assert told.name.startswith("hedgerow-")
    program = "import hedgerow, hedgerow.cli; hedgerow.Algorithm; print(hedgerow.__file__, hedgerow.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [
        str(code / "__init__.py"),
        told.name.removeprefix("hedgerow-").removesuffix(".dist-info"),
    ]
