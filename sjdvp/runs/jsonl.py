"""Strict JSON, and append-only JSONL files.

Files in a run folder may have been edited by hand: strict readers take finite numbers only, check
the types of fields, and say in a ValueError what is wrong. A JSONL file gets one write and one
fsync per call; opening it cuts off a torn last line.
"""

import contextlib
import errno
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from sjdvp.errors import FolderError
from sjdvp.runs.atomic import Closing, storage_errors, sync_folder

JsonRow = dict[str, Any]


class Appender(Closing):
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


T = TypeVar("T")

_MOST_CHARACTERS = 80  # of a value shown in a message


def load_json(
    text: str | bytes, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Return the value in `text`; raises ValueError (a JSONDecodeError where a position is known).

    Python's own reader also accepts NaN, Infinity and 1e999, which JSON does not have.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=object_pairs_hook,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def whole(table: object, key: str, least: int = 0) -> int:
    """Return the integer at `key`, which must be at least `least`.

    In `key`, dots lead into nested objects; this holds for all readers of fields here.
    """
    kind = f"a whole number, {least} or more"
    return _typed(table, key, kind, lambda value: is_whole(value) and value >= least)


def number(table: object, key: str) -> float:
    """Return the number at `key`."""
    return _typed(table, key, "a number", lambda v: is_whole(v) or isinstance(v, float))


def flag(table: object, key: str) -> bool:
    """Return the boolean at `key`."""
    return _typed(table, key, "true or false", lambda value: isinstance(value, bool))


def text(table: object, key: str) -> str:
    """Return the string at `key`."""
    return _typed(table, key, "text", lambda value: isinstance(value, str))


def word(table: object, key: str, known: Collection[str]) -> str:
    """Return the string at `key`, which must be one of `known`."""
    *others, last = known
    kind = f"{', '.join(others)} or {last}" if others else last
    return _typed(table, key, kind, lambda value: isinstance(value, str) and value in known)


def inner(table: object, key: str) -> dict[str, Any]:
    """Return the object at `key`."""
    return _typed(table, key, "an object", lambda value: isinstance(value, dict))


def listed(table: object, key: str) -> list[Any]:
    """Return the list at `key`."""
    return _typed(table, key, "a list", lambda value: isinstance(value, list))


def optional(read: Callable[[object, str], T], table: object, key: str) -> T | None:
    """Return what `read` returns for `key`, or None when the value is null."""
    return None if _value(table, key) is None else read(table, key)


def absent_or(read: Callable[[object, str], T], table: object, key: str) -> T | None:
    """Return what `optional` returns, or None without the key: older versions did not write it."""
    missing = isinstance(table, dict) and key not in table
    return None if missing else optional(read, table, key)


def is_whole(value: object) -> bool:
    """Return whether `value` is an integer; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _typed(table: object, key: str, kind: str, fits: Callable[[Any], bool]) -> Any:
    value = _value(table, key)
    if not fits(value):
        raise ValueError(f"{key} must be {kind}, found {_shown(value)}")
    return value


def _value(table: object, key: str) -> Any:
    value = table
    for name in key.split("."):
        if not isinstance(value, dict):
            raise ValueError(f"expected an object with {key}, found {_shown(value)}")
        if name not in value:
            raise ValueError(f"the key {key} is missing")
        value = value[name]
    return value


def _shown(value: object) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}..."


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large a number")
    return value
