"""Splits by class in closed form: numbers of classes and samples, everything used, and what cannot be dealt."""

from collections import Counter

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.registries import PartitionConfig
from hedgerow.platform.data.partitions.class_splits import DirichletByClass

LABELS = np.tile(np.arange(10), 60)
MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])


def drawn(labels=LABELS, seed=0, **options):
    return TypeAdapter(PartitionConfig).validate_python(options).draw(labels, 10, None, seed)


def counts_of(labels=LABELS, seed=0, **options):
    return drawn(labels, seed, **options).label_counts(labels, 10)


# ---- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [None, {"kind": "linear"}, {"kind": "lognormal", "sigma": 1.0}])
@pytest.mark.parametrize("assignment", ["balanced", "random", "deterministic", "first_deterministic"])
def test_each_client_has_exactly_its_number_of_classes(assignment, sizes):
    partition = drawn(kind="labels", clients=20, labels_per_client=3, assignment=assignment, sizes=sizes)
    counts = partition.label_counts(LABELS, 10)
    assert ((counts > 0).sum(1) == 3).all()
    assert len(set(partition.order)) == len(partition.order)
    # All samples of the classes that a client has are used.
    assert counts.sum(0).tolist() == [60 * (column > 0).any() for column in counts.T]
    if assignment == "deterministic":
        assert [np.flatnonzero(row).tolist() for row in counts[:9]] == [
            sorted([i, (i + 1) % 10, (i + 2) % 10]) for i in range(9)
        ]
    if assignment == "first_deterministic":
        assert all(counts[i, i % 10] for i in range(20))
    if assignment == "balanced":
        assert ((counts > 0).sum(0) == 6).all()


def test_the_first_classes_of_flowers_pathological_partitioner():
    counts = counts_of(kind="labels", clients=5, labels_per_client=2, assignment="deterministic")
    # Classes 1 to 4 have two clients, classes 0 and 5 have one; the other classes are not used.
    assert counts[0].tolist() == [60, 30] + [0] * 8
    assert counts[4].tolist() == [0] * 4 + [30, 60] + [0] * 4


@pytest.mark.parametrize("assignment", ["balanced", "random", "deterministic", "first_deterministic"])
def test_clients_have_as_many_samples_as_given_equally_of_their_classes(assignment):
    counts = counts_of(kind="labels", clients=8, labels_per_client=3, samples_per_client=11, assignment=assignment)
    # In the order of the classes, 4 + 4 + 3 = 11.
    assert [row[row > 0].tolist() for row in counts] == [[4, 4, 3]] * 8


def test_sizes_follow_the_law_where_the_classes_allow_it():
    law = {"assignment": "deterministic", "sizes": {"kind": "linear"}}
    counts = counts_of(kind="labels", clients=10, labels_per_client=5, **law)
    assert np.abs(counts.sum(1) - 600 * np.arange(1, 11) / 55).max() < 5
    assert counts.sum() == 600
    # Of one class each, the 60 samples of a class are all that a client can have.
    one = counts_of(
        kind="labels", clients=10, labels_per_client=1, assignment="deterministic", sizes={"kind": "linear"}
    )
    assert one.sum(1).tolist() == [60] * 10


def test_unequal_labels_are_lognormal():
    sizes = drawn(
        MNIST, kind="labels", clients=400, labels_per_client=4, sizes={"kind": "lognormal", "sigma": 0.3}
    ).sizes
    assert np.log(sizes).std() == pytest.approx(0.3, abs=0.04)
    assert sizes.sum() == len(MNIST)


