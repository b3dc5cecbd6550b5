"""Turns arrays as users have them into a data set: layout, types, labels, clients, test split, normalisation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from hedgerow.algorithms.core.measures import Targets
from hedgerow.algorithms.measures.language import IGNORED
from hedgerow.platform.common.errors import UserError, one_line, say
from hedgerow.platform.data.dataset import Dataset, stratified_split
from hedgerow.platform.data.mapped_arrays import blocks, concatenated, rewritten

CHANNELS = (1, 2, 3, 4)
"""Usual numbers of channels of an image."""

ROUNDING = 0.02
"""Largest rounding error of float32 that is accepted, as a share of a feature's standard deviation."""

NOISE = 1e-12
"""Standard deviation, as a share of the mean, below which a feature is constant up to the rounding of float64."""

TOKEN_TYPE = np.dtype(np.int32)


@dataclass(frozen=True)
class RawSplit:
    """Samples for training or for testing. x, y: arrays, tensors or lists. clients: id of each sample's client."""

    x: Any
    y: Any
    clients: Any = None


def build_dataset(
    name: str,
    at: str,
    train: RawSplit,
    test: RawSplit | None = None,
    *,
    test_fraction: float = 0.2,
    tokens: bool = False,
    channels: Literal["first", "last"] | None = None,
    class_names: Any = None,
    mean: Any = None,
    std: Any = None,
    columns: Sequence[str] = (),
) -> Dataset:
    """Builds a data set of samples in any of the usual layouts.

    at: place in the file and the object that has the samples, as the subject of messages. test: None splits off
    `test_fraction` of each client, or of each class if there are no clients. tokens: integers are tokens of a sequence,
    not features. channels: axis of the channels of images; None: recognised by its size. class_names: names of classes
    0 to K-1; None: the distinct labels. mean, std: in raw units; None: of the training samples. columns: name of each
    feature, for messages. Raises UserError.
    """
    splits = {"train": train} | ({} if test is None else {"test": test})
    xs = {part: as_array(split.x, f"x_{part}", at) for part, split in splits.items()}
    for part, x in xs.items():
        x = xs[part] = _with_axes(x, f"x_{part}", at, tokens)
        if not len(x):
            raise UserError(f"{at} has no samples in x_{part}; give at least one")
        if x.shape[1:] != xs["train"].shape[1:] and part == "test":
            raise UserError(
                f"{at} has samples of shape {x.shape[1:]} in x_test and {xs['train'].shape[1:]} in x_train; give them "
                "one shape"
            )
    axes = None if tokens or xs["train"].ndim < 4 else _channels_first(xs["train"].shape, at, channels)
    types = {part: _stored_type(x, f"x_{part}", at, tokens) for part, x in xs.items()}
    if not tokens and len(set(types.values())) > 1:
        raise UserError(
            f"{at} has {xs['train'].dtype} samples in x_train and {xs['test'].dtype} in x_test; give them one type"
        )
    dtype = max(types.values(), key=lambda one: one.itemsize)
    labels = {part: _as_names(split.y, f"y_{part}", at) for part, split in splits.items()}
    for part, y in labels.items():
        if y.shape[:1] != xs[part].shape[:1]:
            raise UserError(
                f"{at} has {len(xs[part])} samples in x_{part} and {y.shape[0] if y.ndim else 0} labels in y_{part}; "
                "give one label for each sample"
            )
    vocabulary = 1 + max(int(x[part].max()) for x in xs.values() for part in blocks(x)) if tokens else 0
    targets = _targets(labels, at, class_names, vocabulary)
    ys = targets.ys
    owners = _owners(splits, {part: len(x) for part, x in xs.items()}, at)
    rows: dict[str, np.ndarray | None] = {"train": None, "test": None}
    if test is None:
        rows["train"], rows["test"] = _split(targets, owners["train"], test_fraction, at)
        xs["test"], ys["test"], owners["test"] = xs["train"], ys["train"], owners["train"]
    stored = {part: rewritten(x, dtype, axes, rows[part]) for part, x in xs.items()}
    for part, x in stored.items():
        _check_finite(x, rows[part], f"x_{'train' if test is None else part}", at, columns)
    if not tokens:
        _check_digits(xs["train"], axes, "x_train", at, columns, "channel" if xs["train"].ndim == 4 else "")
    center, scale = _normalisation(stored["train"], at, tokens, mean, std)
    taken = {part: slice(None) if chosen is None else chosen for part, chosen in rows.items()}
    train_clients, test_clients = (None if owners[part] is None else owners[part][taken[part]] for part in rows)  # type: ignore[index]
    return Dataset(
        name,
        stored["train"],
        ys["train"][taken["train"]],
        stored["test"],
        ys["test"][taken["test"]],
        targets.classes,
        center,
        scale,
        targets.names,
        train_clients,
        is_tokens=tokens,
        test_clients=test_clients,
        targets=targets.kind,
    )


