"""Code and server that a user has named for a run, sealed with a key that only this user has.

A run folder may come from other people, with code and a server that they chose. Only a record with the seal of this
user counts.
"""

import hmac
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_data_dir

from hedgerow.algorithms.core.own_code import own_code
from hedgerow.platform.common.servers import name_server

SIZE = 32
"""Bytes of the key."""


def sealed_ownership(server: str | None) -> dict[str, Any]:
    """Entry of run.json: folders of the user's own code, modules that `--import` has named, and `tracking.uri`."""
    values = {
        "folders": list(dict.fromkeys([*own_code().folders, *own_code().found])),
        "imports": list(own_code().modules),
        "server": server,
    }
    key = _key(create=True)
    return {**values, "seal": None if key is None else _seal(values, key)}


def accept(folder: Path) -> None:
    """Allow the code and the server that the record of a run folder names, if this user has sealed it."""
    key, entry = _key(create=False), None
    # A damaged record is reported by the command, which reads all of it.
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        entry = json.loads((folder / "run.json").read_bytes()).get("ownership")
    if key is None or not isinstance(entry, dict) or "seal" not in entry:
        return
    values = {name: value for name, value in entry.items() if name != "seal"}
    if hmac.compare_digest(_seal(values, key), str(entry["seal"])):
        own_code().add(entry["folders"], entry["imports"])
        name_server(entry["server"])


def _seal(values: dict[str, Any], key: bytes) -> str:
    return hmac.new(key, json.dumps(values, sort_keys=True).encode(), "sha256").hexdigest()


def _key(create: bool) -> bytes | None:
    """The user's key; None if there is none and none can be written."""
    file = Path(user_data_dir("hedgerow")) / "key"
    with suppress(OSError):
        if create and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            aside = file.with_name(f".key-{os.getpid()}-{secrets.token_hex(4)}")
            try:
                with os.fdopen(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as stream:
                    stream.write(secrets.token_bytes(SIZE))
                # Of several commands that start at once, the first one's key remains.
                with suppress(FileExistsError):
                    os.link(aside, file)
            finally:
                aside.unlink(missing_ok=True)
        key = file.read_bytes()
        return key if len(key) == SIZE else None
    return None