def test_the_mnist_of_fedprox():
    """FedProx, table 1: 1000 devices, 69 samples each on average with a deviation of 106, of all 70000 images."""
    partition = drawn(
        MNIST, kind="labels", clients=1000, labels_per_client=2, assignment="deterministic", law_of="classes",
        sizes={"kind": "lognormal", "sigma": 2.0, "minimum": 5},
    )  # fmt: skip
    counts, sizes = partition.label_counts(MNIST, 10), partition.sizes
    assert [np.flatnonzero(row).tolist() for row in counts] == [sorted([i % 10, (i + 1) % 10]) for i in range(1000)]
    assert counts[counts > 0].min() == 5
    assert (sizes.sum(), sizes.min()) == (60000, 10)
    # The deviation depends on the largest of 2000 lognormal numbers: 85 to 250 in 99 of 100 draws of FedProx' code.
    assert 85 < sizes.std() < 250
    assert np.median(sizes) < 0.5 * sizes.mean()


# ---- shards ----------------------------------------------------------------------------------------------------------


def test_two_shards_of_each_client_as_mcmahan_et_al():
    partition = drawn(MNIST, kind="shards", clients=100, shards_per_client=2)
    assert (partition.sizes == 600).all()
    assert sorted(partition.order) == list(range(60000))
    # A shard of 300 has one class, or two where a class ends.
    assert ((partition.label_counts(MNIST, 10) > 0).sum(1) <= 4).all()


