"""A user's own function that returns the data, named by its dotted path."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset, default_collate

from hedgerow.algorithms.core.own_code import GIVEN_DATA, ImportRefusedError
from hedgerow.platform.common.errors import UserError, one_line
from hedgerow.platform.common.own_code_errors import failure
from hedgerow.platform.common.registry import import_named, nearest
from hedgerow.platform.data.dataset import Dataset, mistake_in
from hedgerow.platform.data.mapped_arrays import empty
from hedgerow.platform.data.sources.raw_arrays import RawSplit, as_array, build_dataset, joined
from hedgerow.platform.data.sources.source import Source, TestFraction

HINTS = {"tokens", "channels", "class_names", "mean", "std"}
"""Keys of a dictionary of arrays that go to `build_dataset`."""

ARRAYS = {"x_train", "y_train", "x_test", "y_test", "train_clients", "test_clients"}
"""Other keys of a dictionary of arrays."""

SHORT = {"x": "x_train", "y": "y_train"}
"""Short names of keys in `ARRAYS`."""

FORMS = (
    "give (x_train, y_train), (x_test, y_test), a dictionary with x_train and y_train, a torch Dataset, a DataLoader "
    "or two, a hedgerow Dataset, or a list with (x, y) of each client"
)

CLIENT_FORMS = "give (x, y) of each client, or ((x, y), (x_test, y_test))"


class DataFunction(Source):
    """Your own function that returns the data: `name` is its dotted path, `args` goes to it."""

    args: dict[str, Any] = Field({}, description="keyword arguments of the function")
    test_fraction: TestFraction = 0.2

    def load(self, root: Path) -> Dataset:
        """Calls the function. A parameter `root` of the function gets the folder of the data sets.

        The function may return arrays, tensors or torch Datasets: a pair (x, y), a tuple of the training and the test
        part, a dictionary of arrays, a `Dataset`, or a list or dictionary of one part for each client. Raises
        UserError.
        """
        at = "data=" if self.name.startswith(GIVEN_DATA) else f"task.data.name: {self.name}"
        result = self._call(root)
        dataset = result if isinstance(result, Dataset) else self._built(result, at)
        if problem := mistake_in(dataset):
            raise UserError(f"{at} {problem}")
        return dataset

    def _built(self, result: Any, at: str) -> Dataset:
        hints: dict[str, Any] = {}
        if _is_of_arrays(result):
            train, test, hints = _of_arrays(result, at)
        else:
            train, test = (_of_clients if has_clients(result) else _halves)(result, at)
        name = self.name.removeprefix(GIVEN_DATA)
        return build_dataset(name, at, train, test, test_fraction=self.test_fraction, **hints)

    def _call(self, root: Path) -> Any:
        function = import_named(self.name, "task.data.name")
        try:
            signature = inspect.signature(function)
            given = {"root": root} if "root" in signature.parameters and "root" not in self.args else {}
            signature.bind(**self.args, **given)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"task.data.args: {self.name} cannot be called with them ({one_line(error)}); see its parameters"
            ) from None
        try:
            return function(**self.args, **given)
        except (UserError, MemoryError):
            raise
        except ImportRefusedError as error:
            raise UserError(f"task.data: {error}") from None
        except Exception as error:
            raise UserError(
                f"task.data.name: {self.name} fails: {failure(error)}; fix it there, or in task.data.args"
            ) from error


def _is_of_arrays(data: Any) -> bool:
    return isinstance(data, Mapping) and bool(data.keys() & (ARRAYS | SHORT.keys() | {"test_x", "test_y"}))


def has_clients(data: Any) -> bool:
    """Whether it is a list, or a dictionary, with a part for each client."""
    # Otherwise the arrays x and y, or the parts train and test, would be two clients of these names.
    is_halves = isinstance(data, Mapping) and not data.keys().isdisjoint(("train", "test"))
    return isinstance(data, list | Mapping) and not (_is_of_arrays(data) or is_halves)


def _of_arrays(values: Mapping[str, Any], at: str) -> tuple[RawSplit, RawSplit | None, dict[str, Any]]:
    """Splits of a dictionary of arrays, and its other entries. Raises UserError."""
    for short, key in SHORT.items():
        if short in values and key in values:
            raise UserError(f"{at} gives both {short} and {key}; give one of them")
    values = {SHORT.get(key, key): value for key, value in values.items()}
    for key in values:
        if key not in ARRAYS | HINTS:
            known = sorted(ARRAYS | HINTS)
            raise UserError(f"{at} gives the key {key!r}{nearest(str(key), known)} (allowed: {', '.join(known)})")
    if (channels := values.get("channels")) not in (None, "first", "last"):
        raise UserError(f"{at} gives channels {channels!r}; give first or last")
    names = values.get("class_names")
    if names is not None and (isinstance(names, str) or not isinstance(names, Collection)):
        raise UserError(f"{at} gives class_names {names!r}; give a list of names")
    for key, other in (("y_train", "x_train"), ("x_train", "y_train"), ("x_test", "y_test"), ("y_test", "x_test")):
        if values.get(other) is not None and values.get(key) is None:
            raise UserError(f"{at} gives {other} without {key}; give both")
    if values.get("x_train") is None:
        raise UserError(f"{at} gives no x_train; give x_train and y_train")
    train, test = (
        RawSplit(values[f"x_{part}"], values[f"y_{part}"], values.get(f"{part}_clients"))
        if values.get(f"x_{part}") is not None
        else None
        for part in ("train", "test")
    )
    assert train is not None
    return train, test, {key: value for key, value in values.items() if key in HINTS}


def _halves(result: Any, at: str, forms: str = FORMS) -> tuple[RawSplit, RawSplit | None]:
    """Training and test part of a pair of parts; a single part has no test part. Raises UserError."""
    if isinstance(result, Mapping):
        unknown = [key for key in result if key not in ("train", "test")]
        if unknown or "train" not in result:
            raise UserError(f"{at} gives a part with keys {', '.join(map(str, result))}; use `train` and `test`")
        test = result.get("test")
        return _pair(result["train"], at, forms), None if test is None else _pair(test, at, forms)
    if isinstance(result, tuple) and len(result) == 2 and all(_is_part(half) for half in result):
        return _pair(result[0], at, forms), _pair(result[1], at, forms)
    return _pair(result, at, forms), None


def _is_part(value: Any) -> bool:
    """Whether it is (x, y) or a torch Dataset, instead of an array."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return hasattr(value[0], "shape") or (isinstance(value[0], list) and bool(value[0]))
    return _is_torch_dataset(value)


