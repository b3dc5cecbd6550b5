"""Per-round records of a learner: each is appended once to a file, to which checkpoints refer by position."""

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, overload

from hedgerow.platform.storage.atomic_file import Altered, compare, sync
from hedgerow.platform.storage.sealed_json import seal, unseal

RoundRecord = dict[str, Any]
"""Metrics of one round: name -> number; a round of Hedge also has lists."""

Position = dict[str, Any]
"""Prefix of a records file: {"file": its name, "bytes": ..., "records": ..., "sha256": of these bytes}."""


RECORDS = "records-*.jsonl"
"""Names of records files, next to the checkpoints that refer to them."""


class History(Sequence[RoundRecord]):
    """Records in the order of rounds. Saved records are in a file, later ones in memory.

    A records file is never truncated or rewritten, so positions in it stay valid. Records that continue another prefix,
    such as that of an earlier checkpoint or of another run, begin a new file with a copy of that prefix.
    """

    def __init__(self, records: Iterable[RoundRecord] = ()):
        self._file: Path | None = None
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

    def save(self, folder: Path) -> Position:
        """Append the records in memory to the file in `folder`, and flush it to disk.

        Raises OSError if the file cannot be written, Altered if the saved records were changed on disk.
        """
        start, file = self._saved_bytes, self._file
        if file is None or file.parent != folder or file.stat().st_size != start:
            file = self._continued_in(folder)
        lines = [(seal(record) + "\n").encode() for record in self._unsaved]
        try:
            with file.open("ab") as stream:
                stream.writelines(lines)
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            if file == self._file:
                os.truncate(file, start)
            else:
                file.unlink()
            raise
        for line in lines:
            self._digest.update(line)
            self._ends.append(self._saved_bytes + len(line))
        self._file, self._unsaved = file, []
        return {"file": file.name, "records": len(self._ends), **self._fingerprint()}

    def __len__(self) -> int:
        return len(self._ends) + len(self._unsaved)

    @overload
    def __getitem__(self, index: int) -> RoundRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[RoundRecord]: ...
    def __getitem__(self, index: int | slice) -> RoundRecord | list[RoundRecord]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
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

    def _continued_in(self, folder: Path) -> Path:
        """Creates a file in `folder` that begins with the saved records."""
        # Uses a name that no earlier file had: a copy of the folder may still contain that file.
        file = folder / RECORDS.replace("*", token_hex(6))
        rest, digest = self._saved_bytes, sha256()
        try:
            with file.open("xb") as target:
                if self._file is not None:
                    with self._file.open("rb") as source:
                        while rest and (chunk := source.read(min(rest, 2**20))):
                            rest -= len(chunk)
                            digest.update(chunk)
                            target.write(chunk)
                compare({"bytes": self._saved_bytes - rest, "sha256": digest.hexdigest()}, self._fingerprint())
        except Altered as error:
            file.unlink(missing_ok=True)
            raise Altered(f"{self._file} {error}") from None
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        sync(folder)
        return file


def _record(line: bytes) -> RoundRecord:
    return unseal(json.loads(line))
