"""The private folder of a Ray that is started here: its sockets, logs and token, for this user alone."""

import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from filelock import FileLock, Timeout

from hedgerow.platform.common.ray_private import default_temp_folder, reread_authentication

PREFIX = "hr-"
"""Start of the folders' names. A socket's path has 107 bytes at most, and Ray's own part of it takes 64."""

LONGEST_PARENT = 28
"""Characters of a parent folder that leave room for Ray's sockets."""

LOCK, TOKEN = "lock", "token"

PATH = "RAY_AUTH_TOKEN_PATH"
AUTH_MODE = "RAY_AUTH_MODE"
"""Ray's environment variable of the kind of authentication."""

GIVEN = {"RAY_AUTH_TOKEN", PATH}
"""Ray's variables for a token."""

SETTLED = 60.0
"""Seconds after which a folder is locked if its owner is alive."""

ATTEMPTS = 20
"""How often, 0.1 s apart, a folder is removed into which processes that are about to end still write."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder, removed at the end, with those that killed processes have left.

    It is made in RAY_TMPDIR or TMPDIR, or in /tmp if TMPDIR is too long for the paths of sockets. Ray opens the folder
    that it is given to everybody, so that should be one in here. Raises OSError.
    """
    parent = default_temp_folder()
    if len(parent) > LONGEST_PARENT and "RAY_TMPDIR" not in os.environ:
        parent = "/tmp"
    _sweep(Path(parent))
    # mkdtemp gives no rights to others.
    folder = Path(mkdtemp(prefix=PREFIX, dir=parent))
    try:
        # The operating system releases the lock of a process, however that ends.
        with FileLock(folder / LOCK):
            yield folder
    finally:
        _remove(folder)


@contextmanager
def private_token(folder: Path) -> Iterator[None]:
    """A token for the Ray of this folder, unless the environment has one, or says that there is none.

    Ray itself would write one into the home folder, for others to read.
    """
    if os.environ.get(AUTH_MODE, "token") != "token" or GIVEN & os.environ.keys():
        yield
        return
    file = folder / TOKEN
    file.touch(0o600, exist_ok=False)
    file.write_text(secrets.token_hex(32))
    before = os.environ.get(AUTH_MODE)
    _authenticate({AUTH_MODE: "token", PATH: str(file)})
    try:
        yield
    finally:
        _authenticate({AUTH_MODE: before, PATH: None})


def _authenticate(settings: Mapping[str, str | None]) -> None:
    """Change the environment, and let Ray in this process read it again."""
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    reread_authentication()


def _sweep(parent: Path) -> None:
    """Remove folders of this user whose owner is gone."""
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError, Timeout):
            status = lock.parent.stat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > SETTLED:
                with FileLock(lock, blocking=False):
                    _remove(lock.parent)


def _remove(folder: Path) -> None:
    for _ in range(ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
