"""Frozen parameters are part of the model, and are neither trained nor transmitted."""

import mlflow
import pytest
import torch
from helpers import without_clock

import hedgerow
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.run_in_mlflow import save_final_model
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import build_data, build_module, check
from hedgerow.searchspaces.spaces.space import without_slots

TRAINED, ALL = 170, 1210

METHODS = {
    "fedavg": {},
    "feddyn": {},
    "scaffold": {},
    "fedsgd": {},
    "per_fedavg": {"adapt": "maml"},
    "pfldyn": {"adapt": "proto"},
    "kd": {"starts": 2},
    "disk": {},
    "fedbio": {},
    "fedavg-synthetic": {"objective": {"kind": "synthetic"}},
}


def experiment(name, hyper, model="toys.FrozenFirst", mode="vmap", **more):
    values = {
        "name": "frozen",
        "seed": 5,
        "rounds": 2,
        "clients_per_round": "all",
        "task": {
            "data": {"name": "digits"},
            "partition": {
                "kind": "dirichlet",
                "clients": 6,
                "alpha": 0.5,
                "client_test_fraction": 0.2,
                "samples_per_client": 40,
            },
            "model": {"name": model},
        },
        **without_slots({"name": name.partition("-")[0], **hyper}),
        "engine": {"mode": mode, "chunk": 4 if mode == "vmap" else "auto", "compile": False},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
        **more,
    }
    if name in ("kd", "disk"):
        values["task"]["teacher"] = {"model": {"name": model}, "epochs": 1}
    if name == "fedbio":
        values["task"]["problem"] = {"kind": "cleaning"}
        values["task"]["partition"]["upper_level_fraction"] = 0.3
    return parse_experiment(values)


def done(tmp_path, *args, **kwargs):
    """(the learner after its rounds, the module of its worker)."""
    wanted = experiment(*args, **kwargs)
    coordinator = build_coordinator([wanted], *build_data(wanted, None), [tmp_path])
    while not coordinator.done:
        coordinator.next_round()
    return coordinator.servers[0], coordinator.executor.transport.built[0].algorithms[0].task.module


@pytest.mark.parametrize("name", METHODS)
def test_frozen_parameters_are_constants_of_the_model(name, tmp_path):
    hyper = {"lr": 0.1, **METHODS[name]}
    ran = {mode: done(tmp_path, name, hyper, mode=mode) for mode in ("loop", "vmap")}
    constant, _ = done(tmp_path, name, hyper, model="toys.ConstantFirst")
    frozen, module = ran["vmap"]
    fresh = build_module(frozen.experiment, build_data(frozen.experiment, None)[0])
    for layer in ("weight", "bias"):
        assert torch.equal(getattr(module[1], layer), getattr(fresh[1], layer))
    assert sum(p.numel() for p in module.parameters()) == ALL
    assert set(frozen.algorithm.evaluate_params(frozen.state)) == {"3.weight", "3.bias"}
    server, other = flatten(frozen.state), flatten(constant.state)
    assert server.keys() == other.keys()
    assert all(torch.equal(server[key], other[key]) for key in server)
    assert without_clock(frozen.history) == without_clock(constant.history)
    looped = flatten(ran["loop"][0].state)
    assert max(float((looped[key] - server[key]).abs().max()) for key in server) < 1e-4
    if name in ("fedavg", "feddyn", "per_fedavg", "scaffold"):
        units = 2 if name == "scaffold" else 1
        record = frozen.history[-1]
        assert record["scalars_up"] == record["scalars_down"] == 6 * units * TRAINED
        assert record["transmissions"] == 2 * units
    learnt, start = frozen.algorithm.evaluate_params(frozen.state), module[3]
    assert not torch.equal(learnt["3.weight"], start.weight)


def test_a_frozen_last_layer_serves_those_that_look_at_it(tmp_path):
    learner, _ = done(tmp_path, "fedavg", METHODS["fedavg-synthetic"], model="toys.FrozenLast")
    assert set(learner.state["w"]) == {"1.weight", "1.bias"}
    learner, _ = done(tmp_path, "pfldyn", {"adapt": "proto", "proto_layer": "features"}, model="toys.FrozenLast")
    assert set(learner.state["w"]) == {"1.weight", "1.bias"}


