"""Partitions: the thesis's check values, exact sizes, nothing drawn twice, the seed alone."""

import re

import numpy as np
import pytest

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.partition_summary import coverage, partition_table
from hedgerow.platform.data.partitions.class_splits import Labels
from hedgerow.platform.data.partitions.natural_clients import Natural
from hedgerow.platform.data.partitions.random_splits import IID, Dirichlet
from hedgerow.platform.ui.partition_plots import draw_coverage, draw_partition

MNIST_LIKE = np.repeat(np.arange(10), 6000)


def draw(config, labels=MNIST_LIKE, seed=0, natural=None):
    return config.draw(labels, 10, natural, seed)


@pytest.mark.parametrize(
    "config",
    [
        IID(clients=100),
        Dirichlet(clients=100, alpha=0.3),
        Dirichlet(clients=100, alpha=0.001),
        Labels(clients=100, labels_per_client=3),
    ],
    ids=lambda c: c.kind,
)
def test_every_sample_is_dealt_once_and_sizes_are_equal(config):
    partition = draw(config)
    assert sorted(partition.order) == list(range(60000))
    assert (partition.sizes == 600).all()
    assert (partition.train_sizes == 600).all()


def test_class_coverage_has_the_thesis_values():
    # Figure A.3 of the thesis: classes that cover 40, 60, 80 % of a device's data.
    counts = draw(IID(clients=100)).label_counts(MNIST_LIKE, 10)
    for share, classes in ((0.4, 4), (0.6, 6), (0.8, 8)):
        assert (coverage(counts, share) == classes).mean() > 0.9
    for alpha, usual in ((0.6, (4, 5)), (0.3, (3, 4))):
        covered = coverage(draw(Dirichlet(clients=100, alpha=alpha)).label_counts(MNIST_LIKE, 10), 0.8)
        assert np.isin(covered, usual).mean() > 0.6


def test_a_large_alpha_is_iid_and_a_small_one_gives_few_classes():
    counts = draw(Dirichlet(clients=100, alpha=1e4)).label_counts(MNIST_LIKE, 10)
    assert np.abs(counts - 60).max() < 45
    counts = draw(Dirichlet(clients=100, alpha=0.01)).label_counts(MNIST_LIKE, 10)
    assert np.median((counts > 0).sum(1)) <= 3


@pytest.mark.parametrize("config", [IID, Dirichlet])
def test_unequal_sizes_are_lognormal(config):
    options = {"alpha": 0.3} if config is Dirichlet else {}
    sizes = draw(config(clients=400, sizes={"kind": "lognormal", "sigma": 0.3}, **options)).sizes
    assert np.log(sizes).std() == pytest.approx(0.3, abs=0.04)
    assert sizes.sum() == 60000


def test_labels_per_client_is_exact():
    counts = draw(Labels(clients=50, labels_per_client=2)).label_counts(MNIST_LIKE, 10)
    assert ((counts > 0).sum(1) == 2).all()
    assert ((counts > 0).sum(0) == 10).all()


def test_natural_clients_keep_their_samples():
    owners = np.array([7, 7, 3, 9, 3, 7])
    partition = draw(Natural(), np.zeros(6, int), natural=owners)
    assert [sorted(partition.samples(k)) for k in range(3)] == [[2, 4], [0, 1, 5], [3]]


def test_client_test_fraction_keeps_a_share_of_each_client():
    partition = draw(IID(clients=100, client_test_fraction=0.25))
    assert (partition.sizes == 600).all()
    assert (partition.train_sizes == 450).all()


def test_validation_is_a_third_part():
    partition = draw(IID(clients=100, client_test_fraction=0.25, upper_level_fraction=0.5))
    splits = partition.splits()
    assert (splits["train"].sizes == 150).all()
    assert (splits["validation"].sizes == 300).all()
    assert (splits["held_out"].sizes == 150).all()
    parts = [partition.rows(split) for split in ("train", "validation", "held_out")]
    assert sorted(np.concatenate(parts)) == list(range(60000))
    pool = partition.pool()
    assert (pool.rows("train") == parts[0]).all()
    assert (pool.rows("validation") == parts[1]).all()


