"""ACID and ALID: whose classes, how many samples of each, nothing twice, permutations that are bijections."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import blobs

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.registries import partitions
from hedgerow.platform.data.partitions.diversity import ACID, ALID
from hedgerow.platform.data.partitions.random_splits import IID
from hedgerow.platform.runtime.factory import build_data, build_partition

CIFAR = {10: (5000, 1000), 100: (500, 100)}


def labels_of(classes: int) -> np.ndarray:
    """As CIFAR's: training samples, then test samples."""
    rng = np.random.default_rng(0)
    parts = [rng.permutation(np.repeat(np.arange(classes), each)) for each in CIFAR[classes]]
    return np.concatenate(parts)


def draw(config, classes=10, seed=0):
    return config.draw(labels_of(classes), classes, None, seed, lent=10000)


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("k", [3, 5, 7])
def test_a_client_has_its_classes_and_nobody_shares_a_sample(classes, k):
    labels, partition = labels_of(classes), draw(ACID(labels_per_client=k), classes)
    assert partition.labels is None
    assert len(set(partition.order)) == len(partition.order) == 60000
    train, held_out = partition.rows("train").reshape(100, 500), partition.rows("held_out").reshape(100, 100)
    # Training samples from the training set, the others from the test set: all of both.
    assert train.max() < 50000 <= held_out.min()
    for rows, each in ((train, 500), (held_out, 100)):
        for client in (0, 10, 25, 97):
            counts = np.bincount(labels[rows[client]], minlength=classes)
            own = [(client + place) % classes for place in range(k)]
            assert counts.nonzero()[0].tolist() == sorted(own)
            # Equally many of each, but for a remainder.
            assert [counts[c] for c in own] == [each // k + (place < each % k) for place in range(k)]


@pytest.mark.parametrize("permuted", ["all", "own"])
def test_alid_renames_acids_classes_by_a_bijection_of_each_client(permuted):
    labels, config = labels_of(10), ALID(labels_per_client=5, permuted=permuted)
    partition, acid = draw(config, seed=4), draw(ACID(labels_per_client=5), seed=4)
    assert (partition.order == acid.order).all()
    maps = []
    for client in range(100):
        rows = partition.samples(client)
        names = {label: set(partition.labels[rows[labels[rows] == label]]) for label in np.unique(labels[rows])}
        # The same in training and in test, and no name twice.
        assert all(len(found) == 1 for found in names.values())
        assert len(set.union(*names.values())) == 5
        maps.append(tuple(next(iter(found)) for found in names.values()))
        if permuted == "own":
            assert set.union(*names.values()) == set(names)
    assert len(set(maps)) > 50
    assert (draw(config, seed=4).labels == partition.labels).all()
    assert (draw(config, seed=5).labels != partition.labels).any()


def test_samples_are_those_of_both_sets_of_the_data():
    task = {"data": {"name": "digits"}, "model": {"name": "logreg"}}
    plain, acid = (
        build_data(parse_experiment({"name": "x", "rounds": 1, "algorithm": {"name": "fedavg"},
                                     "task": task | {"partition": partition}}), None)
        for partition in ({"kind": "iid", "clients": 10},
                          {"kind": "acid", "clients": 10, "labels_per_client": 3, "train": 60, "test": 15})
    )  # fmt: skip
    whole = acid[0]
    assert (whole.x_train[len(plain[0].x_train) :] == plain[0].x_test).all()
    assert (whole.y_train[: len(plain[0].y_train)] == plain[0].y_train).all()
    assert whole.lent == len(whole.x_test) == len(plain[0].x_test)
    # Other partitions of the same data never deal the test set's samples.
    rest = IID(clients=5).draw(whole.y_train, 10, None, 0, whole.lent)
    assert sorted(rest.order) == list(range(len(plain[0].y_train)))


@pytest.mark.parametrize(
    ("config", "lent", "sentence"),
    [
        (ACID(labels_per_client=11), 10000, "labels_per_client: 11 is more than the 10 classes; lower it"),
        (ACID(labels_per_client=5, train=501), 10000, "train: 50 clients need 5010 samples of class 0, but the data"),
        (ACID(labels_per_client=3, clients=101), 10000, "train: 31 clients need 5167 samples of class 0"),
        (ALID(labels_per_client=3, test=200), 10000, "test: 30 clients need 2000 samples of class 0"),
        (
            partitions.section("alid")(labels_per_client=3),
            0,
            "kind: alid cannot be one of several kinds in a search; set it alone",
        ),
    ],
)
def test_what_does_not_fit_is_refused(config, lent, sentence):
    with pytest.raises(UserError, match=sentence):
        config.draw(labels_of(10), 10, None, 0, lent)


def test_splits_of_the_data_set_are_not_followed():
    base = blobs(samples=200, classes=2)
    data = replace(base, x_test=base.x_train, y_test=base.y_train, splits=np.zeros(len(base.y_train), np.uint8))
    partition = {"kind": "acid", "clients": 2, "labels_per_client": 2, "train": 10, "test": 4}
    experiment = parse_experiment({
        "name": "x", "rounds": 1, "clients_per_round": "all",
        "task": {"data": {"name": "digits"}, "partition": partition, "model": {"name": "logreg"},
                 "validation": {"fraction": 0.2, "from": "server"}},
        "algorithm": {"name": "fedavg"},
    })  # fmt: skip
    drawn = build_partition(experiment, experiment.task.partition.prepare(data))
    assert drawn.train_sizes.tolist() == [10, 10]
