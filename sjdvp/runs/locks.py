"""Locks of a run folder: one for what all shards share, and one per shard.

Where the file system has flock, a lock ends with its process. Elsewhere (Lustre without -o flock)
a lock is a lease: its holder file is created exclusively and touched every few seconds, and who
finds it untouched for `STALE_S` may take it over.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sjdvp.errors import BusyError, FolderError, StorageError
from sjdvp.runs.atomic import storage_errors, temporary_files, write_atomic
from sjdvp.runs.sharding import IMAGES, Shard

Tell = Callable[[str], None]

HEARTBEAT_S = 5.0
STALE_S = 30.0
_TELL_AFTER_S = 3.0  # nobody waits longer without a message
_POLL_S = 0.1
_SETTLE_S = 1.0  # of two processes that take a lease over, the later one holds it after this time
_LABEL = re.compile(r"\d+-of-\d+")
_NO_FLOCK = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_HOLDER = ".holder"


class _NoFlockError(Exception):
    """The file system has no flock."""


class FileLock:
    """An exclusive lock on `path`; `path`.holder names the process that holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder = path.with_name(f"{path.name}{_HOLDER}")
        self.left_by = ""  # the process that died holding it, when it was taken over
        self._descriptor: int | None = None
        self._lease: _Lease | None = None

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free or its holder is known to be dead."""
        with storage_errors(self.path.name):
            try:
                return self._try_flock()
            except _NoFlockError:
                return self._try_lease()

    def is_held(self) -> bool:
        """Return whether a living process holds the lock."""
        with storage_errors(self.path.name):
            try:
                self._descriptor = _flock(self.path)
            except _NoFlockError:
                return self.holder.exists() and not _is_dead(self)
            held = self._descriptor is None
            self._close()
            return held

    def is_lease(self) -> bool:
        """Return whether the lock is a lease, because the file system has no flock."""
        try:
            descriptor = _flock(self.path)
        except _NoFlockError:
            return True
        if descriptor is not None:
            os.close(descriptor)
        return False

    def check(self) -> None:
        """Raise StorageError when another process has taken the lease over."""
        if self._lease is not None and self._lease.lost:
            raise StorageError(
                f"another process has taken {self.holder.name} over",
                "this process was silent for too long; run the same command to resume",
            )

    def release(self) -> None:
        """Release the lock."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end()
            return
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # the flock itself is what counts
                self.holder.unlink()
            self._close()

    def _try_flock(self) -> bool:
        self._descriptor = _flock(self.path)
        if self._descriptor is None:
            return False
        if self.holder.exists():
            self.left_by = describe_holder(self.holder)
        try:
            write_atomic(self.holder, json.dumps(_note()).encode())
        except BaseException:
            self.release()
            raise
        return True

    def _try_lease(self) -> bool:
        note = _note()
        try:
            descriptor = os.open(self.holder, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            if not _is_dead(self):
                return False
            self.left_by = describe_holder(self.holder)
            write_atomic(self.holder, json.dumps(note).encode(), owner=note["token"])
            time.sleep(_SETTLE_S)
        else:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(note).encode())
        if _read(self.holder).get("token") != note["token"]:
            return False
        self._lease = _Lease(self.holder, note["token"])
        return True

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class _Lease:
    """A thread that touches the holder file, as long as this process is its holder."""

    def __init__(self, holder: Path, token: str) -> None:
        self.lost = False
        self._holder = holder
        self._token = token
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="sjdvp-lease", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop, and delete the holder file if it is ours."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if _read(self._holder).get("token") == self._token:
                self._holder.unlink()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            try:
                note = json.loads(self._holder.read_bytes())
                self.lost = note["token"] != self._token
                os.utime(self._holder)
            except (FileNotFoundError, ValueError):  # deleted, or being written by another process
                self.lost = True
            except OSError:  # the file system may be slow: the next heartbeat counts
                continue
            if self.lost:
                return


