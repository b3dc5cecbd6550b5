"""FedEx: its step on theta, the draws of clients, and runs with it."""

import math

import numpy as np
import pytest
import torch

from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.slots.fedex import FedEx, draw, initial_state, theta, updated

DRAWS = [[0, 1, 2, 0], [1, 1, 2, 0], [2, 0, 1, 1], [1, 2, 1, 0], [1, 1, 1, 2]]
ERRORS = [
    [0.80, 0.60, 0.90, 0.82],
    [0.55, 0.57, 0.88, 0.79],
    [0.86, 0.78, 0.50, 0.52],
    [0.47, 0.85, 0.45, 0.77],
    [0.42, 0.40, 0.41, 0.83],
]
SIZES = [[10, 20, 30, 40], [10, 20, 30, 40], [25, 25, 25, 25], [40, 30, 20, 10], [10, 20, 30, 40]]


def settings(*counts: int, **values) -> FedEx:
    """Distributions of these numbers of values."""
    factors = [[{f"algorithm.k{i}": float(j)} for j in range(n)] for i, n in enumerate(counts)]
    return FedEx(factors=factors, **values)


def thetas(fedex: FedEx, draws=DRAWS, errors=ERRORS, sizes=SIZES) -> list[list[float]]:
    """Theta of the first distribution before the first and after each round."""
    state = initial_state([len(factor) for factor in fedex.factors])
    result = [theta(state["distributions"]["0"]).tolist()]
    for drawn, error, size in zip(draws, errors, sizes, strict=True):
        columns = [torch.tensor(drawn)] * len(fedex.factors)
        state = updated(state, columns, torch.tensor(error, dtype=torch.float64), torch.tensor(size), fedex)
        result.append(theta(state["distributions"]["0"]).tolist())
    return result


WORKED = [
    "adaptive, 0 | .181879 .517843 .300278 | .173983 .571202 .254816 | .116248 .820929 .062823",
    "adaptive, .9 | .181879 .517843 .300278 | .173983 .571202 .254816 | .105110 .817746 .077144",
    "aggressive, 1 | .181879 .517843 .300278 | .083992 .869156 .046852 | .048880 .950773 .000347",
    "auto, 0 | .155125 .558326 .286548 | .149880 .602498 .247622 | .114730 .775950 .109320",
    "constant, 1 | .155125 .558326 .286548 | .147368 .620158 .232474 | .074286 .886974 .038741",
]
"""Schedule and discount; theta after rounds 1, 2 and 5."""


@pytest.mark.parametrize("row", WORKED)
def test_theta_is_that_of_the_worked_example(row):
    (schedule, discount), *expected = (part.replace(",", "").split() for part in row.split("|"))
    found = thetas(settings(3, schedule=schedule, discount=float(discount)))
    assert found[0] == pytest.approx([1 / 3] * 3)
    for number, values in zip((1, 2, 5), expected, strict=True):
        assert found[number] == pytest.approx([float(value) for value in values], abs=6e-7)


def test_one_round_in_closed_form():
    # w = (1/4, 3/4), e = (0.4, 0.8), b = 0 and theta = 1/2: g = (0.2, 1.2), and D = 1.2.
    one = thetas(settings(2), [[0, 1]], [[0.4, 0.8]], [[1, 3]])[1]
    rate = math.sqrt(2 * math.log(2)) / 1.2
    first, second = math.exp(-rate * 0.2), math.exp(-rate * 1.2)
    assert one == pytest.approx([first / (first + second), second / (first + second)], abs=1e-15)


def test_clients_without_validation_samples_move_nothing_but_the_counts():
    start = initial_state([2])
    after = updated(start, [torch.tensor([0, 1])], torch.tensor([math.nan, math.nan]), torch.zeros(2), settings(2))
    assert after["distributions"]["0"]["log_theta"].equal(start["distributions"]["0"]["log_theta"])
    assert after["distributions"]["0"]["draws"].tolist() == [1, 1]
    some = [thetas(settings(2), [[0, 1, 1]], [[0.4, 0.8, e]], [[1, 3, 0]])[1] for e in (0.1, math.nan)]
    assert some[0] == some[1] == thetas(settings(2), [[0, 1]], [[0.4, 0.8]], [[1, 3]])[1]


def test_parameters_have_distributions_of_their_own():
    fedex = settings(3, 2)
    state, drawn = initial_state([3, 2]), [torch.tensor(DRAWS[0]), torch.tensor([0, 1, 1, 0])]
    after = updated(state, drawn, torch.tensor(ERRORS[0]), torch.tensor(SIZES[0]), fedex)["distributions"]
    assert theta(after["0"]).tolist() == pytest.approx(thetas(settings(3))[1], abs=1e-7)
    w, e = np.array(SIZES[0]) / 100, np.array(ERRORS[0])
    g = np.array([(w * e)[[0, 3]].sum(), (w * e)[[1, 2]].sum()]) * 2
    p = np.exp(-math.sqrt(2 * math.log(2)) * g / g.max())
    assert theta(after["1"]).tolist() == pytest.approx((p / p.sum()).tolist(), abs=1e-7)
    assert after["1"]["draws"].tolist() == [2, 2]


def test_a_settled_distribution_uses_its_most_probable_value_and_learns_no_more():
    entropies = [-sum(p * math.log(p) for p in one) for one in thetas(settings(3))]
    assert entropies[1] > 0.95 > entropies[3]
    found = thetas(settings(3, cutoff=0.95))
    settled = next(i for i, one in enumerate(found) if -sum(p * math.log(p) for p in one) < 0.95)
    assert found[settled:] == [found[settled]] * (6 - settled)
    state = initial_state([3])
    state["distributions"]["0"]["log_theta"] = torch.tensor(found[settled], dtype=torch.float64).log()
    cohort = Cohort(7, np.arange(40), np.ones(40), 40)
    assert draw(state, cohort, 0.95)[0].tolist() == [1] * 40
    assert set(draw(state, cohort, 0.0)[0].tolist()) == {0, 1, 2}


def test_draws_are_keyed_by_seed_round_and_client_and_follow_theta():
    state = initial_state([3, 3])
    state["distributions"]["0"]["log_theta"] = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    everyone = Cohort(4, np.arange(20_000), np.ones(20_000), 20_000, seed=3)
    first, second = draw(state, everyone, 0.0)
    assert np.bincount(first) / 20_000 == pytest.approx([0.2, 0.5, 0.3], abs=0.015)
    assert np.bincount(second) / 20_000 == pytest.approx([1 / 3] * 3, abs=0.015)
    some = np.array([5, 77, 19_999])
    assert draw(state, Cohort(4, some, np.ones(3), 20_000, seed=3), 0.0)[0].tolist() == first[some].tolist()
    for other in (
        Cohort(5, everyone.clients, everyone.sizes, 20_000, seed=3),
        Cohort(4, everyone.clients, everyone.sizes, 20_000),
    ):
        assert (draw(state, other, 0.0)[0] == first).double().mean() < 0.45


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        ([], "fewer than 2 configurations"),
        ([[{"algorithm.lr": 0.1}]], "fewer than 2 configurations"),
        ([[{"algorithm.lr": 0.1}, {"algorithm.momentum": 0.1}]], "need the same keys"),
        ([[{"algorithm.lr": 0.1}, {"algorithm.lr": 0.2}]] * 2, "algorithm.lr in two lists"),
    ],
)
def test_wrong_factors_are_refused_in_a_sentence(factors, sentence):
    with pytest.raises(ValueError, match=sentence):
        FedEx(factors=factors)
