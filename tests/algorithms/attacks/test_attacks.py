"""Attacks of malicious clients: closed forms, and runs with them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import SingleRun, blobs, check_resuming, distance, experiment, identical, named, partition, small_task

from hedgerow import api
from hedgerow.algorithms.attacks.alie import largest_deviation
from hedgerow.algorithms.attacks.attack import attackers
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.algorithms.slots.slots import Slots
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import attacks, transforms
from hedgerow.platform.config.slots_section import AggregationConfig
from hedgerow.platform.config.system_heterogeneity import Simulation
from hedgerow.platform.runtime.factory import build_data, check_task
from hedgerow.platform.runtime.middleware_order import compose
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.worker import Worker

DATA = blobs(samples=160)
CLIENTS = partition(np.array([30, 25, 25, 20, 20]), seed=0)
LOOP, VMAP = ("loop", 1), ("vmap", 3)
KINDS = {
    "label_flip": {},
    "sign_flip": {"scale": 2.0},
    "gaussian": {"std": 0.1},
    "alie": {"z": 1.0},
    "model_replacement": {"boost": 3.0},
}


def run(
    attack, mode=VMAP, rounds=1, folder=None, kind=FedAvg, shards=1, data=DATA, rule="mean", transforms=(), **simulation
):
    """A run under an attack (None: without one). attack: its section."""
    hyper = named(kind)(lr=0.2, epochs=None, steps=3, batch_size=None)
    simulation = Simulation(**simulation) if attack is None else Simulation(attack=attack, **simulation)
    slots = Slots.model_construct(
        aggregation=AggregationConfig(rule={"kind": rule}),
        transforms=list(transforms),
        objective=None,
        attack=simulation.attack,
    )

    def build():
        inner = kind(hyper, small_task(DATA))
        return compose(inner, slots if slots.are_filled else None, classes=DATA.classes)

    engine = EngineConfig(mode=mode[0], chunk=mode[1])
    spec = experiment(hyper, rounds=rounds, engine=engine, simulation=simulation)
    worker = Worker([build()], data, CLIENTS, spec.seed, spec.resources, spec.evaluation.follows)
    return SingleRun([FederatedServer(spec, build(), CLIENTS, len(DATA.y_test))], worker, [folder], shards)


def end(*args, **settings):
    """The model after all rounds."""
    done = run(*args, **settings)
    list(done)
    return done.server["w"]


def close(one, other, tolerance=1e-5):
    assert distance(one, other) < tolerance


# ---- attackers -------------------------------------------------------------------------------------------------------


def test_attackers_are_a_fixed_set_of_the_right_size_that_depends_on_the_seed():
    for population, fraction, count in [(10, 0.2, 2), (7, 0.5, 4), (5, 0.0, 0), (3, 1.0, 3)]:
        assert attackers(0, population, fraction).sum() == count
    assert (attackers(3, 100, 0.2) == attackers(3, 100, 0.2)).all()
    assert (attackers(3, 100, 0.2) != attackers(4, 100, 0.2)).any()
    # A larger fraction adds attackers.
    assert (attackers(3, 100, 0.2) <= attackers(3, 100, 0.3)).all()


def test_the_record_counts_the_attackers_of_a_round_that_answered():
    runs = run({"kind": "sign_flip", "fraction": 0.4}, rounds=5, dropout=0.4)
    mask = attackers(0, 5, 0.4)
    assert mask.sum() == 2
    counts = [record["attackers"] for record in runs]
    assert set(counts) <= {0, 1, 2}
    assert len(set(counts)) > 1


@pytest.mark.parametrize(("fraction", "counts"), [(1.0, [3, 3]), (0.0, [0, 0])])
def test_an_asynchronous_record_counts_attackers_too(tmp_path, fraction, counts):
    attack = {"attack": {"kind": "sign_flip", "fraction": fraction}}
    values = {**EXPERIMENT, "rounds": 2, "schedule": {"kind": "fedbuff", "buffer": 3}, "simulation": attack}
    more = {"output": str(tmp_path), "resources": {"executor": "inline"}, "tracking": {"enabled": False}}
    assert [record["attackers"] for record in api.run({**values, **more}, show=False).records] == counts


def test_a_fraction_without_any_attacker_is_refused():
    parsed = parse_experiment({**EXPERIMENT, "simulation": {"attack": {"kind": "sign_flip", "fraction": 0.04}}})
    with pytest.raises(UserError, match=r"^simulation\.attack\.fraction: 0.04 of 10 clients is no client; raise it$"):
        check_task(parsed, *build_data(parsed, None))


# ---- closed forms ----------------------------------------------------------------------------------------------------


START = small_task(DATA).init()


@pytest.mark.parametrize("mode", [LOOP, VMAP], ids=["loop", "vmap"])
def test_sign_flips_of_everybody_reverse_the_round(mode):
    clean, flipped = end(None, mode), end({"kind": "sign_flip", "scale": 2.0, "fraction": 1.0}, mode)
    close(flipped, {name: start - 2 * (clean[name] - start) for name, start in START.items()})


def test_flipped_labels_of_everybody_are_a_run_on_flipped_data():
    other = replace(DATA, y_train=DATA.classes - 1 - DATA.y_train)
    close(end({"kind": "label_flip", "fraction": 1.0}), end(None, data=other))


def test_boosted_updates_of_flipped_labels():
    boosted = end({"kind": "model_replacement", "boost": 5.0, "fraction": 1.0})
    flipped = end({"kind": "label_flip", "fraction": 1.0})
    close(boosted, {name: start + 5 * (flipped[name] - start) for name, start in START.items()})


def test_gaussian_updates_have_the_standard_deviation_and_ignore_the_data():
    noisy = end({"kind": "gaussian", "std": 3.0, "fraction": 1.0})
    other = replace(DATA, x_train=DATA.x_train + 1)
    assert identical(noisy, end({"kind": "gaussian", "std": 3.0, "fraction": 1.0}, data=other))
    change = torch.cat([(noisy[name] - START[name]).flatten() for name in noisy])
    # The mean of five clients.
    assert float(change.std()) == pytest.approx(3 / 5**0.5, rel=0.2)


def test_alie_replaces_attackers_by_a_shifted_mean_of_the_others():
    updates = {"w": torch.tensor([[1.0, 0.0], [9.0, 9.0], [3.0, 4.0]])}
    attack = attacks.section("alie")(z=0.5)
    result = attack.collude(updates, np.array([False, True, False]))["w"]
    assert result.tolist() == [[1.0, 0.0], [2.0 - 0.5 * 1.0, 2.0 - 0.5 * 2.0], [3.0, 4.0]]


def test_the_largest_deviation_of_alie():
    # 24 of 50 clients attack: 2 supporters, and the quantile of (50 - 24 - 2) / 26.
    assert largest_deviation(50, 24) == pytest.approx(1.4261, abs=1e-4)
    assert largest_deviation(10, 1) == largest_deviation(2, 1) == 0.0


@pytest.mark.parametrize(("kind", "largest"), [("gaussian", 1.0), ("alie", 3.0)])
def test_attacks_come_before_the_transforms_except_for_collusion(kind, largest):
    settings = {"std": 100.0} if kind == "gaussian" else {"z": 100.0}
    attack = {"kind": kind, "fraction": 0.4, **settings}
    clip = transforms.section("clip")(norm=1.0)
    model = end(attack, transforms=[clip])
    change = float(torch.cat([(model[name] - START[name]).flatten() for name in model]).norm())
    assert change <= 1.0 + 1e-5 if kind == "gaussian" else change > largest


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_attackers_change_no_more_than_rounding(kind):
    close(end({"kind": kind, "fraction": 0.0, **KINDS[kind]}, rounds=2), end(None, rounds=2))


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_attack_changes_the_run(kind):
    assert distance(end({"kind": kind, "fraction": 0.4, **KINDS[kind]}), end(None)) > 1e-3


# ---- execution -------------------------------------------------------------------------------------------------------


@pytest.mark.grid
@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold])
@pytest.mark.parametrize("kind", list(KINDS))
def test_loop_vmap_and_several_actors_agree(kind, algorithm):
    attack = {"kind": kind, "fraction": 0.4, **KINDS[kind]}
    vmap = end(attack, VMAP, rounds=3, kind=algorithm)
    close(end(attack, LOOP, rounds=3, kind=algorithm), vmap)
    close(end(attack, VMAP, rounds=3, kind=algorithm, shards=3), vmap)


@pytest.mark.grid
@pytest.mark.parametrize("rule", ["mean", "median"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_resumed_run_ends_like_an_undisturbed_one(kind, rule, tmp_path):
    attack = {"kind": kind, "fraction": 0.4, **KINDS[kind]}
    check_resuming(lambda folder: run(attack, rounds=3, folder=folder, rule=rule), 1, tmp_path)


def test_robust_rules_withstand_an_attack_that_the_mean_does_not():
    attack = {"kind": "gaussian", "std": 100.0, "fraction": 0.2}
    clean = end(None)
    assert distance(end(attack), clean) > 10
    for rule in ("median", "trimmed_mean", "krum", "multi_krum", "geometric_median"):
        assert distance(end(attack, rule=rule), clean) < 0.5, rule


# ---- refusals --------------------------------------------------------------------------------------------------------

EXPERIMENT = {
    "name": "attacked",
    "rounds": 2,
    "clients_per_round": 0.5,
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": 10},
        "model": {"name": "mlp", "hidden": [8]},
    },
    "algorithm": {"name": "fedavg"},
}


def test_an_algorithm_without_parts_is_refused():
    values = {**EXPERIMENT, "algorithm": {"name": "heterofl"}, "simulation": {"attack": {"kind": "sign_flip"}}}
    parsed = parse_experiment(values)
    with pytest.raises(UserError, match=r"^simulation\.attack: heterofl does not average client updates; remove it$"):
        check_task(parsed, *build_data(parsed, None))


@pytest.mark.parametrize("kind", list(KINDS))
def test_attacks_pass_the_checks_before_a_run(kind):
    parsed = parse_experiment({**EXPERIMENT, "simulation": {"attack": {"kind": kind}}})
    check_task(parsed, *build_data(parsed, None))
    assert flatten(parsed.slots.attack.model_dump())["fraction"] == 0.2


OWN = '''
from hedgerow.algorithms.attacks.attack import Attack
from hedgerow.algorithms.core.pytree import scale


class Silence(Attack):
    """Attackers send a zero update."""

    def client(self, hp, update, key):
        return scale(update, 0.0)
'''


def test_an_attack_of_ones_own_runs_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "own_attack.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, value in START.items():
        assert torch.equal(end({"kind": "own_attack.Silence", "fraction": 1.0})[name], value)


def test_unknown_attacks_are_refused_with_the_known_ones():
    with pytest.raises(UserError, match="sign_flip"):
        parse_experiment({**EXPERIMENT, "simulation": {"attack": {"kind": "sing_flip"}}})
