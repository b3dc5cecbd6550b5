"""User-level differential privacy: accounting, Poisson cohorts, what is refused, and runs."""

import math
import sys

import numpy as np
import pytest
from helpers import SingleRun, check_resuming, distance

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data.sampling import poisson_clients
from hedgerow.platform.privacy import accounting
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.coordinator import build_servers, worker_arguments
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.worker import Worker

pytest.importorskip("dp_accounting")


@pytest.mark.parametrize(
    ("probability", "rounds", "delta", "pld", "rdp"),
    [(0.001, 1500, 1e-6, 0.2213, 0.8758), (0.01, 1000, 1e-5, 1.8282, 2.1014)],
)
def test_epsilon_has_the_reference_values(probability, rounds, delta, pld, rdp):
    assert accounting.epsilon(1.0, probability, rounds, delta, "pld") == pytest.approx(pld, abs=1e-4)
    assert accounting.epsilon(1.0, probability, rounds, delta, "rdp") == pytest.approx(rdp, abs=1e-4)


def test_every_round_has_an_upper_bound_that_is_exact_at_the_end():
    exact = [accounting.epsilon(1.0, 0.05, rounds, 1e-4, "rdp") for rounds in range(1, 41)]
    bounds = [accounting.PrivacyAccount(1.0, 0.05, 40, 1e-4, "rdp").epsilon(rounds) for rounds in range(1, 41)]
    assert bounds == sorted(bounds)
    assert all(bound >= value for bound, value in zip(bounds, exact, strict=True))
    assert bounds[:4] == exact[:4]
    assert bounds[-1] == exact[-1]


def test_a_target_is_reached_with_the_smallest_noise():
    multiplier = accounting.multiplier_for(1.0, 0.01, 100, 1e-5, "pld")
    assert accounting.epsilon(multiplier, 0.01, 100, 1e-5) <= 1.0
    assert accounting.epsilon(multiplier * 0.99, 0.01, 100, 1e-5) > 1.0


def test_mechanisms_compose():
    both = accounting.composed([(1.0, 0.01, 400), (1.0, 0.01, 600)], 1e-5)
    assert both == pytest.approx(accounting.epsilon(1.0, 0.01, 1000, 1e-5), rel=1e-3)
    assert accounting.composed([(1.0, 0.01, 0)], 1e-5) == 0
    assert accounting.epsilon(0.0, 0.1, 1, 1e-5) == math.inf
    # One run without noise is enough to reveal a client.
    assert accounting.composed([(1.0, 0.01, 400), (0.0, 0.1, 1)], 1e-5) == math.inf


def test_mechanisms_on_the_same_cohorts_add_up_their_noise():
    # 1 + 1 + 1/4 = (3/2)^2.
    joint = accounting.side_by_side([(1.0, 0.1, 10), (1.0, 0.1, 4), (2.0, 0.2, 4)])
    assert joint == [(pytest.approx(2 / 3), 0.2, 4), (1.0, 0.1, 6)]
    # With all clients, 4 mechanisms of 4 rounds with noise 4 are a Gaussian mechanism with noise 1.
    assert accounting.composed(accounting.side_by_side([(4.0, 1.0, 4)] * 4), 1e-3) == pytest.approx(3.1387, abs=1e-4)
    assert accounting.composed(accounting.side_by_side([(1.0, 0.1, 4), (0.0, 0.1, 1)]), 1e-3) == math.inf


def test_clients_take_part_independently():
    cohorts = [poisson_clients(3, number, 200, 0.1) for number in range(2000)]
    assert np.array_equal(cohorts[5], poisson_clients(3, 5, 200, 0.1))
    sizes = np.array([len(cohort) for cohort in cohorts])
    # The mean of 2000 binomial counts has standard error 0.095, and their variance is 18.
    assert abs(sizes.mean() - 20) < 0.4
    assert abs(sizes.var() - 18) < 3
    counts = np.bincount(np.concatenate(cohorts), minlength=200)
    assert abs(counts - 200).max() < 5 * math.sqrt(180)
    assert len(poisson_clients(0, 1, 50, 1.0)) == 50


TASK = {
    "data": {"name": "digits"},
    "partition": {"kind": "iid", "clients": 10, "samples_per_client": 20},
    "model": {"name": "mlp", "hidden": [8]},
}


