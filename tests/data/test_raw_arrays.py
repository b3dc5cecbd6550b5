"""Arrays as users have them become data sets: layout, labels, clients, split, normalisation, refusals."""

import numpy as np
import pandas as pd
import pytest
import torch
from own_formats import CLIENTS, IMAGES, RNG, X, Y

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import mistake_in
from hedgerow.platform.data.sources import raw_arrays
from hedgerow.platform.data.sources.raw_arrays import RawSplit, build_dataset

COLOURS = RNG.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8)
TOKENS = np.arange(420).reshape(60, 7) % 50


def build(x, y=Y, test=True, clients=None, **options):
    half = RawSplit(x[:20], y[:20], None if clients is None else clients[:20]) if test is True else test
    return build_dataset("mine", "task.data.name: mine", RawSplit(x, y, clients), half, **options)


@pytest.mark.parametrize(
    ("x", "stored"),
    [
        (X, X.astype(np.float32)),
        (X.astype(np.float16), X.astype(np.float16).astype(np.float32)),
        (X > 0, (X > 0).astype(np.float32)),
        (np.asfortranarray(X), X.astype(np.float32)),
        (X.astype(">f4"), X.astype(np.float32)),
        (torch.tensor(X), X.astype(np.float32)),
        (X.tolist(), X.astype(np.float32)),
        (IMAGES, IMAGES[:, None]),
        (IMAGES / 255, (IMAGES[:, None] / 255).astype(np.float32)),
        (COLOURS, COLOURS),
        (COLOURS.transpose(0, 2, 3, 1), COLOURS),
        (torch.tensor(COLOURS) / 255, (COLOURS / np.float32(255)).astype(np.float32)),
        (COLOURS[:, :, :4, :4], COLOURS[:, :, :4, :4]),
        (RNG.normal(size=(60, 6, 6, 2)), None),
    ],
    ids=str,
)  # fmt: skip
def test_samples_are_stored_in_one_layout_and_type(x, stored):
    stored = np.asarray(x, np.float32).transpose(0, 3, 1, 2) if stored is None else stored
    data = build(x)
    assert mistake_in(data) is None
    assert data.x_train.dtype == stored.dtype
    assert np.array_equal(data.x_train, stored)
    assert np.array_equal(data.x_test, stored[:20])
    assert data.x_train.flags.c_contiguous


def test_channels_are_where_they_are_said_to_be():
    square = RNG.normal(size=(60, 3, 5, 3))
    assert build(square, channels="first").sample_shape == (3, 5, 3)
    assert build(square, channels="last").sample_shape == (3, 3, 5)
    assert build(np.zeros((60, 1, 1, 1), np.uint8)).sample_shape == (1, 1, 1)
    wide = RNG.normal(size=(60, 4, 100, 3))
    assert np.array_equal(build(wide, channels="first").x_train, wide.astype(np.float32))
    assert np.array_equal(build(wide, channels="last").x_train, wide.transpose(0, 3, 1, 2).astype(np.float32))


@pytest.mark.parametrize(
    ("shape", "stored"),
    [
        ((3, 4, 4), (3, 4, 4)), ((4, 4, 3), (3, 4, 4)), ((4, 100, 3), None), ((1, 28, 3), None), ((2, 50, 3), None),
        ((2, 9, 7), (2, 9, 7)), ((9, 7, 2), (2, 9, 7)), ((13, 5, 5), (13, 5, 5)), ((5, 5, 13), (13, 5, 5)),
        ((3, 5, 3), None), ((7, 7, 7), None), ((6, 9, 8), (6, 9, 8)), ((9, 8, 6), (6, 9, 8)), ((3, 1, 1), (3, 1, 1)),
    ],
)  # fmt: skip
def test_channels_are_recognised_or_asked_for(shape, stored):
    """By a usual number on one side alone, then by square images, then by the smaller number."""
    x = RNG.integers(0, 9, (60, *shape), dtype=np.uint8)
    if stored is None:
        with pytest.raises(UserError, match=r"may be the second or the last axis; set `channels` to first or last"):
            build(x)
    else:
        right = x if stored == shape else x.transpose(0, 3, 1, 2)
        assert right.shape[1:] == stored
        assert np.array_equal(build(x).x_train, right)


