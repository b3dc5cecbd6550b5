"""Streams of small classification tasks, cut from a data set (thesis, 5.3 and A.1.4)."""

from dataclasses import replace
from math import prod
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import require
from hedgerow.platform.common.section import Section
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import Partition
from hedgerow.platform.data.partitions.scheme import PartitionScheme

AT_ONCE = 4096
"""Number of images that are transformed together."""


class Transforms(Section):
    """Random transforms of a task's images, drawn anew for every class of every task."""

    rotation: float = Field(0.0, ge=0, le=180, description="maximum rotation in degrees, in either direction")
    flip: float = Field(
        0.0, ge=0, le=1, description="probability that an axis is mirrored, independently for each axis"
    )
    crop: float = Field(0.0, ge=0, lt=1, description="maximum share of width and height that is cut away")
    scale: float = Field(0.0, ge=0, lt=1, description="maximum share by which width and height change, independently")


class Stream(PartitionScheme):
    """A stream of tasks, one per round, instead of clients; each task has some of the classes, in random order.

    A task's training samples are drawn from the data set's training set, its test samples from its test set.
    """

    needs_classes: ClassVar[bool] = True
    is_stream: ClassVar[bool] = True

    tasks: int = Field(ge=1, description="number of tasks, T; at least `rounds`")
    ways: int | None = Field(
        None, ge=2, description="classes per task, renumbered in each task; null: all classes with their own labels"
    )
    disjoint: bool = Field(False, description="no class occurs in two tasks")
    train: int = Field(ge=2, description="labelled samples per task, spread evenly over its classes")
    test: int = Field(100, ge=1, description="test samples per task")
    transforms: Transforms | None = Field(None, description="random transforms of the images; null: none")
    seed: int = Field(0, ge=0, description="seed of the stream; independent of the experiment's own seed")

    rules = (
        Rule(
            lambda stream: stream.disjoint and stream.ways is None,
            "`disjoint` needs `ways`: disjoint tasks cannot each have all classes; give it, or remove `disjoint`",
        ),
    )

    def prepare(self, dataset: Dataset) -> Dataset:
        """Samples of all tasks, task by task: first `train` training samples each, then `test` test samples.

        Raises UserError when the data set does not have enough classes or samples.
        """
        if self.transforms and dataset.x_train.ndim != 4:
            raise UserError(f"task.partition.transforms: {dataset.name} has no images to transform; remove it")
        ways = self.ways or dataset.classes
        if self.train < ways:
            raise UserError(
                f"task.partition.train: {self.train} samples are fewer than the {ways} classes of a task; raise it"
            )
        size = dataset.x_train.itemsize * prod(dataset.sample_shape)
        require(self.tasks * (self.train + self.test) * size, "task.partition: the tasks' samples", "lower `tasks`")
        task_classes = _classes(self, dataset.classes, ways)
        pools = [
            [np.flatnonzero(y == label) for label in range(dataset.classes)] for y in (dataset.y_train, dataset.y_test)
        ]
        xs, ys, maps = [], [], []
        for number, classes in enumerate(task_classes):
            rng = np.random.default_rng([self.seed, 61, number])
            transforms = draw_transforms(self.transforms, ways, rng) if self.transforms else None
            for x, pool, total, what in (
                (dataset.x_train, pools[0], self.train, "train"),
                (dataset.x_test, pools[1], self.test, "test"),
            ):
                counts = total // ways + (np.arange(ways) < total % ways)
                rows = [
                    _some(pool[label], count, what, ways, rng) for label, count in zip(classes, counts, strict=True)
                ]
                order = rng.permutation(total)
                labels = np.repeat(np.arange(ways), counts)[order]
                xs.append(x[np.concatenate(rows)[order]])
                ys.append(labels)
                if transforms is not None:
                    maps.append(transforms[labels])
        images = np.concatenate(xs)
        if maps:
            images = transformed(images, np.concatenate(maps))
        names = dataset.class_names if self.ways is None else tuple(map(str, range(ways)))
        nothing = slice(0, 0)
        return replace(
            dataset,
            name=f"{dataset.name} stream",
            x_train=images,
            y_train=np.concatenate(ys),
            x_test=dataset.x_test[nothing],
            y_test=dataset.y_test[nothing],
            classes=ways,
            class_names=names,
            train_clients=None,
            test_clients=None,
            splits=None,
        )

    def draw(self, labels: np.ndarray, classes: int, natural: np.ndarray | None, seed: int, lent: int = 0) -> Partition:
        """Partition with one client per task; the samples of the prepared data set are in the order of the tasks."""
        each = self.train + self.test
        offsets = np.arange(self.tasks + 1) * each
        return Partition(np.arange(self.tasks * each), offsets, np.full(self.tasks, self.train))


def _classes(config: Stream, known: int, ways: int) -> list[np.ndarray]:
    """Classes of each task, as the data set numbers them."""
    if ways > known:
        raise UserError(f"task.partition.ways: {ways} is more than the {known} classes; lower it")
    if config.ways is None:
        return [np.arange(known)] * config.tasks
    if config.disjoint:
        if config.tasks * ways > known:
            raise UserError(
                f"task.partition.tasks: {known} classes make {known // ways} disjoint tasks of {ways}; lower tasks or "
                "ways, or remove `disjoint`"
            )
        permutation = np.random.default_rng([config.seed, 60]).permutation(known)
        return list(permutation[: config.tasks * ways].reshape(config.tasks, ways))
    draws = (np.random.default_rng([config.seed, 60, number]) for number in range(config.tasks))
    return [rng.choice(known, ways, replace=False) for rng in draws]


def _some(pool: np.ndarray, count: int, key: str, ways: int, rng: np.random.Generator) -> np.ndarray:
    if count > len(pool):
        raise UserError(
            f"task.partition.{key}: {count} samples of each of {ways} classes are more than the {len(pool)} that a "
            "class has; lower it"
        )
    return rng.choice(pool, count, replace=False)


def draw_transforms(config: Transforms, count: int, rng: np.random.Generator) -> np.ndarray:
    """Affine maps from positions in the new image to positions in the old one, both from -1 to 1, (count, 2, 3)."""
    angle = np.deg2rad(rng.uniform(-config.rotation, config.rotation, count))
    signs = 1.0 - 2.0 * (rng.random((2, count)) < config.flip)
    sizes = rng.uniform(1 - config.scale, 1 + config.scale, (2, count))
    cut = rng.uniform(0, config.crop, count)
    shift = rng.uniform(-1, 1, (2, count)) * cut
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn * (signs / sizes)[None]
    # The cropped window is treated as if it were the whole image.
    maps = np.concatenate([matrix * (1 - cut), np.einsum("ijn,jn->in", matrix, shift)[:, None]], axis=1)
    return maps.transpose(2, 0, 1).astype(np.float32)


def transformed(images: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """Applies to each image (n, C, H, W), uint8, its affine map (n, 2, 3); bilinear, and 0 outside."""
    out = np.empty_like(images)
    for start in range(0, len(images), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        x = torch.from_numpy(images[part]).float()
        grid = F.affine_grid(torch.from_numpy(maps[part]), list(x.shape), align_corners=False)
        out[part] = F.grid_sample(x, grid, align_corners=False).round().clamp(0, 255).to(torch.uint8).numpy()
    return out
