"""Aggregation rules that withstand attackers: closed cases and identities."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from hedgerow.algorithms.aggregators import stacks
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.platform.config.registries import aggregators

ROBUST = {
    "median": {},
    "trimmed_mean": {"beta": 0.2},
    "krum": {"f": 2},
    "multi_krum": {"f": 2, "m": 3},
    "geometric_median": {},
    "centered_clipping": {"tau": 0.5},
}


def aggregate(kind, updates, weights=None, **settings):
    updates = updates if isinstance(updates, dict) else {"w": torch.tensor(updates)}
    clients = len(next(iter(updates.values())))
    weights = torch.ones(clients, dtype=torch.float64) if weights is None else torch.tensor(weights).double()
    return aggregators.section(kind)(**settings).combine(updates, weights)


def of_numbers(*args, **settings):
    return aggregate(*args, **settings)["w"].tolist()


def test_closed_cases():
    assert of_numbers("median", [1.0, 2.0, 3.0, 100.0]) == 2.5
    assert of_numbers("median", [3.0, 1.0, 100.0]) == 3.0
    assert of_numbers("trimmed_mean", [0.0, 1.0, 2.0, 3.0, 100.0], beta=0.2) == 2.0
    # Two neighbours count. Scores: 1 + 1.21, .01 + .09, .01 + .04, .04 + .09, and a large one.
    assert of_numbers("krum", [0.0, 1.0, 1.1, 1.3, 50.0], f=1) == pytest.approx(1.1)
    assert of_numbers("multi_krum", [0.0, 1.0, 1.1, 1.3, 50.0], f=1, m=3) == pytest.approx(3.4 / 3)
    # One step from 0 with tau 2: 10 is clipped to 2.
    assert of_numbers("centered_clipping", [1.0, 10.0], tau=2.0, iterations=1) == pytest.approx(1.5)
    # The second step starts at 1.5: 1.5 + (-.5 + 2) / 2.
    assert of_numbers("centered_clipping", [1.0, 10.0], tau=2.0, iterations=2) == pytest.approx(2.25)


UPDATES = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)


@pytest.mark.parametrize("weights", [None, [1, 2, 3, 4, 5, 6, 7]], ids=["equal", "weighted"])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("mean", {}),
        ("trimmed_mean", {"beta": 0.0}),
        ("centered_clipping", {"tau": 1e9, "iterations": 1}),
        ("multi_krum", {"f": 0, "m": 7}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rules_that_drop_nothing_are_the_weighted_mean(kind, settings, weights):
    result = aggregate(kind, {"w": torch.from_numpy(UPDATES)}, weights, **settings)["w"]
    np.testing.assert_allclose(result, np.average(UPDATES, axis=0, weights=weights), rtol=1e-5, atol=1e-7)


def test_trimmed_mean_weights_what_remains_after_dropping_by_count():
    assert of_numbers("trimmed_mean", [5.0, 1.0, 2.0, -9.0, 90.0], [1, 1, 3, 100, 100], beta=0.2) == pytest.approx(2.4)


def test_a_fraction_that_is_inexact_in_binary_drops_the_whole_number():
    assert of_numbers("trimmed_mean", [float(i < 29) for i in range(100)], beta=0.29) == 0.0


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 1.5]], ids=["equal", "weighted"])
def test_geometric_median_minimises_the_sum_of_distances(weights):
    points = np.array([[0.0, 0.0], [4.0, 1.0], [1.0, 3.0]])
    factors = np.ones(3) if weights is None else np.array(weights)

    def objective(v):
        return factors @ np.linalg.norm(points - v, axis=1)

    best = minimize(objective, [1.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14}).x
    # As two parts: distances are those of both parts together.
    parts = {"a": torch.tensor(points[:, :1]).float(), "b": torch.tensor(points[:, 1:]).float()}
    result = aggregate("geometric_median", parts, weights)
    np.testing.assert_allclose(torch.cat([result["a"], result["b"]]), best, atol=1e-5)


def test_geometric_median_stops_at_an_update_that_it_meets():
    assert of_numbers("geometric_median", [[0.0], [1.0], [100.0]]) == pytest.approx([1.0], abs=1e-4)


@pytest.mark.parametrize("kind", list(ROBUST))
def test_rules_do_not_depend_on_the_order_of_clients_or_on_the_split_into_leaves_and_pieces(kind, monkeypatch):
    updates = torch.randn(9, 5, 4, generator=torch.Generator().manual_seed(0))
    whole = aggregate(kind, {"w": updates}, **ROBUST[kind])["w"]
    turned = aggregate(kind, {"w": updates.flip(0)}, **ROBUST[kind])["w"]
    monkeypatch.setattr(stacks, "PIECE", 27)
    parts = aggregate(kind, {"a": updates[:, :2], "b": updates[:, 2:]}, **ROBUST[kind])
    for other in (turned, torch.cat([parts["a"], parts["b"]])):
        torch.testing.assert_close(other, whole, rtol=1e-6, atol=1e-6)
    assert whole.dtype == torch.float32


@pytest.mark.parametrize("kind", list(ROBUST))
def test_one_far_update_moves_the_result_by_no_more_than_the_spread_of_the_others(kind):
    updates = torch.randn(9, 20, generator=torch.Generator().manual_seed(1))
    far = torch.cat([updates[:8], torch.full((1, 20), 1e6)])
    result = aggregate(kind, {"w": far}, **ROBUST[kind])["w"]
    assert result.norm() <= updates.norm(dim=1).max()


def test_krum_chooses_one_client_for_all_parts():
    rows = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
    result = aggregate("krum", {"a": rows[:, :3], "b": rows[:, 3:]}, f=1)
    chosen = torch.cat([result["a"], result["b"]])
    assert any(torch.equal(chosen, row) for row in rows)


def test_squared_distances_and_the_origin():
    updates = tree_map(lambda x: x + 1e3, {"a": torch.randn(4, 3), "b": torch.randn(4, 2, 2)})
    rows = torch.cat([updates["a"], updates["b"].reshape(4, 4)], dim=1).double()
    points = torch.cat([rows, torch.zeros(1, 7)])
    expected = torch.cdist(points, points) ** 2
    torch.testing.assert_close(stacks.squared_distances(updates, origin=True), expected, rtol=1e-9, atol=1e-7)


def test_too_few_clients_are_refused():
    assert aggregators.section("krum")(f=2).incompatibility(7) is None
    reason = aggregators.section("krum")(f=2).incompatibility(6)
    assert reason == "f: krum needs at least 2 f + 3 = 7 clients per round, not 6; lower it to 1, or raise them"
    assert aggregators.section("krum")(f=0).incompatibility(2).endswith("not 2; raise them")
    assert aggregators.section("multi_krum")(f=2, m=6).incompatibility(7).startswith("m: 6 is more than the 5 clients")
