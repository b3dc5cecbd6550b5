"""NumPy arrays in an .npz file, or in a folder of .npy files, which are mapped into memory."""

from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Literal
from zipfile import ZipFile

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError, one_line
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.mapped_arrays import BLOCK, empty
from hedgerow.platform.data.sources.raw_arrays import RawSplit, build_dataset
from hedgerow.platform.data.sources.source import Source, TestFraction
from hedgerow.platform.data.zip_members import UNREADABLE, opened


class NpzFile(Source):
    """Your own arrays in an .npz file, or in a folder with an .npy file for each."""

    path: str = Field(
        min_length=1,
        description=".npz file, or folder of .npy files, absolute or relative to the experiment "
        "file, the working directory or the data root",
    )
    x_train: str = Field("x_train", min_length=1, description="name of the array of training samples")
    y_train: str = Field("y_train", min_length=1, description="name of their labels")
    x_test: str | None = Field(
        "x_test", description="name of the array of test samples; a part of the training samples if there is none"
    )
    y_test: str | None = Field("y_test", description="name of their labels")
    clients: str | None = Field(None, description="name of the natural clients of training samples; null: none")
    test_clients: str | None = Field(None, description="name of the natural clients of test samples; null: unknown")
    tokens: bool = Field(False, description="whether samples are sequences of tokens, as integers")
    channels: Literal["first", "last"] | None = Field(
        None, description="axis of the channels of images; null: recognised by its size"
    )
    test_fraction: TestFraction = 0.2

    def files(self, root: Path) -> list[Path]:
        path = root / self.path
        return sorted(path.glob("*.npy")) if path.is_dir() else [path]

    def load(self, root: Path) -> Dataset:
        path = root / self.path
        at, names = f"task.data.path: {path}", array_names(path)
        # Under their usual names, test arrays may be missing.
        is_usual = all(getattr(self, key) in (key, None) for key in ("x_test", "y_test"))
        has_test = self.x_test is not None and (not is_usual or self.x_test in names or self.y_test in names)

        def read(key: str) -> np.ndarray | None:
            name = getattr(self, key)
            return None if name is None else read_array(path, names, name, f"task.data.{key}")

        train = RawSplit(read("x_train"), read("y_train"), read("clients"))
        test = RawSplit(read("x_test"), read("y_test"), read("test_clients")) if has_test else None
        return build_dataset(
            path.stem,
            at,
            train,
            test,
            test_fraction=self.test_fraction,
            tokens=self.tokens,
            channels=self.channels,
        )


def array_names(path: Path) -> list[str]:
    """Names of the arrays of an .npz file, or of the .npy files in a folder. Raises UserError."""
    if path.is_dir():
        names = sorted(file.stem for file in path.glob("*.npy"))
    elif path.is_file():
        try:
            with ZipFile(path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
        except UNREADABLE as error:
            raise UserError(
                f"task.data.path: {path} is not an .npz file ({one_line(error)}); write it with numpy.savez"
            ) from None
    else:
        names = []
    if not names:
        raise UserError(
            f"task.data.path: there is no {path.absolute()} with arrays; give an .npz file or a folder of .npy files, "
            "or --data-root"
        )
    return names


def read_array(path: Path, names: list[str], name: str, key: str) -> np.ndarray:
    """One array, mapped from an .npy file, or unpacked from an .npz file block by block.

    names: those of all arrays. key: place in the file, for messages. Raises UserError.
    """
    if name not in names:
        raise UserError(f"{key}: {path} has no array {name!r}{nearest(name, names)} (arrays: {', '.join(names)})")
    try:
        if path.is_dir():
            file = path / f"{name}.npy"
            mapped = np.load(file, mmap_mode="r", allow_pickle=False)
            require_length(mapped.nbytes, file.stat().st_size - mapped.offset)
            return mapped
        with ZipFile(path) as archive, opened(archive, f"{name}.npy", key) as member:
            version = np.lib.format.read_magic(member)
            header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, is_fortran, dtype = header(member)
            if dtype.hasobject:
                raise ValueError("it holds Python objects")
            require_length(prod(shape) * dtype.itemsize, archive.getinfo(f"{name}.npy").file_size - member.tell())
            array = empty(shape[::-1] if is_fortran else shape, dtype)
            flat = array.reshape(-1).view(np.uint8)
            for start in range(0, len(flat), BLOCK):
                part = flat[start : start + BLOCK]
                content = member.read(len(part))
                if len(content) < len(part):
                    raise ValueError("it is cut off")
                part[:] = np.frombuffer(content, np.uint8)
            return array.T if is_fortran else array
    except (*UNREADABLE, SyntaxError, TokenError) as error:
        raise UserError(
            f"{key}: the array {name!r} of {path} cannot be read ({one_line(error)}); write it again, with numbers or "
            "text of a fixed type"
        ) from None


def require_length(announced: int, present: int) -> None:
    """Raises ValueError unless an array has as many bytes as its header says."""
    if announced != present:
        raise ValueError(f"its header announces {announced} bytes, and {present} follow")
