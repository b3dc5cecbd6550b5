"""Dry run of placement: by counting, against the room that Ray has, and refused if resources are missing."""

import pytest
import ray
from click.testing import CliRunner
from paths import ROOT

from hedgerow.cli import main
from hedgerow.cluster.nodes import parse_nodes
from hedgerow.cluster.plan_command import place
from hedgerow.platform.actors.actor_room import actors_that_fit
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.resources import Resources

DIGITS = str(ROOT / "examples" / "digits_fedavg.yaml")
MIXED = "1x(cpus=4,memory=16) + 2x(cpus=16,gpus=2,memory=64)"
CPU = ("--set", "resources.device=cpu")


def plan(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["plan", *arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_described_nodes_are_those_of_the_file(tmp_path):
    (tmp_path / "nodes.yaml").write_text(
        "nodes:\n- {cpus: 4, memory: 16}\n- {count: 2, cpus: 16, gpus: 2, memory: 64}\n"
    )
    nodes = parse_nodes(MIXED)
    assert nodes == parse_nodes(str(tmp_path / "nodes.yaml"))
    assert [node.resources.get("GPU", 0) for node in nodes] == [0, 2, 2]
    assert nodes[1].memory + nodes[1].store == pytest.approx(64e9)


LAUNCHER = """
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, max_workers: 0}
  gpu: {min_workers: 1, max_workers: 3, resources: {CPU: 8, GPU: 2, memory: 64000000000}}
"""


def test_a_plan_reads_the_file_of_a_cluster_that_scales(tmp_path):
    (tmp_path / "launcher.yaml").write_text(LAUNCHER)
    nodes = parse_nodes(str(tmp_path / "launcher.yaml"))
    assert [node.name for node in nodes] == ["gpu 1", "gpu 2, started on demand", "gpu 3, started on demand"]
    assert [node.resources for node in nodes] == [node.resources for node in parse_nodes("3x(cpus=8,gpus=2,memory=64)")]
    pods = parse_nodes(str(ROOT / "cluster" / "files" / "kuberay-cluster.yaml"))
    assert [node.name for node in pods][-1] == "cpu 4, started on demand"
    assert pods[0].resources["CPU"] == 8
    assert pods[0].resources["GPU"] == 1
    assert pods[0].memory + pods[0].store == pytest.approx(32 * 2**30)
    (tmp_path / "launcher.yaml").write_text(LAUNCHER.replace("CPU: 8, GPU: 2, memory: 64000000000", ""))
    with pytest.raises(UserError, match="the node type 'gpu' does not say its resources"):
        parse_nodes(str(tmp_path / "launcher.yaml"))


@pytest.mark.parametrize(
    ("settings", "number", "expected"),
    [
        ({}, 12, [0, 12, 0]),
        ({"placement": "spread"}, 12, [4, 4, 4]),
        ({"placement": "spread", "cpus_per_actor": 2}, 12, [2, 5, 5]),
        ({"device": "cuda"}, 4, [0, 2, 2]),
        ({"gpus_per_actor": 0.25}, 12, [0, 8, 4]),
        ({"gpus_per_actor": 0.25, "placement": "spread"}, 12, [0, 6, 6]),
        # Of 16 GB and of 64, three tenths are the object store's.
        ({"memory_mb": 4000, "placement": "spread"}, 12, [2, 5, 5]),
        ({"memory_mb": 5000}, 12, [0, 8, 4]),
    ],
)
def test_actors_are_packed_or_spread_within_the_room_of_each_node(settings, number, expected):
    nodes = parse_nodes(MIXED)
    placed = place(Resources(**settings), number, nodes)
    assert placed == expected
    for node, actors in zip(nodes, placed, strict=True):
        assert actors <= actors_that_fit(Resources(**settings), [node.resources])


def test_the_plan_knows_the_room_of_ray(ray_here):
    node = ray.nodes()[0]["NodeManagerAddress"]
    text = plan(DIGITS, "--set", "resources.placement=spread")
    assert "4 client actors of 1 CPU and 0 GPU each, spread over the nodes" in text
    assert f"│ 1 │ {node} │ 4 of 4 │ 4 of 4 │ 0 of 0 │" in text


def test_a_plan_tells_what_it_counts():
    gpus = ("--set", "resources.gpus_per_actor=0.25", "--set", "resources.actors=10")
    text = plan(DIGITS, "--nodes", MIXED, *gpus)
    assert "10 client actors of 1 CPU and 0.25 GPU each, 4 per GPU, packed on as few nodes as possible" in text
    assert "│ 1 │ node 1 │ 0 of 0 │" in text
    assert "│ 1 │ node 2 │ 8 of 8 │ 8 of 16 │ 2 of 2 │" in text
    # Of the pinned PyTorch, whose kernels and driver docs/how-to/cluster.md names.
    needs = "needs an NVIDIA driver for CUDA 13.2, version 580 or newer, and GPUs of compute capability 7.5 or newer"
    assert needs in " ".join(text.split())
    assert "4 client actors of 1 CPU and 1 GPU each" in plan(DIGITS, "--nodes", MIXED)
    for settings in (
        (DIGITS, "--nodes", MIXED, "--set", "resources.device=cpu"),
        (DIGITS, "--nodes", "1x(cpus=4,memory=9)"),
    ):
        text = plan(*settings)
        assert "client actors of 1 CPU and 0 GPU each" in text
        assert "GPUs: " not in text


def test_the_plan_of_a_search_is_its_trials():
    text = plan(str(ROOT / "examples" / "digits_hedge.yaml"), "--nodes", MIXED, *CPU, "--set", "resources.actors=3")
    assert "12 concurrent trials of 3 client actors" in text
    assert "│ 16 of 16 │" in text
    # The file has eight experts.
    assert "each; 8 run" in text


@pytest.mark.parametrize(("setting", "run"), [("concurrency=2", 2), ("pack=4", 2), ("pack=off", 8)])
def test_the_plan_of_a_search_knows_how_many_of_its_trials_run_at_once(setting, run):
    text = plan(str(ROOT / "examples" / "digits_hedge.yaml"), "--nodes", MIXED, *CPU, "--set", f"search.{setting}")
    assert f"room for 36 concurrent trials of 1 client actor of 1 CPU and 0 GPU each; {run} run" in text


LACKING = [
    (("resources.actors=5",), MIXED, "cpus_per_actor or gpus_per_actor, or set resources.device to cpu"),
    (("resources.device=cpu", "resources.actors=37"), MIXED, "room for 36: not enough CPUs"),
    (("resources.gpus_per_actor=1", "resources.actors=5"), MIXED, "room for 4: not enough GPUs"),
    (("resources.gpus_per_actor=2",), MIXED, "is above 1, but a client actor computes on one GPU"),
    (("resources.gpus_per_actor=0",), MIXED, "is not a fraction of a GPU; remove it, and set `device: cpu`"),
    (("resources.device=cuda",), "1x(cpus=8,memory=9)", "1 client actor of 1 CPU and 1 GPU cannot be placed"),
    (("resources.device=cpu", "resources.cpus_per_actor=0"), MIXED, "with nothing to reserve; set `device: cuda`"),
    (("resources.executor=processes", "resources.device=cuda"), MIXED, "`executor: processes` computes on the CPU"),
    (("resources.cpus_per_actor=17",), MIXED, "not enough CPUs"),
    (("resources.gpus_per_actor=1",), "1x(cpus=8,memory=9)+1x(cpus=0,gpus=1,memory=9)", "CPUs on the nodes that have"),
    (("resources.actors=20",), "1x(cpus=20,memory=16)", "not enough memory on node 1: 20 client actors need 12 GB"),
    (("resources.actors=2", "resources.memory_mb=9000"), "1x(cpus=2,memory=16)", "not enough memory on node 1"),
    (("resources.actors=1",), "1x(cpus=2,memory=0.0006)", "not enough memory on node 1"),
    (
        ("resources.device=cpu", "resources.actors=20", "resources.memory_mb=5000"),
        MIXED,
        "not enough memory on node 1, node 2, node 3; lower",
    ),
    ((), "4 nodes", "write groups such as 4x(cpus=16,gpus=2,memory=64)"),
    ((), "4x(cpus=16,gpu=2,memory=64)", "did you mean 'gpus'?"),
    ((), "4x(cpus=16)", "nodes.0.memory is missing"),
    ((), "absent.yaml", "--nodes absent.yaml: cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "nodes", "fragment"), LACKING, ids=[case[2] for case in LACKING])
def test_what_cannot_fit_is_refused_by_the_name_of_what_lacks(settings, nodes, fragment):
    overrides = [word for setting in settings for word in ("--set", setting)]
    text = plan(DIGITS, "--nodes", nodes, *overrides, code=2)
    assert text.startswith("hedgerow: ")
    assert fragment in text
