"""Runs with robust aggregation rules: refusals before work, and rounds that have too few clients."""

import numpy as np
import pytest
import torch
from helpers import blobs, partition, run_inline, small_task

from hedgerow import api
from hedgerow.algorithms.core.messages import Exchange, StepResult
from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.pytree import leaves
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import minimize
from hedgerow.platform.common import memory
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.factory import build_data, check_task

EXPERIMENT = {
    "name": "robust",
    "rounds": 2,
    "clients_per_round": 5,
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": 10},
        "model": {"name": "mlp", "hidden": [8]},
    },
    "algorithm": {"name": "fedavg"},
}


CLEANING = {
    **EXPERIMENT["task"],
    "problem": {"kind": "cleaning"},
    "partition": {"kind": "iid", "clients": 10, "upper_level_fraction": 0.2},
}


def refusal(**values):
    """The sentence with which an experiment is refused before any work."""
    parsed = parse_experiment({**EXPERIMENT, **values})
    with pytest.raises(UserError) as caught:
        check_task(parsed, *build_data(parsed, None))
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"aggregation": {"rule": {"kind": "krum", "f": 2}}},
         "aggregation.rule.f: krum needs at least 2 f + 3 = 7 clients per round, not 5; lower it to 1, or raise them"),
        ({"aggregation": {"rule": {"kind": "multi_krum", "f": 1, "m": 5}}}, "aggregation.rule.m: 5 is more than the 4"),
        ({"aggregation": {"rule": {"kind": "median"}, "weighting": "samples"}},
         "aggregation.weighting: median treats all clients equally; set it to uniform"),
        ({"aggregation": {"rule": {"kind": "krum"}}, "algorithm": {"name": "fedavg_oracle"}, "task": CLEANING},
         "aggregation.rule: krum treats clients equally, and fedavg_oracle weights them; choose another rule"),
        ({"aggregation": {"rule": {"kind": "median"}}, "algorithm": {"name": "feddyn"}},
         "aggregation.rule: it would permanently bias the server state of feddyn; set its kind to mean"),
        ({"aggregation": {"rule": {"kind": "median"}}, "algorithm": {"name": "central"}},
         "aggregation.rule: central does not average client updates; set its kind to mean"),
    ],
)  # fmt: skip
def test_rules_that_do_not_fit_are_refused_before_work(values, sentence):
    assert sentence in refusal(**values)


def test_a_stack_that_does_not_fit_is_refused_before_work(monkeypatch):
    monkeypatch.setattr(memory, "SURELY_FREE", 0)
    monkeypatch.setattr(memory, "system_memory", lambda: 10_000)
    message = refusal(aggregation={"rule": {"kind": "median"}})
    assert message.startswith("aggregation.rule: the updates of 5 clients with 610 numbers each take at least ")
    assert message.endswith("set its kind to mean, or lower the number of clients per round")


DATA = blobs(samples=160)
CLIENTS = partition(np.array([30, 25, 25, 20, 20]), seed=0)


