"""Data, models and algorithms that are passed to `run`, `search`, `resume` and `load` as objects."""

import copy
import logging
import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from own_formats import X, Y
from ray_runs import same
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

import hedgerow
from hedgerow.algorithms.core.own_code import own_code
from hedgerow.cli import main
from hedgerow.platform.common.code_hash import code_hash
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs import runner

X32 = X.astype(np.float32)
TENSORS = TensorDataset(torch.from_numpy(X32), torch.from_numpy(Y))


class Narrow(nn.Sequential):
    def __init__(self, width=4):
        super().__init__(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3))


class Mixed(hedgerow.Algorithm):
    """Clients start from a mixture of the server's model and their own latest one."""

    class Hyper(hedgerow.LocalSGD):
        own: float = 0.3

    def init_client(self):
        return {"latest": self.task.init()}

    def round(self, server, cohort):
        batches, weights = self.hyper.batches, self.weights(cohort)
        result = yield hedgerow.Exchange(
            self.train, {"w": server["w"]}, cohort.clients, batches=batches, weights=weights
        )
        return {"w": result.up["w"]}

    def train(self, hp, down, state, data):
        start = hedgerow.lerp(down["w"], state["latest"], hp.own)
        w, loss = hedgerow.minimize(self.task.loss, start, data, hp)
        return hedgerow.StepResult({"w": w}, {"latest": w}, {"loss": loss}, w)


FACTOR = 1.0


class Scaled(nn.Linear):
    """Reads a global variable."""

    def __init__(self):
        super().__init__(5, 3)

    def forward(self, x):
        return super().forward(x) * FACTOR


class Flagged(nn.Linear):
    """Has an attribute with the name of one of Hedgerow's."""

    def __init__(self):
        super().__init__(5, 3)
        self.train_mode = "plain"

    def forward(self, x):
        return super().forward(x) * (1.0 if self.train_mode == "plain" else 100.0)


def values(output: Path, **changes) -> dict:
    """An experiment that names neither data nor model."""
    return {
        "name": "passed",
        "rounds": 4,
        "clients_per_round": 0.5,
        "task": {"partition": {"kind": "iid", "clients": 6}},
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 4},
        "resources": {"executor": "inline"},
        "engine": {"mode": "vmap", "chunk": 2},
        "checkpoints": {"every": 1},
        "tracking": {"enabled": False},
        "output": str(output),
        **changes,
    }


def data_of(finished) -> tuple[str, str]:
    record = finished.folder.record()["data"]
    return record["dataset"], record["partition"]


@pytest.fixture(autouse=True)
def each_round(monkeypatch):
    """The driver hears of every round by itself."""
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)


@pytest.fixture
def new_process(monkeypatch):
    """Forgets what was passed, as a new process has never known it."""
    return lambda: monkeypatch.setattr(own_code(), "given", {})


def stop(record):
    if record["round"] == 2:
        raise RuntimeError("stopped")


def test_all_forms_of_the_same_samples_are_the_same_data(tmp_path):
    forms = [
        (X32, Y),
        (torch.from_numpy(X32), torch.from_numpy(Y)),
        {"x": X32, "y": Y},
        TENSORS,
        Subset(TENSORS, range(len(Y))),
        DataLoader(TENSORS, batch_size=7, shuffle=True),
        lambda: (X32, Y),
    ]
    found = {data_of(hedgerow.run(values(tmp_path), data=data, model=Narrow, rounds=1, show=False)) for data in forms}
    assert len(found) == 1
    halves = [((X32[20:], Y[20:]), (X32[:20], Y[:20])), (Subset(TENSORS, range(20, 60)), Subset(TENSORS, range(20)))]
    found = {data_of(hedgerow.run(values(tmp_path), data=data, model=Narrow, rounds=1, show=False)) for data in halves}
    assert len(found) == 1


