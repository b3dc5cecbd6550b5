"""Records of a run: one line of metrics.jsonl per round, to which checkpoints refer by position."""

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, overload

from hedgerow.platform.storage.atomic_file import Altered, compare, sync
from hedgerow.platform.storage.sealed_json import seal, unseal

RoundRecord = dict[str, Any]
"""Metrics of one round: name -> number; a round of Hedge also has lists."""

Position = dict[str, Any]
"""Beginning of a run's records: {"bytes": ..., "records": ..., "sha256": of these bytes}."""

METRICS = "metrics.jsonl"
"""Name of the file in a run folder, with one object of `seal` per line."""


class History(Sequence[RoundRecord]):
    """Records in the order of rounds. Saved records are in a file, later ones in memory."""

    def __init__(self, records: Iterable[RoundRecord] = ()):
        self._file: Path | None = None
        """File with the saved records at its beginning."""
        self._target: Path | None = None
        """File of the run that this learner writes: the same, or the one that it is going to replace."""
        self._ends = array("Q")
        """End of each saved record, in bytes."""
        self._digest = sha256()
        self._unsaved = list(records)
        self._last = self._unsaved[-1:]

    @classmethod
    def read(cls, file: Path, position: Position) -> "History":
        """Reads the records before a position of a file.

        Raises Altered if the file does not contain them, OSError if it cannot be read.
        """
        history, rest, line = cls(), position["bytes"], b""
        with file.open("rb") as stream:
            while rest and (line := stream.readline(rest)):
                rest -= len(line)
                history._digest.update(line)
                history._ends.append(position["bytes"] - rest)
        compare(history._fingerprint(), position)
        history._file, history._last = file, [_record(line)] if line else []
        return history

    def append(self, record: RoundRecord) -> None:
        """Add the record of the next round, in memory."""
        self._unsaved.append(record)
        self._last = [record]

    def save(self, file: Path) -> Position:
        """Write the records as `write` does, and flush them to the disk; returns their position."""
        self.write(file)
        assert self._file is not None
        sync(self._file)
        return {"records": len(self._ends), **self._fingerprint()}

    def write(self, file: Path) -> None:
        """Write the records to the file of a run.

        The first time, all are written to another file, which `settle` puts in place of one with other records, or with
        rounds that an interruption has undone: checkpoints may refer to what is in it. Later ones are appended. Raises
        OSError if they cannot be written, Altered if the saved records were changed on disk.
        """
        if file != self._target:
            self._file, self._target = self._copy_next_to(file), file
        start, lines = self._saved_bytes, [(seal(record) + "\n").encode() for record in self._unsaved]
        assert self._file is not None
        with self._file.open("r+b") as stream:
            if os.fstat(stream.fileno()).st_size != start:
                self._verify(stream)
                stream.truncate(start)
            stream.seek(start)
            stream.writelines(lines)
        for line in lines:
            self._digest.update(line)
            self._ends.append(self._saved_bytes + len(line))
        self._unsaved = []

    def settle(self) -> None:
        """Put the file of the records in place."""
        if self._file and self._target and self._file != self._target:
            self._file = self._file.replace(self._target)
            sync(self._target.parent)

    def is_in(self, file: Path) -> bool:
        """Whether all records are in a file."""
        return self._file == self._target == file and not self._unsaved

    def __len__(self) -> int:
        return len(self._ends) + len(self._unsaved)

    @overload
    def __getitem__(self, index: int) -> RoundRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[RoundRecord]: ...
    def __getitem__(self, index: int | slice) -> RoundRecord | list[RoundRecord]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if (start, step) == (len(self) - 1, 1):
                return self._last[: stop - start]
            return self._between(start, stop)[::step] if step > 0 else list(self)[index]
        if index in (-1, len(self) - 1):
            return self._last[0]
        position = range(len(self))[index]
        return self._between(position, position + 1)[0]

    def __iter__(self) -> Iterator[RoundRecord]:
        saved, unsaved = len(self._ends), list(self._unsaved)
        if self._file is not None:
            with self._file.open("rb") as stream:
                for _ in range(saved):
                    yield _record(stream.readline())
        yield from unsaved

    def _between(self, start: int, stop: int) -> list[RoundRecord]:
        saved, lines = len(self._ends), []
        if start < min(stop, saved):
            assert self._file is not None
            first, last = self._ends[start - 1] if start else 0, self._ends[min(stop, saved) - 1]
            with self._file.open("rb") as stream:
                stream.seek(first)
                lines = stream.read(last - first).splitlines()
        return [*map(_record, lines), *self._unsaved[max(0, start - saved) : max(0, stop - saved)]]

    @property
    def _saved_bytes(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _fingerprint(self) -> dict[str, Any]:
        return {"bytes": self._saved_bytes, "sha256": self._digest.hexdigest()}

    def _copy_next_to(self, file: Path) -> Path:
        """Write the saved records to a new file in the same folder."""
        aside = file.with_name(f".{file.name}.{token_hex(6)}")
        try:
            with aside.open("xb") as target:
                if self._file is not None:
                    with self._file.open("rb") as source:
                        self._verify(source, target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        return aside

    def _verify(self, source: IO[bytes], target: IO[bytes] | None = None) -> None:
        """Raise Altered unless a file begins with the saved records, which are copied to `target` if given."""
        rest, digest = self._saved_bytes, sha256()
        while rest and (chunk := source.read(min(rest, 2**20))):
            rest -= len(chunk)
            digest.update(chunk)
            if target is not None:
                target.write(chunk)
        try:
            compare({"bytes": self._saved_bytes - rest, "sha256": digest.hexdigest()}, self._fingerprint())
        except Altered as error:
            raise Altered(f"{self._file} {error}") from None


def _record(line: bytes) -> RoundRecord:
    return unseal(json.loads(line))