@pytest.mark.parametrize(
    ("options", "sizes", "used"),
    [
        ({"shard_size": 25, "shards_per_client": 2}, [50] * 9, 450),
        ({"shard_size": 50}, [100] * 3 + [50] * 6, 600),
        ({"shard_size": 70}, [70] * 8, 560),
        ({"shard_size": 70, "keep_incomplete": True}, [40] + [70] * 8, 600),
        ({"shards_per_client": 1}, [67] * 6 + [66] * 3, 600),
    ],
)
def test_sizes_of_shards(options, sizes, used):
    partition = drawn(kind="shards", clients=len(sizes), **options)
    assert sorted(partition.sizes) == sorted(sizes)
    assert len(set(partition.order)) == len(partition.order) == used
    size = options.get("shard_size", 66)
    # Sorted by class: a shard of fewer samples than a class has at most two of them.
    assert ((partition.label_counts(LABELS, 10) > 0).sum(1) <= -(-partition.sizes // size) * 3).all()


# ---- shares of classes -----------------------------------------------------------------------------------------------


def test_a_large_alpha_divides_classes_equally_and_all_samples_are_used():
    counts = counts_of(kind="dirichlet_by_class", clients=6, alpha=1e9, self_balancing=False)
    assert np.abs(counts - 10).max() <= 1
    assert counts.sum(0).tolist() == [60] * 10


@pytest.mark.parametrize("self_balancing", [True, False])
def test_every_client_has_the_minimum_and_balance_bounds_the_largest(self_balancing):
    partition = drawn(kind="dirichlet_by_class", clients=8, alpha=0.5, minimum=20, self_balancing=self_balancing)
    assert sorted(partition.order) == list(range(600))
    assert partition.sizes.min() >= 20
    if self_balancing:
        # A client that has the average or less gets at most one more class.
        assert partition.sizes.max() <= 75 + 60


@pytest.mark.parametrize("alpha", [1e-6, 1e-300])
def test_a_class_whose_share_is_for_full_clients_is_drawn_among_the_others(alpha):
    """Li et al. 2022: shares of clients with more than the average are set to 0, and the others renormalised.

    Relative to their sum, these are Dirichlet distributed with the same alpha (independent of the sum). As alpha goes
    to 0, all of a class is therefore for one of the clients that are open, each equally often.
    """
    labels, clients, draws = np.repeat(np.arange(4), 30), 3, 1000
    scheme = DirichletByClass(clients=clients, alpha=alpha, minimum=1)

    def reference(rng):
        while True:
            sizes = np.zeros(clients, int)
            for _ in range(4):
                sizes[rng.choice(np.flatnonzero(sizes <= 40))] += 30
            if sizes.min():
                return tuple(sizes)

    rng = np.random.default_rng(5)
    drawn_sizes, wanted = Counter(), Counter(reference(rng) for _ in range(draws))
    for seed in range(draws):
        counts = scheme.draw(labels, 4, None, seed).label_counts(labels, 4)
        assert ((counts > 0).sum(0) == 1).all()
        drawn_sizes[tuple(counts.sum(1).tolist())] += 1
    assert drawn_sizes.keys() == wanted.keys()
    assert sum(abs(drawn_sizes[sizes] - wanted[sizes]) for sizes in wanted) / 2 / draws < 0.06


def test_a_minimum_that_the_law_never_gives_is_refused():
    """With a tiny alpha each of 10 classes has one client: 12 clients cannot all have samples."""
    with pytest.raises(
        UserError, match=r"task\.partition\.minimum: in 100 draws with alpha 1e-06 one of 12 clients always"
    ):
        drawn(kind="dirichlet_by_class", clients=12, alpha=1e-6, minimum=1)


def test_with_a_tiny_alpha_a_client_changes_its_class_only_when_it_has_run_out():
    """Two clients take turns on three classes of 60 samples: they share the first class, or each has one."""
    labels, kinds = np.repeat(np.arange(3), 60), set()
    for seed in range(40):
        counts = counts_of(labels, seed, kind="dirichlet", clients=2, alpha=1e-6)
        assert (counts % 30 == 0).all()
        kinds.add(tuple(sorted(counts[0].tolist())[-3:]))
    assert kinds == {(30, 30, 30), (0, 30, 60)}


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("minimum", [5, 7, 20])
def test_no_client_has_fewer_samples_than_the_minimum_of_its_law(minimum, k):
    stock = np.repeat(np.arange(10), [30, 600, 50, 61, 58, 54, 59, 62, 58, 59])
    law = {"kind": "lognormal", "sigma": 3.0, "minimum": minimum}
    refused = 0
    for seed in range(20):
        try:
            counts = counts_of(
                stock, seed, kind="labels", clients=12, labels_per_client=k, assignment="random", sizes=law
            )
        except UserError:
            refused += 1
        else:
            assert counts.sum(1).min() >= minimum
    # Five clients may have drawn the class with 30 samples.
    assert refused <= (4 if minimum == 20 else 0)


def test_mixtures_keep_the_minimum_or_are_refused():
    matrix = [[5] + [1] * 9, [1] * 10]
    sizes = {"kind": "linear"}
    counts = counts_of(kind="distribution", clients=3, matrix=matrix, sizes=sizes | {"minimum": 10})
    assert counts.sum(1).min() >= 10
    with pytest.raises(
        UserError, match=r"task\.partition\.sizes\.minimum: the classes of client 0 leave it \d+ samples"
    ):
        drawn(kind="distribution", clients=3, matrix=matrix, sizes=sizes | {"minimum": 190})


def test_rows_are_mixtures_of_clients():
    matrix = [[2, 1, 1] + [0] * 7, [0] * 8 + [0.5, 0.5]]
    counts = counts_of(kind="distribution", clients=4, matrix=matrix, samples_per_client=20)
    assert counts.tolist() == [[10, 5, 5] + [0] * 7, [0] * 8 + [10, 10]] * 2
    # Without a number of samples, as many as the scarcest class has: 60 of class 0 for two clients.
    counts = counts_of(kind="distribution", clients=4, matrix=matrix)
    assert counts.sum(1).tolist() == [60, 60, 60, 60]
    sized = counts_of(kind="distribution", clients=2, matrix=matrix, sizes={"kind": "list", "samples": [40, 100]})
    assert sized.tolist() == [[20, 10, 10] + [0] * 7, [0] * 8 + [50, 50]]


def test_columns_are_parts_of_classes():
    matrix = [[1] * 10, [3] * 5 + [1] * 5, [0] * 5 + [4] * 5]
    partition = drawn(kind="distribution", clients=3, matrix=matrix, normalise="classes")
    assert sorted(partition.order) == list(range(600))
    assert partition.label_counts(LABELS, 10).tolist() == [[15] * 5 + [10] * 5, [45] * 5 + [10] * 5, [0] * 5 + [40] * 5]


# ---- what cannot be dealt --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": "labels", "clients": 601, "labels_per_client": 1}, "601 clients are more than the 600 samples"),
        ({"kind": "labels", "clients": 3, "labels_per_client": 11}, "11 is more than the 10 classes; lower it"),
        (
            {"kind": "labels", "clients": 500, "labels_per_client": 2, "assignment": "deterministic"},
            "class 0 has 60 samples for 100 clients; lower it or labels_per_client",
        ),
        (
            {"kind": "labels", "clients": 2, "labels_per_client": 1, "sizes": {"kind": "list", "samples": [5, 90]}},
            r"sizes: client 1 cannot have 90 samples of its 1 classes \d; change its size",
        ),
        (
            {"kind": "labels", "clients": 2, "labels_per_client": 3, "sizes": {"kind": "list", "samples": [2, 9]}},
            "sizes: client 0 cannot have 2 samples of its 3 classes",
        ),
        (
            {
                "kind": "labels", "clients": 100, "labels_per_client": 2, "law_of": "classes",
                "sizes": {"kind": "linear", "minimum": 4},
            },
            "class 0 has 60 samples for 20 clients with at least 4; lower it",
        ),
        ({"kind": "shards", "clients": 20, "shards_per_client": 40}, "800 shards of at least 1 samples need more than"),
        ({"kind": "shards", "clients": 9, "shards_per_client": 2, "shard_size": 50}, "18 shards of 50 samples need"),
        ({"kind": "shards", "clients": 9, "shard_size": 70}, "600 samples make 8 shards of 70, too few for 9 clients"),
        ({"kind": "dirichlet_by_class", "clients": 61, "alpha": 1.0}, "need 610, but the data set has 600; lower it"),
        ({"kind": "dirichlet_by_class", "clients": 50, "alpha": 0.01}, "in 100 draws with alpha 0.01 one of 50"),
        ({"kind": "distribution", "clients": 2, "matrix": [[1, 2]]}, "rows have 2 numbers, but the data set has 10"),
        (
            {"kind": "labels", "clients": 10, "labels_per_client": 1, "samples_per_client": 61},
            "1 clients need 61 samples of class 0, but the data set has 60; lower it or the number of clients",
        ),
        (
            {"kind": "labels", "clients": 10, "labels_per_client": 3, "samples_per_client": 2},
            "samples_per_client: 2 is fewer than the 3 classes of a client; raise it",
        ),
        (
            {"kind": "distribution", "clients": 2, "matrix": [[1] + [0] * 9], "samples_per_client": 40},
            "the clients need 80 samples of class 0, but the data set has 60; lower its column",
        ),
        (
            {"kind": "distribution", "clients": 2, "matrix": [[1.0] * 10, [1e-9] * 10], "normalise": "classes"},
            "client 1 gets no samples of its classes; raise its row",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(options, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        drawn(**options)
    assert str(error.value).startswith("task.partition.")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": "shards"}, "`shards` needs `shards_per_client` or `shard_size`"),
        ({"kind": "shards", "shards_per_client": 2, "keep_incomplete": True}, "`keep_incomplete` needs `shard_size`"),
        ({"kind": "labels", "labels_per_client": 2, "law_of": "classes"}, "`law_of: classes` needs a law in `sizes`"),
        ({"kind": "distribution", "matrix": [[1], [1, 2]]}, "`matrix` must have rows of one length"),
        ({"kind": "distribution", "matrix": [[1, 2], [0, 0]]}, "in each row one above 0"),
        ({"kind": "distribution", "matrix": [[1, 2], [-1, 3]]}, "finite numbers, 0 or more"),
        ({"kind": "distribution", "matrix": [[1, 2]] * 4}, "`matrix` has 4 rows for 3 clients"),
        (
            {"kind": "distribution", "matrix": [[1, 2]], "normalise": "classes", "samples_per_client": 3},
            "`normalise: classes` uses all samples",
        ),
        ({"kind": "dirichlet_by_class", "alpha": 0.0}, "greater than 0"),
    ],
)
def test_contradictory_keys_are_refused(options, sentence):
    with pytest.raises(ValidationError, match=sentence):
        drawn(clients=3, **options)
