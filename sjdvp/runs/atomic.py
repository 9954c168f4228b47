"""Writes that are whole or not there. The disk's refusals become StorageError, so that a run stops at once and can be resumed."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from sjdvp.errors import StorageError

_ADVICE = {
    errno.ENOSPC: "make room, then run the same command to resume",
    errno.EDQUOT: "the quota is used up: make room, then run the same command to resume",
    errno.EROFS: "the file system is read-only; when it can be written again, run the same command to resume",
}


@contextlib.contextmanager
def refusals(name: str) -> Iterator[None]:
    """Turn an OSError inside the block into a StorageError that names what could not be written."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(
            error.errno or 0, "when it can be written again, run the same command to resume"
        )
        raise StorageError(f"cannot write {name}: {error.strerror or error}", advice) from error


@contextlib.contextmanager
def advice(text: str) -> Iterator[None]:
    """Give a StorageError of the block another advice than to resume a run."""
    try:
        yield
    except StorageError as error:
        raise StorageError(str(error), text) from error


def write_atomic(path: Path, data: bytes, owner: str = "") -> None:
    """Write `path` whole: a hidden temporary file beside it, fsync, rename, fsync of the folder.

    Whatever interrupts it, `path` holds its old content or all of `data`. `owner` marks the temporary file, for whoever finds it
    after a crash (see `leftovers`). Raises StorageError, and leaves no temporary file behind then.
    """
    temporary = path.with_name(f".{path.name}.{owner}.tmp")
    with refusals(path.name):
        try:
            _write_synced(temporary, data)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


def leftovers(folder: Path) -> list[tuple[Path, str]]:
    """Return the temporary files in `folder`, each with its owner."""
    return [
        (path, path.name.removesuffix(".tmp").rpartition(".")[2])
        for path in sorted(folder.glob(".*.tmp"))
    ]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last; raises OSError."""
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
