"""Writes metrics to a local file first, and sends them to MLflow from a background thread."""

import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hedgerow.platform.common.errors import one_line
from hedgerow.platform.storage.atomic_file import write_whole
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.sealed_json import seal
from hedgerow.platform.tracking.records import RunRound, read_objects

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds until records that MLflow did not take are sent again: the first pause doubles up to the longest."""


class RunLog:
    """Append-only local file of a run's metrics: one JSON object per round, with its checksum.

    model: schema that each object must match.
    """

    def __init__(self, path: Path, model: type[BaseModel] = RunRound):
        self.path, self.model = path, model

    def append(self, record: RoundRecord) -> None:
        """Append one round."""
        with self.path.open("a") as file:
            file.write(seal(record) + "\n")

    def replace(self, records: Iterable[RoundRecord]) -> None:
        """Replace the contents by these records, atomically; a resumed run continues from them."""
        write_whole(self.path, "".join(seal(record) + "\n" for record in records))

    def read(self) -> list[RoundRecord]:
        """Returns all records, except a last line that a crash cut off. Raises UserError if a line is damaged."""
        return read_objects(self.path, self.model) if self.path.exists() else []


def flatten_params(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """{"algorithm": {"lr": 0.1}} -> {"algorithm.lr": "0.1"}, without values that are None."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten_params(value, f"{prefix}{key}."))
        elif value is not None:
            flat[f"{prefix}{key}"] = str(value)
    return flat


class Tracker:
    """Daemon thread that sends records to MLflow in batches.

    Training never waits for it. If the server is slow, the thread lags behind. If the server is unreachable, the thread
    pauses and sends the missing records again. The local file has all records, and `hedgerow push` later sends those
    that the server missed.

    store: creates the MLflow side, with a method `log(records)`, inside the thread, since importing mlflow takes
    seconds. After a failure a new one is created, which knows the records that have arrived. patience: see `finish`.
    """

    def __init__(self, store: Callable[[], Any], patience: float):
        self._make_store, self._patience = store, patience
        self._store: Any = None
        self._records: queue.SimpleQueue[RoundRecord | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="mlflow-tracker", daemon=True)
        self._finishing, self._abandoned = threading.Event(), threading.Event()
        self._closing: Callable[[Any], None] = lambda store: None
        self._failure: str | None = None
        self.error: str | None = None
        """Reason why MLflow does not have everything; set once `finish` has returned."""

    def log(self, record: RoundRecord) -> None:
        """Queue one round; returns at once. The first round starts the thread."""
        self._hand_over(record)

    def finish(self, closing: Callable[[Any], None]) -> None:
        """Send the remaining records, then call `closing(store)`, within `patience` seconds in total.

        Sets `error` if that fails. At the deadline, and on Ctrl-C, which is re-raised, the thread is abandoned: it ends
        with the process, or when the server answers.
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

    def _hand_over(self, record: RoundRecord | None) -> None:
        self._records.put(record)
        if not self._thread.ident:
            self._thread.start()

    def _work(self) -> None:
        waiting: list[RoundRecord] = []
        pause, ending, reached = FIRST_PAUSE, False, False
        while not self._abandoned.is_set():
            # Records that arrive while a batch is sent form the next batch.
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

    def _send(self, records: list[RoundRecord]) -> None:
        store = self._store or self._make_store()
        self._store = None
        store.log(records)
        self._store = store

    def _attempt(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # a failure of the tracking server must never end a run
            self._failure = one_line(error)
            return False
        self._failure = None
        return True
