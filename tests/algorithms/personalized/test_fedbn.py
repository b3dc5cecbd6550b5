"""FedBN, and running statistics where clients share a part of the model: what is sent, kept, scored and reported."""

import numpy as np
import pytest
import torch
from helpers import SingleRun, check_resuming
from torch import nn

import hedgerow
from hedgerow.algorithms.core.pytree import count, flatten
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.personalized.fedbn import FedBN
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.coordinator import build_servers, worker_arguments
from hedgerow.platform.runtime.factory import build_data, check_task
from hedgerow.platform.runtime.worker import Worker

CLIENTS = np.arange(6)
PARAMETERS = {"2.weight", "2.bias"}
STATISTICS = {"2.running_mean", "2.running_var", "2.num_batches_tracked"}


def experiment(name="fedbn", model="Normed", mode="loop", hyper=None, buffers="average", **more):
    values = {
        "name": "bn",
        "seed": 3,
        "rounds": 2,
        "clients_per_round": "all",
        "task": {
            "data": {"name": "digits"},
            "partition": {
                "kind": "dirichlet", "clients": 6, "alpha": 0.5, "samples_per_client": 27, "client_test_fraction": 0.22,
            },
            "model": {"name": f"mode_models.{model}", "buffers": buffers},
        },
        "algorithm": {"name": name, "lr": 0.1, "epochs": 2, "batch_size": 8, **(hyper or {})},
        "engine": {"mode": mode, "chunk": 4 if mode == "vmap" else "auto"},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
        **more,
    }  # fmt: skip
    return parse_experiment(values)


def start(wanted, folder=None):
    data = build_data(wanted, None)
    return SingleRun(build_servers([wanted], *data), Worker(*worker_arguments([wanted], *data)), [folder])


def done(*args, **settings):
    one = start(experiment(*args, **settings))
    return one, list(one)


def states_of(run):
    return run.states.read(CLIENTS)


def close(a, b, tolerance=1e-5):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance, msg=f"{name} differs")


def test_layers_are_found_by_their_type():
    block = nn.Sequential(nn.BatchNorm2d(2), nn.GroupNorm(1, 2))
    layers = nn.ModuleDict({"first": nn.Conv2d(1, 2, 3), "b": block, "norm": nn.Linear(2, 2)})
    found = FedBN(FedBN.Hyper(), Task(layers))
    own = {name for name, is_shared in found.names.items() if not is_shared}
    assert own == {"b.0.weight", "b.0.bias"}
    assert found.keeps_buffer("b.0.running_mean")
    assert not found.keeps_buffer("b.1.running_mean")


def test_batch_norm_is_client_state_and_is_not_sent():
    one, records = done()
    assert one.server.keys() == {"w"}
    assert one.server["w"].keys() == {"1.weight", "1.bias", "4.weight", "4.bias"}
    states = states_of(one)
    assert states["own"].keys() == PARAMETERS
    assert states["buffers"].keys() == STATISTICS
    for leaf in (states["own"]["2.weight"], states["buffers"]["2.running_mean"]):
        assert len({tuple(row.tolist()) for row in leaf}) == 6
    for record in records:
        assert record["scalars_up"] == record["scalars_down"] == 6 * count(one.server["w"])
        assert record["bytes_up"] == record["bytes_down"] == 6 * 4 * count(one.server["w"])


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_the_first_round_is_that_of_fedavg_without_the_average_of_batch_norm(mode):
    mine, plain = done(mode=mode, rounds=1)[0], done("fedavg", mode=mode, rounds=1)[0]
    average, states = plain.server, states_of(mine)
    close(mine.server["w"], {name: p for name, p in average["w"].items() if name not in PARAMETERS}, 0)
    close(
        {name: leaf.mean(0) for name, leaf in states["own"].items()},
        {name: p for name, p in average["w"].items() if name in PARAMETERS},
    )
    # All clients have equally many samples.
    torch.testing.assert_close(states["buffers"]["2.running_mean"].mean(0), average["buffers"]["2.running_mean"])


