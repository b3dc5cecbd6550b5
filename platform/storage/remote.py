"""Folders at a URI that store copies of runs: on S3, GCS, network disks, or any other file system of pyarrow."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from hedgerow.platform.common.errors import UserError, one_line
from hedgerow.platform.common.servers import has_credentials

PATIENCE = 60.0
"""Seconds within which a storage must answer before a run begins."""

SEAL = "progress.json"
"""Commit marker of a checkpoint: copied last, deleted first."""

OBJECTS = {"s3", "gcs", "abfs"}
"""File systems without folders, on which a file appears only when it is complete."""

PART = ".part"


class Storage:
    """Folder at a URI. Raises UserError that begins with `key` when it cannot be opened."""

    def __init__(self, uri: str, key: str = "checkpoints.storage"):
        # pyarrow takes a while to import, so it is imported only where it is used.
        from pyarrow import fs

        self.uri, self.key, self._kinds = uri, key, fs
        try:
            self.fs, path = fs.FileSystem.from_uri(uri)
        except Exception as error:  # any error of a file system or of the library behind it
            raise self._refusal("open", error) from None
        self.path = path.rstrip("/")
        self.keeps_whole = self.fs.type_name in OBJECTS

    def check(self) -> None:
        """Raises UserError when the storage is not writable."""
        probe = f".hedgerow-{os.getpid()}"
        try:
            self.write(probe, b"")
            self.fs.delete_file(f"{self.path}/{probe}")
        except Exception as error:
            raise self._refusal("write to", error) from None

    def files(self) -> dict[str, int]:
        """Paths of all files, relative to the folder, and their sizes. Raises UserError for a path outside it."""
        selector = self._kinds.FileSelector(self.path, allow_not_found=True, recursive=True)
        infos = [info for info in self.fs.get_file_info(selector) if info.type == self._kinds.FileType.File]
        names = {info.path.removeprefix(f"{self.path}/"): info.size for info in infos}
        return {inside(name): size for name, size in names.items() if not name.endswith(PART)}

    def holds(self, name: str) -> bool:
        """Whether there is a run of this name."""
        return self.fs.get_file_info(f"{self.path}/{name}/run.json").type != self._kinds.FileType.NotFound

    def read(self, path: str, target: Path) -> None:
        """Copy a file from the storage to `target`."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self.fs.open_input_stream(f"{self.path}/{path}") as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 2**23)

    def contents(self, path: str) -> bytes:
        """Contents of a small file."""
        with self.fs.open_input_stream(f"{self.path}/{path}") as source:
            return bytes(source.read())

    def write(self, path: str, source: Path | bytes) -> None:
        """Copy a file to the storage; readers never see it half-written."""
        target = f"{self.path}/{path}"
        if not self.keeps_whole:
            self.fs.create_dir(target.rpartition("/")[0], recursive=True)
        aside = target if self.keeps_whole else target + PART
        with self.fs.open_output_stream(aside) as sink:
            if isinstance(source, bytes):
                sink.write(source)
            else:
                with source.open("rb") as stream:
                    shutil.copyfileobj(stream, sink, 2**23)
        if aside != target:
            self.fs.move(aside, target)

    def unseal(self, checkpoint: str) -> None:
        """Delete the commit marker of a checkpoint, whose folder is then no longer a checkpoint."""
        seal = f"{self.path}/{checkpoint}/{SEAL}"
        if self.fs.get_file_info(seal).type != self._kinds.FileType.NotFound:
            self.fs.delete_file(seal)

    def delete(self, checkpoint: str) -> None:
        """Delete a checkpoint."""
        self.unseal(checkpoint)
        self.fs.delete_dir(f"{self.path}/{checkpoint}")

    def _refusal(self, what: str, error: Exception) -> UserError:
        return UserError(
            f"{self.key}: cannot {what} {self.uri!r} ({one_line(error)}); give a URI that pyarrow supports, such as "
            "s3://bucket/runs or file:///disk/runs, and set its credentials in the environment"
        )


def check_storage(uri: str) -> None:
    """Raises UserError when a storage cannot be opened, is not writable, or does not answer."""
    results: list[UserError | None] = []

    def attempt() -> None:
        try:
            Storage(uri).check()
        except UserError as error:
            results.append(error)
        else:
            results.append(None)

    # Some clients search for credentials, or for a server, for many minutes.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not results:
        raise UserError(
            f"checkpoints.storage: {uri!r} has not answered for {PATIENCE:g} seconds; check the URI and its credentials"
        )
    if results[0]:
        raise results[0]


def inside(path: str) -> str:
    """Returns the path of a file if it stays inside its folder. Raises UserError otherwise."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise UserError(f"{path!r} is outside the run's folder; it is not a file of a run, so remove it from there")
    return path


def is_uri(name: str) -> bool:
    return "://" in name


def uri_of(storage: str | None, name: str) -> str | None:
    """URI of a run's copy, which `hedgerow resume` accepts; settings of the file system stay at its end."""
    if storage is None:
        return None
    path, mark, settings = storage.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{settings}"


def uri_objection(uri: str) -> str | None:
    """Error in a URI of an experiment file, as far as it is visible in the text; None if there is none."""
    parts = urlsplit(uri)
    if not parts.scheme or not is_uri(uri):
        return f"{uri!r} is not a URI; write s3://bucket/runs, gs://bucket/runs or file:///disk/runs, or null"
    if "@" in uri.partition("?")[0] or has_credentials(uri):
        return "a URI with credentials would be written into every record of the run; set them in the environment"
    return None


def fetch(uri: str, find_output: Callable[[Path], str]) -> Path:
    """Copies a run's folder back from its storage to the output folder of its experiment file; returns the folder.

    find_output: experiment file -> folder of its runs. Raises UserError when there is no run, or when its folder still
    exists.
    """
    home = Storage(uri, "RUN")
    name = inside(home.path.rpartition("/")[2])
    try:
        files = home.files()
        if not {"run.json", "experiment.yaml"} <= set(files):
            raise UserError(f"{uri} is not a run: give the folder of a run in its `checkpoints.storage`")
        with TemporaryDirectory() as aside:
            home.read("experiment.yaml", Path(aside) / "experiment.yaml")
            target = Path(find_output(Path(aside) / "experiment.yaml")) / name
        if target.exists():
            raise UserError(f"{target} already exists: resume it, or move it away first")
        half = target.with_name(f".{name}.{os.getpid()}")
        try:
            for file in files:
                home.read(file, half / file)
            half.rename(target)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{uri}: cannot be fetched ({one_line(error)}); check the URI and its credentials") from None
    return target