def experiment(folder, name="fedavg", **changes):
    values = {
        "name": "private",
        "rounds": 3,
        "clients_per_round": 0.5,
        "output": str(folder / "runs"),
        "task": TASK,
        "algorithm": {"name": name, "lr": 0.1, "epochs": 1, "batch_size": 10},
        "privacy": {"clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"},
        "resources": {"executor": "inline"},
        "engine": {"mode": "loop"},
        "tracking": {"enabled": False},
    }
    return parse_experiment({**values, **changes})


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "feddyn", "scaffold"])
@pytest.mark.grid(keep=2)
def test_methods_are_private_by_the_same_section(name, tmp_path):
    finished = run(experiment(tmp_path, name))
    epsilons = [record["epsilon"] for record in finished.records]
    assert epsilons == [accounting.epsilon(1.0, 0.5, number, 1e-3, "rdp") for number in (1, 2, 3)]
    vmap = run(experiment(tmp_path / "vmap", name, engine={"mode": "vmap", "chunk": 3}))
    assert vmap.records[-1]["test_loss"] == pytest.approx(finished.records[-1]["test_loss"], rel=1e-4)


def test_without_noise_and_clip_and_with_all_clients_it_is_the_plain_run(tmp_path):
    private = {"clip": 1e9, "noise_multiplier": 0.0, "delta": 1e-3}
    bare = run(experiment(tmp_path / "bare", clients_per_round="all", privacy=None))
    same = run(experiment(tmp_path / "same", clients_per_round="all", privacy=private))
    assert same.records[-1]["test_loss"] == pytest.approx(bare.records[-1]["test_loss"], rel=1e-6)
    assert same.records[-1]["epsilon"] == math.inf


def test_a_round_without_clients_is_noise_alone(tmp_path):
    seed = next(seed for seed in range(1000) if not len(poisson_clients(seed, 1, 10, 0.1)))
    changes = {"seed": seed, "rounds": 1, "clients_per_round": 0.1}
    silent = {"clip": 0.5, "noise_multiplier": 0.0, "delta": 1e-3}
    noisy = run(experiment(tmp_path / "noisy", **changes))
    still = run(experiment(tmp_path / "still", **changes, privacy=silent))
    assert noisy.records[0]["participants"] == still.records[0]["participants"] == 0
    differences = np.concatenate(
        [(noisy.parameters[name] - still.parameters[name]).ravel() for name in noisy.parameters]
    )
    # Noise of standard deviation z S on the sum, over one expected client; still has the initial parameters.
    assert differences.std() == pytest.approx(0.5, rel=0.1)


@pytest.mark.exhaustive("processes")
def test_the_solved_noise_is_recorded_and_reaches_the_target(tmp_path):
    private = {"clip": 0.5, "target_epsilon": 20.0, "delta": 1e-3, "accountant": "rdp"}
    finished = run(experiment(tmp_path, privacy=private))
    solved = finished.folder.record()["privacy"]["noise_multiplier"]
    assert solved == accounting.multiplier_for(20.0, 0.5, 3, 1e-3, "rdp")
    assert 19 < finished.records[-1]["epsilon"] <= 20
    # Actors read the file that this one writes, and need not solve again.
    made = experiment(tmp_path, privacy=private).with_solved_noise(10)
    read = parse_experiment(made.model_dump(mode="json"))
    assert read.privacy_account(10) == made.privacy_account(10)
    assert (read.privacy.noise_multiplier, read.privacy.target_epsilon) == (solved, None)


def test_noise_of_a_larger_cohort_is_scaled_and_accounted_for(tmp_path):
    private = {"clip": 0.5, "noise_multiplier": 2.0, "delta": 1e-3, "accountant": "rdp", "noise_cohort": 10}
    made = experiment(tmp_path, privacy=private)
    clip, noise = made.private_slots(100).transforms
    assert (clip.norm, noise.multiplier, noise.expected) == (0.5, 2.0 * 50 / 10, 50)
    assert made.privacy_account(100).epsilon(1) == accounting.epsilon(2.0, 0.1, 1, 1e-3, "rdp")


def test_a_resumed_run_is_undisturbed(tmp_path):
    made = experiment(tmp_path, rounds=5)
    data = check(made, None)

    def start(folder):
        worker = Worker(*worker_arguments([made], *data))
        return SingleRun(build_servers([made], *data), worker, [folder])

    check_resuming(start, 2, tmp_path / "state")


