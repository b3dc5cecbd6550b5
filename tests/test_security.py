"""Promises of docs/security.md about listening, about files that are read, and about names and paths."""

import ast
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import sysconfig
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from zipfile import ZipFile

import numpy as np
import psutil
import pytest
import torch
import yaml
from command_line import GOOD, hedgerow, refuse
from mlflow.cli import server as mlflow_server
from paths import ROOT
from PIL import Image
from safetensors import SafetensorError

from hedgerow import api
from hedgerow.cluster.submission import PACKAGES
from hedgerow.platform.common import servers
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.servers import CREDENTIALS
from hedgerow.platform.config.loader import load_experiment, parse_experiment
from hedgerow.platform.config.registries import datasets
from hedgerow.platform.data.sources.cache import load_dataset
from hedgerow.platform.data.sources.image_folder import ImageFolder
from hedgerow.platform.models.build import safe_weights
from hedgerow.platform.storage.checkpoint import DamagedCheckpoint, parse_tree, read_checkpoint, write_checkpoint
from hedgerow.platform.tracking.run_folder import RunFolder, new_run
from hedgerow.platform.ui.mlflow_server import page_command, page_environment
from hedgerow.searchspaces.spaces.importing_keys import importing_keys

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
    params = mlflow_server.make_context("server", command[command.index("server") + 1 :]).params
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
            # To write a pickle executes nothing.
            only_writes = isinstance(node, ast.ImportFrom) and names == {"Pickler", "pickle"}
            assert is_message or only_writes or names.isdisjoint({"pickle", "dill", "cloudpickle", "shelve", "marshal"})
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
        return {}

    # With a matching SHA-256.
    folder = write_checkpoint(tmp_path / "round-1", {"w": {}}, {}, replace_server)
    with pytest.raises(DamagedCheckpoint, match=r"server\.safetensors cannot be read"):
        read_checkpoint(folder)
    with pytest.raises(SafetensorError):
        parse_tree((folder / "server.safetensors").read_bytes())
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


# ---- the user's own code ---------------------------------------------------------------------------------------------

EVIL = {
    "algorithm": {"algorithm": {"name": "PATH", "path": "MARK"}},
    "client factory": {"algorithm": {"name": "numpy_clients", "client_fn": "PATH"}},
    "transform": {"transforms": [{"kind": "PATH", "path": "MARK"}]},
    "aggregation rule": {"aggregation": {"rule": {"kind": "PATH", "path": "MARK"}}},
    "objective": {"objective": {"kind": "PATH", "path": "MARK"}},
    "attack": {"simulation": {"attack": {"kind": "PATH", "path": "MARK"}}},
    "data": {"task": {"data": {"name": "PATH", "args": {"path": "MARK"}}}},
    "public data": {"task": {"public": {"data": {"name": "PATH", "args": {"path": "MARK"}}}}},
    "partition": {"task": {"partition": {"kind": "PATH", "path": "MARK"}}},
    "sizes": {"task": {"partition": {"kind": "iid", "clients": 4, "sizes": {"kind": "PATH", "path": "MARK"}}}},
    "model": {"task": {"model": {"name": "PATH", "args": {"path": "MARK"}}}},
    "teacher": {"task": {"teacher": {"model": {"name": "PATH", "args": {"path": "MARK"}}}}},
    "loss": {"task": {"loss": {"name": "PATH"}}},
    "metric": {"task": {"metrics": [{"name": "PATH", "mode": "max"}]}},
    "problem": {"task": {"problem": {"kind": "PATH", "path": "MARK"}}},
    "own problem": {"algorithm": {"name": "fedbio"}, "task": {"problem": {"kind": "own", "name": "PATH"}}},
    "logger": {"tracking": {"also": [{"name": "PATH", "args": {"path": "MARK"}}]}},
    "search": {"search": {"kind": "PATH", "space": {"algorithm.lr": [0.1]}}},
    "searched model": {
        "task": {"model": {"name": "torch.nn.Identity", "args": {"path": "MARK"}}},
        "search": {"kind": "grid", "space": {"task.model.name": ["PATH", "PATH"]}},
    },
}
"""Section of an experiment file for each key that takes a dotted path."""