def as_array(values: Any, what: str, at: str) -> np.ndarray:
    """Array of numbers or text, without a copy if possible; also of a tensor. Raises UserError."""
    if (masked := _masked_entry(values)) is not None:
        raise UserError(f"{at} has a masked value in {what}, entry {masked}; fill it in, or remove the sample")
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            values = values.float() if values.dtype.is_floating_point and values.dtype.itemsize == 2 else values
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{at} has {what} that is no array ({one_line(error)}); give rows of one shape") from None
    # NumPy has made 1 and "1" the same text.
    is_text = array.dtype.kind == "U" and isinstance(values, list | tuple)
    if is_text and len({np.asarray(value).dtype.kind for value in values}) > 1:
        raise UserError(f"{at} has numbers and text in {what}; give one of them")
    if array.dtype.kind == "O":
        flat = array.ravel()
        if all(isinstance(value, str) for value in flat):
            return array.astype(str)
        wrong = next(i for i, value in enumerate(flat) if not isinstance(value, str))
        kind = (
            "a missing value"
            if _is_missing(flat[wrong])
            else f"a value of type {type(flat[wrong]).__name__} among objects"
        )
        raise UserError(f"{at} has {kind} in {what}, entry {wrong}; give an array of numbers, or text for labels")
    if array.dtype.kind not in "biufUT":
        raise UserError(f"{at} has {what} of {array.dtype}; give numbers, or text for labels")
    return array


def _as_names(values: Any, what: str, at: str) -> np.ndarray:
    """Array of labels or clients, which are compared. Raises UserError."""
    array = as_array(values, what, at)
    if array.dtype.kind != "u" or array.dtype.itemsize < 8:
        return array
    # With signed ones, NumPy would compare them as floats.
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise UserError(f"{at} has {array.max()} in {what}, more than 64 bits with a sign hold; give text")
    return array.astype(np.int64)


def _masked_entry(values: Any) -> int | None:
    """First entry with a masked value, of a masked array or of lists of them; None if there is none."""
    if isinstance(values, np.ma.MaskedArray):
        entries = np.argwhere(np.atleast_1d(np.ma.getmaskarray(values)))
        return int(entries[0, 0]) if len(entries) else None
    if isinstance(values, list | tuple):
        return next((entry for entry, value in enumerate(values) if _masked_entry(value) is not None), None)
    return None


def _is_missing(value: Any) -> bool:
    # Imported here, since processes that read the cache do not need it.
    import pandas as pd

    return np.ndim(value) == 0 and bool(pd.isna(value))


