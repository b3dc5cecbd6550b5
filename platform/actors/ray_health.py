"""Detection of a Ray whose own processes have died, before Ray ends this process because of it."""

import os
import shutil
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import ray

from hedgerow.platform.actors.ray_folder import PREFIX
from hedgerow.platform.common.errors import RayLost, say
from hedgerow.platform.common.ray_private import kill_node, node_folder, node_processes, started_node
from hedgerow.platform.storage.run_lock import Claim
from hedgerow.platform.tracking.run_folder import RunFolder

LOOK = 1.0
"""Seconds between two checks."""

PATIENCE = 50.0
"""Seconds that the GCS of a cluster has to come back. Ray ends every process that has been without it for 60 s."""

REFUSALS = 3
"""Number of consecutive refused connections after which a raylet counts as ended."""

LEAVE = 20.0
"""Seconds that a run has to end cleanly once its Ray is lost."""

GCS_ENDED, RAYLET_ENDED = "Ray's control store (GCS) has ended", "the raylet of this node has ended"


class Server:
    """A process of Ray that accepts connections, and the time since when it does not.

    refusals: number of consecutive refusals that prove its end; None: only `PATIENCE` seconds without a connection do.
    """

    def __init__(self, address: tuple[str, int], refusals: int | None = None):
        self.address, self.refusals = address, refusals
        self._refused = 0
        self._down: float | None = None

    def look(self) -> bool:
        """Check whether it accepts connections, and return the answer."""
        answer, now = _accepts(*self.address), time.monotonic()
        self._refused = self._refused + 1 if answer is False else 0
        self._down = None if answer else self._down or now
        return bool(answer)

    @property
    def has_ended(self) -> bool:
        """Whether it counts as ended after the checks so far."""
        refused = self.refusals is not None and self._refused >= self.refusals
        return refused or (self._down is not None and time.monotonic() >= self._down + PATIENCE)


class RayHealth:
    """Checks whether Ray's control store (GCS) and the raylet of this node accept connections.

    Many calls to a Ray that has lost its GCS do not return, and after 60 s Ray ends the process. So every loop that
    waits for Ray calls `check` first. If a run hangs in such a call anyway, a thread ends the process.

    folder: run folder, marked as interrupted when Ray is lost, unless `claim` on that folder is lost as well.
    """

    def __init__(self, folder: Path, claim: Claim | None):
        self.folder, self.claim = folder, claim
        self._children: list[psutil.Process] = []
        self.gcs = Server(_gcs())
        if _accepts(*self.gcs.address) is False:
            raise self._lost(GCS_ENDED)
        context = ray.get_runtime_context()
        mine = next(known for known in ray.nodes() if known["NodeID"] == context.get_node_id())
        self.raylet = Server((mine["NodeManagerAddress"], mine["NodeManagerPort"]), REFUSALS)
        self._node = started_node()
        self._own = node_processes(self._node) if self._node else []
        self._children = psutil.Process(self._own[0].pid).children(recursive=True) if self._own else []
        self._looked, self._answers = time.monotonic(), True
        self._ended = threading.Event()
        threading.Thread(target=self._end_in_time, name="ray-health", daemon=True).start()

    def check(self) -> bool:
        """Whether Ray answers. Raises RayLost when Ray is lost."""
        if self._ended.is_set():
            return True
        # These processes are not restarted, and no call detects their end sooner.
        for process, sentence in zip(self._own, (RAYLET_ENDED, GCS_ENDED), strict=False):
            if process.poll() is not None:
                raise self._lost(sentence)
        if not self._own and time.monotonic() >= self._looked + LOOK:
            self._look()
        return self._answers

    def _look(self) -> None:
        self._looked = time.monotonic()
        answers = [server.look() for server in (self.raylet, self.gcs)]
        for server, sentence in ((self.raylet, RAYLET_ENDED), (self.gcs, GCS_ENDED)):
            if server.has_ended:
                raise self._lost(sentence)
        self._answers = all(answers)

    def close(self) -> None:
        """Stop checking."""
        self._ended.set()

    def _lost(self, what: str) -> RayLost:
        # The agents of a raylet would search for their GCS for another minute.
        for process in self._children:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return RayLost(f"{what}; `hedgerow resume {self.folder}` continues from the last checkpoint")

    def _end_in_time(self) -> None:
        seconds = LEAVE
        while not self._ended.wait(LOOK):
            try:
                self.check()
            except RayLost as error:
                seconds -= LOOK
                if seconds <= 0:
                    self._end(error)
                    return

    def _end(self, error: RayLost) -> None:
        """End the process from here, since its run hangs in a call to Ray. A finished run keeps its status."""
        folder = RunFolder(self.folder)
        with suppress(Exception):
            if folder.record()["status"] == "finished":
                # The run is finished, so nothing is interrupted and this thread must not end the process.
                return
        try:
            # The process must end even if this fails, for example on a full disk.
            with suppress(Exception):
                if not (self.claim and self.claim.is_lost):
                    folder.update(status="interrupted")
            with suppress(Exception):
                say(str(error))
            with suppress(Exception):
                self._remove_ray()
        finally:
            os._exit(2)

    def _remove_ray(self) -> None:
        """End the processes of a Ray that this process started, and remove its folder."""
        if not self._node:
            return
        kill_node(self._node)
        folder = node_folder(self._node).parent
        if folder.name.startswith(PREFIX):
            shutil.rmtree(folder, ignore_errors=True)


def gcs_answers() -> bool:
    """Whether the GCS of the Ray that this process uses accepts connections."""
    return _accepts(*_gcs()) is True


def _gcs() -> tuple[str, int]:
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return host.strip("[]"), int(port)


def _accepts(host: str, port: int) -> bool | None:
    """Whether a port accepts connections; None if unknown.

    An attempt may time out, or fail on this side, without file descriptors or ports.
    """
    try:
        socket.create_connection((host, port), timeout=2 * LOOK).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    except OSError:
        return None
    return True