def test_a_list_has_the_samples_of_each_client(tmp_path):
    clients = [((X32[k::3], Y[k::3]), (X32[k:6], Y[k:6])) for k in range(3)]
    finished = hedgerow.run(values(tmp_path, task={}), data=clients, model=Narrow, show=False)
    assert finished.experiment.task.partition.kind == "natural"
    assert finished.folder.partition()["clients"] == 3
    loaders = [
        (DataLoader(Subset(TENSORS, range(k, 60, 3))), DataLoader(Subset(TENSORS, range(k, 6)))) for k in range(3)
    ]
    assert data_of(hedgerow.run(values(tmp_path, task={}), data=loaders, model=Narrow, show=False)) == data_of(finished)


def test_passed_code_has_the_numbers_of_the_same_code_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(own_code(), "modules", (__name__,))
    task = {"partition": {"kind": "iid", "clients": 6}, "model": {"name": f"{__name__}.Narrow", "args": {"width": 3}}}
    algorithm = {"name": f"{__name__}.Mixed", "lr": 0.2, "batch_size": 4}
    named = hedgerow.run(values(tmp_path, task=task, algorithm=algorithm), data=(X32, Y), show=False)

    task = {"partition": {"kind": "iid", "clients": 6}, "model": {"args": {"width": 3}}}
    changes = {"task": task, "algorithm": {"lr": 0.2, "batch_size": 4}}
    passed = hedgerow.run(values(tmp_path, **changes), data=(X32, Y), model=Narrow, algorithm=Mixed, show=False)
    assert same(named, passed)
    # What the experiment names is replaced.
    instance = Mixed(Mixed.Hyper(lr=0.2, batch_size=4), None)
    others = hedgerow.run(values(tmp_path), data=(X32, Y), model=lambda: Narrow(3), algorithm=instance, show=False)
    assert same(named, others)
    assert hedgerow.load(passed.folder, data=(X32, Y)).parameters.keys() == named.parameters.keys()


@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.exhaustive("processes"))])
def test_classes_of_a_script_reach_its_other_processes(tmp_path, executor):
    script = f"""
import numpy as np
import torch
from torch import nn
import hedgerow

WIDTH = 4
RNG = np.random.default_rng(0)
Y = np.arange(60) % 3
X = (RNG.normal(size=(3, 5))[Y] * 3 + RNG.normal(size=(60, 5))).astype(np.float32)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, WIDTH)
        self.outer = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))

class Slow(hedgerow.FedAvg):
    class Hyper(hedgerow.FedAvg.Hyper):
        factor: float = 0.5

    def train(self, hp, down, state, data):
        w, loss = hedgerow.minimize(self.task.loss, down["w"], data, hp)
        return hedgerow.StepResult({{"w": hedgerow.lerp(down["w"], w, hp.factor)}}, {{}}, {{"loss": loss}}, w)

values = {{
    "name": "script", "rounds": 3, "clients_per_round": "all", "output": {str(tmp_path)!r},
    "task": {{"partition": {{"kind": "iid", "clients": 4}}}},
    "algorithm": {{"lr": 0.1, "batch_size": 4}}, "tracking": {{"enabled": False}},
    "engine": {{"mode": "loop"}}, "resources": {{"actors": 2}},
}}
passed = {{"data": (X, Y), "model": Net, "algorithm": Slow}}
losses = [
    hedgerow.run(values, **passed, show=False, resources__executor=one).summary["test_loss"]
    for one in ("inline", {executor!r})
]
print("losses", max(losses) - min(losses) < 1e-6)
"""
    file = tmp_path / "script.py"
    file.write_text(script)
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True)
    assert "losses True" in done.stdout, done.stderr


