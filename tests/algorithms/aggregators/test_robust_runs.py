"""Runs with robust aggregation rules: refusals before work, and rounds that have too few clients."""

import numpy as np
import pytest
import torch
from helpers import blobs, identical, partition, run_inline, small_task

from hedgerow import api
from hedgerow.algorithms.core.messages import Exchange
from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.federated.fedavg import FedAvg
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
    "partition": {"kind": "iid", "clients": 10, "validation": 0.2},
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


def test_a_round_with_too_few_clients_keeps_the_model():
    """Krum with f = 1 needs five clients, and some of them drop out."""
    runs = run(aggregation={"rule": {"kind": "krum", "f": 1}}, simulation={"dropout": 0.3}, rounds=6)
    kept = []
    while not runs.done:
        before = runs.server["w"]
        record = next(runs)
        kept.append(identical(before, runs.server["w"]))
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


def accuracy(scale, **rule):
    """Test accuracy on digits after 20 rounds with two sign flippers among ten clients; scale 0: without them."""
    attack = {"attack": {"kind": "sign_flip", "fraction": 0.2, "scale": scale}} if scale else None
    values = {
        **EXPERIMENT,
        "rounds": 20,
        "clients_per_round": 10,
        "task": {**EXPERIMENT["task"], "model": {"name": "mlp", "hidden": [32]}},
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 16},
        "aggregation": {"rule": rule or {"kind": "mean"}},
        "simulation": attack,
        "resources": {"executor": "inline"},
        "engine": {"mode": "vmap", "chunk": 10},
        "tracking": {"enabled": False},
        "evaluation": {"every": 20},
    }
    records = api.run(values).records
    assert "attackers" not in records[-1] if attack is None else records[-1]["attackers"] == 2
    return records[-1]["test_accuracy"]


@pytest.mark.exhaustive("convergence")
def test_on_digits_median_and_krum_withstand_sign_flippers_that_ruin_the_mean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clean = accuracy(0)
    assert clean > 0.8
    assert accuracy(4.0) < 0.5
    assert accuracy(4.0, kind="median") > clean - 0.03
    assert accuracy(4.0, kind="krum", f=2) > clean - 0.03


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
