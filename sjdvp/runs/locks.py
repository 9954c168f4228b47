"""Who writes into a run folder: one process a shard. The lock dies with its process; a note beside it says who holds it."""

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from sjdvp.errors import BusyError
from sjdvp.runs.atomic import leftovers, refusals, write_atomic
from sjdvp.runs.layout import IMAGES
from sjdvp.runs.sharding import Shard

_LABEL = re.compile(r"\d+-of-\d+")


@contextlib.contextmanager
def folder_lock(root: Path) -> Iterator[None]:
    """Hold the folder's own lock for a moment, to create or extend what all shards share; waits for the others."""
    lock = FileLock(root / ".lock")
    with refusals(".lock"):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def shard_lock(root: Path, shard: Shard) -> Iterator[str]:
    """Hold the lock of one shard; yields a line about a holder that died without giving it back, or "".

    Raises BusyError, naming the holder, when another process holds it or draws into this folder with another shard count.
    """
    path = _lock_path(root, shard.label)
    with _try_lock(path) as ours:
        if not ours:
            raise BusyError(
                f"shard {shard} is being drawn by {_holder(path)}", "wait for it, or stop it first"
            )
        for other in sorted(root.glob(".lock.shard-*")):
            if other.suffix != ".holder" and _count(other) != _count(path):
                _refuse_if_held(other, shard)
        left_by = _holder(path) if _note_path(path).exists() else ""
        try:
            write_atomic(_note_path(path), _note())
            yield (
                f"{left_by} stopped without giving shard {shard} back; taken over"
                if left_by
                else ""
            )
        finally:
            with contextlib.suppress(OSError):  # the lock itself is what counts
                _note_path(path).unlink()


def is_drawn(root: Path) -> bool:
    """Whether a process holds a shard of the folder now."""
    for path in root.glob(".lock.shard-*"):
        if path.suffix != ".holder":
            with _try_lock(path) as free:
                if not free:
                    return True
    return False


def remove_leftovers(root: Path) -> None:
    """Remove temporary images of shards that nobody draws any more; call it without holding a shard's lock."""
    for path, owner in leftovers(root / IMAGES):
        if _LABEL.fullmatch(owner):
            with _try_lock(_lock_path(root, owner)) as ours, refusals(path.name):
                if ours:
                    path.unlink(missing_ok=True)


def _refuse_if_held(other: Path, shard: Shard) -> None:
    with _try_lock(other) as free:
        if not free:
            label = other.name.removeprefix(".lock.shard-")
            raise BusyError(
                f"shard {label} is being drawn by {_holder(other)}, with another count than {shard}",
                "one shard count at a time: wait for it, or stop it first",
            )


@contextlib.contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    lock = FileLock(path)
    ours = _acquired(lock)
    try:
        yield ours
    finally:
        if ours:
            lock.release()


def _acquired(lock: BaseFileLock) -> bool:
    with refusals(Path(lock.lock_file).name):
        try:
            lock.acquire(blocking=False)
        except Timeout:  # caught here: it is an OSError too
            return False
    return True


def _count(lock: Path) -> str:
    return lock.name.rpartition("-of-")[2]


def _lock_path(root: Path, label: str) -> Path:
    return root / f".lock.shard-{label}"


def _note_path(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.holder")


def _note() -> bytes:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}).encode()


def _holder(lock: Path) -> str:
    try:
        note = json.loads(_note_path(lock).read_bytes())
        return f"process {note['pid']} on {note['host']} (since {note['since']})"
    except (OSError, ValueError, KeyError):  # it has just begun, or just ended
        return "another process"
