"""Metrics go first to a local file, and from there to MLflow, off the training path."""

import json
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hedgerow.platform.errors import first_line
from hedgerow.platform.files import write_whole
from hedgerow.platform.records import RunRound, read_objects

Record = dict[str, Any]

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds until what MLflow did not take is sent again: at first, and, doubled each time, at most."""

PATIENCE = 20.0
"""Seconds in which a server that has gone down may come back once everything else is done."""


class RunLog:
    """The append-only local file of a run's metrics: one JSON object per round.

    model: what each of them must fit.
    """

    def __init__(self, path: Path, model: type[BaseModel] = RunRound):
        self.path, self.model = path, model

    def append(self, record: Record) -> None:
        """Add one round."""
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def replace(self, records: Iterable[Record]) -> None:
        """Make the file hold just these records, atomically: what a resumed run continues from."""
        write_whole(self.path, "".join(json.dumps(record) + "\n" for record in records))

    def read(self) -> list[Record]:
        """All records; a last line that a crash cut off is left out. Raises UserError where a line is damaged."""
        return read_objects(self.path, self.model) if self.path.exists() else []


def flatten_params(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """{"algorithm": {"lr": 0.1}} -> {"algorithm.lr": "0.1"}"""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten_params(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


class Tracker:
    """A thread that carries records to MLflow in batches.

    Training never waits for it. A server that is slow makes it lag; to one that is down it sends again, after pauses,
    what has not arrived. Where it is still down in the end, `error` has the reason, and everything is in the local
    file, from which `hedgerow push` sends it later.

    store: makes the MLflow side, inside the thread (importing mlflow takes seconds); made anew after a failure, it
    knows what has arrived. It has `log(records)`.
    """

    def __init__(self, store: Callable[[], Any]):
        self._make_store = store
        self._store: Any = None
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="mlflow-tracker", daemon=True)
        self._finishing = threading.Event()
        self.error: str | None = None

    def log(self, record: Record) -> None:
        """Hand over one round; returns at once. The first one starts the thread."""
        self._hand_over(record)

    def finish(self, closing: Callable[[Any], None]) -> None:
        """Wait until everything is sent, then do `closing(store)`. Never raises: see `error`.

        A server that took something before, and is down now, has PATIENCE seconds to come back.
        """
        self._finishing.set()
        self._hand_over(None)
        self._thread.join()
        if self.error is None:
            self._attempt(lambda: closing(self._store))

    def _hand_over(self, record: Record | None) -> None:
        self._records.put(record)
        if not self._thread.ident:
            self._thread.start()

    def _work(self) -> None:
        waiting: list[Record] = []
        pause, until, reached = FIRST_PAUSE, math.inf, False
        while True:
            # What arrives while one batch is on its way makes up the next.
            while not self._records.empty() or (not waiting and until == math.inf):
                record = self._records.get()
                if record is None:
                    until = time.monotonic() + PATIENCE
                else:
                    waiting.append(record)
            if self._attempt(partial(self._send, waiting)):
                waiting, pause, reached, self.error = [], FIRST_PAUSE, True, None
                if until < math.inf:
                    return
            elif until < math.inf and (not reached or time.monotonic() > until):
                return
            else:
                if self._finishing.wait(pause):
                    time.sleep(FIRST_PAUSE)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _send(self, records: list[Record]) -> None:
        store = self._store or self._make_store()
        self._store = None
        store.log(records)
        self._store = store

    def _attempt(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # the tracking server's troubles must never end a run
            self.error = first_line(error)
            return False
        return True
