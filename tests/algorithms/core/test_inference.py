"""What a round on a tiny task shows of an algorithm, and which methods declare something else."""

import re

import pytest
import torch
from paths import ROOT

from hedgerow import Algorithm, Exchange, FedAvg, LocalSolver, StepResult, minimize, sub
from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.core.inference import infer
from hedgerow.algorithms.core.parts import Part
from hedgerow.algorithms.federated.fednova import FedNova
from hedgerow.algorithms.slots.support import without_task
from hedgerow.platform.config import registries
from hedgerow.platform.config.registries import algorithm_class

INFERRED = ("parts", "training_steps", "single_exchange", "optimizes")

DECLARED = {
    # One of these lines per class that declares what could be inferred, and why the inference is wrong.
    "Central": ("training_steps", "returns no client's model, and its loss may still be replaced"),
    "Student": ("training_steps", "its loss is its own, and not that of Central"),
    "Personal": ("training_steps", "its loss is the task's after an adaptation"),
    "FedSplit": ("parts", "z is a new value of w under another name"),
    "NumPyClients": ("parts training_steps single_exchange", "a tiny task must not call the user's clients"),
    "Focus": ("training_steps optimizes", "scores models in its training step, and stacks them"),
    "FedAvgOracle": ("parts training_steps single_exchange", "needs a cleaning task"),
    "Preprocess": ("parts training_steps single_exchange", "needs a cleaning task"),
    "CommFedBiO": ("parts", "needs a bilevel task"),
    "FedBiO": ("parts", "needs a bilevel task"),
    "FedSep": ("parts optimizes", "x is a difference under the name of the value"),
    "Online": ("parts", "tasks of a stream are no clients"),
}


def test_methods_declare_only_what_the_inference_gets_wrong():
    kinds = {kind for name in ALGORITHMS for kind in algorithm_class(name).__mro__ if issubclass(kind, Algorithm)}
    found = {kind.__name__: {name for name in INFERRED if name in vars(kind)} for kind in kinds - {Algorithm}}
    assert {name: names for name, names in found.items() if names} == {
        name: set(names.split()) for name, (names, _) in DECLARED.items()
    }


def test_authors_set_at_most_ten_attributes_which_one_table_explains():
    settable = {name for name in Algorithm.__annotations__ if name != "Hyper"} | set(INFERRED)
    page = (ROOT / "docs" / "tutorials" / "own-algorithm.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == settable
    assert len(settable) <= 10


@pytest.mark.parametrize("hyper", [{}, {"solver": "newton"}, {"optimizer": "adam"}, {"batch_size": None, "steps": 7}])
def test_a_round_of_fedavg_shows_what_its_paper_says(hyper):
    found = infer(FedAvg, FedAvg.Hyper(**hyper))
    assert found.parts == {"train": {"w": Part("w", "value")}}
    assert found.training_steps == ("train",)
    assert found.single_exchange
    assert not found.doubt


def test_differences_and_values_of_the_server_are_told_from_values():
    parts = without_task(FedNova, FedNova.Hyper()).parts
    assert parts == {"train": {"direction": Part("w", "difference"), "steps": Part("steps", "opaque")}}
    scaffold = without_task(algorithm_class("scaffold"), algorithm_class("scaffold").Hyper())
    assert scaffold.parts == {"train": {"w": Part("w", "value"), "change": Part("c", "difference")}}
    assert scaffold.optimizes == "w"


def test_names_of_layers_in_hyperparameters_change_nothing():
    hyper = registries.algorithms.section("fedrep")(shared=["features.*"])
    assert without_task(algorithm_class("fedrep"), hyper).parts == {"train": {"w": Part("w", "value")}}


class TwoRounds(FedAvg):
    def round(self, server, cohort):
        yield from super().round(server, cohort)
        return (yield from super().round(server, cohort))


class ByMetrics(FedAvg):
    def round(self, server, cohort):
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches)
        return result.up if result.metrics["loss"].mean() < 100 else server


class Failing(FedAvg):
    def train(self, hp, down, state, data):
        raise ValueError("needs another model")


class Delta(Algorithm):
    class Hyper(LocalSolver):
        share: float = 0.5
        server_share: float = 0.5

    def round(self, server, cohort):
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches)
        return {"w": {name: p + self.hyper.server_share * result.up["d"][name] for name, p in server["w"].items()}}

    def train(self, hp, down, state, data):
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        return StepResult({"d": {name: hp.share * p for name, p in sub(w, down["w"]).items()}}, metrics={"loss": loss})


def test_a_round_of_several_exchanges_or_metrics_is_no_single_exchange():
    assert not infer(TwoRounds, TwoRounds.Hyper()).single_exchange
    assert not infer(ByMetrics, ByMetrics.Hyper()).single_exchange
    assert infer(TwoRounds, TwoRounds.Hyper()).doubt == "a round is not one exchange with all clients and a mean"
    assert "(ValueError: needs another model)" in infer(Failing, Failing.Hyper()).doubt


def test_floats_that_the_server_reads_are_none_of_the_clients():
    found = infer(Delta, Delta.Hyper())
    assert found.parts == {"train": {"d": Part("w", "difference")}}
    assert "share" in found.client_floats
    assert "server_share" not in found.client_floats
    assert not found.training_steps


def test_it_leaves_the_generator_alone_and_runs_inside_vmap():
    before = torch.random.get_rng_state()
    found = []

    def step(x):
        found.append(infer(FedAvg, FedAvg.Hyper()))
        return x

    torch.func.vmap(step, randomness="error")(torch.ones(2))
    assert found == [infer(FedAvg, FedAvg.Hyper())]
    assert torch.equal(before, torch.random.get_rng_state())