def joined(splits: list[tuple[int, RawSplit]], names: Sequence[Any], at: str) -> RawSplit:
    """One split of many clients. splits: pairs of a client's number and its samples. names: of all clients, by number.

    Raises UserError.
    """
    xs, ys, sizes = list[np.ndarray](), list[np.ndarray](), list[int]()
    for number, split in splits:
        here = f"{at}, client {names[number]},"
        x, y = as_array(split.x, "x", here), _as_names(split.y, "y", here)
        if not x.ndim or not len(x):
            raise UserError(f"{here} has no samples; leave the client out, or give it some")
        if y.shape[:1] != x.shape[:1]:
            raise UserError(f"{here} has {len(x)} samples and {y.size} labels; give one label for each sample")
        first = xs[0] if xs else x
        if x.shape[1:] != first.shape[1:] or (x.dtype == np.uint8) != (first.dtype == np.uint8):
            raise UserError(
                f"{here} has samples of shape {x.shape[1:]} and {x.dtype}, and client {names[splits[0][0]]} of "
                f"{first.shape[1:]} and {first.dtype}; give all clients samples of one shape and type"
            )
        if ys and (y.dtype.kind in "UT") != (ys[0].dtype.kind in "UT"):
            raise UserError(f"{here} has labels of {y.dtype}, and the clients before have {ys[0].dtype}; use one type")
        if ys and y.shape[1:] != ys[0].shape[1:]:
            raise UserError(
                f"{here} has labels of shape {y.shape[1:]}, and the clients before have {ys[0].shape[1:]}; use one "
                "shape"
            )
        xs.append(x)
        ys.append(y)
        sizes.append(len(x))
    return RawSplit(concatenated(xs), np.concatenate(ys), np.repeat([number for number, _ in splits], sizes))


# ---- samples ---------------------------------------------------------------------------------------------------------


def _with_axes(x: np.ndarray, what: str, at: str, tokens: bool) -> np.ndarray:
    """Samples as (n, F) or (n, ?, ?, ?): grey images get an axis for their channel."""
    if x.dtype.kind in "UT":
        raise UserError(f"{at} has text in {what}; give numbers, or encode the text as tokens first")
    allowed = (2,) if tokens else (2, 3, 4)
    if x.ndim not in allowed or 0 in x.shape[1:]:
        wanted = "(samples, tokens)" if tokens else "(samples, features), (n, H, W), (n, C, H, W) or (n, H, W, C)"
        raise UserError(f"{at} has {what} of shape {x.shape}; give {wanted}")
    return x[:, None] if x.ndim == 3 else x


def _channels_first(shape: tuple[int, ...], at: str, channels: str | None) -> tuple[int, ...] | None:
    """Order of the axes that makes (n, C, H, W) of images; None if they already have it."""
    _, first, middle, last = shape
    is_last = channels == "last"
    if channels is None:
        is_usual = first in CHANNELS, last in CHANNELS
        is_square = middle == last, first == middle
        if is_usual[0] != is_usual[1]:
            is_last = is_usual[1]
        elif is_square[0] != is_square[1]:
            is_last = is_square[1]
        elif (all(is_usual) or first == last) and shape[1:] != (1, 1, 1):
            raise UserError(
                f"{at} has x_train of shape {shape}, in which the channels may be the second or the last axis; set "
                "`channels` to first or last (a key of the source npz, or of the dictionary that your function returns)"
            )
        else:
            is_last = last < first
    return (0, 3, 1, 2) if is_last else None


def _stored_type(x: np.ndarray, what: str, at: str, tokens: bool) -> np.dtype:
    """Type in which samples are stored: uint8 as it is, other numbers as float32, tokens as the smallest that fits."""
    if not tokens:
        return x.dtype if x.dtype == np.uint8 else np.dtype(np.float32)
    if x.dtype.kind not in "iu":
        raise UserError(f"{at} has {what} of {x.dtype}; tokens must be whole numbers")
    low, high = (min(int(x[part].min()) for part in blocks(x)), max(int(x[part].max()) for part in blocks(x)))
    if low < 0 or high > np.iinfo(TOKEN_TYPE).max:
        raise UserError(f"{at} has tokens from {low} to {high} in {what}; number them from 0")
    return np.dtype(np.uint8) if high < 256 else TOKEN_TYPE


def _check_finite(x: np.ndarray, rows: np.ndarray | None, what: str, at: str, columns: Sequence[str]) -> None:
    if x.dtype != np.float32:
        return
    for part in blocks(x):
        finite = np.isfinite(x[part])
        if not finite.all():
            sample, *place = (int(index) for index in np.argwhere(~finite)[0])
            sample += part.start
            original = sample if rows is None else int(rows[sample])
            where = _feature(place[0], columns) if len(place) == 1 else f"position {tuple(place)}"
            raise UserError(
                f"{at} has NaN, infinity or a number above 3e38 in {what}, sample {original}, {where}; remove the "
                "sample or replace the value"
            )


