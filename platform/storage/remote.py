"""Folders at a URI, in which copies of runs lie: on S3, GCS, a network's disk, whatever pyarrow's file systems know."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from hedgerow.platform.common.errors import UserError

PATIENCE = 60.0
"""Seconds within which a storage must answer before a run begins."""

SEAL = "progress.json"
"""Commit marker of a checkpoint: copied last, deleted first."""

OBJECTS = {"s3", "gcs", "abfs"}
"""File systems without folders, on which a file appears when it is complete."""

PART = ".part"


class Storage:
    """A folder at a URI. Raises UserError, in the words of `key`, when it cannot be opened."""

    def __init__(self, uri: str, key: str = "checkpoints.storage"):
        # pyarrow takes a while to import: only where it is used.
        from pyarrow import fs

        self.uri, self.key, self._kinds = uri, key, fs
        try:
            self.fs, path = fs.FileSystem.from_uri(uri)
        except Exception as error:  # whatever a file system, or the library behind it, has to say
            raise self._refusal("open", error) from None
        self.path = path.rstrip("/")
        self.keeps_whole = self.fs.type_name in OBJECTS

    def check(self) -> None:
        """Raises UserError when nothing can be written there."""
        probe = f".hedgerow-{os.getpid()}"
        try:
            self.write(probe, b"")
            self.fs.delete_file(f"{self.path}/{probe}")
        except Exception as error:
            raise self._refusal("write to", error) from None

    def files(self) -> dict[str, int]:
        """The paths of all files, from here, and their sizes. Raises UserError for one that would leave the folder."""
        selector = self._kinds.FileSelector(self.path, allow_not_found=True, recursive=True)
        found = [info for info in self.fs.get_file_info(selector) if info.type == self._kinds.FileType.File]
        names = {info.path.removeprefix(f"{self.path}/"): info.size for info in found}
        return {inside(name): size for name, size in names.items() if not name.endswith(PART)}

    def holds(self, name: str) -> bool:
        """Whether there is a run of this name."""
        return self.fs.get_file_info(f"{self.path}/{name}/run.json").type != self._kinds.FileType.NotFound

    def read(self, path: str, target: Path) -> None:
        """Copy a file from there."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self.fs.open_input_stream(f"{self.path}/{path}") as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 2**23)

    def contents(self, path: str) -> bytes:
        """The contents of a small file."""
        with self.fs.open_input_stream(f"{self.path}/{path}") as source:
            return bytes(source.read())

    def write(self, path: str, source: Path | bytes) -> None:
        """Copy a file to there; it is never seen half written."""
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
        """What lies in a checkpoint's folder is none from now on."""
        seal = f"{self.path}/{checkpoint}/{SEAL}"
        if self.fs.get_file_info(seal).type != self._kinds.FileType.NotFound:
            self.fs.delete_file(seal)

    def delete_file(self, path: str) -> None:
        """Delete a file."""
        self.fs.delete_file(f"{self.path}/{path}")

    def delete(self, checkpoint: str) -> None:
        """Delete a checkpoint."""
        self.unseal(checkpoint)
        self.fs.delete_dir(f"{self.path}/{checkpoint}")

    def _refusal(self, what: str, error: Exception) -> UserError:
        return UserError(
            f"{self.key}: cannot {what} {self.uri!r} ({reason(error)}); give a URI that pyarrow knows, such as "
            "s3://bucket/runs or file:///disk/runs, and its credentials by the environment"
        )


def check_storage(uri: str) -> None:
    """Raises UserError when a storage cannot be opened and written to, or does not answer."""
    found: list[UserError | None] = []

    def attempt() -> None:
        try:
            Storage(uri).check()
        except UserError as error:
            found.append(error)
        else:
            found.append(None)

    # Some clients look for credentials, or for a server, for many minutes.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not found:
        raise UserError(
            f"checkpoints.storage: {uri!r} has not answered for {PATIENCE:g} seconds; check the URI and its credentials"
        )
    if found[0]:
        raise found[0]


def inside(path: str) -> str:
    """A path of a file, if it stays in its folder. Raises UserError."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise UserError(f"{path!r} would leave the run's folder; it is not a file of a run, so remove it from there")
    return path


def is_uri(name: str) -> bool:
    return "://" in name


def uri_of(storage: str | None, name: str) -> str | None:
    """The URI of a run's copy, which `hedgerow resume` takes; settings of the file system stay behind it."""
    if storage is None:
        return None
    path, mark, settings = storage.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{settings}"


def uri_objection(uri: str) -> str | None:
    """What is wrong with a URI that a file gives, as far as it can be seen."""
    parts = urlsplit(uri)
    if not parts.scheme or not is_uri(uri):
        return f"{uri!r} is no URI; write s3://bucket/runs, gs://bucket/runs or file:///disk/runs, or null"
    if "@" in parts.netloc:
        return "a URI with credentials would be written into every record of the run; give them by the environment"
    return None


def fetch(uri: str, find_output: Callable[[Path], str]) -> Path:
    """Bring a run's folder back from its copy, to where its file wants it; returns the folder.

    find_output: from an experiment file to the folder of its runs. Raises UserError when there is no run, or when
    its folder is still here.
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
            raise UserError(f"{target} is still here: resume it, or move it away first")
        half = target.with_name(f".{name}.{os.getpid()}")
        try:
            for file in files:
                home.read(file, half / file)
            half.rename(target)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{uri}: cannot be fetched ({reason(error)}); check the URI and its credentials") from None
    return target


def reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