@contextlib.contextmanager
def folder_lock(root: Path, tell: Tell = lambda message: None) -> Iterator[None]:
    """Hold the lock of what all shards share; waits for other processes to release it."""
    lock = FileLock(root / ".lock")
    started, told = time.monotonic(), False
    while not lock.try_acquire():
        if not told and time.monotonic() - started > _TELL_AFTER_S:
            told = True
            held_by = f"held by {describe_holder(lock.holder)}"
            tell(f"waiting for {lock.path}, {held_by}{_if_gone(lock)}")
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def shard_lock(root: Path, shard: Shard, tell: Tell = lambda message: None) -> Iterator[FileLock]:
    """Hold the lock of one shard.

    Raises BusyError, naming the holder, when another process holds it or a shard of another shard
    count. Call it holding the folder's lock: then no other process can take it in between.
    """
    lock = FileLock(_lock_path(root, shard.label))
    if not (lock.try_acquire() or (lock.is_lease() and _outlive(lock, tell))):
        raise BusyError(
            f"shard {shard} is being generated by {describe_holder(lock.holder)}", _hint(lock)
        )
    try:
        for other in _shard_locks(root):
            if _count(other.path) != _count(lock.path) and other.is_held():
                raise BusyError(
                    f"shard {_label(other.path)} is being generated by "
                    f"{describe_holder(other.holder)}: not the shard count of {shard}",
                    f"use one shard count at a time: {_hint(other)}",
                )
        yield lock
    finally:
        lock.release()


def is_locked(root: Path) -> bool:
    """Return whether a process holds a shard of the folder."""
    return any(lock.is_held() for lock in _shard_locks(root))


def remove_leftovers(root: Path) -> None:
    """Remove temporary images left by a crash. Call it holding the folder's lock."""
    for path, owner in temporary_files(root / IMAGES):
        if _LABEL.fullmatch(owner) and not FileLock(_lock_path(root, owner)).is_held():
            with storage_errors(path.name):
                path.unlink(missing_ok=True)


def describe_holder(holder: Path) -> str:
    """Return the process that a holder file names, for people."""
    note = _read(holder)
    try:
        return f"process {note['pid']} on {note['host']} (since {note['since']})"
    except KeyError:  # it has just started, or just ended
        return "another process"


def _outlive(lock: FileLock, tell: Tell) -> bool:
    """Wait until the holder of a lease has touched it (False) or is taken for dead (True)."""
    tell(
        f"waiting up to {STALE_S:.0f} s to see whether {describe_holder(lock.holder)} still runs; "
        f"if it does not, this process takes over{_if_gone(lock)}"
    )
    seen = _modified(lock.holder)
    while _modified(lock.holder) in (seen, None):
        if lock.try_acquire():
            return True
        time.sleep(_POLL_S)
    return False


def _hint(lock: FileLock) -> str:
    return f"wait for it, or stop it first{_if_gone(lock)}"


def _if_gone(lock: FileLock) -> str:
    """Return which file ends a lease at once; "" for a flock, which ends with its process."""
    return f"; if it is gone: rm {shlex.quote(str(lock.holder))}" if lock.is_lease() else ""


def _flock(path: Path) -> int | None:
    """Return the descriptor of `path`, locked; None when another process has it locked."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        if error.errno in _NO_FLOCK:
            raise _NoFlockError from error
        if error.errno == errno.ENOLCK:
            raise FolderError(
                f"the file system of {path.parent} cannot lock files: {error.strerror}",
                "mount it with locks (Lustre: -o flock; NFS: lockd), or use another --out",
            ) from error
        raise
    return descriptor


def _is_dead(lock: FileLock) -> bool:
    """Return whether the holder of a lease has not touched it for STALE_S, or is gone from here."""
    note = _read(lock.holder)
    if note.get("host") == socket.gethostname() and not _runs(note.get("pid")):
        return True
    touched = _modified(lock.holder)
    os.utime(lock.path)  # both times are of the clock of the file server
    return touched is not None and lock.path.stat().st_mtime - touched > STALE_S


def _runs(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def _modified(path: Path) -> float | None:
    try:
        # Opening makes a network file system ask the server for the time.
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None


def _read(holder: Path) -> dict[str, Any]:
    try:
        note = json.loads(holder.read_bytes())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _note() -> dict[str, Any]:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    host, pid = socket.gethostname(), os.getpid()
    return {"host": host, "pid": pid, "since": since, "token": secrets.token_hex(8)}


def _shard_locks(root: Path) -> list[FileLock]:
    paths = sorted(root.glob(".lock.shard-*"))
    return [FileLock(path) for path in paths if _LABEL.fullmatch(_label(path))]


def _lock_path(root: Path, label: str) -> Path:
    return root / f".lock.shard-{label}"


def _label(lock: Path) -> str:
    return lock.name.removeprefix(".lock.shard-")


def _count(lock: Path) -> str:
    return lock.name.rpartition("-of-")[2]
