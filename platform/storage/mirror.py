"""Copy of a run's folder in its storage: the run works in its local folder, which is copied at its checkpoints."""

import os
import threading
from pathlib import Path, PurePosixPath

from hedgerow.platform.common.errors import one_line
from hedgerow.platform.storage.checkpoint import flaw, is_complete, newest_first, order_of
from hedgerow.platform.storage.history import METRICS
from hedgerow.platform.storage.remote import SEAL, Storage, uri_of

CHECK_SECONDS = 1.0
"""Seconds between two checks for new checkpoints."""

Stamp = tuple[int, int]
"""Modification time of a file (EARLIER: by an earlier process) and its size; another stamp means another file."""

EARLIER = 0

UNKNOWN = (-1, -1)


class Mirror:
    """Copies a run's folder to its storage whenever there is a new checkpoint, in a thread: the run never waits for it.

    storage: None copies nothing. Storage errors do not stop a run: the copy is tried again at the next checkpoint, and
    errors are reported at the end.
    """

    def __init__(self, folder: Path, storage: str | None):
        self.folder, self.error = folder, ""
        uri = uri_of(storage, folder.name)
        self.storage = Storage(uri) if uri else None
        self._there: dict[str, Stamp] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        if self.storage:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.storage:
            self._ended.set()
            self._thread.join()
            self._attempt()

    @property
    def warnings(self) -> list[str]:
        """A sentence if the copy is incomplete."""
        if not self.error:
            return []
        return [
            f"checkpoints.storage: the copy is incomplete ({self.error}); nothing is lost: all files are in "
            f"{self.folder}"
        ]

    def copy(self) -> None:
        """Make the copy equal to the folder, except for damaged checkpoints.

        A checkpoint is copied before those that it replaces are deleted, and is never older than the records next to
        it. A copy by an earlier process stays, whatever happens to the local checkpoint, until there is a newer one.
        """
        assert self.storage is not None
        here = self._files()
        news = [path for path, stamp in here.items() if self._there.get(path) != stamp]
        others = [path for path in news if not _checkpoint(path)]
        records = {path: (self.folder / path).read_bytes() for path in others}
        for checkpoint in sorted({_checkpoint(path) for path in news} - {""}):
            # A checkpoint that is damaged or was deleted meanwhile leaves its copy unchanged.
            if flaw(self.folder / checkpoint) is None:
                files = {path: stamp for path, stamp in here.items() if _checkpoint(path) == checkpoint}
                if self._is_copied(checkpoint, files):
                    self._there |= files
                else:
                    self._copy_checkpoint(checkpoint, files)
        for path, content in records.items():
            if PurePosixPath(path).name != METRICS or self._may_replace(_parent(path)):
                self.storage.write(path, content)
                self._there[path] = here[path]
        present = {_checkpoint(path) for path in here}
        for checkpoint in sorted({_checkpoint(path) for path in self._there} - present):
            if self._is_replaced(checkpoint):
                self.storage.delete(checkpoint)
                self._there = {path: stamp for path, stamp in self._there.items() if _checkpoint(path) != checkpoint}

    def _is_copied(self, checkpoint: str, files: dict[str, Stamp]) -> bool:
        """Whether an earlier process has copied this checkpoint. Its marker has the SHA-256 of all other files."""
        assert self.storage is not None
        if any(self._there.get(path) != (EARLIER, size) for path, (_, size) in files.items()):
            return False
        seal = f"{checkpoint}/{SEAL}"
        return self.storage.contents(seal) == (self.folder / seal).read_bytes()

    def _is_replaced(self, checkpoint: str) -> bool:
        """Whether a checkpoint that no longer exists locally may be deleted from the copy."""
        last = next(filter(is_complete, newest_first(self.folder / _parent(checkpoint))), None)
        if last is None:
            return False
        earlier = self._there.get(f"{checkpoint}/{SEAL}", UNKNOWN)[0] == EARLIER
        return not earlier or order_of(last) > order_of(PurePosixPath(checkpoint))

    def _copy_checkpoint(self, checkpoint: str, files: dict[str, Stamp]) -> None:
        assert self.storage is not None
        self._there |= dict.fromkeys(files, UNKNOWN)
        self.storage.unseal(checkpoint)
        for path in sorted(files, key=lambda path: path.endswith(SEAL)):
            try:
                if path.endswith(SEAL):
                    self._copy_metrics(_parent(_parent(checkpoint)))
                self.storage.write(path, self.folder / path)
            except FileNotFoundError:
                if (self.folder / path).exists():
                    raise
                # Newer checkpoints have replaced it meanwhile.
                return
            self._there[path] = files[path]

    def _copy_metrics(self, run: str) -> None:
        """Copy the records of a run, at their current length."""
        assert self.storage is not None
        path = f"{run}/{METRICS}" if run else METRICS
        file = self.folder / path
        if file.exists() and self._may_replace(run):
            stat = file.stat()
            if self._there.get(path) != (stamp := (stat.st_mtime_ns, stat.st_size)):
                self.storage.write(path, file)
                self._there[path] = stamp

    def _may_replace(self, run: str) -> bool:
        """Whether no checkpoint that an earlier process copied, and that is still needed, refers to a run's records."""
        copies = {
            _checkpoint(path) for path, (time, _) in self._there.items() if time == EARLIER and path.endswith(SEAL)
        }
        mine = [checkpoint for checkpoint in copies if _parent(_parent(checkpoint)) == run]
        return all(flaw(self.folder / checkpoint) is None or self._is_replaced(checkpoint) for checkpoint in mine)

    def _files(self) -> dict[str, Stamp]:
        """Files to copy: all but unfinished writes and Ray Tune's own records, which resuming does not need."""
        stamps: dict[str, Stamp] = {}
        for top, folders, names in os.walk(self.folder, onerror=_raise):
            folders[:] = [name for name in folders if not name.startswith(".") and name != "tune"]
            for name in names:
                path = Path(top) / name
                # A link may lead to any file of the user.
                if not name.startswith(".") and path.suffix != ".tmp" and not path.is_symlink():
                    try:
                        stat = path.stat()
                    except FileNotFoundError:
                        continue
                    stamps[path.relative_to(self.folder).as_posix()] = (stat.st_mtime_ns, stat.st_size)
        return stamps

    def _work(self) -> None:
        previous: set[Path] | None = None
        while not self._ended.is_set():
            now = {*self.folder.glob("checkpoints/round-*"), *self.folder.glob("experts/*/checkpoints/round-*")}
            if now != previous:
                previous = now
                self._attempt()
            self._ended.wait(CHECK_SECONDS)

    def _attempt(self) -> None:
        assert self.storage is not None
        try:
            if not self._there:
                # Files that an earlier process has copied.
                self._there = {path: (EARLIER, size) for path, size in self.storage.files().items()}
            self.copy()
        except Exception as error:  # storage errors must never stop a run
            self.error = one_line(error)
        else:
            self.error = ""


def _raise(error: OSError) -> None:
    """Ignore a missing folder, which a newer one replaced; after any other error, files would seem to be missing."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _checkpoint(path: str) -> str:
    """Path of the checkpoint folder to which a file belongs, or "" if it belongs to none."""
    folder, _, name = path.rpartition("/")
    parent, _, last = folder.rpartition("/")
    return folder if name and last.startswith("round-") and parent.split("/")[-1] == "checkpoints" else ""