def test_it_is_fedper_with_these_names_whatever_becomes_of_buffers_otherwise():
    runs = [done(), done(buffers="local"), done("fedper", hyper={"shared": ["1.*", "4.*"]})]
    for other, records in runs[1:]:
        close(*({**flatten(one.server), **flatten(states_of(one))} for one in (runs[0][0], other)), 0)
        assert [r["client_loss"] for r in records] == [r["client_loss"] for r in runs[0][1]]


@pytest.mark.parametrize(
    ("model", "slots"),
    [
        ("Normed", {}),
        ("NormedImages", {"transforms": [{"kind": "clip", "norm": 0.1}, {"kind": "top_k", "entries": 50}]}),
        ("Normed", {"aggregation": {"rule": {"kind": "median"}}}),
        ("Normed", {"objective": {"kind": "robustness", "alpha": 0.5}}),
    ],
    ids=["none", "transforms", "median", "objective"],
)
def test_loop_equals_vmap_with_slots_too(model, slots):
    (first, records), (second, others) = (done(model=model, mode=mode, **slots) for mode in ("loop", "vmap"))
    close(*({**flatten(one.server), **flatten(states_of(one))} for one in (first, second)))
    assert records[-1]["client_loss"] == pytest.approx(others[-1]["client_loss"], rel=1e-4)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_statistics_of_shared_layers_are_averaged_and_those_of_personal_layers_are_not(mode):
    shared = ["1.*", "2.*", "4.*"]
    one, records = done("fedper", "NormedTwice", mode, {"shared": shared})
    states = states_of(one)
    assert one.server["buffers"].keys() == STATISTICS
    assert states["buffers"].keys() == {name.replace("2.", "5.", 1) for name in STATISTICS}
    assert states["own"].keys() == {"5.weight", "5.bias", "6.weight", "6.bias"}
    size = 4 * count(one.server["w"]) + 2 * 4 * 8 + 8
    assert records[-1]["bytes_up"] == records[-1]["bytes_down"] == 6 * size
    plain = done("fedavg", "NormedTwice", mode, rounds=1)[0]
    first = done("fedper", "NormedTwice", mode, {"shared": shared}, rounds=1)[0]
    close(first.server["buffers"], {name: b for name, b in plain.server["buffers"].items() if name in STATISTICS}, 1e-6)


def test_a_resumed_run_ends_like_an_undisturbed_one(tmp_path):
    check_resuming(lambda folder: start(experiment(rounds=4, clients_per_round=0.5), folder), 2, tmp_path)


def test_it_sends_nothing_that_privacy_does_not_cover():
    private = {"clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"}
    check_task(wanted := experiment(privacy=private, clients_per_round=0.5), *build_data(wanted, None))
    wanted = experiment("fedper", privacy=private, clients_per_round=0.5)
    with pytest.raises(UserError, match="statistics of batch norm would be sent without noise"):
        check_task(wanted, *build_data(wanted, None))


def test_the_reported_model_normalises_by_mini_batches(tmp_path):
    finished = hedgerow.run(experiment(output=str(tmp_path)), show=False)
    module = finished.module()
    assert module[2].running_mean is None
    assert torch.equal(module[1].weight, torch.from_numpy(finished.parameters["1.weight"]))
    assert torch.equal(module[2].weight, torch.ones(8))
    with pytest.raises(UserError, match="every client has its own model"):
        finished.predict(finished.samples)
    # Its server has neither the parameters nor the statistics of a teacher.
    task = {"data": {"name": "digits"}, "partition": {"kind": "iid", "clients": 6}, "model": {"name": "mlp"}}
    student = {"task": {**task, "teacher": {"run": str(finished.folder.path)}}, "algorithm": {"name": "kd"}}
    wanted = parse_experiment({"name": "student", "rounds": 1, "resources": {"executor": "inline"}, **student})
    with pytest.raises(UserError, match=r"does not have '2.weight', which each of its clients has for itself"):
        check_task(wanted, *build_data(wanted, None))


@pytest.mark.parametrize("model", ["mode_models.Dropped", "mlp", "mlp_static"])
def test_a_model_without_batch_norm_is_refused(model):
    values = experiment().model_dump(mode="json", exclude_unset=True)
    values["task"]["model"] = {"name": model}
    wanted = parse_experiment(values)
    with pytest.raises(UserError, match="fedbn keeps batch normalisation on the clients, and this model has none"):
        check_task(wanted, *build_data(wanted, None))
