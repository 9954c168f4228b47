import errno
import json
import os

import pytest

from sjdvp.errors import FolderError, StorageError
from sjdvp.runs.atomic import write_atomic
from sjdvp.runs.jsonl import Appender, read_rows

ROWS = [{"index": 0, "prompt": "é\u2028\x1b"}, {"index": 1}, {"index": 2, "x": [1.5, None]}]


def refuse(monkeypatch, name: str, code: int, after: int = 0) -> None:
    """Let os.`name` fail with `code` from its call number `after` on."""
    real, calls = getattr(os, name), []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) > after:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, failing)


def test_write_atomic_replaces_whole(tmp_path):
    path = tmp_path / "a.png"
    write_atomic(path, b"old")
    write_atomic(path, b"new" * 1000)
    assert path.read_bytes() == b"new" * 1000
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize(
    ("name", "after"), [("write", 0), ("fsync", 0), ("replace", 0), ("open", 0), ("close", 0)]
)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_refused_write_leaves_the_old_file_and_nothing_else(
    tmp_path, monkeypatch, name, after, code
):
    path = tmp_path / "a.png"
    write_atomic(path, b"old")
    with monkeypatch.context() as patch:
        refuse(patch, name, code, after)
        with pytest.raises(StorageError, match=r"cannot write a\.png") as caught:
            write_atomic(path, b"new")
    assert caught.value.exit_code == 1
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    write_atomic(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_rows_come_back_and_the_file_is_ascii(tmp_path):
    path = tmp_path / "log"
    with Appender(path) as log:
        log.append(ROWS[:2])
        log.append(ROWS[2:])
    assert list(read_rows(path)) == ROWS
    assert path.read_bytes().isascii()
    with Appender(path) as log, pytest.raises(ValueError, match="JSON"):
        log.append([{"x": float("nan")}])
    assert list(read_rows(path)) == ROWS


@pytest.mark.parametrize("tail", [b"", b"\0\0\0", b"garbage\n", b'{"a": 1'])
def test_a_log_torn_at_any_byte_is_cut_to_whole_rows(tmp_path, tail):
    path = tmp_path / "log"
    with Appender(path) as log:
        log.append(ROWS)
    data = path.read_bytes()
    for cut in range(0, len(data) + 1, 5 if tail else 1):
        path.write_bytes(data[:cut] + tail)
        whole = data[:cut].count(b"\n")
        assert list(read_rows(path)) == ROWS[:whole]
        with Appender(path) as log:
            log.append([{"index": 9}])
        assert list(read_rows(path)) == [*ROWS[:whole], {"index": 9}]
        assert all(json.loads(line) for line in path.read_bytes().splitlines())


def test_a_bad_row_in_the_middle_is_an_error(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"a": 1}\n{"b": \n{"c": 3}\n')
    with pytest.raises(FolderError, match="line 2 is not a JSON object"):
        list(read_rows(path))
    with pytest.raises(FolderError, match="line 2 is not a JSON object"):
        Appender(path)


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_refused_row_is_taken_back(tmp_path, monkeypatch, name):
    path = tmp_path / "log"
    with Appender(path) as log:
        log.append(ROWS[:1])
        with monkeypatch.context() as patch:
            refuse(patch, name, errno.ENOSPC)
            with pytest.raises(StorageError, match="No space left"):
                log.append(ROWS[1:])
        assert list(read_rows(path)) == ROWS[:1]
        log.append(ROWS[1:])
    assert list(read_rows(path)) == ROWS


def test_a_half_written_row_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "log"
    real = os.write
    with Appender(path) as log:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: real(fd, data[:5]))
            with pytest.raises(StorageError, match="No space left"):
                log.append(ROWS)
        assert path.read_bytes() == b""
