"""Every algorithm, as `hedgerow new` writes its experiment: it trains equally in a loop, under vmap and on a GPU."""

import json
from typing import Any

import pytest
import torch

from hedgerow.algorithms.core.pytree import flatten
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import algorithms
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.ui.explained_experiment import complete

LOOP, VMAP, GRAPH = {"mode": "loop", "chunk": 1}, {"mode": "vmap", "chunk": 2}, {"mode": "graph"}
NOT_HERE = {"fedbn", "numpy_client"}
"""Algorithms that need batch normalisation, or a class of the user."""
AMPLIFY = {"feddf": 0.1}
"""Largest relative difference where it is not 0.01: Adam's steps have the same size for gradients that are almost 0."""

State = dict[str, torch.Tensor]

every_algorithm = pytest.mark.parametrize("name", [name for name in algorithms.names() if name not in NOT_HERE])


def trained(name: str, folder: Any, engine: dict[str, Any], rounds: int = 2, device: str = "cpu") -> State:
    """The server's state after some rounds of the experiment, made small."""
    values = complete("mine", name).model_dump(mode="json")
    task = values["task"]
    teacher = task["teacher"] or {}
    teacher.update({"epochs": 1} if teacher else {})
    task["partition"].update({"tasks": 2} if task["partition"]["kind"] == "stream" else {"clients": 8})
    for model in (task["model"], teacher.get("model", {})):
        model.update({"hidden": [32]} if "hidden" in model else {})
    if task["model"]["name"] == "resnet":
        # Long steps of this network amplify the last bits of its products.
        for training in (values["algorithm"], teacher):
            training.update({"lr": 1e-4} if training else {})
    resources = {"executor": "inline", "device": device}
    experiment = parse_experiment(values | {"rounds": 2, "engine": engine, "resources": resources})
    coordinator = build_coordinator([experiment], *check(experiment, None), [folder])
    for _ in range(rounds):
        coordinator.next_round()
    folder.mkdir(exist_ok=True)
    (folder / "plans.json").write_text(json.dumps(coordinator.plans()))
    return {path: torch.as_tensor(leaf) for path, leaf in flatten(coordinator.servers[0].state).items()}


def apart(one: State, other: State) -> float:
    """Norm of the difference; leaves that only one of the states has count whole."""
    zero = torch.zeros((), dtype=torch.float64)
    leaves = [(one.get(path, zero), other.get(path, zero)) for path in one.keys() | other.keys()]
    return sum(float(((a.double() - b.double()) ** 2).sum()) for a, b in leaves if a.is_floating_point()) ** 0.5


@pytest.mark.exhaustive("grid")
@every_algorithm
def test_it_trains_equally_in_a_loop_and_under_vmap(name, tmp_path):
    start = trained(name, tmp_path / "start", LOOP, rounds=0)
    loop, vmap = trained(name, tmp_path / "loop", LOOP), trained(name, tmp_path / "vmap", VMAP)
    change = apart(loop, start)
    assert change > 0
    assert apart(vmap, loop) <= AMPLIFY.get(name, 0.01) * change


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_algorithm
def test_on_a_gpu_it_has_the_numbers_of_the_cpu_and_the_same_bits_again(name, tmp_path, record_property):
    start = trained(name, tmp_path / "start", LOOP, rounds=0)
    cpu = trained(name, tmp_path / "cpu", LOOP)
    loop, graph, vmap, again = (
        trained(name, tmp_path / f"gpu-{i}", e, device="cuda") for i, e in enumerate((LOOP, GRAPH, VMAP, VMAP))
    )
    bound = AMPLIFY.get(name, 0.01) * apart(cpu, start)
    assert apart(loop, cpu) <= bound
    assert apart(vmap, cpu) <= bound
    modes = {plan["mode"] for plan in json.loads((tmp_path / "gpu-1" / "plans.json").read_text()).values()}
    record_property("local steps", "loop" if "loop" in modes else "graph")
    assert name != "fedavg" or modes == {"graph"}
    # The same kernels, or the loop where they cannot be captured.
    assert graph.keys() == loop.keys()
    assert all(torch.equal(graph[path], loop[path]) for path in graph)
    assert vmap.keys() == again.keys()
    assert all(torch.equal(vmap[path], again[path]) for path in vmap)
