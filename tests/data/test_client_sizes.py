"""Laws of client sizes: closed forms, and one mechanism for every scheme that takes them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import PartitionConfig
from hedgerow.platform.data.partitions.size_laws import SizeLaw, divided

LABELS = np.repeat(np.arange(10), 100)
KINDS = [{"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.5}, {"kind": "labels", "labels_per_client": 2}]


def scheme(**options):
    return TypeAdapter(PartitionConfig).validate_python(options)


def sizes_of(clients=10, labels=LABELS, seed=0, **options):
    return scheme(clients=clients, **{"kind": "iid", **options}).draw(labels, 10, None, seed).sizes


class Alternating(SizeLaw):
    """Every second client has three times as many samples."""

    def weights(self, clients, rng):
        return np.where(np.arange(clients) % 2, 3.0, 1.0)


@pytest.mark.parametrize(
    ("law", "labels", "sizes"),
    [
        ({"kind": "linear"}, 550, np.arange(1, 11) * 10),
        ({"kind": "square"}, 385, np.arange(1, 11) ** 2),
        ({"kind": "power_law", "exponent": 1.0}, 7381, 2520 // np.arange(1, 11)),
        ({"kind": "exponential", "rate": float(np.log(2))}, 1023, 2 ** np.arange(10)),
        ({"kind": f"{__name__}.Alternating"}, 200, np.tile([10, 30], 5)),
        ({"kind": "list", "samples": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}, 1000, np.arange(1, 11)),
        (None, 1003, np.array([101] * 3 + [100] * 7)),
    ],
    ids=["linear", "square", "power law", "exponential", "own", "list", "equal"],
)
def test_sizes_have_closed_forms(law, labels, sizes):
    assert sizes_of(labels=np.zeros(labels, int), sizes=law).tolist() == sizes.tolist()


@pytest.mark.parametrize("options", KINDS, ids=lambda options: options["kind"])
@pytest.mark.parametrize(
    "law",
    [{"kind": "power_law", "exponent": 0.5}, {"kind": "lognormal", "sigma": 0.5}, {"kind": "dirichlet", "alpha": 3.0}],
    ids=lambda law: law["kind"],
)
def test_every_scheme_takes_every_law_and_uses_all_samples(options, law):
    config = scheme(clients=20, sizes={**law, "minimum": 7}, **options)
    partition = config.draw(LABELS, 10, None, 0)
    assert sorted(partition.order) == list(range(1000))
    least = 6 if options["kind"] == "labels" else 7
    assert partition.sizes.min() >= least
    if law["kind"] == "power_law":
        ideal = np.arange(1, 21) ** -0.5
        assert np.abs(partition.sizes - 1000 * ideal / ideal.sum()).max() <= 2
    else:
        assert partition.sizes.max() > 2 * partition.sizes.min()


@pytest.mark.parametrize("options", KINDS, ids=lambda options: options["kind"])
def test_listed_sizes_are_exact(options):
    sizes = [5, 90, 14, 40, 2, 33, 8, 21, 60, 17]
    config = scheme(clients=10, sizes={"kind": "list", "samples": sizes}, **options)
    assert config.draw(LABELS, 10, None, 3).sizes.tolist() == sizes


def test_extreme_laws_give_one_client_all_but_the_minimum_of_the_others():
    for law in ({"kind": "power_law", "exponent": 400.0}, {"kind": "exponential", "rate": 1e3}):
        assert sorted(sizes_of(clients=500, sizes=law)) == [1] * 499 + [501]


def test_samples_per_client_is_the_average_of_a_law():
    sizes = sizes_of(sizes={"kind": "linear"}, samples_per_client=55)
    assert sizes.tolist() == (10 * np.arange(1, 11)).tolist()


def test_a_large_concentration_makes_dirichlet_sizes_equal_and_a_small_one_makes_one_client_large():
    even = sizes_of(sizes={"kind": "dirichlet", "alpha": 1e9})
    one = sizes_of(sizes={"kind": "dirichlet", "alpha": 1e-3})
    assert even.tolist() == [100] * 10
    assert sorted(one)[-1] > 500


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(any),
    st.integers(0, 5),
    st.integers(0, 1000),
)
def test_divided_adds_up_keeps_the_minimum_and_the_order(weights, minimum, extra):
    weights = np.array(weights)
    total = minimum * len(weights) + extra
    parts = divided(total, weights, minimum)
    assert parts.sum() == total
    assert parts.min() >= minimum
    assert (np.diff(parts[np.argsort(weights, kind="stable")]) >= -1).all()
    if minimum == 0:
        assert np.abs(parts - total * weights / weights.sum()).max() < 1 + 1e-6


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"clients": 1001}, "1001 clients are more than the 1000 samples; lower it"),
        (
            {"clients": 2, "sizes": {"kind": "list", "samples": [1, 1000]}},
            "the clients need 1001 samples, but the data set has 1000; lower",
        ),
        ({"sizes": {"kind": "linear", "minimum": 101}}, r"sizes\.minimum: 10 clients with at least 101 samples need"),
        ({"clients": 500, "samples_per_client": 3}, "500 clients with 3 samples need 1500, but the data set has 1000"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options, sentence):
    with pytest.raises(UserError, match=sentence):
        sizes_of(**options)


@pytest.mark.parametrize(
    ("partition", "sentence"),
    [
        (
            {"sizes": {"kind": "list", "samples": [1, 2]}},
            "`sizes` lists 2 clients, but `clients` is 3; make them equal",
        ),
        ({"sizes": {"kind": "list", "samples": [1, 0, 2]}}, r"sizes\.samples\.1 must be at least 1"),
        ({"sizes": {"kind": "list", "samples": [1, 2, 3]}, "samples_per_client": 4}, "remove `samples_per_client`"),
        ({"sizes": {"kind": "linaer"}}, "sizes.kind: 'linaer' is not known; did you mean 'linear'"),
        ({"sizes": {"kind": "lognormal", "sigma": 0.0}}, "sigma"),
        ({"kind": "dirichlet", "alpha": 0.0}, "alpha"),
    ],
)
def test_wrong_keys_are_refused_with_their_place(partition, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        parse_experiment({
            "name": "x", "rounds": 1, "clients_per_round": "all",
            "task": {
                "data": {"name": "digits"}, "partition": {"kind": "iid", "clients": 3, **partition},
                "model": {"name": "logreg"},
            },
            "algorithm": {"name": "fedavg"},
        })  # fmt: skip
    assert "task.partition" in str(error.value)
    assert "\n" not in str(error.value)
    print(error.value)
