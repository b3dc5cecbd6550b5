"""Precision of models: autocast around their calls, and all else in float32."""

import numpy as np
import pytest
import torch
from helpers import blobs, distance, model, partition, run_inline, small_task
from torch.nn import functional

import hedgerow
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.autotune import Measurement, Workload, tune_plan

DATA = blobs()
SAMPLES = 24
DIGITS = {
    "name": "digits",
    "rounds": 2,
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": 4, "samples_per_client": 50},
        "model": {"name": "mlp", "hidden": [20]},
    },
    "algorithm": {"name": "fedavg"},
    "resources": {"executor": "inline", "device": "cpu"},
    "tracking": {"enabled": False},
}
HYPER = {"batch_size": None, "steps": 6, "epochs": None, "lr": 0.2}


def trained(precision, mode="loop"):
    """Parameters after one round of one client."""
    run = run_inline(
        FedAvg, small_task(DATA), DATA, partition(torch.tensor([SAMPLES]).numpy()), HYPER,
        engine=EngineConfig(mode=mode, chunk=1 if mode == "vmap" else "auto", precision=precision), rounds=1,
    )  # fmt: skip
    record = next(run)
    return model(run), record


def of_plain_torch():
    """The same by torch alone: each forward pass within autocast, with new copies of the parameters in bfloat16."""
    module = small_task(DATA).module
    x, y = torch.from_numpy(DATA.x_train[:SAMPLES]), torch.from_numpy(DATA.y_train[:SAMPLES])
    optimizer = torch.optim.SGD(module.parameters(), lr=HYPER["lr"])
    for _ in range(HYPER["steps"]):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = module(x)
        optimizer.zero_grad()
        functional.cross_entropy(outputs.float(), y).backward()
        optimizer.step()
    return {name: p.detach() for name, p in module.named_parameters()}


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_bfloat16_is_autocast_of_each_call_of_the_model(mode):
    wanted, (full, _) = of_plain_torch(), trained("float32")
    found, record = trained("bfloat16", mode)
    change = distance(wanted, dict(small_task(DATA).module.named_parameters()))
    assert distance(found, full) > 1e-3 * change
    # Sums of products in bfloat16 have an order of their own for one client and for several.
    assert distance(found, wanted) < (1e-6 if mode == "loop" else 0.02 * change)
    assert all(p.dtype == torch.float32 for p in found.values())
    # Counts of samples would be rounded above 256 in bfloat16.
    assert record["test_accuracy"] * len(DATA.y_test) == pytest.approx(
        round(record["test_accuracy"] * len(DATA.y_test))
    )


def test_compiled_steps_have_no_bfloat16():
    values = {
        "name": "mine",
        "task": {"data": {"name": "digits"}},
        "algorithm": {"name": "fedavg"},
        "engine": {"precision": "bfloat16", "compile": True},
    }
    with pytest.raises(UserError, match="compiled steps compute in float32 or tf32, and `precision` is bfloat16"):
        parse_experiment(values)


def test_a_run_has_the_precision_of_its_file(tmp_path):
    finished = {
        precision: hedgerow.run(
            DIGITS | {"engine": {"mode": "loop", "precision": precision}}, output=str(tmp_path), show=False
        ).parameters
        for precision in ("float32", "bfloat16")
    }
    apart = max(np.abs(leaf - finished["bfloat16"][name]).max() for name, leaf in finished["float32"].items())
    assert 1e-5 < apart < 0.05


def test_the_tuning_compiles_no_step_in_bfloat16(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    monkeypatch.setattr("hedgerow.platform.runtime.autotune.can_compile", lambda: True)
    workload = Workload(64, rounds=10**6, steps=4, alike=True)

    def cost(plan, steps):
        return Measurement(1e-3 if plan.compiled else 2e-3)

    plans = [tune_plan(EngineConfig(precision=p), None, workload, {"in": p}, cost) for p in ("float32", "bfloat16")]
    assert [plan.compiled for plan in plans] == [True, False]
