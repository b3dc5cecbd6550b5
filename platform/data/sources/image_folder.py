"""Images sorted by class, in a folder or in a zip file of a folder."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any
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

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Formats of PIL that are read: those whose bits per channel are known."""

_ENDINGS = {
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
    # Of other formats: such images are refused rather than left out.
    ".avif", ".heic", ".heif", ".jp2", ".svg", ".tga",
}  # fmt: skip
_HALF = (0.5, 0.5, 0.5)
_PARTS = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""Part of the images in a folder, by its name."""

ANNOTATIONS = "val_annotations.txt"
"""Annotation file of Tiny-ImageNet, next to the image folder: each line has the name of an image and its class."""

Member = tuple[PurePosixPath, Callable[[], bytes]]


class ImageFolder(Source):
    """Your own images: CLASS/*.png, or train/CLASS/* and test/CLASS/* (or val/CLASS/*), in a folder or a zip file.

    Images may be in any depth below CLASS. If test/ is missing or its images have no class of the training images, val/
    is used for testing: for ImageNet, sorted into val/CLASS/*, and for Tiny-ImageNet, as unpacked.
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
        images = read_images(path, self.size, is_whole=True)
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
    if path.is_file():
        return [path]
    return [path / name for name, _ in members(path, lambda name: name.name == ANNOTATIONS or _is_image(name))]


def read_images(path: Path, size: int | None, is_whole: bool = False) -> dict[str, list[tuple[str, np.ndarray]]]:
    """Class and RGB pixels of each image for training ("train") and for testing ("test").

    is_whole: whether these are all images of a data set: a folder that contains all others is not a class, and test
    images have classes of the training images. Raises UserError.
    """
    placed = _placed(path, is_whole)
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


def _placed(path: Path, is_whole: bool) -> dict[PurePosixPath, tuple[str, str]]:
    """Part (train or test) and class of each image, without images that have no class or are not used.

    If test/ is empty or its images have no class that is known from training, val/ is used for testing. is_whole: as in
    `read_images`. Raises UserError.
    """
    names = [name for name, _ in members(path)]
    start = _wrappers(names) if is_whole else 0
    # An image next to the top folders, such as a logo, has no class.
    below = {name: name.parts[start:-1] for name in names if len(name.parts) > start + 1}
    divided = any(len(folders) > 1 and _part(folders[0]) in ("train", "val") for folders in below.values())
    groups: dict[str, dict[PurePosixPath, tuple[str, ...]]] = {part: {} for part in ("train", "val", "test", "")}
    for name, (top, *rest) in below.items():
        part = _part(top) if divided or (rest and _part(top) == "test") else ""
        if not divided and not part and any(map(_part, rest)):
            raise UserError(
                f"task.data.path: {name} under {path} has its class above train/ or test/; sort the images into "
                "train/CLASS/* and test/CLASS/*, or rename the folder"
            )
        groups[part][name] = (*rest,) if part else (top, *rest)
    tops = {name: folders for name, folders in groups["train"].items() if folders} if divided else below
    _check_top_folders(path, start + divided, tops, is_whole, divided)
    annotations = _annotated(path)
    classes = {part: _classes(folders, annotations) for part, folders in groups.items()}
    if groups["val"] and not classes["test"] and not classes["val"]:
        raise UserError(
            f"task.data.path: {next(iter(groups['val']))} under {path} has no class; sort val/ into val/CLASS/*, keep "
            f"its {ANNOTATIONS}, or remove it"
        )
    train, test = classes["train"] or classes[""], classes["test"] or classes["val"]
    if is_whole and train:
        known = set(train.values())
        if known.isdisjoint(test.values()) and not known.isdisjoint(classes["val"].values()):
            test = classes["val"]
        if unknown := set(test.values()) - known:
            raise UserError(
                f"task.data.path: test images under {path} have classes that no training image has "
                f"({_listing(unknown)}); remove their folders, or give training and test images the same classes"
            )
    selection = {"train": train, "test": test}
    return {name: (part, label) for part, labels in selection.items() for name, label in labels.items()}


def _part(folder: str) -> str:
    return _PARTS.get(folder.lower(), "")


def _listing(folders: set[str]) -> str:
    return ", ".join(sorted(folders)[:5]) + (", ..." if len(folders) > 5 else "")


def _wrappers(names: list[PurePosixPath]) -> int:
    """Number of nested folders that contain all others, as a zip often has one.

    An image that is less deep than a level has no folder in it, and does not count there.
    """
    levels: list[set[str]] = [set() for _ in range(max((len(name.parts) - 1 for name in names), default=1))]
    for name in names:
        for level, folder in zip(levels, name.parts[:-1], strict=False):
            level.add(folder)
    ends = (i for i, level in enumerate(levels) if len(level) > 1 or any(map(_part, level)))
    return next(ends, len(levels) - 1)


def _check_top_folders(
    path: Path, start: int, below: dict[PurePosixPath, tuple[str, ...]], is_whole: bool, divided: bool
) -> None:
    """Raises UserError if the classes seem to be below the top folders, which are then domains or parts.

    start: number of folders around the top folders. below: folders of each image, from its top folder. divided: whether
    the top folders are those of train/.
    """
    deeper: dict[str, set[tuple[str, ...]]] = {}
    for top, *rest in below.values():
        deeper.setdefault(top, set()).add((*rest,))
    words = {_part(word) for top in deeper for word in re.split("[^a-z]+", top.lower())}
    has_parts = "train" in words and len(words - {""}) > 1
    inner = {top: {name for name in _inner(rest) if has_parts or _has_letter(name)} for top, rest in deeper.items()}
    counts = Counter(name for names in inner.values() for name in names)
    same = {name for name, count in counts.items() if count > 1}
    # Folders of a single name, such as CLASS/images, are not the classes.
    if not same or (len(counts) < 2 and not has_parts):
        return
    top = next(top for top, names in inner.items() if names & same)
    place = path.joinpath(*next(iter(below)).parts[:start])
    rename = "put the images of each class directly into train/CLASS/, without further folders"
    if not divided:
        rename = "rename the folders to train/ and test/, directly above the classes"
    alone = f"give `path: {place / top}`" if path.is_dir() else "unpack the file and give one of them as `path`"
    raise UserError(
        f"task.data.path: several folders at the top of {place} have the same folders ({_listing(same)}); "
        + (rename if has_parts or divided or not is_whole else f"{alone}, or {rename}")
    )


def _inner(below: set[tuple[str, ...]]) -> set[str]:
    """Folders at the first level that has several or one without letters, such as a date; otherwise at the last level.

    below: folders of each image.
    """
    level: set[str] = set()
    for i in range(max(map(len, below))):
        level = {folders[i] for folders in below if len(folders) > i}
        if len(level) > 1 or not any(map(_has_letter, level)):
            break
    return level


def _has_letter(name: str) -> bool:
    return any(map(str.isalpha, name))


def _classes(below: dict[PurePosixPath, tuple[str, ...]], known: dict[PurePosixPath, str]) -> dict[PurePosixPath, str]:
    """Class of each image: its top folder, below a folder that is named images and contains all others.

    below: folders of each image, below train/ or test/. known: classes from annotation files.
    """
    start = int({folders[0].lower() for folders in below.values() if folders} == {"images"})
    labels = {name: known.get(name) or "".join(folders[start : start + 1]) for name, folders in below.items()}
    return {name: label for name, label in labels.items() if label}


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
    return name.suffix.lower() in _ENDINGS and len(name.parts) >= 2


def is_hidden(name: PurePath) -> bool:
    """Whether a file is hidden, or in a hidden folder: by a dot, or in macOS's folder in zip files."""
    return any((part[0] == "." and part != "..") or part == "__MACOSX" for part in name.parts)


def members(path: Path, wanted: Callable[[PurePosixPath], bool] = _is_image) -> Iterator[Member]:
    """Images, or other `wanted` files, in the order of their names; an image's name includes at least its class.

    Hidden files are left out. The function of a member returns its content. It raises UserError, or one of `UNREADABLE`
    if the member is damaged.
    """
    if path.is_dir():
        files = [(PurePosixPath(p.relative_to(path).as_posix()), p.read_bytes) for p in path.rglob("*") if p.is_file()]
        yield from sorted((m for m in files if wanted(m[0]) and not is_hidden(m[0])), key=lambda m: m[0])
        return
    try:
        archive = ZipFile(path)
    except UNREADABLE as error:
        raise UserError(
            f"task.data.path: {path} is neither a folder nor a complete zip file ({one_line(error)}); unpack it or "
            "download it again"
        ) from None
    with archive:
        # `a/0.png` and `./a/0.png` are one file.
        names = {PurePosixPath(name): name for name in archive.namelist() if not name.endswith("/")}
        for member, name in sorted(names.items(), key=lambda item: item[1]):
            if wanted(member) and not is_hidden(member):
                yield member, lambda name=name: _unpacked(archive, name)  # type: ignore[misc]


def _unpacked(archive: ZipFile, name: str) -> bytes:
    with opened(archive, name, "task.data.path") as member:
        return member.read()


def pixels(path: Path, name: PurePosixPath, read: Callable[[], bytes], size: int | None) -> np.ndarray:
    """Image as RGB, (3, H, W) uint8: the shorter side is resized and the centre cropped. Raises UserError."""
    return resized(decoded(read, f"task.data.path: {path}: {name}"), size)


def decoded(read: Callable[[], bytes], at: str, mode: str | None = None) -> "Image.Image":
    """Decoded image, upright and in RGB, after a look at its number of pixels.

    at: the image, as the subject of messages. mode: PIL's mode to which the image is converted first; None: none.
    Raises UserError, also for more than 8 bits per channel and for transparency.
    """
    # Imported here, since processes that read the cache do not need it.
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        content = read()
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        pixels = f"{at}, of {image.width} x {image.height} pixels,"
        require_plausible(3 * image.width * image.height, len(content), pixels, "make it smaller or remove it")
        bits = _bits(image, content)
        return _of_8_bits(ImageOps.exif_transpose(image), bits, at).convert(mode or "RGB").convert("RGB")
    except (UserError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise UserError(f"{at} has too many pixels ({one_line(error)}); make it smaller or remove it") from None
    except Exception as error:
        # Readers of image formats raise many kinds of errors for damaged files.
        is_unknown = isinstance(error, UnidentifiedImageError)
        reason = f"its format is none of {', '.join(FORMATS)}" if is_unknown else one_line(error)
        raise UserError(f"{at} is not a readable image ({reason}); replace or remove it") from None


def _bits(image: Any, content: bytes) -> int:
    """Bits of a channel in the file, which may be more than PIL keeps. image: not yet loaded."""
    if image.format == "PNG":
        return content[24]
    if image.format == "TIFF":
        return max(image.tag_v2.get(258, (1,)))
    # The decoder of a PPM file has its largest value as an argument unless this is 255.
    options = image.tile[0][3] if image.format == "PPM" else ""
    return 16 if isinstance(options, tuple) and options[1] > 255 else 8


def _of_8_bits(image: "Image.Image", bits: int, at: str) -> "Image.Image":
    """Opaque image of 8 bits. bits: of a channel in the file. Raises UserError."""
    from PIL import Image as Images

    if image.mode[0] in "IF":
        # The conversion of PIL makes every value above 255 white.
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 255:
            raise UserError(
                f"{at} has pixels from {values.min():g} to {values.max():g}, and images have 8 bits here; scale all "
                "images alike to 0 to 255, or give the pixels as arrays (npz, or a function)"
            )
        return Images.fromarray(values.astype(np.uint8))
    if bits > 8:
        raise UserError(
            f"{at} has {bits} bits per channel, and images have 8 bits here; convert all images alike to 8 bits, or "
            "give the pixels as arrays (npz, or a function)"
        )
    if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        raise UserError(f"{at} is transparent in places; flatten all images onto one background colour first")
    return image


def resized(image: "Image.Image", size: int | None) -> np.ndarray:
    """Pixels (3, H, W) uint8 of an RGB image: the shorter side is resized and the centre cropped; None: as it is."""
    from PIL import Image as Images
    from PIL import ImageOps

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
