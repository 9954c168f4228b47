"""Atomic writes: a file has its old content or all of its new content.

Also the base of whatever a `with` block must close.
"""

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from sjdvp.errors import StorageError

_RESUME = "run the same command to resume"
_HINTS = {
    errno.ENOSPC: f"the disk is full: free some space, then {_RESUME}",
    errno.EDQUOT: f"the disk quota is used up: free some space, then {_RESUME}",
    errno.EROFS: f"the file system is read-only: make it writable, then {_RESUME}",
}
_OTHER_HINT = f"when it can be written again, {_RESUME}"


class Closing(ABC):
    """A context manager that is closed at the end of its block."""

    @abstractmethod
    def close(self) -> None:
        """Release what is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Turn an OSError inside the block into a StorageError that names the file `name`."""
    try:
        yield
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, _OTHER_HINT)
        raise StorageError(f"cannot write {name}: {error.strerror or error}", hint) from error


@contextlib.contextmanager
def storage_hint(hint: str) -> Iterator[None]:
    """Replace the hint of a StorageError inside the block, where there is no run to resume."""
    try:
        yield
    except StorageError as error:
        raise StorageError(str(error), hint) from error


def write_atomic(path: Path, data: bytes, owner: str = "") -> None:
    """Write a hidden temporary file beside `path`, fsync, rename it to `path`, fsync the folder.

    `owner` is part of the temporary file's name, so that one left by a crash can be attributed (see
    `temporary_files`). Raises StorageError, after removing the temporary file.
    """
    temporary = path.with_name(f".{path.name}.{owner}.tmp")
    with storage_errors(path.name):
        try:
            _write_synced(temporary, data)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


def temporary_files(folder: Path) -> list[tuple[Path, str]]:
    """Return the temporary files in `folder`, each with its owner."""
    return [
        (path, path.name.removesuffix(".tmp").rpartition(".")[2])
        for path in sorted(folder.glob(".*.tmp"))
    ]


def sync_folder(folder: Path) -> None:
    """Make the directory entries of `folder` durable; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_synced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