@pytest.mark.exhaustive("processes")
def test_a_search_on_passed_objects(tmp_path):
    # Classes of a module that the trials' processes cannot import.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    search = {"kind": "grid", "space": {"algorithm.own": [0.0, 0.5]}}
    passed = {"data": (X32, Y), "model": Narrow, "algorithm": Mixed}
    tested = {"test": "every"}
    plan = values(tmp_path, algorithm={"lr": 0.1, "batch_size": 4}, search=search, evaluation=tested)
    try:
        found = hedgerow.search(plan, **passed, show=False)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    alone = {
        own: hedgerow.run(plan, **passed, algorithm__own=own, show=False, task__validation={"fraction": 0.1})
        for own in (0.0, 0.5)
    }
    for trial in found.trials:
        expected = alone[trial.overrides["algorithm.own"]].frame["test_loss"]
        assert [record["test_loss"] for record in trial.records] == pytest.approx(list(expected), abs=1e-6)


def test_a_run_is_resumed_with_the_same_objects_alone(tmp_path, new_process):
    passed = {"data": (X32, Y), "model": Narrow, "algorithm": Mixed}
    settings = {"algorithm": {"lr": 0.2, "batch_size": 4}}
    calm = hedgerow.run(values(tmp_path / "calm", **settings), **passed, show=False)
    with pytest.raises(RuntimeError, match="stopped"):
        hedgerow.run(values(tmp_path / "runs", **settings), **passed, show=stop)
    (folder,) = (tmp_path / "runs").glob("passed-*")

    class Other(nn.Sequential):
        def __init__(self, width=5):
            super().__init__(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3))

    changed, other = X32.copy(), type("Narrow", (Other,), {})
    changed[0, 0] += 1
    for change, sentence in (
        ({"algorithm": None}, "it was passed as `algorithm=`; pass the same one again"),
        ({"model": None}, "it was passed as `model=`; pass the same one again"),
        ({"model": other}, "it was passed as `model=`; the one that was passed has other code"),
        ({"data": None}, "the data were passed as `data=`; pass them again"),
        ({"data": (changed, Y)}, "the data set in data= differs from what it started with; pass the same data"),
    ):
        new_process()
        with pytest.raises(UserError, match=sentence) as caught:
            hedgerow.resume(folder, **passed | change, show=False)
        assert "\n" not in str(caught.value)
    new_process()
    refused = CliRunner().invoke(main, ["resume", str(folder)])
    assert refused.exit_code == 2
    assert "it was passed as `algorithm=`" in refused.output
    assert same(hedgerow.resume(folder, **passed, show=False), calm)
    new_process()
    assert "<run" in repr(hedgerow.load(folder, algorithm=Mixed))


@pytest.mark.parametrize(
    ("passed", "sentence"),
    [
        ({"model": Narrow()}, "model=: Narrow is an object; pass a class, or a function that builds the module"),
        ({"model": "mlp"}, "model=: str is an object"),
        ({"algorithm": Narrow}, "algorithm=: Narrow is not an algorithm"),
        ({"data": X32}, "data= gives ndarray; give (x_train, y_train)"),
        ({"data": Narrow}, "data=: Narrow is not a source"),
        ({"data": (X32, Y[1:])}, "data= has 60 samples in x_train and 59 labels"),
        (
            {"data": DataLoader(TENSORS, sampler=WeightedRandomSampler([1.0] * 60, 60))},
            "data= gives a DataLoader with a sampler, batches or a collate_fn of its own",
        ),
        ({"data": DataLoader(TENSORS, collate_fn=list)}, "a collate_fn of its own"),
    ],
)
def test_other_objects_are_refused_in_one_sentence(tmp_path, passed, sentence):
    with pytest.raises(UserError) as caught:
        hedgerow.run(values(tmp_path), **{"data": (X32, Y), "model": Narrow, **passed}, show=False)
    assert sentence in str(caught.value)
    assert not list(tmp_path.iterdir())


CODE = """
SCALE = 2.0

def scaled(x, by={"a", "b", "c"}):
    return SCALE * x

class Net:
    width = 3
    def forward(self, x):
        # A comment.
        return [scaled(x) + self.width for _ in "ab" if x in {"p", "q", "r"}]

def build(depth=2):
    return lambda: (Net(), depth)

made = build()
"""


