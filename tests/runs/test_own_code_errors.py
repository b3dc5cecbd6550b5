"""Errors in the user's own code: file, line, function and message in one sentence, before the run where possible."""

from textwrap import dedent

import pytest
import yaml
from click.testing import CliRunner

import hedgerow
from hedgerow.algorithms.federated import fedavg
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError

FILE = {
    "name": "own",
    "rounds": 3,
    "clients_per_round": "all",
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": 4, "samples_per_client": 30},
        "model": {"name": "logreg"},
    },
    "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 10},
    "resources": {"executor": "inline"},
    "tracking": {"enabled": False},
}

OWN = """
import torch
from torch import nn
from hedgerow.algorithms.federated.fedavg import FedAvg

class Slow(nn.Linear):
    def __init__(self, width=64):
        if width != 64:
            raise ValueError(f"no width {width}")
        super().__init__(64, 10)

    def forward(self, x):
        return helper(x.flatten(1)) @ self.weight.T

def helper(x):
    return x if len(x) < 3 else x[:, :63]

class Step(FedAvg):
    def train(self, hp, down, state, data):
        return {}["missing"]

class Late(FedAvg):
    def round(self, server, cohort):
        if cohort.round == 2:
            raise RuntimeError("not in round 2")
        return (yield from super().round(server, cohort))

class LateStep(FedAvg):
    def train(self, hp, down, state, data):
        result = super().train(hp, down, state, data)
        if max(float(leaf.abs().max()) for leaf in down["w"].values()) > 0.126:
            raise RuntimeError("too large")
        return result

def many(outputs, targets, mask):
    if 2 < len(targets) < 20:
        raise ValueError("too few samples")
    return (outputs.argmax(-1) == targets).float()

def broken(outputs, targets, mask):
    if len(targets) > 2:
        raise ValueError("too many samples")
    return mask
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes the user's module, and runs a file with other sections in its folder."""
    # Processes that earlier tests have started know their modules.
    (tmp_path / f"own_{tmp_path.name}.py").write_text(dedent(OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def start(**sections):
        values = {**FILE, **{key: {**FILE.get(key, {}), **section} for key, section in sections.items()}}
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(values).replace("own_failing", f"own_{tmp_path.name}"))
        return CliRunner().invoke(main, ["run", "own.yaml"])

    return start


def line_of(text):
    return 1 + dedent(OWN).splitlines().index(next(line for line in dedent(OWN).splitlines() if text in line))


MODEL = {"task": {**FILE["task"], "model": {"name": "own_failing.Slow"}}}
BEFORE = {
    "step": ({"algorithm": {"name": "own_failing.Step"}}, '{}["missing"]', "train: 'missing'", "KeyError"),
    "metric": (
        {"task": {**FILE["task"], "metrics": [{"name": "own_failing.broken", "mode": "max"}]}},
        'raise ValueError("too many',
        "broken: too many samples",
        "ValueError",
    ),
    "constructor": (
        {"task": {**FILE["task"], "model": {"name": "own_failing.Slow", "args": {"width": 3}}}},
        "raise ValueError(f",
        "__init__: no width 3",
        "ValueError",
    ),
    "model": (MODEL, "return helper", "forward: ", "RuntimeError"),
}


@pytest.mark.parametrize("kind", BEFORE)
def test_own_code_that_fails_is_found_before_the_run(kind, own, tmp_path):
    sections, line, message, error = BEFORE[kind]
    result = own(**sections)
    assert result.exit_code == 2, result.output
    assert f"{error} at {tmp_path}/own_{tmp_path.name}.py:{line_of(line)}, in {message}" in result.output
    assert "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


LATE = {
    "client in another process": ("own_failing.LateStep", {"actors": 2}, 'raise RuntimeError("too', "train: too large"),
    "server": ("own_failing.Late", {"executor": "inline"}, 'raise RuntimeError("not in', "round: not in round 2"),
    "client": ("own_failing.LateStep", {"executor": "inline"}, 'raise RuntimeError("too', "train: too large"),
}


@pytest.mark.parametrize("kind", LATE)
@pytest.mark.grid(keep=2)
def test_own_code_that_fails_in_a_later_round_ends_the_run_with_its_place(kind, own, tmp_path):
    algorithm, resources, line, message = LATE[kind]
    result = own(algorithm={"name": algorithm}, resources={"executor": "auto", **resources}, engine={"mode": "loop"})
    assert result.exit_code == 2, result.output
    assert (
        f"RuntimeError at {tmp_path}/own_{tmp_path.name}.py:{line_of(line)}, in {message}; fix it there"
        in result.output
    )
    assert "Traceback" not in result.output
    (folder,) = (tmp_path / "runs").glob("own-*")
    assert hedgerow.load(folder).folder.record()["status"] == "failed"


def test_a_metric_that_needs_many_samples_is_not_refused(own):
    partition = {**FILE["task"]["partition"], "client_test_fraction": 0.0}
    result = own(
        task={**FILE["task"], "partition": partition, "metrics": [{"name": "own_failing.many", "mode": "max"}]},
        evaluation={"clients": 0},
    )
    assert result.exit_code == 0, result.output


def test_an_error_of_this_package_keeps_its_traceback(own, monkeypatch):
    monkeypatch.setattr(fedavg, "minimize", int)
    assert isinstance(own().exception, TypeError)


def test_python_sees_the_sentence_and_its_cause(own, tmp_path):
    algorithm = {"name": f"own_{tmp_path.name}.Step"}
    with pytest.raises(UserError, match=r"your code fails: KeyError at .*py:20, in train: 'missing'") as caught:
        hedgerow.run({**FILE, "algorithm": algorithm}, output=str(tmp_path), show=False)
    assert isinstance(caught.value.__cause__, KeyError)
