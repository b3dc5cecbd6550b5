"""Bits follow from the plan alone, and the plan is recorded before any number that it decides is reported."""

import json
import os
import platform
import socket
from pathlib import Path

import psutil
import pytest
import torch
from helpers import without_clock
from ray_runs import hosts_coordinator, numbers, same, small
from torch.torch_version import TorchVersion

from hedgerow.api import run as run_again
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.user_cache import discard, read_entry, write_entry
from hedgerow.platform.runs.runner import resume, run
from hedgerow.platform.runtime.coordinator import Coordinator, build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.tracking.run_folder import RunFolder

MEASURED = {"engine": {"mode": "auto"}, "rounds": 6, "checkpoints__every": 1000}


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of plans that is empty at first."""
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans"


def turn_over(cache: Path, known: set[Path] | None = None) -> None:
    """Have the cache remember another plan for everything that was not known before."""
    files = set(cache.glob("*.json")) - (known or set())
    assert files
    for file in files:
        answer = read_entry(file)
        mode, chunk = ("vmap", 3) if answer["best"]["mode"] == "loop" else ("loop", 1)
        discard(file)
        write_entry(file, answer | {"best": {"mode": mode, "chunk": chunk, "compiled": False}})


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("cached", ["another plan", "nothing"])
def test_a_run_resumed_before_its_first_checkpoint_keeps_its_plan(tmp_path, cache, monkeypatch, cached):
    settings = MEASURED | {"resources__executor": "inline"}
    seen: list[dict] = []

    def end(record):
        (folder,) = (tmp_path / "runs").glob("small-*")
        seen.append(json.loads((folder / "run.json").read_text())["plans"])
        # As if it were killed: no checkpoint is written.
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run(small(tmp_path / "runs", **settings), show=end)
    (folder,) = (tmp_path / "runs").glob("small-*")
    assert not list(folder.glob("checkpoints/round-*"))
    assert {"train/clients", "evaluate_client/clients"} <= seen[0].keys()
    if cached == "nothing":
        monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path / "new"))
    else:
        turn_over(cache)
        assert run(small(tmp_path / "other", **settings)).plans["train/clients"] != seen[0]["train/clients"]
    resumed = resume(str(folder))
    assert resumed.plans == seen[0]
    # The same plan from the file repeats the run, whatever the cache says.
    again = run_again(small(tmp_path / "again", **settings), engine__plans=resumed.plans, show=False)
    assert again.plans == seen[0]
    assert same(again, resumed)


def test_machines_of_the_same_kind_share_their_plans(tmp_path, cache, monkeypatch):
    settings = MEASURED | {"resources__executor": "inline", "rounds": 1}
    first = run(small(tmp_path / "first", **settings))
    known = set(cache.glob("*.json"))
    monkeypatch.setattr(platform, "node", lambda: "another-host")
    monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
    assert run(small(tmp_path / "second", **settings)).plans == first.plans
    assert set(cache.glob("*.json")) == known
    others = ({"cpu": "another model", "cores": 2}, {"cpu": "a", "cores": 2, "gpu": "H100", "gpu_memory": 80 * 10**9})
    for kind in others:
        monkeypatch.setattr("hedgerow.platform.runtime.worker.hardware", lambda device, kind=kind: kind)
        run(small(tmp_path / kind["cpu"], **settings))
        before, known = known, set(cache.glob("*.json"))
        assert known > before


def test_experts_of_a_trial_keep_their_plans(tmp_path, cache):
    experiments = [small(tmp_path, **MEASURED, resources__executor="inline", algorithm__lr=lr) for lr in (0.1, 0.2)]
    RunFolder(tmp_path).update()
    folders = [tmp_path / "experts" / name for name in ("000", "001")]
    for folder in folders:
        folder.mkdir(parents=True)
        RunFolder(folder).update(status="running", overrides={})
    data = check(small(tmp_path), None)

    def start() -> Coordinator:
        return build_coordinator(experiments, *data, [folder / "checkpoints" for folder in folders])

    first = start()
    first.run_round()
    recorded = [json.loads((folder / "run.json").read_text()) for folder in folders]
    assert recorded[0] == recorded[1]
    assert "train/clients" in recorded[0]["plans"]
    turn_over(cache)
    second = start()
    second.run_round()
    assert first.executor.plans.known == second.executor.plans.known
    for one, other in zip(first.servers, second.servers, strict=True):
        assert without_clock(one.history) == without_clock(other.history)
    assert [json.loads((folder / "run.json").read_text()) for folder in folders] == recorded


@pytest.mark.exhaustive("kills")
@pytest.mark.usefixtures("ray_here")
def test_a_coordinator_that_dies_before_the_first_checkpoint_is_replaced_by_one_with_its_plan(tmp_path):
    victims: list[psutil.Process] = []
    # The cache of Ray's processes, and a model that no other test has.
    cache = Path(os.environ["HEDGEROW_CACHE"]) / "plans"
    known = set(cache.glob("*.json"))

    def kill_once(record):
        if not victims:
            turn_over(cache, known)
            victims.extend(p for p in psutil.Process().children(recursive=True) if hosts_coordinator(p))
            victims[0].kill()

    settings = MEASURED | {"rounds": 200, "resources__executor": "ray", "task__model__hidden": [7]}
    finished = run(small(tmp_path / "runs", **settings), show=kill_once)
    assert len(victims) == 1
    again = run_again(
        small(tmp_path / "again", **settings), resources__executor="inline", engine__plans=finished.plans, show=False
    )
    assert numbers(finished) == numbers(again)


def test_a_plan_of_a_step_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"^engine\.plans: toys\.Stateful has no step 'trian/clients'; remove it$"):
        run(small(tmp_path, resources__executor="inline", engine__plans={"trian/clients": {"mode": "loop"}}))
    assert not list(tmp_path.glob("small-*"))


@pytest.mark.parametrize(
    "engine", [{"compile": True}, {"plans": {"train/clients": {"mode": "vmap", "chunk": 2, "compiled": True}}}]
)
def test_an_older_pytorch_refuses_to_compile(engine, tmp_path, monkeypatch):
    experiment = small(tmp_path, engine=engine, algorithm__name="fedavg")
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.15.0+cpu"))
    check(experiment, None)
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.13.1+cpu"))
    with pytest.raises(UserError, match=r"engine: compiled plans need PyTorch 2\.15 or later, and 2\.13\.1"):
        check(experiment, None)


def test_an_older_pytorch_refuses_to_resume_a_compiled_run(tmp_path, monkeypatch):
    experiment = small(tmp_path, resources__executor="inline", algorithm__name="fedavg", rounds=1)
    folder = run(experiment).folder
    folder.update(plans={"train/clients": {"mode": "vmap", "chunk": 2, "compiled": True}})
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.13.1+cpu"))
    with pytest.raises(UserError, match=r"the plans in run\.json: compiled plans need PyTorch 2\.15"):
        build_coordinator([experiment], *check(experiment, None), [folder.path / "checkpoints"])