def _feature(number: int, columns: Sequence[str]) -> str:
    return f"column {columns[number]!r}" if columns else f"feature {number}"


def _check_digits(
    x: np.ndarray, axes: tuple[int, ...] | None, what: str, at: str, columns: Sequence[str] = (), word: str = ""
) -> None:
    """Raises UserError when float32 rounds away the digits in which the samples of a feature or channel differ.

    x: finite, as given. axes: order of the axes that makes (n, C, H, W) of images. word: for messages, instead of
    feature.
    """
    if x.dtype.itemsize < 4 or x.dtype == np.float32:
        return
    channel = 1 if axes is None else axes[1]
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    shift = x[:1].astype(np.float64).mean(others, keepdims=True)
    total, squares, errors = (np.zeros(shift.shape) for _ in range(3))
    for part in blocks(x):
        block = x[part].astype(np.float64)
        errors += np.square(block - block.astype(np.float32)).sum(others, keepdims=True)
        block -= shift
        total += block.sum(others, keepdims=True)
        squares += np.square(block, out=block).sum(others, keepdims=True)
    count = x.size / x.shape[channel]
    mean, deviation = shift + total / count, np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0))
    lost = (np.sqrt(errors / count) > ROUNDING * deviation) & (deviation > NOISE * np.abs(mean))
    if x.dtype.kind in "iu":
        lost |= are_rounded(x, np.float32, others).reshape(lost.shape)
    if lost.any():
        number = int(lost.argmax())
        where = f"{word} {number}" if word else _feature(number, columns)
        raise UserError(
            f"{at} has values in {what}, {where}, that differ in digits which float32 does not keep: their mean is "
            f"{mean.flat[number]:.6g} and their standard deviation {deviation.flat[number]:.3g}; subtract a constant "
            "from them, such as the smallest value, or leave them out"
        )


def are_rounded(x: np.ndarray, kind: type[np.floating[Any]], axes: tuple[int, ...]) -> np.ndarray:
    """Whether floats of this kind round away the digits in which whole numbers differ along some axes."""
    low, high = x.min(axes).ravel(), x.max(axes).ravel()
    # As Python's numbers, which have no limits.
    spans = np.array([int(b) - int(a) for a, b in zip(low, high, strict=True)], np.float64)
    sizes = np.maximum(np.abs(low.astype(np.float64)), np.abs(high.astype(np.float64)))
    close = (spans > 0) & (np.spacing(sizes.astype(kind)) > ROUNDING * spans)
    parts = blocks(x) if close.any() else ()
    rounded = [(x[part] != x[part].astype(kind).astype(x.dtype)).any(axes).ravel() for part in parts]
    return close & np.any([np.zeros_like(close), *rounded], axis=0)


def _normalisation(x: np.ndarray, at: str, tokens: bool, mean: Any, std: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation in raw units: per channel of images, per feature otherwise. Tokens have none."""
    if tokens:
        if mean is not None or std is not None:
            raise UserError(f"{at} has `mean` or `std` for tokens, which are not normalised; remove them")
        return np.zeros(1, np.float32), np.ones(1, np.float32)
    shape = (x.shape[1], 1, 1) if x.ndim == 4 else x.shape[1:]
    given: dict[str, np.ndarray] = {}
    for word, value in (("mean", mean), ("std", std)):
        if value is None:
            continue
        array = as_array(value, word, at)
        array = array.reshape(shape) if array.size == np.prod(shape) else array
        if array.shape not in ((), shape) or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise UserError(f"{at} has `{word}` of shape {array.shape}; give one finite number, or {shape[0]} of them")
        if word == "std" and not (array > 0).all():
            raise UserError(f"{at} has `std` with entries that are not above 0; replace them by 1")
        given[word] = np.broadcast_to(array, shape).astype(np.float32)
    if len(given) < 2:
        given = dict(zip(("mean", "std"), _moments(x, shape), strict=True)) | given
    return given["mean"], given["std"]


def _moments(x: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over samples and pixels, in float64; constant features have deviation 1."""
    axes = (0, 2, 3) if x.ndim == 4 else 0
    # Shifted by the first sample: the squares of large numbers would lose the digits in which samples differ.
    shift = np.asarray(x[0], np.float64).mean(axis=(1, 2)).reshape(shape) if x.ndim == 4 else x[0].astype(np.float64)
    total, squares = np.zeros(shape), np.zeros(shape)
    for part in blocks(x):
        block = x[part] - shift
        total += block.sum(axis=axes).reshape(shape)
        squares += np.square(block, out=block).sum(axis=axes).reshape(shape)
    count = x.size / np.prod(shape)
    deviation = np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0)).astype(np.float32)
    return (shift + total / count).astype(np.float32), np.where(deviation > 0, deviation, np.float32(1))


