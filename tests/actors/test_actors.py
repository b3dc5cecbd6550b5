"""One client actor is many client actors, and none: each family of methods, on the processes of one command."""

import numpy as np
import pytest
from families import DEALT, EVERYTHING, section, settings_of, stream
from noisy import ESTIMATORS
from ray_runs import numbers, one_by_one, same, small

from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.runner import run

pytestmark = pytest.mark.usefixtures("kept")


TWO_LEVELS = {
    "clients_per_round": "all",
    "task__partition": {
        **{"kind": "iid", "clients": 6, "samples_per_client": 40},
        **{"upper_level_fraction": 0.3, "label_noise": 0.4},
    },
}
FAMILIES = {
    **{
        name: {"algorithm": {"name": name, "epochs": 2, "batch_size": 8}, "evaluation": {"model": "clients"}}
        for name in ("feddyn", "scaffold", "fedsplit")
    },
    "two levels": TWO_LEVELS | {"algorithm": section("fedbioacc"), "task__problem": {"kind": "cleaning"}},
    "compressed hypergradients": {
        **TWO_LEVELS,
        "rounds": 2,
        "algorithm": {**ESTIMATORS["topk"], "lr": 0.1},
        "task__problem": {"kind": "cleaning", "weights": "clipped"},
    },
    "personal models": {
        "algorithm": {"name": "pfldyn", "adapt": "proto", "alpha": 0.1, "epochs": 2, "batch_size": 4},
        "evaluation": {"model": "clients"},
        "task__partition": {"kind": "alid", **DEALT},
        "rounds": 2,
    },
}


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("settings", FAMILIES.values(), ids=list(FAMILIES))
def test_one_actor_has_the_bits_of_none_and_two_agree(tmp_path, settings):
    one, inline, two = one_by_one(
        small(tmp_path / "one", **settings),
        small(tmp_path / "inline", **settings, resources__executor="inline"),
        small(tmp_path / "two", **settings, resources__actors=2),
    )
    assert same(one, inline)
    rounding = 1e-5 if "task__problem" in settings else 1e-6
    assert max(np.abs(one.parameters[k] - two.parameters[k]).max() for k in one.parameters) < rounding
    for a, b in zip(numbers(one), numbers(two), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-5)
        if "task__problem" in settings:
            assert a["spent_hessian_products"] == pytest.approx(b["spent_hessian_products"])
        elif settings["algorithm"]["name"] == "pfldyn":
            # Of ten samples.
            assert a["client_accuracy_lowest"] == pytest.approx(b["client_accuracy_lowest"], abs=0.11)
        else:
            assert a["test_accuracy"] == pytest.approx(b["test_accuracy"], abs=0.01)


@pytest.mark.exhaustive("processes")
def test_streams(tmp_path):
    runs = [{"output": str(tmp_path / str(n)), "resources": {"executor": "ray", "actors": n}} for n in (1, 2)]
    both = one_by_one(*(parse_experiment(stream(settings_of("moml"), **one)) for one in runs))
    for mine, theirs in zip(*map(numbers, both), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


@pytest.mark.exhaustive("processes")
def test_sketches_of_their_own(tmp_path):
    def ran(name, **resources):
        wanted = {
            **{"name": name, "rounds": 2, "clients_per_round": 0.7, "output": str(tmp_path / name)},
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "dirichlet", "clients": 6, "alpha": 1.0, "client_test_fraction": 0.2},
                "model": {"name": "logreg"},
            },
            "algorithm": {"name": "fedsep", "sketch_size": 20, "sketch": "own", "steps": 2},
            "aggregation": {"server_optimizer": {"lr": 5.0}},
            "engine": {"mode": "vmap", "chunk": 2},
            "resources": resources,
            "tracking": {"enabled": False},
        }
        return run(parse_experiment(wanted))

    one, two = ran("inline", executor="inline"), ran("ray", actors=2, cpus_per_actor=1)
    for name, value in one.parameters.items():
        assert np.abs(value - two.parameters[name]).max() < 1e-5
    assert one.records[-1]["client_loss"] == pytest.approx(two.records[-1]["client_loss"], abs=1e-5)
    assert one.records[-1]["scalars_down"] == two.records[-1]["scalars_down"] == 4 * 20


def test_clients_that_are_slow_away_or_lost(tmp_path):
    on_ray, here = (
        run(small(tmp_path, simulation=EVERYTHING | {"deadline": 60.0}, resources__executor=executor))
        for executor in ("ray", "inline")
    )
    assert same(on_ray, here)
    assert here.summary["simulated_seconds"] == here.records[-1]["simulated_seconds"]
    assert here.summary["lost"]["unavailable"] == sum(r["unavailable"] for r in here.records) > 0