MODULE = """\
import os
from functools import cache
from os import mkdir
from pathlib import Path

from torch import nn

from hedgerow.algorithms.federated.fedavg import FedAvg

Path(r"MARK").mkdir()
make = os.mkdir
wrapped = cache(mkdir)


def load(path):
    Path(path).mkdir()


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


class Mine(FedAvg):
    pass
"""


def test_every_key_that_imports_is_tried():
    def keys(values, prefix=""):
        for key, value in values.items():
            if isinstance(value, dict):
                yield from keys(value, f"{prefix}{key}.")
            elif isinstance(value, list) and isinstance(value[0], dict):
                yield from keys(value[0], f"{prefix}{key}.")
            elif value == "PATH":
                yield prefix + key

    assert {key for changes in EVIL.values() for key in keys(changes)} == set(importing_keys())


def test_one_module_imports_the_code_that_a_file_names():
    files = [file for name in PACKAGES for file in (ROOT / name).rglob("*.py")]
    importing = {str(file.relative_to(ROOT)) for file in files if "import import_module" in file.read_text()}
    assert importing == {
        "algorithms/core/own_code.py",
        # Names of the package's own modules, and of packages that it uses.
        "platform/common/registry.py",
        "platform/actors/preload.py",
        "platform/models/transformers_nets.py",
        "platform/ui/plotting.py",
        "searchspaces/tune/search_runner.py",
    }


def merged(values: dict, changes: dict) -> dict:
    both = {key: merged(values[key], new) for key, new in changes.items() if isinstance(new, dict) and key in values}
    return values | changes | {key: value for key, value in both.items() if not {"name", "kind"} & changes[key].keys()}


