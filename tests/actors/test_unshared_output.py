"""Several nodes; one of them does not have the folder of the output and sees an empty one in its place."""

import json
import re
import signal
import subprocess
import sys

import pytest
from helpers import identical
from paths import SUPPORT
from processes import TOYS, hedgerow
from ray_clusters import Nodes, can_hide, environment, until
from ray_runs import small
from searches import plan

from hedgerow.algorithms.core.pytree import flatten
from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.storage.checkpoint import parse_tree
from hedgerow.platform.tracking.tracker import RunLog

pytestmark = pytest.mark.skipif(not can_hide(), reason="needs mount namespaces, as root on Linux")


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes") / "runs"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def nodes(output):
    cluster = Nodes()
    try:
        cluster.add("near")
        cluster.add("far", hides=output)
        yield cluster
    finally:
        cluster.close()


def test_a_run_with_client_states_needs_no_shared_folder(nodes, output, tmp_path):
    slow = tmp_path / "slow"
    slow.touch()
    settings = {
        "rounds": 200,
        "engine__mode": "loop",
        "engine__chunk": "auto",
        "algorithm__slow_file": str(slow),
        "resources": {"actors": 2, "cpus_per_actor": 0.5, "gpus_per_actor": 1, "device": "cpu"},
    }
    experiment = small(output, **settings)
    (tmp_path / "file.yaml").write_text(dump_experiment(experiment))
    with (tmp_path / "log").open("w") as log:
        driver = hedgerow(
            "run", str(tmp_path / "file.yaml"), "--address", nodes.address, env=environment(), stdout=log, stderr=log
        )

    def rounds() -> int:
        assert driver.poll() is None, (tmp_path / "log").read_text()
        return max((len(RunLog(file).read()) for file in output.glob("small-*/metrics.jsonl")), default=0)

    until(lambda: rounds() >= 3, "the run goes on")
    for name in ("near", "far"):
        until(lambda name=name: nodes.hosts(name, "ray::ClientActor"), f"an actor is on {name}")
    before = rounds()
    until(lambda: rounds() >= before + 2, "both have worked")
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=60) == 130, (tmp_path / "log").read_text()
    slow.unlink()
    (folder,) = output.glob("small-*")
    command = [sys.executable, "-m", "hedgerow", "resume", str(folder), "--address", nodes.address, *TOYS]
    done = subprocess.run(command, cwd=SUPPORT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    data = check(experiment, None)
    calm = build_coordinator([experiment], *data, [tmp_path / "calm" / "checkpoints"], parts=2)
    calm.advance(1e6)
    records = RunLog(folder / "metrics.jsonl").read()
    assert [r | {"seconds": 0} for r in records] == [r | {"seconds": 0} for r in calm.servers[0].history]
    (last,) = (folder / "checkpoints").glob("round-00000200")
    files = [sorted(where.glob("states-*")) for where in (last, tmp_path / "calm" / "checkpoints" / last.name)]
    assert [len(one) for one in files] == [1, 1]
    states = [dict(read_clients(one)) for one in files]
    assert states[0].keys() == states[1].keys()
    assert all(identical(states[0][client], states[1][client]) for client in states[0])


def read_clients(files):
    """State of each client in the files of a checkpoint."""
    for tree in (parse_tree(file.read_bytes()) for file in files):
        for row, client in enumerate(tree["clients"].tolist()):
            yield client, {name: leaf[row] for name, leaf in flatten(tree["states"]).items()}


def test_a_search_names_the_nodes_that_do_not_share_its_folder(nodes, output, tmp_path):
    resources = {"cpus_per_actor": 0.5, "gpus_per_actor": 0.5, "device": "cpu"}
    (tmp_path / "file.yaml").write_text(plan(output / "search", resources=resources).dump())
    command = [
        sys.executable,
        "-m",
        "hedgerow",
        "search",
        str(tmp_path / "file.yaml"),
        "--address",
        nodes.address,
        *TOYS,
    ]
    done = subprocess.run(command, cwd=SUPPORT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2, done.stdout + done.stderr
    (folder,) = (output / "search").iterdir()
    sentence = rf"output: node far \([\d.]+\) does not share the folder {folder}, to which the trials"
    assert re.search(sentence, done.stderr)
    assert "near" not in done.stderr
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    assert not (folder / "experts").exists()
    assert not list(folder.glob(".shared-*"))