def test_upper_level_by_class_moves_upper_level_samples_alone():
    own, by_class = (draw(IID(clients=10, upper_level_fraction=0.1, upper_level_by=by)) for by in ("client", "class"))
    assert (own.rows("train") == by_class.rows("train")).all()
    assert sorted(own.rows("validation")) == sorted(by_class.rows("validation"))
    starts, sizes = by_class.splits()["validation"]
    found = [set(MNIST_LIKE[by_class.order[s : s + n]]) for s, n in zip(starts, sizes, strict=True)]
    # The classes are not equally frequent among these samples, and so a client may have two.
    assert all(len(classes) <= 2 for classes in found)
    assert set.union(*found) == set(range(10))


@pytest.mark.parametrize("noise", [0.4, [0.2, 0.9]])
def test_label_noise_replaces_labels_for_training(noise):
    partition = draw(IID(clients=10, samples_per_client=500, upper_level_fraction=0.1, label_noise=noise))
    wrong = partition.labels != MNIST_LIKE
    shares = [wrong[partition.samples(k)[:450]].mean() for k in range(10)]
    if noise == 0.4:
        assert shares == [0.4] * 10
    else:
        assert 0.2 <= min(shares) < 0.4 < 0.7 < max(shares) <= 0.9
    # All classes are as likely, and no other labels change.
    changes = (partition.labels - MNIST_LIKE)[wrong] % 10
    assert (np.bincount(changes, minlength=10)[1:] > 0.08 * wrong.sum()).all()
    assert not np.isin(np.flatnonzero(wrong), partition.rows("validation")).any()
    assert wrong.sum() == sum(round(450 * share) for share in shares)


def test_samples_per_client_caps_what_is_dealt():
    assert (draw(Dirichlet(clients=1000, alpha=0.3, samples_per_client=50)).sizes == 50).all()


def test_the_seed_alone_decides():
    config = Dirichlet(clients=20, alpha=0.3)
    assert (draw(config, seed=4).order == draw(config, seed=4).order).all()
    assert (draw(config, seed=4).order != draw(config, seed=5).order).any()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (IID(clients=70000), "70000 clients are more than the 60000 samples"),
        (IID(clients=100, samples_per_client=601), "need 60100, but the data set has 60000"),
        (Labels(clients=10, labels_per_client=11), "11 is more than the 10 classes"),
        (Labels(clients=60000, labels_per_client=10), "has 6000 samples for 60000 clients"),
        (Natural(), "this data set has no natural clients"),
    ],
)
def test_what_does_not_fit_is_refused(config, expected):
    with pytest.raises(UserError, match=expected):
        draw(config)


def test_the_table_and_the_picture(tmp_path):
    partition = draw(Dirichlet(clients=130, alpha=0.3))
    names = tuple("0123456789")
    rows = partition_table(partition, MNIST_LIKE, names)
    counts = partition.label_counts(MNIST_LIKE, 10)
    assert [row["samples"] for row in rows] == counts.sum(1).tolist()
    assert [row["classes"] for row in rows] == (counts > 0).sum(1).tolist()
    png, svg = draw_partition(partition, MNIST_LIKE, names, tmp_path / "picture")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "client (100 of 130, ordered by size)" in svg.read_text()
    png, svg = draw_coverage(partition, MNIST_LIKE, names, tmp_path / "coverage", "clients")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "classes that cover 80 % of the samples" in svg.read_text()


def test_of_many_classes_the_most_frequent_are_drawn_and_unequal_sizes_on_logarithmic_scales(tmp_path):
    labels = np.repeat(np.arange(150), np.arange(150) + 1)
    partition = IID(clients=30, sizes={"kind": "exponential", "rate": 0.3}).draw(labels, 150, None, 0)
    names = tuple(f"word {i}" for i in range(150))
    text = draw_partition(partition, labels, names, tmp_path / "picture")[1].read_text()
    assert "class (the 40 most frequent of 150)" in text
    # SVG files of matplotlib name each text in a comment.
    assert "<!-- word 110 -->" in text
    assert "<!-- word 109 -->" not in text
    assert re.search(r"<!-- (10|30|100) -->", text)
