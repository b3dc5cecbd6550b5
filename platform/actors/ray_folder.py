"""Private folder of a Ray that this process starts: its sockets, logs and token, for this user alone."""

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
"""Prefix of the folders' names. A socket's path has at most 107 bytes, and Ray's own part of it takes 64."""

LONGEST_PARENT = 28
"""Maximum length of a parent folder's path that leaves room for Ray's sockets."""

LOCK, TOKEN = "lock", "token"

PATH = "RAY_AUTH_TOKEN_PATH"
AUTH_MODE = "RAY_AUTH_MODE"
"""Ray's environment variable for the kind of authentication."""

GIVEN = {"RAY_AUTH_TOKEN", PATH}
"""Ray's environment variables for a token."""

SETTLED = 60.0
"""Age of a folder in seconds from which it is locked if its owner is alive."""

ATTEMPTS = 20
"""Number of attempts, 0.1 s apart, to remove a folder that processes still write to while they end."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Create a folder, which is removed at the end; also removes folders that killed processes have left.

    It is created in RAY_TMPDIR or TMPDIR, or in /tmp if TMPDIR is too long for the paths of sockets. Ray makes the
    folder that it is given accessible to all users, so give it a subfolder of this one. Raises OSError.
    """
    parent = default_temp_folder()
    if len(parent) > LONGEST_PARENT and "RAY_TMPDIR" not in os.environ:
        parent = "/tmp"
    _sweep(Path(parent))
    # mkdtemp gives no access to others.
    folder = Path(mkdtemp(prefix=PREFIX, dir=parent))
    try:
        # The operating system releases the lock of a process, however the process ends.
        with FileLock(folder / LOCK):
            yield folder
    finally:
        _remove(folder)


@contextmanager
def private_token(folder: Path) -> Iterator[None]:
    """Set a token for the Ray of this folder, unless the environment has one, or turns off authentication by token.

    Ray itself would write a token into the home folder, where others can read it.
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
    """Change the environment, and make Ray in this process read it again."""
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    reread_authentication()


def _sweep(parent: Path) -> None:
    """Remove folders of this user whose owner has ended."""
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
