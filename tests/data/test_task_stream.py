"""Streams of tasks: which classes, how many samples, which transforms (moml.md, section 4)."""

from dataclasses import replace

import numpy as np
import pytest

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data import Dataset
from hedgerow.platform.data.dataset import mistake_in
from hedgerow.platform.data.partitions.task_stream import Stream, Transforms, draw_transforms, transformed


def images(classes: int = 8, each: int = 20, test: int = 10) -> Dataset:
    """Every image says its class, its number within the class, and whether it is for testing."""

    def some(count: int, testing: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.repeat(np.arange(classes), count)
        x = np.zeros((len(y), 1, 6, 6), np.uint8)
        x[:, 0, 0, 0], x[:, 0, 0, 1], x[:, 0, 0, 2] = y, np.tile(np.arange(count), classes), testing
        return x, y

    one = np.ones((1, 1, 1), np.float32)
    return Dataset("made", *some(each, 0), *some(test, 1), classes, 0 * one, one, tuple("abcdefgh"))


def tasks(config: Stream, dataset: Dataset) -> list[tuple[np.ndarray, np.ndarray]]:
    stream = config.prepare(dataset)
    partition = config.draw(stream.y_train, stream.classes, None, 0)
    assert len(partition) == config.tasks
    assert list(partition.train_sizes) == [config.train] * config.tasks
    return [(stream.x_train[rows], stream.y_train[rows]) for rows in map(partition.samples, range(config.tasks))]


def test_a_task_has_its_classes_in_equal_parts_and_its_own_samples():
    config = Stream(tasks=6, ways=3, train=10, test=7)
    seen = set()
    for x, y in tasks(config, images()):
        assert np.bincount(y[:10]).tolist() == [4, 3, 3]
        assert np.bincount(y[10:]).tolist() == [3, 2, 2]
        classes = [set(x[y == label][:, 0, 0, 0].tolist()) for label in range(3)]
        assert all(len(some) == 1 for some in classes)
        assert len(set.union(*classes)) == 3
        seen.add(tuple(some.copy().pop() for some in classes))
        # Training samples from the training set, test samples from the test set, none twice.
        assert x[:10, 0, 0, 2].tolist() == [0] * 10
        assert x[10:, 0, 0, 2].tolist() == [1] * 7
        assert len(np.unique(x[:10].reshape(10, -1), axis=0)) == 10
        assert len(np.unique(x[10:].reshape(7, -1), axis=0)) == 7
    assert len(seen) > 1


def test_a_stream_of_clients_that_have_test_and_validation_samples_is_a_data_set_without_mistakes():
    given = images()
    clients, splits = np.arange(len(given.y_test)) % 3, np.arange(len(given.y_train)) % 3
    stream = Stream(tasks=2, train=8, test=8).prepare(
        replace(given, train_clients=splits, test_clients=clients, splits=splits)
    )
    assert mistake_in(given) is None
    assert mistake_in(stream) is None
    assert (stream.train_clients, stream.test_clients, stream.splits) == (None, None, None)


def test_without_ways_every_task_has_all_classes_as_they_are():
    for x, y in tasks(Stream(tasks=2, train=8, test=8), images()):
        assert np.array_equal(x[:, 0, 0, 0], y)


def test_disjoint_tasks_share_no_class():
    found = [
        set(x[:, 0, 0, 0].tolist()) for x, _ in tasks(Stream(tasks=4, ways=2, train=4, test=2, disjoint=True), images())
    ]
    assert set.union(*found) == set(range(8))
    assert sum(map(len, found)) == 8


def test_the_seed_decides_the_stream_and_more_tasks_do_not_change_the_first():
    config = Stream(tasks=3, ways=3, train=6, test=3, transforms=Transforms(rotation=90, flip=0.5))
    same, longer, other = (
        config.model_copy(update=change).prepare(images()).x_train for change in ({}, {"tasks": 5}, {"seed": 1})
    )
    assert np.array_equal(same, config.prepare(images()).x_train)
    assert np.array_equal(same, longer[: len(same)])
    assert not np.array_equal(same, other)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"tasks": 1, "ways": 9, "train": 9, "test": 9}, "task.partition.ways: 9 is more than the 8 classes"),
        ({"tasks": 5, "ways": 2, "train": 2, "test": 2, "disjoint": True}, "8 classes make 4 disjoint tasks of 2"),
        ({"tasks": 1, "train": 7, "test": 8}, "7 samples are fewer than the 8 classes of a task"),
        ({"tasks": 1, "ways": 2, "train": 42, "test": 2}, "task.partition.train: 21 samples of each of 2 classes"),
        ({"tasks": 1, "ways": 2, "train": 2, "test": 40}, "task.partition.test: 20 samples of each of 2 classes"),
    ],
)
def test_what_the_data_cannot_give_is_refused(config, sentence):
    with pytest.raises(UserError, match=sentence):
        Stream(**config).prepare(images())


# ---- transforms ---------------------------------------------------------------------------------------------------


def one_map(**config) -> np.ndarray:
    return draw_transforms(Transforms(**config), 1, np.random.default_rng(0))


PICTURE = np.random.default_rng(0).integers(0, 256, (1, 2, 9, 9), dtype=np.uint8)


def test_nothing_to_do_changes_nothing():
    assert np.array_equal(transformed(PICTURE, one_map()), PICTURE)


def test_mirrored_twice_is_turned_by_half():
    assert np.array_equal(transformed(PICTURE, one_map(flip=1)), PICTURE[:, :, ::-1, ::-1])


def test_turned_by_a_right_angle():
    quarter = np.array([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]], np.float32)
    turned = transformed(PICTURE, quarter)
    assert np.array_equal(turned, np.rot90(PICTURE, -1, (2, 3))) or np.array_equal(turned, np.rot90(PICTURE, 1, (2, 3)))


@pytest.mark.parametrize("config", [{"rotation": 180}, {"scale": 0.3}, {"crop": 0.4}, {"flip": 0.5}])
def test_maps_stay_within_what_was_asked_for(config):
    maps = draw_transforms(Transforms(**config), 500, np.random.default_rng(0))
    matrix, shift = maps[:, :, :2], maps[:, :, 2]
    sizes = np.abs(np.linalg.det(matrix))
    if "crop" in config:
        # A window of at least 0.6 of each side, wholly within the image.
        assert np.sqrt(sizes).min() >= 0.6 - 1e-6
        assert np.sqrt(sizes).min() < 0.65
        assert (np.abs(shift) + np.sqrt(sizes)[:, None]).max() <= 1 + 1e-6
        return
    assert not shift.any()
    if "scale" in config:
        assert sizes.min() >= 1 / 1.3**2 - 1e-6
        assert sizes.max() <= 1 / 0.7**2 + 1e-6
    else:
        assert sizes == pytest.approx(1, abs=1e-5)
        assert np.unique(np.sign(matrix.sum((1, 2)))).size > 1


def test_classes_of_one_task_differ_in_their_transforms():
    maps = draw_transforms(Transforms(rotation=180), 10, np.random.default_rng(0))
    assert len(np.unique(maps.reshape(10, -1).round(4), axis=0)) == 10