def hashed(code: str, name: str) -> str:
    names: dict = {"__name__": "__main__"}
    exec(compile(code, "anywhere", "exec"), names)
    return code_hash(names[name])


@pytest.mark.parametrize("name", ["Net", "build", "made"])
def test_the_hash_of_code_depends_on_what_it_does_alone(name):
    first = hashed(CODE, name)
    assert hashed("\n\n" + CODE.replace("A comment", "Another"), name) == first
    program = f"from hedgerow.platform.common.code_hash import code_hash\n{CODE}\nprint(code_hash({name}))"
    for seed in "12":
        other = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONHASHSEED": seed}
        )
        assert other.stdout.strip() == first, other.stderr
    for old, new in (("SCALE = 2.0", "SCALE = 2.5"), ("SCALE * x", "SCALE + x"), ("width = 3", "width = 4")):
        assert hashed(CODE.replace(old, new), name) != first
    if name == "made":
        assert hashed(CODE.replace("depth=2", "depth=3"), name) != first


def test_the_hash_of_a_method_depends_on_its_object_and_that_of_a_function_not_on_loggers_or_generators():
    class Builder:
        def __init__(self, width):
            self.width = width

        def build(self):
            return self.width

    assert code_hash(Builder(3).build) == code_hash(Builder(3).build)
    assert code_hash(Builder(3).build) != code_hash(Builder(4).build)
    code = """
import logging
import numpy as np
log, rng = logging.getLogger("mine"), np.random.default_rng(0)

def build():
    log.info("built")
    return rng.normal()
"""
    first = hashed(code, "build")
    logging.getLogger("another")
    kept = np.random.default_rng(0)
    assert hashed(code, "build") == first
    assert kept is not None


def test_what_is_loaded_keeps_its_data_when_others_are_passed(tmp_path):
    other = X32[::-1].copy()
    runs = [hedgerow.run(values(tmp_path / name), data=(x, Y), model=Narrow, show=False)
            for name, x in (("a", X32), ("b", other))]  # fmt: skip
    first = hedgerow.load(runs[0].folder.path, data=(X32, Y), model=Narrow)
    second = hedgerow.load(runs[1].folder.path, data=(other, Y), model=Narrow)
    for loaded, run in ((first, runs[0]), (second, runs[1])):
        assert same(loaded, run)


def test_a_changed_variable_of_passed_code_is_refused_in_the_process_that_passed_it(tmp_path, monkeypatch):
    finished = hedgerow.run(values(tmp_path), data=(X32, Y), model=Scaled, rounds=1, show=False)
    before = finished.predict(X32)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    with pytest.raises(UserError, match="the one that was passed has other code"):
        hedgerow.load(finished.folder.path, data=(X32, Y), model=Scaled)
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    again = hedgerow.load(finished.folder.path, data=(X32, Y), model=Scaled)
    assert np.array_equal(again.predict(X32), before)


def test_a_function_that_returns_the_same_module_again_is_refused_and_leaves_it_as_it_was(tmp_path):
    module = nn.Linear(5, 3)
    attributes = set(vars(module))
    with pytest.raises(UserError, match="returns the same module again; build a new one in each call"):
        hedgerow.run(values(tmp_path), data=(X32, Y), model=lambda: module, show=False)
    assert set(vars(module)) == attributes
    finished = hedgerow.run(values(tmp_path), data=(X32, Y), model=lambda: copy.deepcopy(module), rounds=1, show=False)
    assert set(vars(finished.module())) == attributes
    trained = finished.module()
    more = hedgerow.run(values(tmp_path), data=(X32, Y), model=lambda: copy.deepcopy(trained), rounds=1, show=False)
    assert more.status == "finished"


def test_an_attribute_with_a_name_that_hedgerow_sets_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has the attribute 'train_mode', a name that Hedgerow uses .*; rename it"):
        hedgerow.run(values(tmp_path), data=(X32, Y), model=Flagged, show=False)
