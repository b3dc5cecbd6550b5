"""Metrics go first to a local file, and from there to MLflow, off the training path."""

import json
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hedgerow.platform.files import write_whole

Record = dict[str, Any]


class RunLog:
    """The append-only local file of a run's metrics: one JSON object per round."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, record: Record) -> None:
        """Add one round."""
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def replace(self, records: list[Record]) -> None:
        """Make the file hold just these records, atomically: what a resumed run continues from."""
        write_whole(self.path, "".join(json.dumps(record) + "\n" for record in records))

    def read(self) -> list[Record]:
        """All records; a last line that a crash tore is left out."""
        records = []
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records


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

    Training never waits for it. A server that is slow makes it lag; one that is down makes it stop, with the reason in
    `error`, and everything is still in the local file, from which `hedgerow push` sends it later.

    store: makes the MLflow side, inside the thread (importing mlflow takes seconds). It has `log(records)`.
    """

    def __init__(self, store: Callable[[], Any]):
        self._make_store = store
        self._store: Any = None
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="mlflow-tracker", daemon=True)
        self.error: str | None = None

    def log(self, record: Record) -> None:
        """Hand over one round; returns at once. The first one starts the thread."""
        self._records.put(record)
        if not self._thread.ident:
            self._thread.start()

    def finish(self, closing: Callable[[Any], None]) -> None:
        """Wait until everything is sent, then do `closing(store)`. Never raises: see `error`."""
        self._records.put(None)
        if not self._thread.ident:
            self._thread.start()
        self._thread.join()
        if self.error is None:
            self._attempt(lambda: closing(self._store))

    def _work(self) -> None:
        self._attempt(self._carry)

    def _carry(self) -> None:
        self._store = self._make_store()
        open_ended = True
        while open_ended:
            batch = [self._records.get()]
            # What arrives while one batch is on its way makes up the next.
            while not self._records.empty():
                batch.append(self._records.get())
            open_ended = batch[-1] is not None
            self._store.log([record for record in batch if record is not None])

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # the tracking server's troubles must never end a run
            self.error = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
