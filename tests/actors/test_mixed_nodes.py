"""A run with client actors on nodes with GPUs and on nodes without: each share keeps its kind, whatever happens."""

import json
import subprocess
import sys

import pytest
from paths import SUPPORT
from processes import TOYS, hedgerow
from ray_clusters import Nodes, environment, until
from ray_runs import small

from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator, inline_executor
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.tracker import RunLog

pytestmark = [pytest.mark.exhaustive("processes"), pytest.mark.timeout(600)]

# The GPUs are only declared, so clients of both kinds of actors compute on the CPU.
RESOURCES = {"actors": 3, "mixed": True, "cpus_per_actor": 0.5, "gpus_per_actor": 1, "device": "cpu", "wait": 60}


@pytest.fixture(scope="module")
def nodes():
    cluster = Nodes()
    try:
        cluster.add("with-gpu")
        cluster.add("without", gpus=0)
        yield cluster
    finally:
        cluster.close()


def actors(nodes, name) -> list:
    return nodes.hosts(name, "ray::ClientActor")


def test_a_lost_actor_and_a_lost_node_are_replaced_by_their_own_kind(nodes, tmp_path):
    slow = tmp_path / "slow"
    slow.touch()
    settings = {
        "rounds": 400,
        "engine__mode": "loop",
        "engine__chunk": "auto",
        "algorithm__slow_file": str(slow),
        "resources": RESOURCES,
        "evaluation": {"every": 100},
    }
    experiment = small(tmp_path / "runs", **settings)
    (tmp_path / "file.yaml").write_text(dump_experiment(experiment))

    def start(*words: str):
        with (tmp_path / "log").open("a") as log:
            return hedgerow(*words, "--address", nodes.address, env=environment(), stdout=log, stderr=log)

    def goes_on() -> None:
        def rounds() -> int:
            assert driver.poll() is None, (tmp_path / "log").read_text()
            return max((len(RunLog(file).read()) for file in (tmp_path / "runs").glob("*/metrics.jsonl")), default=0)

        before = rounds()
        until(lambda: rounds() > before + 1, "the run goes on")

    def placed(name: str, number: int) -> None:
        until(lambda: len(actors(nodes, name)) == number, f"{number} client actors on {name}")

    driver = start("run", str(tmp_path / "file.yaml"))
    goes_on()
    # Of the CPU of the node with the GPU, half is free.
    placed("with-gpu", 1)
    placed("without", 2)
    for name, number in (("without", 2), ("with-gpu", 1)):
        lost = actors(nodes, name)[0]
        lost.kill()
        goes_on()
        placed(name, number)
    (folder,) = (tmp_path / "runs").glob("small-*")
    assert json.loads((folder / "run.json").read_text())["kinds"] == ["gpu", "cpu", "cpu"]

    # The only node without GPUs is lost: the run waits for another one.
    nodes.lose("without")
    nodes.add("with-another-gpu")
    nodes.add("another", gpus=0)
    goes_on()
    placed("another", 2)
    assert len(actors(nodes, "with-gpu")) + len(actors(nodes, "with-another-gpu")) == 1

    # A resumed run keeps its kinds, where more GPUs would fit now.
    driver.terminate()
    assert driver.wait(timeout=60) == 143, (tmp_path / "log").read_text()
    slow.unlink()
    driver = start("resume", str(folder))
    assert driver.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    record = json.loads((folder / "run.json").read_text())
    assert record["kinds"] == ["gpu", "cpu", "cpu"]
    data = check(experiment, None)
    calm = build_coordinator([experiment], *data, inline_executor([experiment], *data, 3), [tmp_path / "calm"])
    calm.advance(1e6)
    records = RunLog(folder / "metrics.jsonl").read()
    assert [r | {"seconds": 0} for r in records] == [r | {"seconds": 0} for r in calm.servers[0].history]


def test_the_list_of_kinds_repeats_a_run(nodes, tmp_path):
    """The order of the list is that of the shares, and plans are measured for each kind."""
    settings = {"rounds": 4, "engine": {"mode": "auto", "chunk": "auto"}}
    kinds = ["cpu", "gpu", "cpu"]

    def trained(name: str, **more) -> FinishedRun:
        experiment = small(tmp_path / name, **settings, **more)
        (tmp_path / f"{name}.yaml").write_text(dump_experiment(experiment))
        command = [
            sys.executable,
            "-m",
            "hedgerow",
            "run",
            f"{tmp_path / name}.yaml",
            "--address",
            nodes.address,
            *TOYS,
        ]
        done = subprocess.run(command, cwd=SUPPORT, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (folder,) = (tmp_path / name).glob("small-*")
        return FinishedRun.read(RunFolder(folder))

    first = trained("first", resources=RESOURCES | {"mixed": kinds})
    assert first.kinds == kinds
    assert {f"train/clients/{kind}" for kind in kinds} <= first.plans.keys()
    repeated = trained("again", resources=RESOURCES | {"mixed": first.kinds}, engine__plans=first.plans)
    assert repeated.plans == first.plans
    assert [r | {"seconds": 0} for r in repeated.records] == [r | {"seconds": 0} for r in first.records]
