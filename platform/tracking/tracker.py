"""Metrics go first to a local file, and from there to MLflow, off the training path."""

import json
import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hedgerow.platform.common.errors import first_line
from hedgerow.platform.storage.atomic_file import write_whole
from hedgerow.platform.tracking.records import RunRound, read_objects

Record = dict[str, Any]

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds until records that MLflow did not take are sent again: at first, and, doubled each time, at most."""


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
    """A daemon thread that carries records to MLflow in batches.

    Training never waits for it. A slow server makes it lag; to an unreachable one it sends again, after pauses, what
    has not arrived. Everything is in the local file, from which `hedgerow push` sends later what a server missed.

    store: makes the MLflow side, inside the thread (importing mlflow takes seconds); made anew after a failure, it
    knows what has arrived. It has `log(records)`. patience: see `finish`.
    """

    def __init__(self, store: Callable[[], Any], patience: float):
        self._make_store, self._patience = store, patience
        self._store: Any = None
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="mlflow-tracker", daemon=True)
        self._finishing, self._abandoned = threading.Event(), threading.Event()
        self._closing: Callable[[Any], None] = lambda store: None
        self._failure: str | None = None
        self.error: str | None = None
        """Reason why MLflow does not have everything; known once `finish` has returned."""

    def log(self, record: Record) -> None:
        """Hand over one round; returns at once. The first one starts the thread."""
        self._hand_over(record)

    def finish(self, closing: Callable[[Any], None]) -> None:
        """Send what remains, then do `closing(store)`, within `patience` seconds in all. Never fails: see `error`.

        At the deadline, and at Ctrl-C, which it passes on, the thread is abandoned: it ends with the process, or when
        the server answers.
        """
        self._closing = closing
        self._finishing.set()
        try:
            self._hand_over(None)
            self._thread.join(self._patience)
        finally:
            unfinished = self._thread.is_alive()
            self._abandoned.set()
        self.error = self._failure or (f"no answer within {self._patience:g} s" if unfinished else None)

    def _hand_over(self, record: Record | None) -> None:
        self._records.put(record)
        if not self._thread.ident:
            self._thread.start()

    def _work(self) -> None:
        waiting: list[Record] = []
        pause, ending, reached = FIRST_PAUSE, False, False
        while not self._abandoned.is_set():
            # What arrives while one batch is on its way makes up the next.
            while not self._records.empty() or (not waiting and not ending):
                record = self._records.get()
                if record is None:
                    ending = True
                else:
                    waiting.append(record)
            if self._attempt(partial(self._send, waiting)):
                waiting, pause, reached = [], FIRST_PAUSE, True
                if ending:
                    if not self._abandoned.is_set():
                        self._attempt(lambda: self._closing(self._store))
                    return
            elif ending and not reached:
                return
            else:
                if self._finishing.wait(pause):
                    self._abandoned.wait(FIRST_PAUSE)
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
            self._failure = first_line(error)
            return False
        self._failure = None
        return True
