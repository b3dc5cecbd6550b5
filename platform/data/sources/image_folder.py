"""Images sorted by class, in a folder or in a zip file of a folder."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING
from zipfile import ZipFile

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError, one_line
from hedgerow.platform.common.memory import require
from hedgerow.platform.data.dataset import Dataset, image_dataset, stratified_split
from hedgerow.platform.data.sources.source import Source
from hedgerow.platform.data.zip_members import UNREADABLE, opened, require_plausible

if TYPE_CHECKING:
    from PIL import Image

_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}
_HALF = (0.5, 0.5, 0.5)
_PARTS = ("train", "val", "test")
ANNOTATIONS = "val_annotations.txt"
"""Annotation file of Tiny-ImageNet, next to the image folder: each line has the name of an image and its class."""

Member = tuple[PurePosixPath, Callable[[], bytes]]


class ImageFolder(Source):
    """Your own images: CLASS/*.png, or train/CLASS/* and test/CLASS/* (or val/CLASS/*), in a folder or a zip file.

    If test/ is missing or its images have no class, val/ is used for testing: for ImageNet, sorted into val/CLASS/*,
    and for Tiny-ImageNet, as unpacked.
    """

    path: str = Field(
        min_length=1,
        description="folder or .zip file, absolute or relative to the experiment file, "
        "the working directory or the data root",
    )
    size: int | None = Field(
        None,
        ge=1,
        description="resize the shorter side of each image to this size and crop the centre; null: all images already "
        "have the same size",
    )
    test_fraction: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="share of each class that is used for testing if there is neither test/ nor val/",
    )

    def files(self, root: Path) -> list[Path]:
        return image_files(root / self.path)

    def load(self, root: Path) -> Dataset:
        """Reads all images as RGB, or as greyscale if all of them are grey."""
        path = root / self.path
        images = read_images(path, self.size)
        if not images["train"]:
            raise UserError(
                f"task.data.path: no images under {path}; expected CLASS/*.png or train/CLASS/* and test/CLASS/*"
            )
        names = tuple(sorted({label for part in images.values() for label, _ in part}))
        if len(names) < 2:
            raise UserError(
                f"task.data.path: all images under {path} are of one class, {names[0]}; give each class a folder "
                "of its own"
            )
        train = _stack(path, images["train"], names)
        if images["test"]:
            test = _stack(path, images["test"], names)
        else:
            rows, test_rows = stratified_split(train[1], self.test_fraction)
            train, test = (train[0][rows], train[1][rows]), (train[0][test_rows], train[1][test_rows])
        if all((x == x[:, :1]).all() for x in (train[0], test[0])):
            train, test = (train[0][:, :1].copy(), train[1]), (test[0][:, :1].copy(), test[1])
        channels = train[0].shape[1]
        return image_dataset(path.stem, train, test, names, _HALF[:channels], _HALF[:channels])


def image_files(path: Path) -> list[Path]:
    """The zip file, or all images and annotation files of the folder. Raises UserError when it does not exist."""
    if not path.exists():
        raise UserError(
            f"task.data.path: there is no {path.absolute()}; give the folder or zip of images, or --data-root"
        )
    # Folders are not listed: overwriting an image in place does not change their times.
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.name == ANNOTATIONS or _is_image(p))


def read_images(path: Path, size: int | None) -> dict[str, list[tuple[str, np.ndarray]]]:
    """Class and RGB pixels of each image for training ("train") and for testing ("test"). Raises UserError."""
    placed = _placed(path)
    images: dict[str, list[tuple[str, np.ndarray]]] = {"train": [], "test": []}
    first = None
    for name, read in members(path):
        if name in placed:
            part, label = placed[name]
            image = pixels(path, name, read, size)
            if first is None:
                first = image
                # Once as a list, and once as an array.
                require(2 * len(placed) * image.nbytes, f"task.data.size: the images under {path}", "set a smaller one")
            if image.shape != first.shape:
                raise _different_sizes(path)
            images[part].append((label, image))
    return images


def _placed(path: Path) -> dict[PurePosixPath, tuple[str, str]]:
    """Part (train or test) and class of each image, without images that have no class or are not used.

    If test/ is empty or its images have no class, val/ is used for testing.
    """
    groups: dict[str, dict[PurePosixPath, tuple[str, ...]]] = {part: {} for part in (*_PARTS, "")}
    names = [name for name, _ in members(path)]
    divided = any("train" in name.parts[:-2] for name in names)
    for name in names:
        folders = name.parts[:-1]
        known = _PARTS if divided else ("test",)
        at = max((i for i, folder in enumerate(folders[:-1]) if folder in known), default=-1)
        if at < 0 and divided and folders[-1] in _PARTS:
            at = len(folders) - 1
        groups[folders[at] if at >= 0 else ""][name] = folders[at + 1 :]
    annotations = _annotated(path)
    classes = {part: _classes(below, annotations) for part, below in groups.items()}
    if groups["val"] and not classes["test"] and not classes["val"]:
        raise UserError(
            f"task.data.path: {next(iter(groups['val']))} under {path} has no class; sort val/ into val/CLASS/*, keep "
            f"its {ANNOTATIONS}, or remove it"
        )
    selection = {"train": classes["train"] or classes[""], "test": classes["test"] or classes["val"]}
    return {name: (part, label) for part, labels in selection.items() for name, label in labels.items()}


def _classes(below: dict[PurePosixPath, tuple[str, ...]], known: dict[PurePosixPath, str]) -> dict[PurePosixPath, str]:
    """Class of each image: the folder that contains it, or the folder above if all images are in folders named images.

    below: folders of each image, below train/ or test/. known: classes from annotation files.
    """
    inner = all(folders[-1:] == ("images",) for folders in below.values())
    labels = {}
    for name, folders in below.items():
        above = folders[:-1] if inner else folders
        if label := known.get(name) or "".join(above[-1:]):
            labels[name] = label
    return labels


def _annotated(path: Path) -> dict[PurePosixPath, str]:
    """Class of each image that an annotation file names."""
    annotations = {}
    for name, read in members(path, lambda name: name.name == ANNOTATIONS):
        try:
            text = read().decode(errors="replace")
        except UNREADABLE as error:
            raise UserError(
                f"task.data.path: {path}: {name} cannot be read ({one_line(error)}); restore or remove it"
            ) from None
        for line in text.splitlines():
            image, label, *_ = [*line.split("\t"), "", ""]
            annotations[name.parent / "images" / image] = label
    return annotations


def _is_image(name: PurePath) -> bool:
    return name.suffix.lower() in _ENDINGS and len(name.parts) >= 2 and "__MACOSX" not in name.parts


def members(path: Path, wanted: Callable[[PurePosixPath], bool] = _is_image) -> Iterator[Member]:
    """Images, or other `wanted` files, in the order of their names; an image's name includes at least its class.

    The function of a member returns its content. It raises UserError, or one of `UNREADABLE` if the member is damaged.
    """
    if path.is_dir():
        files = [(PurePosixPath(p.relative_to(path).as_posix()), p.read_bytes) for p in path.rglob("*") if p.is_file()]
        yield from sorted((m for m in files if wanted(m[0])), key=lambda m: m[0])
        return
    try:
        archive = ZipFile(path)
    except UNREADABLE as error:
        raise UserError(
            f"task.data.path: {path} is neither a folder nor a complete zip file ({one_line(error)}); unpack it or "
            "download it again"
        ) from None
    with archive:
        for name in sorted({name for name in archive.namelist() if not name.endswith("/")}):
            if wanted(PurePosixPath(name)):
                yield PurePosixPath(name), lambda name=name: _unpacked(archive, name)  # type: ignore[misc]


def _unpacked(archive: ZipFile, name: str) -> bytes:
    with opened(archive, name, "task.data.path") as member:
        return member.read()


def pixels(path: Path, name: PurePosixPath, read: Callable[[], bytes], size: int | None) -> np.ndarray:
    """Image as RGB, (3, H, W) uint8: the shorter side is resized and the centre cropped. Raises UserError."""
    at = f"task.data.path: {path}: {name}"
    return resized(decoded(read, at), size, at)


def decoded(
    read: Callable[[], bytes], at: str, decode: "Callable[[bytes], Image.Image] | None" = None
) -> "Image.Image":
    """Decoded image, after a look at its number of pixels. at: the image, as the subject of messages.

    decode: None opens the content of the file with PIL. Raises UserError.
    """
    # Imported here, since processes that read the cache do not need it.
    from PIL import Image

    try:
        content = read()
        image = Image.open(io.BytesIO(content))
        pixels = f"{at}, of {image.width} x {image.height} pixels,"
        require_plausible(3 * image.width * image.height, len(content), pixels, "make it smaller or remove it")
        result = image if decode is None else decode(content)
        result.load()
        return result
    except (UserError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise UserError(f"{at} has too many pixels ({one_line(error)}); make it smaller or remove it") from None
    except Exception as error:
        # Readers of image formats raise many kinds of errors for damaged files.
        raise UserError(f"{at} is not a readable image ({one_line(error)}); replace or remove it") from None


def resized(image: "Image.Image", size: int | None, at: str) -> np.ndarray:
    """RGB pixels (3, H, W) uint8 of an image: the shorter side is resized and the centre cropped; None: as it is.

    at: the image, as the subject of messages. Raises UserError if it has more than 8 bits per pixel and channel.
    """
    from PIL import Image as Images
    from PIL import ImageOps

    if image.mode[0] in "IF":
        # The conversion of PIL makes every value above 255 white.
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 255:
            raise UserError(
                f"{at} has pixels from {values.min():g} to {values.max():g}, and images have 8 bits here; scale all "
                "images alike to 0 to 255, or give the pixels as arrays (npz, or a function)"
            )
        image = Images.fromarray(values.astype(np.uint8))
    image = image.convert("RGB")
    if size:
        image = ImageOps.fit(image, (size, size), Images.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def stacked(path: Path, images: list[np.ndarray]) -> np.ndarray:
    """Images as one array. Raises UserError if they have different sizes."""
    if len({x.shape for x in images}) > 1:
        raise _different_sizes(path)
    return np.stack(images)


def _different_sizes(path: Path) -> UserError:
    return UserError(f"task.data.size: the images under {path} have different sizes; set one size, such as 32")


def _stack(path: Path, images: list[tuple[str, np.ndarray]], names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    labels = np.array([names.index(label) for label, _ in images], dtype=np.int64)
    return stacked(path, [x for _, x in images]), labels