def evil(changes: dict, path: str, mark: Path) -> str:
    values = merged(yaml.safe_load(GOOD), changes)
    return yaml.safe_dump(values).replace("PATH", path).replace("MARK", str(mark))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An installed package that writes a file when it is imported."""
    site = tmp_path / "lib" / "site-packages"
    site.mkdir(parents=True)
    (site / "installed_thing.py").write_text(MODULE.replace("MARK", str(tmp_path / "imported")))
    monkeypatch.syspath_prepend(site)
    yield tmp_path / "imported"
    sys.modules.pop("installed_thing", None)


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    made = {"next_door", "working_folder", "common", "parts", "first_net", "second_net"}
    for module in [name for name in sys.modules if name.partition(".")[0] in made]:
        del sys.modules[module]


def own_net(folder, module, imports, width):
    """An experiment with a model in a module next to its file."""
    file = folder / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"from torch import nn\n\n{imports}\n\n\nclass Net(nn.Sequential):\n    def __init__(self):\n"
        f"        super().__init__(nn.Flatten(), nn.Linear(64, {width}), nn.Linear({width}, 10))\n"
    )
    (folder / "own.yaml").write_text(GOOD.replace("name: mlp, hidden: [20]", f"name: {module}.Net"))


@pytest.mark.parametrize("path", ["os.mkdir", "installed_thing.load"])
@pytest.mark.parametrize("key", EVIL)
def test_a_file_calls_and_imports_nothing_that_the_user_has_not_named(key, path, here, installed, tmp_path):
    (here / "evil.yaml").write_text(evil(EVIL[key], path, tmp_path / "mark"))
    commands: list[tuple[str, ...]] = [("run",), ("partition",), ("plan", "--nodes", "1x(cpus=2,memory=4)")]
    for command, *arguments in [("search",)] if "search" in EVIL[key] else commands:
        done = hedgerow(command, "evil.yaml", *arguments)
        # The partition of a file does not depend on its model.
        assert done.exit_code == 2 or command == "partition", done.output
        assert "Traceback" not in done.output
    hedgerow("show", "evil.yaml")
    assert not (tmp_path / "mark").exists()
    assert not installed.exists()
    assert not (here / "runs").exists() or not any((here / "runs").glob("*/run.json"))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("os.system", "is not a model of yours, because it is defined in 'posix'"),
        ("subprocess.Popen", "is not a model of yours, because it is defined in 'subprocess'"),
        ("builtins.eval", "is not a model of yours, because it is defined in 'builtins'"),
        ("next_door.make", "is not a model of yours, because it is defined in 'posix'"),
        ("next_door.wrapped", "is not a model of yours, because it is defined in 'posix'"),
        ("next_door.Path", "is not a model of yours, because it is defined in 'pathlib'"),
        ("torch.hub.load", "is not a model of yours, because it is defined in 'torch.hub'"),
        ("torchvision.datasets.utils.download_url", "because it is defined in 'torchvision.datasets.utils'"),
        ("hedgerow.api.resume", "is not a model of yours, because it is defined in 'hedgerow.api'"),
        ("hedgerow.__main__.main", "is a program"),
        ("antigravity.fly", "'antigravity' is not a module in"),
        ("..os.system", "is not a dotted path"),
        ("os;x.y", "is not a dotted path"),
        ("os.path/x.y", "is not a dotted path"),
    ],
)
def test_an_object_is_the_users_where_it_is_defined_not_where_it_is_imported(path, said, here, tmp_path):
    (here / "next_door.py").write_text(MODULE.replace("MARK", str(tmp_path / "imported")))
    (here / "evil.yaml").write_text(evil(EVIL["model"], path, tmp_path / "mark"))
    done = hedgerow("run", "evil.yaml")
    assert done.exit_code == 2
    assert said in done.output
    assert not (tmp_path / "mark").exists()
    assert "antigravity" not in sys.modules


def test_code_in_the_folder_of_the_file_needs_no_option_and_other_code_does(here, installed, tmp_path):
    inner = here / "inner"
    inner.mkdir()
    (inner / "next_door.py").write_text(MODULE.replace("MARK", str(tmp_path / "next door")))
    (inner / "own.yaml").write_text(GOOD.replace("name: mlp, hidden: [20]", "name: next_door.Net"))
    (inner / "other.yaml").write_text(GOOD.replace("name: fedavg", "name: installed_thing.Mine"))
    (inner / "local.yaml").write_text(GOOD.replace("name: fedavg", "name: working_folder.Mine"))
    (here / "working_folder.py").write_text(MODULE.replace("MARK", str(tmp_path / "working folder")))
    before = list(sys.path)
    own = hedgerow("run", inner / "own.yaml")
    assert own.exit_code == 0, own.output
    # Python finds its own and installed modules first.
    assert [folder for folder in sys.path if folder != str(inner)] == before
    assert sys.path.index(str(inner)) > max(sys.path.index(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib"))
    for name, module in (("other", "installed_thing"), ("local", "working_folder")):
        refused = hedgerow("run", inner / f"{name}.yaml")
        assert refused.exit_code == 2
        assert f"if you trust it, name it with `--import {module}`" in " ".join(refused.output.split())
        assert module not in sys.modules
        named = hedgerow("run", inner / f"{name}.yaml", "--import", module, "--json")
        assert named.exit_code == 0, named.output
        (run,) = json.loads(named.stdout)["runs"]
        assert RunFolder(Path(run["folder"])).record()["ownership"]["imports"] == [module]


def test_a_module_next_to_the_file_never_replaces_an_installed_one(here, installed, tmp_path):
    (here / "installed_thing.py").write_text("")
    (here / "evil.yaml").write_text(GOOD.replace("name: fedavg", "name: installed_thing.Mine"))
    done = hedgerow("run", "evil.yaml")
    assert done.exit_code == 2
    assert f"there are two modules 'installed_thing', {here / 'installed_thing.py'} and" in done.output
    assert not installed.exists()


@pytest.mark.parametrize("helper", ["common", "parts.common"])
def test_code_of_one_experiment_imports_no_module_of_another(helper, here):
    """Both would be the same module to Python, and the second experiment would run with the code of the first."""
    place = helper.replace(".", "/") + ".py"
    for name, width in (("first", 3), ("second", 7)):
        (here / name / place).parent.mkdir(parents=True)
        (here / name / place).write_text(f"WIDTH = {width}\n")
        own_net(here / name, f"{name}_net", f"import {helper} as common", "common.WIDTH")
    assert hedgerow("run", "first/own.yaml").exit_code == 0
    done = hedgerow("run", "second/own.yaml")
    assert done.exit_code == 2
    said = f"there are two modules {helper!r}, {here / 'second' / place} and {here / 'first' / place}; rename"
    assert said in done.output
    assert hedgerow("run", "first/own.yaml").exit_code == 0


def test_code_of_an_experiment_imports_its_own_modules_before_those_of_others(here):
    for name, imports, width in (("first", "", "3"), ("second", "import common", "common.WIDTH")):
        own_net(here / name, f"{name}_net", imports, width)
        (here / name / "common.py").write_text(f"WIDTH = {len(name) + 1}\n")
    done = hedgerow("run", "first/own.yaml", "second/own.yaml", "--json")
    assert done.exit_code == 0, done.output
    folders = [run["folder"] for run in json.loads(done.stdout)["runs"]]
    assert [len(api.load(folder).parameters["1.weight"]) for folder in folders] == [3, 7]


def test_folders_without_init_share_a_name_but_their_modules_do_not(here):
    for name in ("first", "second"):
        own_net(here / name, f"parts.{name}_net", "", 3)
    done = hedgerow("run", "first/own.yaml", "second/own.yaml")
    assert done.exit_code == 0, done.output
    for name in ("first", "second"):
        own_net(here / name, "parts.net", "", 3)
    done = hedgerow("run", "first/own.yaml", "second/own.yaml")
    assert done.exit_code == 2
    assert "there are two modules 'parts.net', " in done.output


def test_a_command_imports_nothing_from_the_working_directory(here, tmp_path):
    for name in ("jinja2", "yaml", "mlflow", "torch", "click", "sitecustomize"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / name)!r}, 'w')")
    for command in ([sys.executable, "-m", "hedgerow"], [str(Path(sys.executable).with_name("hedgerow"))]):
        for arguments in (["report", "nothing"], ["list", "models"], ["--help"]):
            done = subprocess.run([*command, *arguments], capture_output=True, text=True)
            assert "Traceback" not in done.stderr
    assert set(tmp_path.iterdir()) == {here}


# ---- run folders of other people -------------------------------------------------------------------------------------


def test_ray_imports_nothing_from_the_working_directory(here, tmp_path):
    for name in ("cloudpickle", "jinja2", "yaml"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / name)!r}, 'w')")
    session = (
        "import sys, json; del sys.path[0]; import ray; from hedgerow.platform.actors.session import ray_session\n"
        "def look():\n    return sys.path, list(sys.modules)\n"
        "with ray_session():\n    print(json.dumps(ray.get(ray.remote(look).remote())))"
    )
    done = subprocess.run([sys.executable, "-c", session], capture_output=True, text=True, check=True)
    path, modules = json.loads(done.stdout)
    assert not {"", str(here)} & set(path)
    assert "hedgerow.platform.actors.ray_transport" in modules, "it was not imported in advance"
    assert set(tmp_path.iterdir()) == {here}


@pytest.fixture
def started(here):
    """An interrupted run of this user, without its model."""
    (here / "good.yaml").write_text(GOOD)
    assert hedgerow("run", "good.yaml").exit_code == 0
    (folder,) = (here / "runs").iterdir()
    RunFolder(folder).update(status="interrupted")
    return RunFolder(folder)


@pytest.mark.parametrize("forged", [pytest.param(False, marks=pytest.mark.exhaustive("grid")), True])
def test_the_run_folder_of_somebody_else_runs_nothing(forged, started, here, installed, tmp_path):
    text = started.experiment.read_text()
    mark = tmp_path / "mark"
    if forged:
        note = started.record()["ownership"]
        note |= {"imports": ["posix", "os", "installed_thing"], "folders": ["/", str(tmp_path)]}
        started.update(ownership=note)
    for path in ("os.mkdir", "posix.mkdir", "installed_thing.load"):
        changes = {"task": {"model": {"name": path, "args": {"path": str(mark)}}}}
        started.experiment.write_text(yaml.safe_dump(merged(yaml.safe_load(text), changes)))
        for words in (["export", started, "model.pt"], ["push", started], ["report", started], ["resume", started]):
            done = hedgerow(*words)
            assert "Traceback" not in done.output
        with pytest.raises(UserError):
            api.resume(started, show=False)
        with pytest.raises(UserError):
            assert api.load(started).parameters
    assert not mark.exists()
    assert not installed.exists()


def test_a_resume_uses_the_code_that_was_named_at_the_start(here, installed, tmp_path):
    (here / "next_door.py").write_text(MODULE.replace("MARK", str(tmp_path / "next door")))
    own = GOOD.replace("name: fedavg", "name: installed_thing.Mine")
    (here / "own.yaml").write_text(own.replace("name: mlp, hidden: [20]", "name: next_door.Net"))
    before = list(sys.path)
    done = hedgerow("run", "own.yaml", "--import", "installed_thing")
    assert done.exit_code == 0, done.output
    (folder,) = (here / "runs").iterdir()
    RunFolder(folder).update(status="interrupted")
    sys.path[:] = before
    for module in ("next_door", "installed_thing"):
        sys.modules.pop(module)
    for mark in (installed, tmp_path / "next door"):
        mark.rmdir()
    resumed = hedgerow("resume", folder)
    assert resumed.exit_code == 0, resumed.output
    assert installed.exists()
    # Its file runs again as it is.
    again = hedgerow("run", folder / "experiment.yaml")
    assert again.exit_code == 0, again.output


def test_a_python_program_loads_a_file_with_the_code_next_to_it(here, tmp_path):
    inner = here / "inner"
    inner.mkdir()
    (inner / "next_door.py").write_text(MODULE.replace("MARK", str(tmp_path / "next door")))
    (inner / "own.yaml").write_text(GOOD.replace("name: fedavg", "name: next_door.Mine"))
    assert load_experiment(inner / "own.yaml").algorithm.name == "next_door.Mine"
    (inner / "evil.yaml").write_text(GOOD.replace("name: mlp, hidden: [20]", "name: next_door.make"))
    with pytest.raises(UserError, match="it is defined in 'posix'"):
        api.run(inner / "evil.yaml", show=False)
    with pytest.raises(UserError, match="is not a module in"):
        load_experiment(inner / "own.yaml", ["task.data={name: antigravity.fly}"])


def test_a_command_resumes_the_run_of_a_program_with_the_program_s_own_code(here, tmp_path):
    inner = here / "inner"
    inner.mkdir()
    (inner / "next_door.py").write_text(MODULE.replace("MARK", str(tmp_path / "next door")))
    sys.path.append(str(inner))
    run = api.run(yaml.safe_load(GOOD.replace("name: fedavg", "name: next_door.Mine")), show=False)
    run.folder.update(status="interrupted")
    sys.path.remove(str(inner))
    sys.modules.pop("next_door")
    (tmp_path / "next door").rmdir()
    resumed = hedgerow("resume", run.folder)
    assert resumed.exit_code == 0, resumed.output


def test_the_pickled_weights_of_a_librarys_model_are_not_loaded(here, tmp_path):
    weights = tmp_path / "weights.pt"
    torch.save({"w": Malice(tmp_path / "mark")}, weights)
    with safe_weights(), pytest.raises(pickle.UnpicklingError):
        torch.load(weights, weights_only=False)
    assert not (tmp_path / "mark").exists()


# ---- servers ---------------------------------------------------------------------------------------------------------

TOKEN = "token-of-the-user"


class Listener(ThreadingHTTPServer):
    """A server that keeps what it gets, and answers 404."""

    def __init__(self):
        self.received: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                outer.received.append(f"{self.path} {self.headers} {self.rfile.read(length)!r}")
                self.send_error(404)

            do_POST = do_PUT = do_PATCH = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def listener(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(servers, "_named", set())
    with Listener() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_files_of_a_run_name_no_server(listener, started, here, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    values = yaml.safe_load(started.experiment.read_text())
    values["tracking"] |= {"enabled": True, "uri": listener.uri, "patience": 2.0}
    started.experiment.write_text(yaml.safe_dump(values))
    started.update(mlflow_run_id="0" * 32)
    for words in (["report", started], ["push", started], ["ui", started], ["resume", started]):
        done = hedgerow(*words)
        assert done.exit_code == (0 if words[0] == "report" else 2), done.output
        assert f"{listener.uri} for MLflow, since its record has no seal of yours" in done.output
        assert "Traceback" not in done.output
    assert not listener.received
    # The user's own setting names it.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", listener.uri)
    assert hedgerow("report", started).exit_code == 0
    assert TOKEN in listener.received[0]


def test_a_server_in_an_experiment_file_gets_no_credentials(listener, here, monkeypatch):
    tracking = f"{{uri: '{listener.uri}', patience: 2}}"
    (here / "evil.yaml").write_text(GOOD.replace("{enabled: false}", tracking))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    for command in ("run", "search"):
        extra = ["--set", "search={kind: grid, space: {algorithm.lr: [0.1, 0.2]}}"] if command == "search" else []
        done = hedgerow(command, "evil.yaml", "--set", "tracking.patience=3", *extra)
        assert done.exit_code == 2
        assert f"the file alone names {listener.uri}, which would get MLFLOW_TRACKING_TOKEN" in done.output
    assert not listener.received
    assert not (here / "runs").exists()
    named = hedgerow("run", "evil.yaml", "--set", f"tracking.uri={listener.uri}")
    assert named.exit_code == 0
    assert TOKEN in listener.received[0]
    # A later command knows that this user has named it.
    listener.received.clear()
    monkeypatch.setattr(servers, "_named", set())
    (folder,) = (here / "runs").iterdir()
    hedgerow("push", folder)
    assert TOKEN in listener.received[0]


def test_a_store_of_somebody_else_sends_its_artifacts_to_no_server(listener, here, monkeypatch):
    (here / "good.yaml").write_text(GOOD.replace("{enabled: false}", "{enabled: true}"))
    assert hedgerow("run", "good.yaml").exit_code == 0
    (folder,) = (path.parent for path in (here / "runs").glob("*/run.json"))
    with sqlite3.connect(here / "runs" / "hedgerow.db") as store:
        store.execute("UPDATE runs SET artifact_uri = ?", (f"{listener.uri}/api/2.0/mlflow-artifacts/artifacts/x",))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    assert "which is not on this machine" in hedgerow("report", folder).output
    assert "which is not on this machine" in hedgerow("push", folder).output
    assert not listener.received


def test_mlflow_s_page_has_no_credentials_and_no_module_of_the_working_directory(here, monkeypatch):
    for name in CREDENTIALS:
        monkeypatch.setenv(name, TOKEN)
    environment = page_environment("sqlite:////store.db")
    assert TOKEN not in environment.values()
    assert environment["PYTHONSAFEPATH"] == "1"
    assert "-P" in page_command("sqlite:////store.db", 5000)
    assert "secret" not in "".join(page_command("postgresql://me:secret@host/store", 5000))
    assert page_environment("postgresql://me:secret@host/store")["MLFLOW_BACKEND_STORE_URI"].count("secret") == 1


def test_a_push_follows_no_links(here, tmp_path):
    (here / "good.yaml").write_text(GOOD.replace("{enabled: false}", "{enabled: true}"))
    assert hedgerow("run", "good.yaml").exit_code == 0
    (folder,) = (path.parent for path in (here / "runs").glob("*/run.json"))
    private = tmp_path / "private"
    private.mkdir()
    for name in ("id_ed25519", "curves.png"):
        (private / name).write_text("secret of the user")
    (folder / "notes.txt").write_text("secret of the user")
    (folder / "results.csv").symlink_to(private / "id_ed25519")
    (folder / "figures" / "key.png").symlink_to(private / "curves.png")
    (folder / "figures" / "more").symlink_to(private)
    artifacts = here / "runs" / "mlartifacts"
    before = {path for path in artifacts.rglob("*") if path.is_file()}
    for words in (["push", folder], ["report", folder]):
        assert hedgerow(*words).exit_code == 0
    after = {path for path in artifacts.rglob("*") if path.is_file()}
    assert {path.name for path in after - before} == {"report.html"}
    assert not any(b"secret of the user" in path.read_bytes() for path in after)


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:geheim@127.0.0.1:9",
        "https://geheim@host",
        "postgresql://me:geheim@host/store",
        "http://me:geh/geheim#im@host",
        "http://host?token=geheim",
    ],
)
def test_a_password_in_a_uri_is_in_no_record(uri, here):
    (here / "good.yaml").write_text(GOOD)
    for key in ("tracking.uri", "checkpoints.storage"):
        done = hedgerow("run", "good.yaml", "--set", f"{key}={uri}")
        assert done.exit_code == 2
        assert "a URI with credentials would be written into every record" in done.output
    assert {path.name for path in here.iterdir()} == {"good.yaml"}


def test_a_secret_variable_is_recorded_by_its_name(here, monkeypatch):
    store = here / "geheim-store.db"
    monkeypatch.setenv("STORE_SECRET", f"sqlite:///{store}")
    monkeypatch.setenv("WEBHOOK_TOKEN", "geheim-hook")
    (here / "next_door.py").write_text(
        "from pathlib import Path\nfrom hedgerow import Logger\n\n\nclass Hook(Logger):\n"
        "    def __init__(self, url):\n        self.url = url\n\n    def start(self, run):\n"
        "        Path('hook.txt').write_text(self.url)\n"
    )
    hook = "{name: next_door.Hook, args: {url: 'https://${env:WEBHOOK_TOKEN}'}}"
    tracking = f"{{uri: '${{env:STORE_SECRET}}', also: [{hook}]}}"
    (here / "good.yaml").write_text(GOOD.replace("{enabled: false}", tracking))
    done = hedgerow("run", "good.yaml")
    assert done.exit_code == 0, done.output
    assert store.exists()
    assert (here / "hook.txt").read_text() == "https://geheim-hook"
    (folder,) = (here / "runs").iterdir()
    assert "${env:STORE_SECRET}" in (folder / "experiment.yaml").read_text()
    assert hedgerow("report", folder).exit_code == 0
    assert not any(b"geheim" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("output: ${env:MY_TOKEN}/runs", "the value of MY_TOKEN looks like a secret and would be recorded"),
        ("output: ${env:PGPASS}/runs", "the value of PGPASS looks like a secret"),
        ("output: ${env:MYSQL_PWD}/runs", "the value of MYSQL_PWD looks like a secret"),
        ("output: ${env:GH_PAT}/runs", "the value of GH_PAT looks like a secret"),
        ("output: ${env:SLACK_WEBHOOK_URL}/runs", "the value of SLACK_WEBHOOK_URL looks like a secret"),
        ("output: ${env:STORE}", "the value of STORE looks like a secret and would be recorded"),
        ("evaluation: {target_metric: '${env:PLACE}'}", "a variable cannot be used here"),
    ],
)
def test_other_keys_take_no_secrets(line, said, here, monkeypatch):
    for name in ("MY_TOKEN", "PLACE", "PGPASS", "MYSQL_PWD", "GH_PAT", "SLACK_WEBHOOK_URL"):
        monkeypatch.setenv(name, "geheim")
    monkeypatch.setenv("STORE", "s3://me:geheim@bucket")
    text = GOOD.replace("evaluation: {targets: [0.01, 0.99]}\n", "") + line
    (here / "good.yaml").write_text(text)
    done = hedgerow("run", "good.yaml")
    assert done.exit_code == 2
    assert said in done.output
    assert "geheim" not in done.output


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("first", ["import hedgerow.searchspaces.results.mlflow_search\n", ""])
def test_mlflow_sends_no_usage_statistics(first):
    code = (
        "import sys; import hedgerow.platform.tracking.mlflow_store\n"
        "from mlflow.telemetry.utils import is_telemetry_disabled; sys.exit(not is_telemetry_disabled())"
    )
    outside = {name: value for name, value in os.environ.items() if name not in ("MLFLOW_DISABLE_TELEMETRY", "CI")}
    assert subprocess.run([sys.executable, "-c", first + code], env=outside).returncode == 0
