"""Writes metrics to a local file first, and sends them to MLflow from a background thread."""

import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hedgerow.platform.common.errors import Interrupted, UserError, first_line, one_line
from hedgerow.platform.common.signals import signal_of
from hedgerow.platform.loggers.logger import LoggedRun, Logger
from hedgerow.platform.storage.atomic_file import write_whole
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.sealed_json import read_objects, seal
from hedgerow.platform.tracking.run_folder import RunFolder

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds until records that MLflow did not take are sent again: the first pause doubles up to the longest."""


class RunLog:
    """Append-only local file of a run's metrics: one JSON object per round, with its checksum."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, record: RoundRecord) -> None:
        """Append one round."""
        with self.path.open("a") as file:
            file.write(seal(record) + "\n")

    def replace(self, records: Iterable[RoundRecord]) -> None:
        """Replace the contents by these records, atomically; a resumed run continues from them."""
        write_whole(self.path, "".join(seal(record) + "\n" for record in records))

    def read(self) -> list[RoundRecord]:
        """Returns all records, except a last line that a crash cut off. Raises UserError if a line is damaged."""
        return read_objects(self.path) if self.path.exists() else []


class MlflowLogger(Logger):
    """Records a run or a search in MLflow, in batches from a daemon thread.

    Training never waits for it. If the server is slow, the thread lags behind. If the server is unreachable, the thread
    pauses and sends the missing records again. The local file has all records, and `hedgerow push` later sends those
    that the server missed.

    open_store: opens the MLflow side inside the thread, since importing mlflow takes seconds; after a failure again,
    when it knows the records that have arrived. save: writes the final model into a folder that it creates, if there is
    one. patience: seconds that `end` waits at most. show: a display; if it has a method `note`, it shows that the end
    may take a while. warnings: receives a sentence for each part that MLflow did not take.
    """

    def __init__(
        self,
        folder: RunFolder,
        open_store: Callable[[], Any],
        save: Callable[[Path], None],
        patience: float,
        show: object = None,
        warnings: list[str] | None = None,
    ):
        self.folder, self._open_store, self._save, self._patience = folder, open_store, save, patience
        self._show, self.warnings = show, [] if warnings is None else warnings
        self._store: Any = None
        self._sent_to: Any = None
        self._sent: list[RoundRecord] = []
        """Store that has answered last, and its last two records."""
        self._records: queue.SimpleQueue[RoundRecord | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="mlflow-tracker", daemon=True)
        self._finishing, self._abandoned = threading.Event(), threading.Event()
        self._closing: Callable[[Any], None] = lambda store: None
        self._failure: str | None = None
        self.error: str | None = None
        """Sentence on what MLflow does not have; set once `end` has returned."""

    def start(self, run: LoggedRun) -> None:
        for record in run.history:
            self.log(record)

    def log(self, record: RoundRecord | None) -> None:
        """Queue one round, or the end (None); returns at once. The first round starts the thread."""
        self._records.put(record)
        if not self._thread.ident:
            self._thread.start()

    def end(self, status: str, summary: dict[str, Any]) -> None:
        if status != "finished":
            self._finish(lambda store: store.end("FAILED" if status == "failed" else "KILLED"))
            return
        if note := getattr(self._show, "note", None):
            note("recording in MLflow ... (Ctrl-C ends the wait)")
        with TemporaryDirectory(prefix="hedgerow-model-", ignore_cleanup_errors=True) as temporary:
            try:
                # Not in the thread: a thread that is abandoned inside torch can abort the process.
                self._save(Path(temporary) / "model")
            except Exception as error:  # a model that cannot be exported must not end a run
                self.warnings.append(f"the final model cannot be recorded in MLflow ({first_line(error)})")
            models = sorted(file.parent for file in Path(temporary).glob("*/MLmodel"))
            self._finish(lambda store: store.finish(models))
        if self.error:
            self.warnings.append(self.error)

    def push(self, records: Iterable[RoundRecord]) -> list[str]:
        """Send the records of a run that has ended, and its end; returns a sentence if there is no final model. Raises
        UserError if MLflow does not take the rest.
        """
        for record in records:
            self.log(record)
        try:
            self.end(self.folder.record()["status"], {})
        except KeyboardInterrupt as error:
            advice = f"`hedgerow push {self.folder}` continues"
            raise Interrupted(self.folder.path, signal_of(error), advice) from None
        if self.error:
            raise UserError(self.error)
        return self.warnings

    def _finish(self, closing: Callable[[Any], None]) -> None:
        """Send the remaining records, then call `closing(store)`, within `patience` seconds in total.

        Sets `error` if that fails. At the deadline, and on Ctrl-C, which is re-raised, the thread is abandoned: it ends
        with the process, or when the server answers.
        """
        self._closing = closing
        self._finishing.set()
        try:
            self.log(None)
            self._thread.join(self._patience)
        finally:
            unfinished = self._thread.is_alive()
            self._abandoned.set()
        if reason := self._failure or (f"no answer within {self._patience:g} s" if unfinished else None):
            self.error = (
                f"tracking.uri: MLflow did not take the run ({reason}); nothing is lost: it is all in {self.folder}; "
                f"once the server is up, or its file can be written, `hedgerow push {self.folder}` sends it"
            )

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
        store = self._store or self._open_store()
        self._store = None
        # A new store skips what is recorded, and learns from it which counts have not changed.
        store.log(records if self._sent_to is store else [*self._sent, *records])
        self._store = self._sent_to = store
        self._sent = [*self._sent, *records][-2:]

    def _attempt(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # a failure of the tracking server must never end a run
            self._failure = one_line(error)
            return False
        self._failure = None
        return True