def run(mode=("vmap", 3), rounds=3, parts=1, folder=None, **settings):
    """Rounds of FedAvg. settings: of the slots, and `simulation`."""
    from hedgerow.platform.config.system_heterogeneity import Simulation

    simulation = settings.pop("simulation", None)
    hyper = {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": None, **settings}
    more = {"simulation": Simulation(**simulation)} if simulation else {}
    engine = EngineConfig(mode=mode[0], chunk=mode[1])
    return run_inline(FedAvg, small_task(DATA), DATA, CLIENTS, hyper, folder, rounds=rounds, engine=engine, **more)


@pytest.mark.parametrize("optimizer", [{}, {"momentum": 0.9}, {"optimizer": "adam", "momentum": 0.9, "lr": 0.1}])
def test_a_round_with_too_few_clients_keeps_the_server_state(optimizer):
    """Krum with f = 1 needs five clients, and some of them drop out. The momentum of the server stays, too."""
    aggregation = {"rule": {"kind": "krum", "f": 1}, "server_optimizer": optimizer}
    runs = run(aggregation=aggregation, simulation={"dropout": 0.3}, rounds=6)
    kept = []
    while not runs.done:
        before = runs.server
        record = next(runs)
        kept.append(all(map(torch.equal, leaves(before), leaves(runs.server))))
        assert kept[-1] == (record["participants"] < 5)
    assert any(kept)
    assert not all(kept)


@pytest.mark.parametrize("kind", ["median", "trimmed_mean", "krum", "geometric_median", "centered_clipping"])
def test_loop_and_vmap_agree(kind):
    ends = []
    for mode in [("loop", 1), ("vmap", 3)]:
        runs = run(mode, aggregation={"rule": {"kind": kind}})
        list(runs)
        ends.append(runs.server["w"])
    for name, leaf in ends[0].items():
        torch.testing.assert_close(ends[1][name], leaf, rtol=1e-4, atol=1e-5)


ATTACKS = {
    "sign_flip": {"kind": "sign_flip", "scale": 4.0},
    "gaussian": {"kind": "gaussian", "std": 1.0},
    "label_flip": {"kind": "label_flip"},
}


def accuracy(attack=None, **rule):
    """Test accuracy on digits after 20 rounds with three attackers among ten clients; None: without them."""
    values = {
        **EXPERIMENT,
        "rounds": 20,
        "clients_per_round": 10,
        "task": {**EXPERIMENT["task"], "model": {"name": "mlp", "hidden": [32]}},
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 16},
        "aggregation": {"rule": rule or {"kind": "mean"}},
        "simulation": {"attack": {**ATTACKS[attack], "fraction": 0.3}} if attack else None,
        "resources": {"executor": "inline"},
        "engine": {"mode": "vmap", "chunk": 10},
        "tracking": {"enabled": False},
        "evaluation": {"every": 20},
    }
    records = api.run(values).records
    assert "attackers" not in records[-1] if attack is None else records[-1]["attackers"] == 3
    return records[-1]["test_accuracy"]


@pytest.mark.exhaustive("convergence")
def test_on_digits_median_and_krum_withstand_attackers_that_harm_the_mean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clean = accuracy()
    assert clean > 0.8
    for attack, loss in (("sign_flip", 0.7), ("gaussian", 0.3), ("label_flip", 0.05)):
        assert accuracy(attack) < clean - loss
        assert accuracy(attack, kind="median") > clean - 0.03
        assert accuracy(attack, kind="krum", f=3) > clean - 0.03


def test_a_rule_takes_an_algorithm_whose_server_draws_parameters(tmp_path):
    class TwoModels(FedAvg):
        def init_server(self):
            return {"w": self.task.init(), "second": self.task.init(seed=1)}

        def round(self, server, cohort):
            result = yield Exchange(self.train, server, cohort.clients, batches=self.hyper.batches)
            return {"w": result.up["w"], "second": result.up["second"]}

        def train(self, hp, down, state, data):
            w, loss = minimize(self.task.loss, down["w"], data, hp)
            second, _ = minimize(self.task.loss, down["second"], data, hp)
            return StepResult({"w": w, "second": second}, {}, {"loss": loss}, w)

    changes = {"engine__mode": "vmap", "resources__executor": "inline", "tracking__enabled": False}
    values = {**EXPERIMENT, "aggregation": {"rule": {"kind": "median"}}, "output": str(tmp_path)}
    alone = api.run(values, show=False, **changes)
    both = api.run(values, show=False, algorithm=TwoModels, **changes)
    assert [record["test_loss"] for record in both.records] == [record["test_loss"] for record in alone.records]


def test_weights_of_an_exchange_are_not_dropped_silently():
    class Weighted(FedAvg):
        def round(self, server, cohort):
            down = {"w": server["w"]}
            result = yield Exchange(self.train, down, cohort.clients, batches=self.hyper.batches, weights=cohort.sizes)
            return {"w": result.up["w"]}

    hyper = {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": None, "aggregation": {"rule": {"kind": "median"}}}
    with pytest.raises(ContractError, match="weights clients, but median treats them equally; set"):
        next(run_inline(Weighted, small_task(DATA), DATA, CLIENTS, hyper))
    hyper["aggregation"]["weighting"] = "uniform"
    next(run_inline(Weighted, small_task(DATA), DATA, CLIENTS, hyper))
