"""Servers that the user has named for MLflow, and `${env:NAME}` in a URI.

A file of other people must not send the user's records or credentials to a server of their choice. The user names a
server by `--set tracking.uri=...`, by a value in Python, or by the variable MLFLOW_TRACKING_URI.
"""

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import nearest

ENVIRONMENT = re.compile(r"\$\{env:([^}]*)\}")

SECRET = re.compile(
    r"token|secret|passw|passphrase|credential|private|apikey|auth|cookie|webhook|(?<![a-z])(key|pat|dsn)s?(?![a-z])"
    r"|pass(?![a-z])|_pwd(?![a-z])"
)
"""Names, in lower case, of variables and settings whose values are secrets."""

OWN = "MLFLOW_TRACKING_URI"
"""The user's own setting of a server."""

CREDENTIALS: tuple[str, ...] = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
CREDENTIALS += ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_TRACKING_CLIENT_CERT_PATH")
"""Variables with credentials, which MLflow sends to any server."""

_named: set[str] = set()


def name_server(uri: object) -> None:
    """Note that the user has named this server in this process."""
    if isinstance(uri, str):
        _named.add(uri)


def is_local(uri: str) -> bool:
    """Whether a store is a file or a folder."""
    return "://" not in uri or urlsplit(uri).scheme.partition("+")[0] in ("sqlite", "file")


def check_server(uri: str | None) -> None:
    """Check the server of a new run, whose file names it. Raises UserError if it would get the user's credentials."""
    if uri is None or is_named(uri):
        return
    resolved = with_environment(uri, "tracking.uri")
    secrets = [f"${{env:{name}}}" for name in ENVIRONMENT.findall(uri)] + _credentials()
    if secrets and not is_local(resolved):
        raise UserError(
            f"tracking.uri: the file alone names {uri}, which would get {secrets[0]}; if you trust this server, set "
            f"{OWN} to it, or pass it as --set tracking.uri=..."
        )
    _named.add(uri)


def require_named(uri: str | None, place: str) -> None:
    """Raises UserError if the files of a run name a server that this user has not named. place: the run."""
    if uri is not None and not is_local(uri) and not is_named(uri):
        raise UserError(
            f"{place}: its files alone name {uri} for MLflow, since its record has no seal of yours; if you trust that "
            f"server, set {OWN} to it"
        )


def is_named(uri: str) -> bool:
    """Whether the user has named a server or a store. A variable as the whole value is the user's own setting."""
    return uri in _named or uri == os.environ.get(OWN) or ENVIRONMENT.fullmatch(uri) is not None


def _credentials() -> list[str]:
    """Names of the credentials that MLflow would send to a server."""
    file = Path("~/.mlflow/credentials").expanduser()
    return [name for name in CREDENTIALS if os.environ.get(name)] + [str(file)] * file.exists()


def with_environment(text: str, place: str) -> str:
    """The text with the value of every `${env:NAME}`. Raises UserError if one is not set."""
    for name in ENVIRONMENT.findall(text):
        if name not in os.environ:
            raise UserError(f"{place}: the environment variable {name!r} is not set{nearest(name, os.environ)}")
    return ENVIRONMENT.sub(lambda match: os.environ[match[1]], text)


def server_uri(uri: str) -> str:
    """URI of a store that the user has named, with the values of `${env:NAME}`. Raises UserError."""
    require_named(uri, "tracking.uri")
    resolved = with_environment(uri, "tracking.uri")
    if resolved.startswith("http") and has_credentials(resolved):
        raise UserError(
            f"tracking.uri: the value of {uri} has credentials, which MLflow would write into its messages; set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        )
    return resolved


def has_credentials(uri: str) -> bool:
    """Whether a URI contains a user, a password or a token, except as `${env:NAME}`."""
    text = ENVIRONMENT.sub("", uri)
    scheme, mark, rest = text.partition("://")
    if not mark or is_local(text):
        return False
    # A secret may contain "/" or "#", so that it is not a part of its own.
    before, at, _ = rest.partition("?")[0].rpartition("@")
    user, _, password = before.partition(":")
    is_database = not scheme.startswith("http")
    found = bool(at) and bool(password or (user and not is_database))
    return found or any(value and SECRET.search(key.lower()) for key, value in parse_qsl(rest.partition("?")[2]))
