"""A day of a cluster: nothing that happens to it changes a bit of the run."""

import json

import pytest
from processes import hedgerow
from ray_clusters import Nodes, environment, until
from ray_runs import small

from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.tracking.tracker import RunLog

pytestmark = [pytest.mark.exhaustive("kills"), pytest.mark.timeout(900)]


@pytest.fixture
def cluster():
    # Ray's own patience with nodes that do not answer: the head is to be lost for 20 s.
    nodes = Nodes({})
    try:
        yield nodes
    finally:
        nodes.close()


def test_a_run_has_the_bits_of_an_undisturbed_one(cluster, tmp_path):
    slow = tmp_path / "slow"
    slow.touch()
    settings = {
        "rounds": 1500,
        "engine__mode": "loop",
        "engine__chunk": "auto",
        "algorithm__slow_file": str(slow),
        "resources": {
            **{"actors": 5, "cpus_per_actor": 0.5, "gpus_per_actor": 1, "device": "cpu"},
            "placement": "spread",
        },
        "checkpoints__every": 10,
        "evaluation": {"every": 500},
    }
    experiment = small(tmp_path / "runs", **settings)
    (tmp_path / "file.yaml").write_text(dump_experiment(experiment))

    def start(*words: str):
        with (tmp_path / "log").open("a") as log:
            return hedgerow(*words, "--address", cluster.address, env=environment(), stdout=log, stderr=log)

    def log() -> str:
        return (tmp_path / "log").read_text()

    def rounds() -> int:
        return max((len(RunLog(file).read()) for file in (tmp_path / "runs").glob("*/metrics.jsonl")), default=0)

    def goes_on() -> None:
        assert driver.poll() is None, log()
        before = rounds()
        until(lambda: rounds() > before + 1, "the run goes on", 180)

    # From zero: the run waits for nodes.
    driver = start("run", str(tmp_path / "file.yaml"))
    until(lambda: "waiting for nodes with room for 1 client actor" in log(), "the run waits")
    for name in ("one", "two", "three", "four", "five"):
        cluster.add(name)
    goes_on()
    # A broken node joins.
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12 is not there')")
    # The run may have begun on fewer nodes; with all of its actors it tries no new node.
    cluster.add("broken", PYTHONPATH=str(tmp_path / "broken"))
    until(lambda: "node broken (" in log(), "the broken node is seen")
    goes_on()
    # A spot wave takes three of five.
    for name in ("two", "three", "four"):
        cluster.lose(name)
    goes_on()
    # The network to the head is gone for 20 s.
    cluster.stall(20)
    goes_on()
    # A time limit: SIGTERM saves the run, and another job resumes it.
    driver.terminate()
    assert driver.wait(timeout=120) == 143, log()
    (folder,) = (tmp_path / "runs").glob("small-*")
    slow.unlink()
    driver = start("resume", str(folder))
    assert driver.wait(timeout=400) == 0, log()

    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    data = check(experiment, None)
    calm = build_coordinator([experiment], *data, [tmp_path / "calm" / "checkpoints"], parts=5)
    calm.advance(1e6)
    records = RunLog(folder / "metrics.jsonl").read()
    assert [r | {"seconds": 0} for r in records] == [r | {"seconds": 0} for r in calm.servers[0].history]