def test_digits_that_float32_does_not_keep_are_refused():
    far = X.copy()
    far[:, 2] = 1_700_000_000 + Y + RNG.random(60)
    for x in (far, far.astype(np.int64), far.astype(np.float64).tolist()):
        with pytest.raises(UserError, match=r"in x_train, feature 2, that differ in digits which float32 does not .*"):
            build(x)
    with pytest.raises(UserError, match=r"mine has values in x_train, column 'c', that differ .* mean is 1.7e\+09 and"):
        build(far, columns="abcde")
    images = np.stack([1e8 + np.arange(60)[:, None, None] * np.ones((6, 5)), RNG.normal(size=(60, 6, 5))], 3)
    with pytest.raises(UserError, match="in x_train, channel 0, that differ"):
        build(images)
    with pytest.raises(UserError, match="in y_train, target 0, that differ"):
        build(X, far[:, 2])
    # float64 does not keep them either.
    for large in (2**60 + np.arange(60), np.uint64(2**63) + np.arange(60, dtype=np.uint64)):
        with pytest.raises(UserError, match="in x_train, feature 0, that differ in digits"):
            build(large[:, None])
    exact = 2**60 + 2**40 * Y[:, None]
    assert np.array_equal(build(exact).x_train, exact)
    # Near enough, whole numbers that float32 has, a constant, and a constant but for the rounding of float64.
    kept = np.stack([1e6 + Y, 2.0**30 + 2.0**7 * Y, np.full(60, 0.1), 0.1 + 1e-17 * RNG.normal(size=60)], 1)
    kept[::2, 3] = np.nextafter(0.1, 1)
    assert np.array_equal(build(kept).x_train, kept.astype(np.float32))


def test_features_are_normalised_by_training_samples_and_images_by_channel():
    data = build(X, test=RawSplit(X[:5] + 100, Y[:5]))
    assert np.allclose(data.mean, X.mean(0), atol=1e-5)
    assert np.allclose(data.std, X.std(0), atol=1e-5)
    images = build(COLOURS)
    assert images.mean.shape == images.std.shape == (3, 1, 1)
    assert np.allclose(images.mean.ravel(), COLOURS.mean((0, 2, 3)), rtol=1e-6)
    assert np.allclose(images.std.ravel(), COLOURS.std((0, 2, 3)), rtol=1e-5)
    # Large numbers that differ little, and a constant.
    large = np.stack([1e9 + 100 * np.arange(60.0), np.full(60, 7.0)], axis=1)
    data = build(large)
    assert np.allclose(data.std, [large[:, 0].astype(np.float32).std(dtype=np.float64), 1], rtol=1e-5)
    given = build(X, mean=0, std=[1, 2, 3, 4, 5])
    assert given.mean.tolist() == [0] * 5
    assert given.std.tolist() == [1, 2, 3, 4, 5]
    assert build(COLOURS, mean=[1, 2, 3], std=2).mean.shape == (3, 1, 1)


def test_blocks_give_the_same_as_everything_at_once(monkeypatch, tmp_path):
    x = RNG.normal(size=(60, 4, 4, 3))
    whole = build(x, test=None)
    monkeypatch.setenv("HEDGEROW_CACHE", str(tmp_path))
    for name, value in (("BLOCK", 1000), ("LARGE", 0)):
        monkeypatch.setattr(f"hedgerow.platform.data.mapped_arrays.{name}", value)
    parts = build(x, test=None)
    assert np.array_equal(whole.x_train, parts.x_train)
    assert np.array_equal(whole.x_test, parts.x_test)
    assert np.allclose(whole.mean, parts.mean, rtol=1e-6)
    assert np.allclose(whole.std, parts.std, rtol=1e-6)
    assert list(tmp_path.rglob("*.npy"))