def _is_torch_dataset(value: Any) -> bool:
    """Whether it is a map-style data set, or a loader of one."""
    return isinstance(value, DataLoader) or (
        not isinstance(value, Sequence | Mapping | np.ndarray)
        and (hasattr(value, "__getitem__") and hasattr(value, "__len__") and not hasattr(value, "shape"))
    )


def _loaded_by(loader: DataLoader[Any], at: str) -> Any:
    """Data set of a loader, whose items are the loader's samples in any order. Raises UserError."""
    batches = loader.batch_sampler
    sampler = getattr(batches, "sampler", loader.sampler)
    takes_all = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )
    if loader.collate_fn is not default_collate or type(batches) is not BatchSampler or not takes_all:
        raise UserError(
            f"{at} gives a DataLoader with a sampler, batches or a collate_fn of its own, which Hedgerow does not use; "
            "give its data set, with `Subset` for a part of it"
        )
    return loader.dataset


def _pair(part: Any, at: str, forms: str) -> RawSplit:
    """Samples and labels of (x, y), or of a torch Dataset. Raises UserError."""
    if isinstance(part, tuple | list) and len(part) == 2:
        return RawSplit(part[0], part[1])
    if _is_torch_dataset(part):
        return _items(part, at)
    if hasattr(part, "__iter__") and not hasattr(part, "__len__"):
        raise UserError(f"{at} gives {type(part).__name__}, which has no length; give a map-style Dataset")
    raise UserError(f"{at} gives {type(part).__name__}; {forms}")


def _items(dataset: Any, at: str) -> RawSplit:
    """All items (x, y) of a map-style torch Dataset, or of a loader of one, as arrays."""
    if isinstance(dataset, DataLoader):
        dataset = _loaded_by(dataset, at)
    # A subclass may have a __getitem__ of its own: its tensors are not its items.
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return RawSplit(*dataset.tensors)
    kind = type(dataset).__name__
    try:
        length = len(dataset)
    except Exception as error:
        # Such as a chain of iterable data sets.
        raise UserError(f"{at} gives a {kind} whose length fails: {failure(error)}; fix it there") from error
    if not length:
        raise UserError(f"{at} gives a {kind} without items; give it at least one")
    x, labels = None, []
    for number in range(length):
        try:
            item = dataset[number]
        except Exception as error:
            raise UserError(f"{at} gives a {kind} whose item {number} fails: {failure(error)}; fix it there") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UserError(f"{at} gives a {kind} whose item {number} is no pair (x, y); give pairs")
        sample = as_array(item[0], f"x in item {number} of {kind}", at)
        if x is None:
            x = empty((length, *sample.shape), sample.dtype)
        if (sample.shape, sample.dtype) != (x.shape[1:], x.dtype):
            raise UserError(
                f"{at} gives a {kind} with samples of shape {x.shape[1:]} and {x.dtype} and, in item {number}, "
                f"{sample.shape} and {sample.dtype}; give all samples one shape and type"
            )
        x[number] = sample
        # A copy, since the data set may return the same array again.
        labels.append(as_array(item[1], f"y in item {number} of {kind}", at).copy())
    return RawSplit(x, labels)


# ---- a part for each client ------------------------------------------------------------------------------------------


def _of_clients(parts: Any, at: str) -> tuple[RawSplit, RawSplit | None]:
    """Splits of one part for each client, in order; the clients' test parts together are the test set."""
    if not len(parts):
        raise UserError(f"{at} gives no clients; give at least one")
    names = list(parts) if isinstance(parts, Mapping) else list(range(len(parts)))
    splits: dict[str, list[tuple[int, RawSplit]]] = {"train": [], "test": []}
    for number, part in enumerate(parts.values() if isinstance(parts, Mapping) else parts):
        here = f"{at}, client {names[number]},"
        for which, split in zip(splits, _halves(part, here, CLIENT_FORMS), strict=True):
            if split is not None:
                splits[which].append((number, split))
    return joined(splits["train"], names, at), joined(splits["test"], names, at) if splits["test"] else None
