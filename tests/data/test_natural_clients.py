"""The splits that a data set gives to its natural clients: kept, replaced by drawn ones, and never mixed up."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import blobs

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data.content_hash import content_hash
from hedgerow.platform.data.dataset import mistake_in
from hedgerow.platform.data.mapped_arrays import array_file
from hedgerow.platform.data.partitions.natural_clients import Natural
from hedgerow.platform.data.public_pool import with_public
from hedgerow.platform.runtime.factory import build_partition

CLIENTS = np.array([5, 5, 5, 5, 5, 9, 9, 9, 9, 2, 2, 2, 2, 2, 2])
SPLITS = np.array([0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], np.uint8)
TESTS = np.array([9, 2, 5, 5, -1, 9, 2])
"""Natural clients 2, 5 and 9: 6, 4 and 3 training samples, 0, 1 and 1 for validation, and 2 each of the test set."""


@pytest.fixture
def data():
    base = blobs(samples=22, classes=2)
    x, y = np.concatenate([base.x_train, base.x_test]), np.concatenate([base.y_train, base.y_test])
    return replace(
        base, x_train=x[:15], y_train=y[:15], x_test=x[15:22], y_test=y[15:22],
        train_clients=CLIENTS, test_clients=TESTS, splits=SPLITS,
    )  # fmt: skip


def split_sizes(partition):
    return {name: partition.splits()[name].sizes.tolist() for name in ("train", "validation", "held_out")}


def built(data, **task):
    partition = {"kind": "natural", **task.pop("partition", {})}
    experiment = parse_experiment({
        "name": "x", "rounds": 1, "clients_per_round": "all",
        "task": {"data": {"name": "digits"}, "partition": partition, "model": {"name": "logreg"}, **task},
        "algorithm": {"name": "fedavg"},
    })  # fmt: skip
    prepared = experiment.task.partition.prepare(data)
    return prepared, build_partition(experiment, prepared)


def test_clients_keep_their_own_validation_and_test_samples(data):
    prepared, partition = built(data)
    assert split_sizes(partition) == {"train": [6, 4, 3], "validation": [0, 1, 1], "held_out": [2, 2, 2]}
    assert partition.holds_out
    owners = np.concatenate([CLIENTS, TESTS])
    for client, natural in enumerate((2, 5, 9)):
        rows = partition.samples(client)
        assert sorted(rows) == np.flatnonzero(owners == natural).tolist()
        held_out = rows[-2:] - 15
        assert np.array_equal(prepared.x_train[rows[-2:]], data.x_test[held_out])
        assert (TESTS[held_out] == natural).all()
    # The shared test set is what it was: the test samples of all clients, and those of others.
    assert prepared.x_test is data.x_test


def test_training_samples_are_drawn_as_without_test_samples(data):
    alone = replace(data, test_clients=None, splits=None)
    partition = Natural().draw(alone.y_train, 2, CLIENTS, 3)
    prepared = Natural().prepare(replace(data, splits=None))
    own = Natural().draw(prepared.y_train, 2, prepared.train_clients, 3, prepared.lent, prepared.splits)
    assert np.array_equal(own.rows("train"), partition.order)
    assert np.array_equal(own.rows("held_out"), [16, 21, 17, 18, 15, 20])


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"client_test_fraction": 0.5}, {"train": [3, 2, 1], "validation": [0, 1, 1], "held_out": [3, 2, 2]}),
        ({"upper_level_fraction": 0.4}, {"train": [4, 3, 2], "validation": [2, 2, 2], "held_out": [2, 2, 2]}),
        (
            {"client_test_fraction": 0.25, "upper_level_fraction": 0.5},
            {"train": [1, 2, 1], "validation": [3, 2, 2], "held_out": [2, 1, 1]},
        ),
        ({"group": 2}, {"train": [10, 3], "validation": [1, 1], "held_out": [4, 2]}),
    ],
)
def test_keys_of_the_file_replace_splits_of_the_data(data, keys, expected):
    """`client_test_fraction` replaces the clients' test samples, `upper_level_fraction` their validation samples."""
    _, partition = built(data, partition=keys)
    assert split_sizes(partition) == expected
    assert len(set(partition.order)) == len(partition.order)


def test_wrong_labels_are_those_of_training_samples(data):
    _, partition = built(data, partition={"label_noise": 1.0})
    wrong = np.flatnonzero(partition.labels != np.concatenate([data.y_train, data.y_test]))
    assert sorted(wrong) == sorted(partition.rows("train"))


@pytest.mark.parametrize("options", [{"public": {"samples": 4}}, {"validation": {"fraction": 0.3, "from": "server"}}])
def test_pools_are_taken_from_training_samples_alone(data, options):
    _, partition = built(data, **options)
    pool = partition.public if "public" in options else partition.server_validation
    assert len(pool) == 4
    assert pool.max() < 15
    assert not set(pool) & set(partition.order)
    assert split_sizes(partition)["held_out"] == [2, 2, 2]
    assert (np.concatenate([CLIENTS, TESTS])[partition.rows("held_out")] == np.repeat([2, 5, 9], 2)).all()


def test_other_partitions_deal_all_training_samples_and_no_test_samples(data):
    _, partition = built(data, partition={"kind": "iid", "clients": 3})
    assert sorted(partition.order) == list(range(15))
    # With the data that natural clients had, as in a search over kinds.
    prepared = Natural().prepare(data)
    experiment = {"kind": "iid", "clients": 3}
    assert sorted(built(prepared, partition=experiment)[1].order) == list(range(15))


def test_a_client_without_training_samples_is_left_out(data):
    _, partition = built(replace(data, splits=np.where(CLIENTS == 9, 1, SPLITS).astype(np.uint8)))
    assert split_sizes(partition) == {"train": [6, 4], "validation": [0, 1], "held_out": [2, 2]}
    with pytest.raises(UserError, match="no natural client has training samples"):
        built(replace(data, splits=np.ones(15, np.uint8)))


def test_data_that_were_not_prepared_are_refused(data):
    scheme = Natural()
    with pytest.raises(UserError, match="cannot be one of several kinds in a search; set it alone, or hold"):
        scheme.own_splits(data)
    assert scheme.own_splits(scheme.prepare(data)) is not None


def test_data_without_splits_have_the_hash_that_they_had(data):
    plain = replace(data, test_clients=None, splits=None)
    assert content_hash(plain) != content_hash(data)
    assert content_hash(replace(plain, splits=SPLITS)) not in (content_hash(plain), content_hash(data))


def test_clients_and_splits_of_the_wrong_length_are_refused(data):
    assert mistake_in(data) is None
    assert mistake_in(replace(data, test_clients=TESTS[1:])) == (
        "has test_clients of shape (6,); give one value for each of the 7 samples"
    )
    assert "other numbers in splits than 0" in mistake_in(replace(data, splits=SPLITS + 2))


def test_large_samples_stay_in_files(data, monkeypatch, tmp_path):
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    monkeypatch.setattr("hedgerow.platform.data.mapped_arrays.LARGE", 0)
    prepared = Natural(kind="natural").prepare(data)
    assert array_file(prepared.x_train)
    assert np.array_equal(prepared.x_train, np.concatenate([data.x_train, data.x_test]))
    assert array_file(with_public(prepared, data, 4).x_train)