@pytest.mark.parametrize(
    ("y", "names", "numbers"),
    [
        (Y, ("0", "1", "2"), Y),
        (Y * 10 - 5, ("-5", "5", "15"), Y),
        (np.array(["b", "c", "a"])[Y], ("a", "b", "c"), (Y + 1) % 3),
        (["b", "c"] * 30, ("b", "c"), np.arange(60) % 2),
        (Y == 1, ("False", "True"), (Y == 1).astype(int)),
        (torch.tensor(Y)[:, None], ("0", "1", "2"), Y),
        (Y.astype(np.uint8), ("0", "1", "2"), Y),
    ],
    ids=str,
)
def test_labels_are_numbered_and_their_classes_named(y, names, numbers):
    data = build(X, y)
    assert data.class_names == names
    assert data.y_train.dtype == np.int64
    assert data.y_train.tolist() == list(numbers)


def test_named_classes_keep_their_numbers():
    data = build(X, Y, class_names=["low", "middle", "high", "none"])
    assert (data.classes, data.class_names[3]) == (4, "none")
    words = np.array(["b", "c", "a"])[Y]
    assert build(X, words, class_names=["c", "b", "a"]).y_train.tolist() == np.array([1, 0, 2])[Y].tolist()
    # A class may occur in the test samples alone.
    assert build(X, Y, RawSplit(X[:1], [7])).y_test.tolist() == [3]


def test_clients_are_numbered_in_the_order_of_their_ids():
    test = RawSplit(X[:3], Y[:3], ["bert", "zoe", "anna"])
    data = build(X, clients=CLIENTS, test=test)
    assert data.train_clients.tolist() == np.unique(CLIENTS, return_inverse=True)[1].tolist()
    assert data.test_clients.tolist() == [1, -1, 0]
    assert build(X, clients=(CLIENTS == "anna") * 1.0).train_clients.tolist() == (CLIENTS == "anna").tolist()
    # Decimals, and numbers that float64 does not have.
    decimals = np.array([1.2, -1.7, 1.7, 1.21])[Y]
    assert build(X, clients=decimals).train_clients.tolist() == np.array([1, 0, 2])[Y].tolist()
    assert build(X, clients=2**60 + Y).train_clients.tolist() == Y.tolist()
    large = np.array([2**60 + 2, 2**60 + 3, 2**60 + 1])
    unsigned = build(X, clients=np.uint64(2**60) + Y.astype(np.uint64), test=RawSplit(X[:3], Y[:3], large))
    assert unsigned.test_clients.tolist() == [2, -1, 1]
    assert build(X, Y.astype(np.uint64), test=RawSplit(X[:3], Y[:3])).class_names == ("0", "1", "2")
    assert build(X, clients=decimals, test=RawSplit(X[:3], Y[:3], [1.7, 1.2, 1])).test_clients.tolist() == [2, 1, -1]


def test_a_part_of_each_class_or_of_each_client_is_for_testing():
    data = build(X, test=None, test_fraction=0.25)
    assert np.bincount(data.y_test).tolist() == [5, 5, 5]
    rows = {tuple(row) for row in data.x_train} | {tuple(row) for row in data.x_test}
    assert rows == {tuple(row) for row in X.astype(np.float32)}
    clients = np.repeat([4, 5, 6], [1, 3, 56])
    data = build(X, test=None, test_fraction=0.9, clients=clients)
    assert np.bincount(data.train_clients).tolist() == [1, 1, 6]
    assert np.bincount(data.test_clients).tolist() == [0, 2, 50]
    for x, y, client in zip(data.x_test, data.y_test, data.test_clients, strict=True):
        (row,) = np.flatnonzero((X.astype(np.float32) == x).all(1))
        assert (Y[row], clients[row] - 4) == (y, client)


