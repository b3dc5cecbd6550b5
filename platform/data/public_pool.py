"""Public samples without labels, which the server and all clients share: for distillation."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset, selected
from hedgerow.platform.data.mapped_arrays import concatenated
from hedgerow.platform.data.partition import Partition


def with_public(dataset: Dataset, other: Dataset, samples: int | None) -> Dataset:
    """Appends training samples of another data set. Their choice does not depend on the seed: trials share them.

    Raises UserError if the samples do not fit.
    """
    numbers = _numbers(dataset, other)
    shape = other.sample_shape if numbers is None or dataset.is_tokens else numbers.shape
    if (shape, other.x_train.dtype) != (dataset.sample_shape, dataset.x_train.dtype):
        shapes = [" x ".join(map(str, one.sample_shape)) + f" ({one.x_train.dtype})" for one in (other, dataset)]
        raise UserError(
            f"task.public.data: samples of {other.name} are {shapes[0]}, but samples of {dataset.name} are "
            f"{shapes[1]}; choose a data set with the same sample shape, or hold samples back with `samples` alone"
        )
    available = len(other.x_train)
    samples = samples or available
    if samples > available:
        raise UserError(f"task.public.samples: {other.name} has {available} training samples, not {samples}; lower it")
    rows = np.sort(np.random.default_rng([0, 59]).permutation(available)[:samples])
    x = other.x_train[rows]
    if numbers is not None:
        x = numbers.astype(x.dtype)[x] if dataset.is_tokens else np.where(numbers < 0, x.dtype.type(0), x[:, numbers])
    owners, splits = dataset.train_clients, dataset.splits
    return replace(
        dataset,
        x_train=concatenated([dataset.x_train, x]),
        y_train=np.concatenate(
            [dataset.y_train, np.zeros((samples, *dataset.y_train.shape[1:]), dataset.y_train.dtype)]
        ),
        train_clients=None if owners is None else np.concatenate([owners, np.full(samples, -1)]),
        splits=None if splits is None else np.concatenate([splits, np.zeros(samples, np.uint8)]),
        public=samples,
    )


def _numbers(dataset: Dataset, other: Dataset) -> np.ndarray | None:
    """Number of each token of `other` in `dataset`, or of each feature of `dataset` in `other`; None: without names.

    -1: a category of the task that no sample of `other` has. Raises UserError for other names that one of them does not
    have, and for a name that is ambiguous.
    """
    own, others, is_tokens = dataset.input_names, other.input_names, dataset.is_tokens
    if not own or not others or is_tokens != other.is_tokens:
        return None
    kind = "tokens" if is_tokens else "features"
    for one in (dataset, other):
        if twice := [name for name, count in Counter(one.input_names).items() if count > 1]:
            raise UserError(
                f"task.public.data: {one.name} has two {kind} named {twice[0]!r}, which cannot be matched; rename one"
            )
    absent = set(others) - set(own)
    if not is_tokens:
        rest = set(own) - set(others)
        columns = {name.partition("=")[0] for name in rest if "=" in name}
        categories = tuple(f"{column}=" for column in columns if _is_one_hot(column, dataset, other))
        absent |= {name for name in rest if not name.startswith(categories)}
    if absent:
        raise UserError(
            f"task.public.data: only one of {dataset.name} and {other.name} has the {kind} "
            f"{', '.join(sorted(absent)[:30])}; give both the same {kind}, or hold samples back with `samples` alone"
        )
    places = {name: number for number, name in enumerate(own if is_tokens else others)}
    return np.array([places[name] if is_tokens else places.get(name, -1) for name in (others if is_tokens else own)])


def _is_one_hot(column: str, *data: Dataset) -> bool:
    """Whether features `column=value` are its categories. Not by their names: `t=0` and `t=1` may be two columns."""
    for one in data:
        x = one.x_train[:, [place for place, name in enumerate(one.input_names) if name.startswith(f"{column}=")]]
        if not ((np.count_nonzero(x, axis=1) == 1) & (x.sum(1) == 1)).all():
            return False
    return True


def hold_back(dataset: Dataset, samples: int | None, seed: int, draw: Callable[[Dataset], Partition]) -> Partition:
    """Partition of the samples that are not public. Public samples are of another data set, or drawn from the seed.

    Samples of the test set never become public. draw: data set of the other samples, see `dataset.selected` -> their
    partition. Raises UserError if no samples are left.
    """
    everything = len(dataset.y_train)
    lent = 0 if dataset.public else dataset.lent
    total = everything - lent
    if not dataset.public and (samples or 0) >= total:
        raise UserError(
            f"task.public.samples: {samples} public samples leave none of the {total} training samples for the "
            "clients; lower it"
        )
    permutation = np.arange(total) if dataset.public else np.random.default_rng([seed, 61]).permutation(total)
    private, public = (np.sort(part) for part in np.split(permutation, [total - (dataset.public or samples or 0)]))
    private = np.concatenate([private, np.arange(total, everything)])
    partition = draw(selected(dataset, private))
    labels = None
    if partition.labels is not None:
        labels = dataset.y_train.copy()
        labels[private] = partition.labels
    return replace(partition, order=private[partition.order], labels=labels, public=public)
