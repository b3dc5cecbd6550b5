"""Body of the command `ui`: serves MLflow's web page for a store on the loopback interface."""

import http.client
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.common.servers import CREDENTIALS, is_local
from hedgerow.platform.config.experiment import Experiment, Tracking
from hedgerow.platform.config.loader import read_experiment
from hedgerow.platform.tracking.run_folder import RunFolder, find_run

PAGE_SETTINGS = {
    # Its job processes take longest to start.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Packages of the server warn of each other.
    "PYTHONWARNINGS": "ignore",
    # Modules in the working directory do not take the place of installed ones.
    "PYTHONSAFEPATH": "1",
}
"""Environment variables of MLflow's server, unless the user has set them."""

FIRST_PORT = 5000

DEFAULT_OUTPUT = Path("runs")


def page_command(uri: str, port: int) -> list[str]:
    """Command of MLflow's server, on the loopback interface, since it has no password; one process is enough.

    Other users of the machine see it, so that a URI that may have a password is in `page_environment` instead.
    """
    store = ["--backend-store-uri", uri] if is_local(uri) else []
    place = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level warning"]
    return [sys.executable, "-P", "-m", "mlflow", "server", *store, *place]


def page_environment(uri: str) -> dict[str, str]:
    """Environment of MLflow's server for a store.

    The server opens the places of artifacts that the store names. It has no credentials for them; without the two
    values, it would read them in ~/.mlflow/credentials.
    """
    outside = {name: value for name, value in os.environ.items() if name not in CREDENTIALS}
    none = {"MLFLOW_TRACKING_USERNAME": "none", "MLFLOW_TRACKING_PASSWORD": "none"}
    return PAGE_SETTINGS | outside | none | {"MLFLOW_BACKEND_STORE_URI": uri}


def open_page(run: str | None, uri: str | None, port: int | None, browse: bool) -> None:
    """Serve the page of a store until Ctrl-C.

    run: serve the store of this run. uri: serve this store. Neither: the SQLite store in ./runs. port: None: the first
    free one from 5000 on. browse: open the page in a browser. Raises UserError if the store does not exist or the port
    is in use.
    """
    if run and uri:
        raise UserError("--uri: a run names its own store; give either RUN or --uri")
    uri, experiment = _store_of(find_run(run)) if run else (uri or _default_store(), Tracking().experiment)
    if uri.startswith(("http://", "https://")):
        # A tracking server has its own page.
        _show(_address(uri.rstrip("/"), uri, experiment), browse)
    else:
        _serve(_check_store(uri), experiment, _free_port(port), browse)


def hints(recorded: Iterable[tuple[Experiment, Path]]) -> list[str]:
    """Returns a sentence for each store of these runs and searches, with the command that opens it.

    recorded: experiments and their folders.
    """
    commands: dict[tuple[str, str], str] = {}
    for experiment, folder in recorded:
        tracking = experiment.tracking
        if not tracking.enabled:
            continue
        store = tracking.uri or str(Path(experiment.output).absolute())
        is_default = (store, tracking.experiment) == (str(DEFAULT_OUTPUT.absolute()), Tracking().experiment)
        named = "" if is_default else f" {shlex.quote(str(folder))}"
        commands[store, tracking.experiment] = f"hedgerow ui{named}"
    return [f"`{command}` opens MLflow's page on these runs." for command in commands.values()]


def _store_of(folder: RunFolder) -> tuple[str, str]:
    """Returns the store of a run, and its MLflow experiment."""
    from hedgerow.platform.tracking.mlflow_store import store_uri

    try:
        return store_uri(folder), read_experiment(folder.experiment).tracking.experiment
    except FileNotFoundError as error:
        raise UserError(f"{folder.path}: {error}; `hedgerow push {folder.path}` records the run") from None


def _default_store() -> str:
    file = DEFAULT_OUTPUT / "hedgerow.db"
    if not file.exists():
        raise UserError(
            f"there is no {file} here; run an experiment first, or name a run or a store: `hedgerow ui RUN` or "
            "`hedgerow ui --uri sqlite:///FILE`"
        )
    from hedgerow.platform.tracking.mlflow_store import default_uri

    return default_uri(DEFAULT_OUTPUT)


def _check_store(uri: str) -> str:
    """URI of a store with an absolute path. Raises UserError for a local one that does not exist."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    if uri.startswith("sqlite"):
        try:
            url = make_url(uri)
        except ArgumentError:
            raise UserError(f"--uri: {uri!r} is not a URI of a database; write sqlite:///FILE") from None
        if not url.database or not Path(url.database).is_file():
            raise UserError(
                f"--uri: there is no database {url.database or 'in memory'}; write sqlite:///FILE of one that exists"
            )
        return url.set(database=str(Path(url.database).absolute())).render_as_string(hide_password=False)
    elif "://" not in uri or uri.startswith("file:"):
        path = Path(uri.removeprefix("file://"))
        if path.is_file():
            raise UserError(f"--uri: {uri} is a file; write sqlite:///{uri}")
        if not path.is_dir():
            raise UserError(f"--uri: there is no store {uri}; write sqlite:///FILE, or the URI of a server")
        return str(path.absolute())
    return uri


def _free_port(port: int | None) -> int:
    """Returns the port if it is free; for None the first free one. Raises UserError."""
    for candidate in [port] if port else range(FIRST_PORT, FIRST_PORT + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return candidate
    if port:
        raise UserError(f"--port: {port} is not free; name another one, or leave it out for the first free one")
    raise UserError(f"--port: {FIRST_PORT} to {FIRST_PORT + 99} are all in use; name a free one")


def _serve(uri: str, experiment: str, port: int, browse: bool) -> None:
    """Run MLflow's server until this process is interrupted. Raises UserError if the server ends before."""
    click.echo("starting MLflow's page ... (Ctrl-C ends it)", err=True)
    # MLflow adds its working directory to the import path.
    with TemporaryDirectory(prefix="hedgerow-ui-") as folder:
        # In a process group of its own, so that the server's worker ends with it.
        server = subprocess.Popen(
            page_command(uri, port), cwd=folder, env=page_environment(uri), stdout=sys.stderr, start_new_session=True
        )
        try:
            while server.poll() is None and not _answers(port):
                time.sleep(0.2)
            if server.poll() is None:
                _show(_address(f"http://127.0.0.1:{port}", uri, experiment), browse)
            raise UserError(f"MLflow's server ended with exit code {server.wait()}; check the store")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(port: int) -> bool:
    # Not urllib, which would use a proxy from the environment.
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _address(server: str, uri: str, experiment: str) -> str:
    """Address of the list of runs of an experiment, with its columns; the home page if the store does not have it or
    does not reply.
    """
    from hedgerow.platform.tracking.mlflow_store import SHARED_VIEW, VIEW_TAG, MlflowClient

    try:
        match = MlflowClient(uri).get_experiment_by_name(experiment)
    except Exception as error:
        click.echo(f"hedgerow: MLflow: {first_line(error)}", err=True)
        match = None
    if match is None:
        return f"{server}/"
    view = f"?viewStateShareKey={SHARED_VIEW}" if VIEW_TAG in match.tags else ""
    return f"{server}/#/experiments/{match.experiment_id}/runs{view}"


def _show(address: str, browse: bool) -> None:
    click.echo(f"MLflow's page: {address}")
    if browse and not webbrowser.open(address):
        click.echo("--open: there is no browser on this machine; open the address yourself", err=True)
