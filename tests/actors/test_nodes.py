"""On several nodes, each a raylet of its own: nodes that are lost, join, and are about to be taken."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from paths import SUPPORT
from processes import hedgerow
from ray_clusters import Nodes, environment, until
from ray_runs import small
from searches import one_after_the_other, plan

from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.storage.checkpoint import latest_checkpoint, read_checkpoint
from hedgerow.platform.tracking.tracker import RunLog


@pytest.fixture(scope="module")
def nodes():
    cluster = Nodes()
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="client actors find the GPU")
def test_a_driver_needs_no_gpu_to_use_those_of_nodes_and_nodes_without_theirs_end_the_run_in_one_sentence(
    nodes, tmp_path
):
    nodes.add("without")
    resources = {"executor": "ray", "actors": 1, "cpus_per_actor": 0.5}
    experiment = small(tmp_path / "runs", resources=resources)
    (tmp_path / "file.yaml").write_text(dump_experiment(experiment))
    driver = hedgerow(
        "run", str(tmp_path / "file.yaml"), "--address", nodes.address, env=environment(), stderr=subprocess.PIPE
    )
    said = driver.communicate(timeout=200)[1].decode()
    assert driver.returncode == 2, said
    choice, sentence = said.splitlines()
    assert choice == "hedgerow: clients compute on cuda"
    assert "no client actor can start, at last on node without" in sentence
    assert "set resources.device to cpu" in sentence
    nodes.lose("without")


def test_nodes_are_lost_and_join_and_the_run_has_the_same_bits(nodes, tmp_path):
    nodes.add("one")
    nodes.add("two")
    slow = tmp_path / "slow"
    slow.touch()
    settings = {
        "rounds": 500,
        "engine__mode": "loop",
        "engine__chunk": "auto",
        "algorithm__slow_file": str(slow),
        "resources": {"actors": 2, "cpus_per_actor": 0.5, "gpus_per_actor": 1, "device": "cpu"},
        "evaluation": {"every": 100},
    }
    experiment = small(tmp_path / "runs", **settings)
    (tmp_path / "file.yaml").write_text(dump_experiment(experiment))
    with (tmp_path / "log").open("w") as log:
        driver = hedgerow(
            "run", str(tmp_path / "file.yaml"), "--address", nodes.address, env=environment(), stdout=log, stderr=log
        )

    def rounds() -> int:
        assert driver.poll() is None, (tmp_path / "log").read_text()
        return max((len(RunLog(file).read()) for file in (tmp_path / "runs").glob("*/metrics.jsonl")), default=0)

    def goes_on() -> None:
        before = rounds()
        until(lambda: rounds() > before, "the run goes on")

    goes_on()
    for name in ("one", "two"):
        until(lambda name=name: nodes.hosts(name, "ray::ClientActor"), f"an actor is on {name}")
    goes_on()
    nodes.lose("two")
    goes_on()
    nodes.add("three")
    until(lambda: nodes.hosts("three", "ray::ClientActor"), "the lost actor starts on the new node")
    goes_on()
    slow.unlink()
    assert driver.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    (folder,) = (tmp_path / "runs").glob("small-*")
    record, text = json.loads((folder / "run.json").read_text()), (tmp_path / "log").read_text()
    # One sentence each for the actor and the node that were lost, and for the node that joined; no dump of Ray.
    for part in (
        r"client actor [01] was lost \(.+\) and replaced; its work runs again",
        r"node two \([\d.]+\) was lost; its work runs again on the other nodes",
        r"node three \([\d.]+\) has joined",
    ):
        assert len([notice for notice in record["notices"] if re.fullmatch(part, notice)]) == 1, record["notices"]
    for words in ("(raylet)", "Raylet is terminated", "marked dead", "state-dump"):
        assert words not in text

    data = check(experiment, None)
    calm = build_coordinator([experiment], *data, [tmp_path / "calm" / "checkpoints"], parts=2)
    calm.advance(1e6)
    (learner,) = calm.servers
    records = RunLog(folder / "metrics.jsonl").read()
    assert [r | {"seconds": 0} for r in records] == [r | {"seconds": 0} for r in learner.history]
    last = latest_checkpoint(folder / "checkpoints")
    assert last is not None
    server, _ = read_checkpoint(last[0])
    assert all(np.array_equal(server["w"][name], value) for name, value in learner.state["w"].items())


SEARCH = {
    "resources": {"cpus_per_actor": 0.5, "gpus_per_actor": 0.5, "device": "cpu"},
    "search__pack": "off",
    "search__report_every": 5,
}


def hedge(output: Path) -> list[dict]:
    return [record for file in output.glob("small-*/metrics.jsonl") for record in RunLog(file).read()]


def test_a_submitted_search_uses_the_nodes(nodes, tmp_path):
    nodes.add("four")
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "file.yaml").write_text(plan(tmp_path / "runs", rounds=10, **SEARCH).dump())
    shutil.copy(SUPPORT / "toys.py", tmp_path / "sent")
    command = [sys.executable, "-m", "hedgerow", "submit", "search", "file.yaml", "--address", nodes.jobs]
    done = subprocess.run(command, cwd=tmp_path / "sent", env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert hedge(tmp_path / "runs") == one_after_the_other(plan(tmp_path / "alone", rounds=10, **SEARCH))


def test_a_search_goes_on_where_there_is_room_when_a_node_is_lost(nodes, tmp_path):
    nodes.add("five")
    if len(nodes.alive()) == 2:
        # Without a node that another test has left.
        nodes.add("six")
    slow = tmp_path / "slow"
    slow.touch()
    settings = {"rounds": 60, "algorithm__slow_file": str(slow), **SEARCH}
    (tmp_path / "file.yaml").write_text(plan(tmp_path / "runs", **settings).dump())
    with (tmp_path / "log").open("w") as log:
        driver = hedgerow(
            "search", str(tmp_path / "file.yaml"), "--address", nodes.address, env=environment(), stdout=log, stderr=log
        )

    def begun() -> bool:
        assert driver.poll() is None, (tmp_path / "log").read_text()
        return len(hedge(tmp_path / "runs")) >= 5

    until(begun, "Hedge has rounds")
    lost = next(name for name in nodes.alive() if name != "head" and nodes.hosts(name, "ray::ResourceTrainable"))
    nodes.lose(lost)
    slow.unlink()
    expected = one_after_the_other(plan(tmp_path / "alone", **settings))
    assert driver.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    assert hedge(tmp_path / "runs") == expected
    text = (tmp_path / "log").read_text()
    assert re.search(rf"hedgerow: node {lost} \([\d.]+\) was lost; its work runs again on the other nodes", text)
    assert "(raylet)" not in text
    assert "Traceback" not in text


def test_a_broken_node_is_left_out_and_the_run_has_the_same_bits(nodes, tmp_path):
    # Without torch, as after a failed installation; one of them is there from the start, the other one joins.
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12 is not there')")
    broken = {"PYTHONPATH": str(tmp_path / "broken")}
    for name in set(nodes.alive()) - {"head"}:
        nodes.lose(name)
    nodes.add("broken", **broken)
    nodes.add("sound")
    slow = tmp_path / "slow"
    slow.touch()
    settings = {
        "rounds": 200,
        "engine__mode": "loop",
        "engine__chunk": "auto",
        "algorithm__slow_file": str(slow),
        "resources": {"actors": 3, "cpus_per_actor": 0.5, "gpus_per_actor": 1, "device": "cpu"},
        "evaluation": {"every": 100},
    }
    experiment = small(tmp_path / "runs", **settings)
    (tmp_path / "file.yaml").write_text(dump_experiment(experiment))
    with (tmp_path / "log").open("w") as log:
        driver = hedgerow(
            "run", str(tmp_path / "file.yaml"), "--address", nodes.address, env=environment(), stdout=log, stderr=log
        )

    def said(name: str) -> bool:
        text = (tmp_path / "log").read_text()
        assert driver.poll() is None, text
        return f"cannot start on node {name}" in text

    def rounds() -> int:
        return max((len(RunLog(file).read()) for file in (tmp_path / "runs").glob("*/metrics.jsonl")), default=0)

    until(lambda: said("broken"), "the node that cannot start is left out")
    until(rounds, "the run goes on")
    nodes.add("worse", **broken)
    until(lambda: said("worse"), "the node that joins is left out")
    assert nodes.hosts("sound", "ray::ClientActor")
    slow.unlink()
    assert driver.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    (folder,) = (tmp_path / "runs").glob("small-*")
    record = json.loads((folder / "run.json").read_text())
    left_out = [notice for notice in record["notices"] if "is left out of this run" in notice]
    assert ["libcudart.so.12 is not there" in notice for notice in left_out] == [True, True]

    data = check(experiment, None)
    calm = build_coordinator([experiment], *data, [tmp_path / "calm" / "checkpoints"], parts=3)
    calm.advance(1e6)
    records = RunLog(folder / "metrics.jsonl").read()
    assert [r | {"seconds": 0} for r in records] == [r | {"seconds": 0} for r in calm.servers[0].history]
