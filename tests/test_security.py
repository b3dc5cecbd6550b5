"""Promises of docs/security.md about listening, about files that are read, and about names and paths."""

import ast
import os
import pickle
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import psutil
import pytest
from command_line import GOOD, refuse
from mlflow.cli import server as mlflow_ui
from paths import ROOT
from PIL import Image
from safetensors import SafetensorError

from hedgerow.cluster.submission import PACKAGES
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import datasets
from hedgerow.platform.data.sources.cache import load_dataset
from hedgerow.platform.data.sources.image_folder import ImageFolder
from hedgerow.platform.storage.checkpoint import DamagedCheckpoint, load_tree, read_checkpoint, write_checkpoint
from hedgerow.platform.tracking.run_folder import new_run
from hedgerow.platform.ui.mlflow_server import page_command

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


class Malice:
    """Creates a folder when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_malice_works(tmp_path):
    pickle.loads(pickle.dumps(Malice(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


def listening(process: psutil.Process) -> set[str]:
    """Interfaces on which a process and its children accept connections."""
    addresses: set[str] = set()
    for one in (process, *process.children(recursive=True)):
        try:
            addresses |= {c.laddr.ip for c in one.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        except psutil.NoSuchProcess:
            continue
    return addresses


@pytest.mark.exhaustive("processes")
def test_ray_that_is_started_here_listens_on_the_loopback_interface_alone():
    session = (
        "import sys, ray; from hedgerow.platform.actors.session import ray_session\n"
        "with ray_session():\n"
        "    ray.get(ray.remote(lambda: 1).remote()); print('there', flush=True); sys.stdin.read()"
    )
    cluster = subprocess.Popen(
        [sys.executable, "-c", session], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert cluster.stdout is not None
        assert cluster.stdout.readline() == "there\n"
        addresses = listening(psutil.Process(cluster.pid))
        assert addresses
        assert addresses <= LOOPBACK
    finally:
        cluster.communicate()


def test_mlflow_s_page_is_on_the_loopback_interface():
    command = page_command("sqlite:///store.db", 5000)
    params = mlflow_ui.make_context("ui", command[command.index("ui") + 1 :]).params
    assert params["host"] == "127.0.0.1"


EXECUTES = {"eval", "exec", "compile", "__import__"}


@pytest.mark.parametrize(
    "file", [p for name in (*PACKAGES, "examples") for p in (ROOT / name).rglob("*.py")] + [ROOT / "cli.py"], ids=str
)
def test_no_module_unpickles_or_executes_text(file):
    # Messages between the processes of a run, which Ray pickles as well.
    is_message = file == ROOT / "platform" / "actors" / "small_messages.py"
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            assert is_message or names.isdisjoint({"pickle", "dill", "cloudpickle", "shelve", "marshal"})
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                assert called.id not in EXECUTES
            if isinstance(called, ast.Attribute):
                home = called.value.id if isinstance(called.value, ast.Name) else ""
                assert not (home in ("joblib", "yaml") and called.attr in ("load", "unsafe_load", "full_load"))
                if (home, called.attr) == ("torch", "load"):
                    safe = {keyword.arg: keyword.value for keyword in node.keywords}["weights_only"]
                    assert isinstance(safe, ast.Constant)
                    assert safe.value is True
                assert called.attr not in ("extractall", "unpack_archive")
                assert home != "np" or called.attr != "load" or "allow_pickle" in {k.arg for k in node.keywords}
            for keyword in node.keywords:
                if keyword.arg in ("allow_pickle", "shell"):
                    assert isinstance(keyword.value, ast.Constant)
                    assert keyword.value.value is False


def test_a_checkpoint_is_not_unpickled(tmp_path):
    def replace_server(folder):
        (folder / "server.safetensors").write_bytes(pickle.dumps(Malice(tmp_path / "mark")))

    # With a matching SHA-256.
    folder = write_checkpoint(tmp_path / "round-1", {"w": {}}, {}, replace_server)
    with pytest.raises(DamagedCheckpoint, match=r"server\.safetensors cannot be read"):
        read_checkpoint(folder)
    with pytest.raises(SafetensorError):
        load_tree(folder / "server.safetensors")
    assert not (tmp_path / "mark").exists()


def test_converted_data_are_not_unpickled(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    fresh = load_dataset(datasets.section("digits")(), tmp_path)
    (array,) = (tmp_path / "data").glob("*/x_train.npy")
    evil = np.empty(1, object)
    evil[0] = Malice(tmp_path / "mark")
    array.unlink()
    np.save(array, evil, allow_pickle=True)
    assert np.array_equal(load_dataset(datasets.section("digits")(), tmp_path).x_train, fresh.x_train)
    assert not (tmp_path / "mark").exists()


def test_cifar_files_that_are_not_the_published_ones_are_not_opened(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]:
        (folder / name).write_bytes(pickle.dumps(Malice(tmp_path / "mark")))
    with pytest.raises(UserError, match="cannot be read"):
        load_dataset(datasets.section("cifar10")(), tmp_path)
    assert not (tmp_path / "mark").exists()


def test_a_zip_s_names_lead_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    with ZipFile(tmp_path / "in" / "images.zip", "w") as archive:
        for label in "ab":
            for number in range(4):
                with archive.open(f"../../{label}/{number}.png", "w") as image:
                    Image.new("L", (8, 8), number).save(image, "png")
    before = set(tmp_path.iterdir())
    assert load_dataset(ImageFolder(path="images.zip"), tmp_path / "in").classes == 2
    assert set(tmp_path.iterdir()) - before == {tmp_path / "cache"}
    assert not (tmp_path.parent / "a").exists()


@pytest.mark.parametrize("name", ["../up", "a/b", "/etc/x", "..", ".hidden", "a\\nb", "a\\0", "", "-x"])
def test_a_name_cannot_leave_its_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "name" in refuse(GOOD.replace("name: good", f'name: "{name}"'), tmp_path)


def test_a_run_is_a_new_folder_directly_under_its_output(tmp_path):
    values = {
        "name": "a..b",
        "rounds": 1,
        "task": {"data": {"name": "digits"}, "partition": {"kind": "iid", "clients": 2}, "model": {"name": "logreg"}},
        "algorithm": {"name": "fedavg"},
        "output": str(tmp_path / "runs"),
    }
    experiment = parse_experiment(values)
    with new_run(experiment, None) as (first, _), new_run(experiment, None) as (second, _):
        folders = [first.path, second.path]
    assert folders[0] != folders[1]
    assert {folder.resolve().parent for folder in folders} == {(tmp_path / "runs").resolve()}


@pytest.mark.parametrize(
    "path", ["os.system", "..os.system", "subprocess.Popen", "builtins.eval", "os;x.y", "os.path/x.y"]
)
@pytest.mark.parametrize("key", ["algorithm", "model"])
def test_a_dotted_path_names_a_class_of_its_kind_or_nothing(path, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = {"algorithm": "name: fedavg", "model": "name: mlp, hidden: [20]"}[key]
    refuse(GOOD.replace(old, f'name: "{path}"'), tmp_path)
