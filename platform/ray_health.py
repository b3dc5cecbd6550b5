"""Detection of a Ray whose own processes have died, before Ray ends this process for it."""

import os
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import ray

from hedgerow.platform.errors import RayLost
from hedgerow.platform.ray_folder import PREFIX
from hedgerow.platform.runs import RunFolder

LOOK = 1.0
"""Seconds between two looks."""

PATIENCE = 50.0
"""Seconds in which the GCS of a cluster may come back. Ray ends every process that has missed it for 60 s."""

LEAVE = 20.0
"""Seconds that a run is given to end in order once its Ray is lost."""

GCS_ENDED, RAYLET_ENDED = "Ray's control store (GCS) has ended", "the raylet of this node has ended"


class RayHealth:
    """Looks whether Ray's control store (GCS) and the raylet of this node accept connections.

    Many calls to a Ray that has lost its GCS do not return, and after 60 s Ray ends the process. So every loop that
    waits for Ray calls `check` first. Where a run hangs in such a call all the same, a thread ends the process.

    folder: of the run that is interrupted when Ray is lost.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._children: list[psutil.Process] = []
        self.gcs = _gcs()
        if not _accepts(*self.gcs):
            raise self._lost(GCS_ENDED)
        context = ray.get_runtime_context()
        mine = next(known for known in ray.nodes() if known["NodeID"] == context.get_node_id())
        self.raylet = mine["NodeManagerAddress"], mine["NodeManagerPort"]
        self._node = _started_here()
        self._own = (
            [self._node.all_processes[name][0].process for name in ("raylet", "gcs_server")] if self._node else []
        )
        self._children = psutil.Process(self._own[0].pid).children(recursive=True) if self._own else []
        self._looked, self._answers = time.monotonic(), True
        self._down: float | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._end_in_time, name="ray-health", daemon=True).start()

    def check(self) -> bool:
        """Whether Ray answers. Raises RayLost when it is lost."""
        if self._ended.is_set():
            return True
        # These are not started again, and no call finds out sooner.
        for process, sentence in zip(self._own, (RAYLET_ENDED, GCS_ENDED), strict=False):
            if process.poll() is not None:
                raise self._lost(sentence)
        if not self._own and time.monotonic() >= self._looked + LOOK:
            self._look()
        return self._answers

    def _look(self) -> None:
        self._looked = time.monotonic()
        if not _accepts(*self.raylet):
            raise self._lost(RAYLET_ENDED)
        self._answers = _accepts(*self.gcs)
        if self._answers:
            self._down = None
            return
        self._down = self._down or time.monotonic()
        if time.monotonic() >= self._down + PATIENCE:
            raise self._lost(GCS_ENDED)

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()

    def _lost(self, what: str) -> RayLost:
        # The agents of a raylet look for their GCS for another minute.
        for process in self._children:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return RayLost(f"{what}; `hedgerow resume {self.folder}` continues from the last checkpoint")

    def _end_in_time(self) -> None:
        while not self._ended.wait(LOOK):
            try:
                self.check()
            except RayLost as error:
                if not self._ended.wait(LEAVE):
                    self._end(error)

    def _end(self, error: RayLost) -> None:
        """End the process from here: the thread that should do so hangs in a call to Ray."""
        RunFolder(self.folder).update(status="interrupted")
        print(f"hedgerow: {error}", file=sys.stderr, flush=True)
        if self._node:
            self._node.kill_all_processes(check_alive=False, allow_graceful=False)
            folder = Path(self._node.get_temp_dir_path()).parent
            if folder.name.startswith(PREFIX):
                shutil.rmtree(folder, ignore_errors=True)
        os._exit(2)


def _started_here() -> Any:
    """The processes of a Ray that this process has started; None: of one that it has found."""
    node = ray._private.worker.global_worker.node
    return node if node is not None and node.is_head() else None


def gcs_answers() -> bool:
    """Whether the GCS of the Ray that this process uses accepts connections."""
    return _accepts(*_gcs())


def _gcs() -> tuple[str, int]:
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return host.strip("[]"), int(port)


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2 * LOOK).close()
    except OSError:
        return False
    return True