def test_the_recorded_model_and_a_teacher_keep_what_was_frozen(tmp_path):
    wanted = experiment("fedavg", {"lr": 0.1}, output=str(tmp_path / "runs"))
    finished = run(wanted)
    assert set(finished.parameters) == {"3.weight", "3.bias"}
    dataset, partition = build_data(wanted, None)
    module = build_module(wanted, dataset)
    for name, values in finished.parameters.items():
        module.get_parameter(name).data = torch.tensor(values)
    x = (torch.tensor(dataset.x_test[:50]).float() - torch.tensor(dataset.mean)) / torch.tensor(dataset.std)
    with torch.no_grad():
        expected = module(x)
    save_final_model(finished.folder, wanted, (dataset, partition), tmp_path / "model")
    predicted = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(x.numpy())
    assert predicted == pytest.approx(expected.numpy(), abs=1e-5)
    # As a teacher the run is the same model.
    taught = {"kind": "distillation", "alpha": 0.0, "temperature": 1.0}
    after = experiment("fedavg", {"lr": 0.1}, model="toys.FrozenFirst", objective=taught)
    after = after.model_copy(update={"seed": 6})
    values = after.model_dump(mode="json")
    values["task"]["teacher"] = {"run": str(finished.folder.path)}
    coordinator = build_coordinator([parse_experiment(values)], *build_data(after, None), [tmp_path])
    teacher = coordinator.servers[0].algorithm.task.teacher
    with torch.no_grad():
        assert torch.equal(teacher(x), expected)
    coordinator.next_round()


def test_a_model_that_differs_each_time_it_is_built_is_refused():
    said = "is built; draw them from torch's generator"
    with pytest.raises(UserError, match=f"task.model: toys.FrozenFromNumPy has different .* {said}"):
        check(experiment("fedavg", {"lr": 0.1}, model="toys.FrozenFromNumPy"), None)
    wanted = experiment("kd", {"lr": 0.1, "starts": 2}).model_dump(mode="json")
    wanted["task"]["teacher"]["model"] = {"name": "toys.FrozenFromNumPy"}
    with pytest.raises(UserError, match=f"task.teacher.model: .* {said}"):
        check(parse_experiment(wanted), None)


def test_frozen_parameters_that_change_during_a_run_are_refused(tmp_path):
    file, said = tmp_path / "pretrained", "the frozen parameters or buffers of FrozenFromFile differ from those"
    file.write_text("0.5")
    wanted = experiment("fedavg", {"lr": 0.1}, output=str(tmp_path / "runs")).model_dump(mode="json")
    wanted["task"]["model"] = {"name": "toys.FrozenFromFile", "args": {"file": str(file)}}
    wanted = parse_experiment(wanted)
    finished = run(wanted)
    folder, data = finished.folder, build_data(wanted, None)
    assert len(folder.constants) == 64
    assert hedgerow.load(folder.path).parameters.keys() == finished.parameters.keys()
    folder.update(status="interrupted")

    file.write_text("0.25")
    distillation = {"kind": "distillation", "alpha": 0.0, "temperature": 1.0}
    taught = experiment("fedavg", {"lr": 0.1}, objective=distillation).model_dump(mode="json")
    taught["task"]["teacher"] = {"run": str(folder.path)}
    attempts = (
        lambda: hedgerow.resume(folder.path, show=False),
        lambda: hedgerow.load(folder.path).parameters,
        lambda: save_final_model(folder, wanted, data, tmp_path / "model"),
        lambda: check(parse_experiment(taught), None),
        lambda: build_coordinator([three], *data, [folder.checkpoints]).run_round(),
    )
    three = wanted.model_copy(update={"rounds": 3})
    for attempt in attempts:
        with pytest.raises(UserError, match=said):
            attempt()

    file.write_text("0.5")
    coordinator = build_coordinator([three], *data, [folder.checkpoints])
    assert coordinator.run_round()[0]["round"] == 3
    # Another process has built another model.
    four = wanted.model_copy(update={"rounds": 4})
    coordinator = build_coordinator([four], *data, [folder.checkpoints])
    coordinator.executor.transport.built[0].algorithms[0].task.module.constants = "0" * 64
    with pytest.raises(UserError, match=said):
        coordinator.run_round()


@pytest.mark.parametrize(
    ("algorithm", "model", "said"),
    [
        ({"name": "fedavg"}, "toys.Frozen", "task.model: Frozen has no parameters to train"),
        (
            {"name": "fedavg"},
            "toys.Doubled",
            "task.model: toys.Doubled has the parameter '1.weight' of type torch.float64",
        ),
        ({"name": "pfldyn", "adapt": "proto", "proto_layer": "features"}, "toys.FrozenFirst", "set it to output"),
        ({"name": "heterofl"}, "toys.FrozenFirst", "1.weight is frozen"),
        ({"name": "zerofl"}, "toys.FrozenFirst", "1.weight is frozen"),
        ({"name": "fedbio"}, "toys.FrozenFirst", "one of them is frozen"),
        ({"name": "fedbio"}, "toys.FrozenLast", "one of them is frozen"),
    ],
)
def test_what_cannot_be_trained_is_refused(algorithm, model, said):
    wanted = experiment(algorithm["name"], algorithm, model=model)
    values = wanted.model_dump(mode="json", exclude_defaults=False)
    if algorithm["name"] == "fedbio":
        values["task"]["problem"] = {"kind": "hyper_representation"}
    with pytest.raises(UserError, match=said):
        check(parse_experiment(values), None)