def test_tokens_take_the_smallest_type():
    tokens = RNG.integers(0, 200, (60, 7))
    assert build(tokens, tokens=True).x_train.dtype == np.uint8
    tokens[3, 3] = 40_000
    data = build(tokens, tokens=True)
    assert (data.x_train.dtype, data.x_test.dtype, data.is_tokens) == (np.int32, np.int32, True)
    assert np.array_equal(data.x_train, tokens)
    assert mistake_in(data) is None


def hole(value, row=7):
    x = X.copy()
    x[row, 3] = value
    return x


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((hole(np.nan),), {}, "has NaN, infinity or a number above 3e38 in x_train, sample 7, feature 3"),
        ((hole(1e300),), {"test": None}, "in x_train, sample 7, feature 3; remove"),
        ((X[:, 0],), {}, "has x_train of shape (60,); give (samples, features)"),
        ((X[:, :0],), {}, "has x_train of shape (60, 0)"),
        ((X[:0], Y[:0]), {}, "has no samples in x_train"),
        ((X.astype(str),), {}, "has text in x_train; give numbers"),
        ((X.astype(complex),), {}, "has x_train of complex128; give numbers"),
        ((X.astype(object),), {}, "has a value of type float among objects in x_train, entry 0; give an array of num"),
        ((X, ["1", *map(int, Y[1:])]), {"test": None}, "has numbers and text in y_train; give one of them"),
        ((X,), {"clients": [2**60 + 1, 0.5] * 30}, "floats do not tell such ids apart; give whole numbers, or text"),
        (
            (X,),
            {"clients": np.arange(60, dtype=np.float32) + 2**24},
            "has client 16777216 of train samples, and floats",
        ),
        ((X,), {"clients": np.full(60, 2**63, np.uint64)}, "more than 64 bits with a sign hold; give text"),
        ((X,), {"clients": [1, "1"] * 30}, "has numbers and text in the clients of train samples; give one of them"),
        ((np.ma.array(X, mask=X[7, 3] == X),), {}, "has a masked value in x_train, entry 7; fill it in, or remove"),
        (([*X[:59], np.ma.array(X[0], mask=[1, 0, 0, 0, 0])],), {"test": None}, "a masked value in x_train, entry 59"),
        ((X, np.ma.masked_equal(Y, 2)), {}, "has a masked value in y_train, entry 2"),
        ((X,), {"clients": np.ma.masked_equal(Y, 1)}, "has a masked value in the clients of train samples, entry 1"),
        ((X, np.array([pd.NA, *Y[1:]], object)), {"test": None}, "has a missing value in y_train, entry 0"),
        ((X, np.array([[[1]], *Y[1:]], object)), {"test": None}, "has a value of type list among objects in y_train"),
        ((X, Y * 1.0), {"class_names": list("abc")}, "has `class_names`, but floats as labels"),
        ((X,), {"clients": Y, "test": RawSplit(X, Y, CLIENTS)}, "training samples of int64 and of test samples of <U4"),
        (([[1, 2], [3]],), {"test": None}, "has x_train that is no array"),
        ((RNG.normal(size=(60, 3, 4, 3)),), {}, "the channels may be the second or the last axis"),
        ((X, Y[:50]), {}, "has 60 samples in x_train and 50 labels in y_train; give one label"),
        ((X,), {"test": RawSplit(X[:5, :2], Y[:5])}, "has samples of shape (2,) in x_test and (5,) in x_train"),
        ((IMAGES,), {"test": RawSplit(IMAGES[:5] / 255, Y[:5])}, "has uint8 samples in x_train and float64 in x_test"),
        ((X, np.stack([Y, Y], 1)), {"test": RawSplit(X, Y)}, "has y_test of shape (60,) and y_train of (60, 2); give"),
        ((X, 0 * Y), {}, "has samples of one class only, 0"),
        ((X, [None, *Y[1:]]), {}, "has a missing value in y_train, entry 0"),
        ((X, Y), {"test": RawSplit(X[:2], ["a", "b"])}, "has text as labels in one of y_train and y_test"),
        ((X, Y), {"class_names": ["a", "b"]}, "has label 2 in y_train, sample 2, which is none of the 2 classes"),
        ((X, Y - 1), {"class_names": ["a", "b"]}, "has label -1 in y_train, sample 0"),
        ((X,), {"clients": CLIENTS[:9]}, "has 60 samples in x_train and clients of shape (9,)"),
        ((X,), {"clients": np.where(Y, np.nan, 1)}, "has no client for train sample 1"),
        ((X,), {"test": RawSplit(X, Y, CLIENTS)}, "has clients of test samples, but none of training samples"),
        ((X[:2], Y[:2]), {"test": None}, "has 2 samples, too few to split: none is left for testing"),
        ((X,), {"std": 0}, "has `std` with entries that are not above 0"),
        ((X,), {"mean": [1, 2]}, "has `mean` of shape (2,); give one finite number, or 5 of them"),
        ((X,), {"tokens": True}, "has x_train of float64; tokens must be whole numbers"),
        ((np.full((60, 2), -1),), {"tokens": True}, "has tokens from -1 to -1 in x_train; number them from 0"),
        ((TOKENS, np.where(TOKENS == 3, -5, TOKENS)), {"tokens": True, "test": None}, "has the token -5 in y_train"),
        ((IMAGES,), {"tokens": True}, "has x_train of shape (60, 8, 8); give (samples, tokens)"),
        ((IMAGES[0].repeat(8, 0)[:60],), {"tokens": True, "mean": 1}, "has `mean` or `std` for tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_refused_in_one_sentence(arguments, options, sentence):
    with pytest.raises(UserError) as caught:
        build(*arguments, **options)
    assert str(caught.value).startswith("task.data.name: mine ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_clients_of_joined_samples_are_their_numbers():
    splits = [
        (number, RawSplit(X[name == CLIENTS], Y[name == CLIENTS])) for number, name in enumerate(["anna", "bert"])
    ]
    split = raw_arrays.joined(splits, ["anna", "bert"], "here")
    assert np.bincount(split.clients).tolist() == [(CLIENTS == "anna").sum(), (CLIENTS == "bert").sum()]
    assert np.array_equal(split.x[split.clients == 1], X[CLIENTS == "bert"])


def test_numbers_rows_of_labels_and_tokens_are_targets():
    for y, kind, dtype, classes in (
        (Y + 0.5, "numbers", np.float32, 1),
        (np.c_[Y + 0.5], "numbers", np.float32, 1),
        (np.stack([Y, Y], 1) * 0.3, "numbers", np.float32, 2),
        (np.eye(3, dtype=int)[Y], "labels", np.int64, 3),
        (np.eye(3, dtype=bool)[Y], "labels", np.int64, 3),
    ):
        data = build(X, y, test=None)
        assert mistake_in(data) is None
        assert (data.targets, data.y_train.dtype, data.classes, len(data.y_test)) == (kind, dtype, classes, 12)
    tokens = RNG.integers(0, 300, (60, 7))
    data = build(tokens, np.minimum(np.roll(tokens, -1, 1), 200), tokens=True)
    assert (data.targets, data.classes, mistake_in(data)) == ("tokens", tokens.max() + 1, None)
    for y, sentence in (
        (np.where(Y, Y, np.nan), "has NaN or infinity in y_train, sample 0; remove the sample"),
        (np.stack([Y, Y], 1), "has 2 in y_train, sample 2; give 0 or 1 for each of several labels"),
        (np.array([["a", "b"]] * 60), "give one or several numbers for each sample"),
    ):
        with pytest.raises(UserError, match=sentence):
            build(X, y)
