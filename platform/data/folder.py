"""Images in a folder, or in a zip of one, by class."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile

import numpy as np
from PIL import Image, UnidentifiedImageError

from hedgerow.platform.data.dataset import Dataset, image_dataset, stratified_split
from hedgerow.platform.errors import UserError

_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}
_HALF = (0.5, 0.5, 0.5)

Member = tuple[PurePosixPath, Callable[[], bytes]]


def files(path: Path) -> list[Path]:
    """The zip, or the folder and its sub-folders (whose times change when images come or go)."""
    if not path.exists():
        raise UserError(
            f"task.data.path: there is no {path.absolute()}; give the folder or zip of images, or --data-root"
        )
    return [path] if path.is_file() else [path, *sorted(p for p in path.rglob("*") if p.is_dir())]


def load(path: Path, size: int | None, test_fraction: float) -> Dataset:
    """Read all images as RGB, or as grey where every one is grey."""
    images: dict[str, list[tuple[str, np.ndarray]]] = {"train": [], "test": [], "": []}
    for name, read in members(path):
        *parents, label, _ = name.parts
        split = next((part for part in reversed(parents) if part in ("train", "test")), "")
        images[split].append((label, pixels(path, name, read(), size)))
    if not images["train"] and not images[""]:
        raise UserError(
            f"task.data.path: no images under {path}; expected CLASS/*.png or train/CLASS/* and test/CLASS/*"
        )
    names = tuple(sorted({label for part in images.values() for label, _ in part}))
    train = _stack(path, images["train"] or images[""], names)
    if images["test"]:
        test = _stack(path, images["test"], names)
    else:
        rows, held = stratified_split(train[1], test_fraction)
        train, test = (train[0][rows], train[1][rows]), (train[0][held], train[1][held])
    if all((x == x[:, :1]).all() for x in (train[0], test[0])):
        train, test = (train[0][:, :1].copy(), train[1]), (test[0][:, :1].copy(), test[1])
    channels = train[0].shape[1]
    return image_dataset(path.stem, train, test, names, _HALF[:channels], _HALF[:channels])


def members(path: Path) -> Iterator[Member]:
    """Images by name, in the order of their names; a name has at least the class before it."""
    if path.is_dir():
        found = [(PurePosixPath(p.relative_to(path).as_posix()), p.read_bytes) for p in path.rglob("*") if p.is_file()]
        yield from sorted((m for m in found if _is_image(m[0])), key=lambda m: m[0])
        return
    try:
        with ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if _is_image(PurePosixPath(name)):
                    yield PurePosixPath(name), lambda name=name: archive.read(name)  # type: ignore[misc]
    except BadZipFile:
        raise UserError(
            f"task.data.path: {path} is neither a folder nor a whole zip; unpack it or fetch it again"
        ) from None


def _is_image(name: PurePosixPath) -> bool:
    return name.suffix.lower() in _ENDINGS and len(name.parts) >= 2 and "__MACOSX" not in name.parts


def pixels(path: Path, name: PurePosixPath, content: bytes, size: int | None) -> np.ndarray:
    """An image as RGB, (3, H, W) uint8. Raises UserError."""
    try:
        image = Image.open(io.BytesIO(content)).convert("RGB")
    except (UnidentifiedImageError, OSError):
        raise UserError(f"task.data.path: {path}: {name} is not a readable image; mend or remove it") from None
    if size:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def _stack(path: Path, images: list[tuple[str, np.ndarray]], names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    shapes = {x.shape for _, x in images}
    if len(shapes) > 1:
        raise UserError(
            f"task.data.size: the images under {path} have {len(shapes)} different sizes; set it, such as 32"
        )
    return np.stack([x for _, x in images]), np.array([names.index(label) for label, _ in images], dtype=np.int64)
