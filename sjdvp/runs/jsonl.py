"""Append-only JSONL files: one write and one fsync per call; opening cuts off a torn last line."""

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sjdvp.errors import FolderError
from sjdvp.runs.atomic import storage_errors, sync_folder
from sjdvp.runs.strict_json import load_json

JsonRow = dict[str, Any]


class Appender:
    """A JSONL file open for appending; the caller must hold a lock against other writers."""

    def __init__(self, path: Path) -> None:
        """Open or create `path` and cut off a torn last line.

        Raises StorageError, and FolderError when a line before the last is not a JSON object.
        """
        self._name = path.name
        whole = whole_end(path)
        with storage_errors(self._name):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            if os.fstat(self._descriptor).st_size > whole:
                os.ftruncate(self._descriptor, whole)
            sync_folder(path.parent)
        self._end = whole

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows and wait until they are on disk; after a StorageError none of them is."""
        data = b"".join(encode_row(row) for row in rows)
        with storage_errors(self._name):
            try:
                if os.write(self._descriptor, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(self._descriptor)
            except BaseException:
                with contextlib.suppress(OSError):  # else the next opening cuts the torn row off
                    os.ftruncate(self._descriptor, self._end)
                raise
        self._end += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_rows(path: Path) -> Iterator[JsonRow]:
    """Yield the rows of a file, which another process may be appending to; skip a torn last line.

    Raises FolderError when the file cannot be read or another line is not a JSON object.
    """
    return (row for _, row in numbered_rows(path))


def rows_from(path: Path, start: int) -> Iterator[JsonRow]:
    """Yield the rows after the first `start` bytes; raises FolderError as `read_rows` does."""
    return (row for row, end in _rows_and_ends(path) if end > start)


def whole_end(path: Path) -> int:
    """Return where the last whole row ends, in bytes; 0 when there is no file."""
    return max((end for _, end in _rows_and_ends(path)), default=0) if path.exists() else 0


def numbered_rows(path: Path) -> Iterator[tuple[int, JsonRow]]:
    """Yield rows as `read_rows` does, each with its line number from 1."""
    return enumerate((row for row, _ in _rows_and_ends(path)), start=1)


def _rows_and_ends(path: Path) -> Iterator[tuple[JsonRow, int]]:
    position, torn = 0, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                position += len(line)
                row = _decode(line)
                if row is None:
                    torn = torn or number
                elif torn:
                    raise FolderError(
                        f"{path.name}: line {torn} is not a JSON object",
                        "delete that line; its image is generated again",
                    )
                else:
                    yield row, position
    except OSError as error:
        raise FolderError(f"cannot read {path.name}: {error.strerror}") from error


def encode_row(row: Mapping[str, Any]) -> bytes:
    """Return the line of a row. It is ASCII, so that no prompt in it can act on a terminal."""
    return json.dumps(row, allow_nan=False, separators=(", ", ": ")).encode("ascii") + b"\n"


def _decode(line: bytes) -> JsonRow | None:
    try:
        row = load_json(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