def test_two_workers_equal_one(tmp_path):
    made = experiment(tmp_path, "scaffold", engine={"mode": "vmap", "chunk": 3})
    data = check(made, None)

    def trained(parts):
        worker = Worker(*worker_arguments([made], *data))
        done = SingleRun(build_servers([made], *data), worker, [None], parts)
        list(done)
        return done.server["w"]

    assert distance(trained(1), trained(2)) < 1e-6


def test_private_trials_have_noise_of_their_own(tmp_path):
    """The same noise would cancel in the difference of two trials."""
    made = experiment(tmp_path, rounds=1, algorithm={"name": "fedavg", "lr": 1e-20})
    data = check(made, None)

    def noise(trial):
        worker, (server,) = Worker(*worker_arguments([made], *data)), build_servers([made], *data)
        server.trial, before = trial, server.state["w"]
        list(SingleRun([server], worker, [None], 1))
        return np.concatenate([(server.state["w"][name] - leaf).numpy().ravel() for name, leaf in before.items()])

    first, second = noise(0), noise(1)
    assert np.array_equal(first, noise(0))
    # z S / (q m) = 1 * 0.5 / 5, for 610 parameters.
    assert np.std(first) == pytest.approx(0.1, rel=0.1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2


@pytest.mark.parametrize("name", ["feddyn", "scaffold"])
def test_server_memory_takes_a_round_without_clients(name, tmp_path):
    seed = next(seed for seed in range(1000) if not len(poisson_clients(seed, 1, 10, 0.1)))
    engine = {"mode": "vmap", "chunk": 2}
    finished = run(experiment(tmp_path, name, seed=seed, rounds=2, clients_per_round=0.1, engine=engine))
    assert finished.records[0]["participants"] == 0
    assert all(np.isfinite(values).all() for values in finished.parameters.values())


@pytest.mark.parametrize("model", [{"name": "mode_models.Dropped"}, {"name": "mode_models.Normed", "buffers": "local"}])
def test_models_that_send_no_statistics_are_private(model, tmp_path):
    finished = run(experiment(tmp_path, task={**TASK, "model": model}))
    assert math.isfinite(finished.records[-1]["test_loss"])


def test_accounting_without_its_package_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"install it with `uv pip install -e '.\[privacy\]'` in Hedgerow's folder"):
        run(experiment(tmp_path, privacy={"clip": 1, "noise_multiplier": 1.2345, "delta": 1e-3, "accountant": "rdp"}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": {"clip": 1, "delta": 1e-3}}, "either `noise_multiplier` or `target_epsilon`"),
        ({"transforms": [{"kind": "clip", "norm": 1.0}]}, "remove the clip and the noise"),
        ({"simulation": {}}, "remove one of the two"),
        ({"evaluation": {"model": "clients"}}, "set it to server"),
        ({"aggregation": {"weighting": "samples"}}, "set aggregation.weighting to uniform"),
        ({"aggregation": {"rule": {"kind": "median"}}}, "set aggregation.rule to mean"),
        ({"task": {**TASK, "model": {"name": "mode_models.Normed"}}}, "statistics of batch norm would be sent"),
        ({"algorithm": {"name": "fednova"}}, "is not one update of each client"),
    ],
)
def test_what_is_not_private_is_refused(changes, said, tmp_path):
    with pytest.raises(UserError, match=said):
        run(experiment(tmp_path, **changes))


@pytest.mark.exhaustive("processes")
def test_a_search_accounts_for_all_trials_together(tmp_path, ray_here):
    from hedgerow.searchspaces.spaces.search_file import parse_search
    from hedgerow.searchspaces.tune.search_runner import search

    values = experiment(tmp_path).model_dump(mode="json", exclude_unset=True)
    values["task"]["validation"] = {"fraction": 0.2}
    values["search"] = {"kind": "grid", "space": {"privacy.clip": {"grid": [0.2, 0.5]}}}
    finished = search(parse_search(values, {}, "private"))
    # Both trials have the same cohorts.
    total = accounting.epsilon(2**-0.5, 0.5, 3, 1e-3, "rdp")
    assert finished.folder.record()["privacy"]["epsilon"] == pytest.approx(total)
    assert f"together have epsilon {total:.4g}" in finished.warning