# ---- labels and clients ----------------------------------------------------------------------------------------------


class _Targets(NamedTuple):
    """Targets of each split. kind: as in `Dataset.targets`. classes: number of classes, labels, numbers or tokens."""

    kind: Targets
    ys: dict[str, np.ndarray]
    classes: int
    names: tuple[str, ...] = ()


def _targets(labels: dict[str, np.ndarray], at: str, class_names: Any, vocabulary: int) -> _Targets:
    """Recognises classes, numbers, rows of labels that are 0 or 1, and, for samples of tokens, rows of tokens.

    vocabulary: number of tokens that occur in the samples; 0 if they have none.
    """
    labels = {part: y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for part, y in labels.items()}
    first = labels["train"]
    for part, y in labels.items():
        if y.ndim != first.ndim or y.shape[1:] != first.shape[1:]:
            raise UserError(f"{at} has y_{part} of shape {y.shape} and y_train of {first.shape}; give them one shape")
    is_number = any(y.dtype.kind == "f" for y in labels.values())
    if first.ndim == 1 and not is_number:
        return _numbered(labels, at, class_names)
    width = 1 if first.ndim == 1 else first.shape[1]
    if first.ndim > 2 or any(y.dtype.kind in "UT" for y in labels.values()):
        raise UserError(f"{at} has y_train of {first.dtype} {first.shape}; give one or several numbers for each sample")
    if is_number:
        if class_names is not None:
            raise UserError(
                f"{at} has `class_names`, but floats as labels, which are the numbers of a regression; give whole "
                "numbers or text as labels"
            )
        for part, y in labels.items():
            if not np.isfinite(y).all():
                wrong = int(np.argwhere(~np.isfinite(y))[0, 0])
                raise UserError(f"{at} has NaN or infinity in y_{part}, sample {wrong}; remove the sample")
        _check_digits(first.reshape(len(first), -1), None, "y_train", at, word="target")
        return _Targets("numbers", {part: y.astype(np.float32) for part, y in labels.items()}, width)
    ys = {part: y.astype(np.int64) for part, y in labels.items()}
    if vocabulary:
        for part, y in ys.items():
            if len(faults := np.argwhere((y < 0) & (y != IGNORED))):
                sample, position = faults[0]
                raise UserError(
                    f"{at} has the token {y[sample, position]} in y_{part}, sample {sample}; number tokens from 0, and "
                    f"use {IGNORED} where none counts"
                )
        return _Targets("tokens", ys, max(vocabulary, *(1 + int(y.max()) for y in ys.values())))
    for part, y in ys.items():
        faults = np.argwhere((y != 0) & (y != 1))
        if len(faults):
            sample, column = faults[0]
            raise UserError(
                f"{at} has {y[sample, column]} in y_{part}, sample {sample}; give 0 or 1 for each of several labels, "
                "or floats as targets of a regression"
            )
    return _Targets("labels", ys, width, () if class_names is None else tuple(map(str, class_names)))


def _numbered(labels: dict[str, np.ndarray], at: str, class_names: Any) -> _Targets:
    """Labels as classes from 0, and the names of the classes."""
    known = None if class_names is None else tuple(str(name) for name in class_names)
    kinds = {"text" if y.dtype.kind in "UT" else "numbers" for y in labels.values()}
    if len(kinds) > 1:
        raise UserError(f"{at} has text as labels in one of y_train and y_test and numbers in the other; use one kind")
    if known is None:
        values = np.unique(np.concatenate([np.unique(y) for y in labels.values()]))
        names = tuple(str(value) for value in values)
        if "test" in labels and len(unseen := np.setdiff1d(labels["test"], labels["train"])):
            # Not an error: a rare class may fall into the test set of real data.
            shown = ", ".join(map(str, unseen[:5])) + (", ..." if len(unseen) > 5 else "")
            say(
                f"{at} has labels in y_test that never occur in y_train ({shown}); they count as classes: correct "
                "them, or add training samples"
            )
    elif "text" in kinds:
        values, names = np.array(known), known
    else:
        values, names = np.arange(len(known)), known
    order = np.argsort(values)
    ys = {}
    for part, y in labels.items():
        found = order[np.minimum(np.searchsorted(values, y, sorter=order), len(values) - 1)]
        wrong = np.flatnonzero(values[found] != y)
        if len(wrong):
            raise UserError(
                f"{at} has label {y[wrong[0]]} in y_{part}, sample {wrong[0]}, which is none of the {len(names)} "
                "classes of `class_names`; correct it, or add its class"
            )
        ys[part] = found.astype(np.int64)
    if len(names) < 2:
        raise UserError(f"{at} has samples of one class only, {names[0]}; give at least two classes")
    return _Targets("classes", ys, len(names), names)


def _owners(splits: dict[str, RawSplit], sizes: dict[str, int], at: str) -> dict[str, np.ndarray | None]:
    """Natural clients, numbered from 0 in the order of their ids; -1: a client without training samples."""
    owners: dict[str, np.ndarray | None] = dict.fromkeys(("train", "test"))
    ids = None
    for part, split in splits.items():
        if split.clients is None:
            continue
        clients = _as_names(split.clients, f"the clients of {part} samples", at)
        if clients.shape != (sizes[part],):
            raise UserError(
                f"{at} has {sizes[part]} samples in x_{part} and clients of shape {clients.shape}; give one client for "
                "each sample"
            )
        if clients.dtype.kind == "f":
            if not (finite := np.isfinite(clients)).all():
                raise UserError(f"{at} has no client for {part} sample {int(np.argmin(finite))}; give it one")
            if (large := np.abs(clients) >= 2.0 ** (np.finfo(clients.dtype).nmant + 1)).any():
                raise UserError(
                    f"{at} has client {clients[large][0]:.17g} of {part} samples, and floats do not tell such ids "
                    "apart; give whole numbers, or text"
                )
        if part == "train":
            ids, numbers = np.unique(clients, return_inverse=True)
        elif ids is None:
            raise UserError(f"{at} has clients of test samples, but none of training samples; give both")
        elif (clients.dtype.kind in "UT") != (ids.dtype.kind in "UT"):
            raise UserError(
                f"{at} has clients of training samples of {ids.dtype} and of test samples of {clients.dtype}; give "
                "them one type"
            )
        else:
            places = np.minimum(np.searchsorted(ids, clients), len(ids) - 1)
            numbers = np.where(ids[places] == clients, places, -1)
        owners[part] = numbers.astype(np.int64)
    return owners


def _split(targets: _Targets, owners: np.ndarray | None, fraction: float, at: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows for training and for testing, by client, or by class if there are any; clients keep a training sample."""
    y = targets.ys["train"]
    if owners is None:
        rows, test = stratified_split(y if targets.kind == "classes" else np.zeros(len(y)), fraction)
    else:
        rows, test = stratified_split(owners, fraction)
        emptied = np.setdiff1d(owners, owners[rows])
        back = np.array([test[owners[test] == client][0] for client in emptied], np.int64)
        rows, test = np.sort(np.concatenate([rows, back])), np.setdiff1d(test, back)
    if not len(test) or not len(rows):
        what = "training" if len(test) else "testing"
        raise UserError(f"{at} has {len(y)} samples, too few to split: none is left for {what}; give test samples")
    return rows, test
