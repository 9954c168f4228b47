"""A run that stops early: failed images, pipes, disks, signals. What is on disk is complete."""

import dataclasses
import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sjdvp.errors import FolderError, Interrupted, PromptError, StorageError
from sjdvp.events import (
    ImageFinished,
    Note,
)
from sjdvp.generate import Request
from sjdvp.runs.check import check_folder
from sjdvp.runs.sharding import Selection
from tests.fake_generator import FakeGenerator, config, images, rows, run

TEXTS = ["a red apple", "two\u2028cats", "fail here", "0", "a red apple", "plum", "fig"]


def test_fail_fast_and_max_failures_stop_early(tmp_path):
    for name, request_options, run_options, failed in [
        ("fast", {"fail_fast": True}, {}, 1),
        ("max", {}, {"max_failures": 2}, 3),
    ]:
        request = Request(
            config(**run_options), tmp_path / name, inline=("fail",) * 8, **request_options
        )
        events = []
        summary = run(request, FakeGenerator(batch=1), events.append)
        assert (summary.failed, summary.requested, summary.exit_code) == (failed, 8, 1)
        assert any(isinstance(event, Note) and "stopped" in event.message for event in events)


def test_images_for_a_pipe_come_before_it_ends(tmp_path):
    reader, writer = os.pipe()
    first = threading.Event()
    request = Request(config(), tmp_path / "out", stdin=os.fdopen(reader, "rb"))
    results = []

    def listen(event):
        if isinstance(event, ImageFinished):
            first.set()

    thread = threading.Thread(
        target=lambda: results.append(run(request, FakeGenerator(batch=4), listen))
    )
    thread.start()
    os.write(writer, b"one\n")
    assert first.wait(10)
    os.write(writer, b"two\nthree\n")
    os.close(writer)
    thread.join(10)
    assert (results[0].requested, results[0].ok) == (3, 3)
    again = run(dataclasses.replace(request, stdin=io.BytesIO(b"one\ntwo\nthree\nfour\n")))
    assert (again.requested, again.ok, again.skipped) == (4, 1, 3)


def test_a_bad_line_or_a_changed_row_of_a_pipe_ends_it_after_what_was_begun(tmp_path):
    request = Request(config(), tmp_path / "out", stdin=io.BytesIO(b"one\ntwo\n\xff\nfour\n"))
    events = []
    with pytest.raises(PromptError, match="line 3"):
        run(request, FakeGenerator(batch=8), events.append)
    assert len(images(request.out)) == 2
    assert events[-1].summary["ok"] == 2
    with pytest.raises(FolderError, match="row 1 "):
        run(dataclasses.replace(request, stdin=io.BytesIO(b"one\nzwei\n")))


def refuse_once(monkeypatch, name: str, nth: int, code: int) -> None:
    real, calls = getattr(os, name), []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == nth:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, failing)


@pytest.mark.parametrize("name", ["write", "replace", "fsync"])
@pytest.mark.parametrize("nth", range(1, 15))
def test_a_full_disk_at_any_write_can_be_resumed(tmp_path, ten_prompts, monkeypatch, name, nth):
    whole = Request(config(), tmp_path / "whole", prompts=ten_prompts, selection=Selection(limit=3))
    run(whole)
    request = dataclasses.replace(whole, out=tmp_path / "out")
    with monkeypatch.context() as patch:
        refuse_once(patch, name, nth, errno.ENOSPC)
        try:
            run(request)
        except StorageError as error:
            assert error.exit_code == 1
    assert not list(request.out.glob("images/.*"))
    assert run(request).exit_code == 0
    assert images(request.out) == images(whole.out)
    assert sorted(row["index"] for row in rows(request.out)) == [0, 1, 2]
    assert check_folder(request.out).whole


def test_the_run_stops_when_the_disk_refuses(tmp_path, ten_prompts):
    request, generator = (
        Request(config(), tmp_path / "out", prompts=ten_prompts),
        FakeGenerator(batch=1, seconds=0.05),
    )

    def vanish(event):
        if isinstance(event, ImageFinished):
            (request.out / "images").rename(request.out / "gone")

    with pytest.raises(StorageError, match="cannot write"):
        run(request, generator, vanish)
    assert len(generator.generated) < 6


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_what_is_complete(tmp_path, ten_prompts, signum):
    request, events = Request(config(), tmp_path / "out", prompts=ten_prompts), []

    class Interrupting(FakeGenerator):
        def generate(self, source):
            for count, image in enumerate(super().generate(source)):
                if count == 4:
                    os.kill(os.getpid(), signum)
                yield image

    with pytest.raises(Interrupted) as caught:
        run(request, Interrupting(), events.append)
    assert caught.value.exit_code == 128 + signum
    assert len(images(request.out)) == len(rows(request.out)) == events[-1].summary["ok"] == 4
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert run(request).finished == 10


def test_a_signal_ends_the_wait_for_a_silent_pipe(tmp_path):
    reader, writer = os.pipe()
    request = Request(config(), tmp_path / "out", stdin=os.fdopen(reader, "rb"))
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(Interrupted):
        run(request)
    os.close(writer)


@pytest.mark.process
@pytest.mark.parametrize("images_first", [1, 3, 5])
def test_kill_9_in_the_middle_then_resume_gives_the_same_folder(
    tmp_path, ten_prompts, images_first
):
    seeded = tmp_path / "out"
    process = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("fake_generator.py")),
            str(ten_prompts),
            str(seeded),
            "0.02",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert process.stdout is not None
    for _ in range(images_first):
        process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    seed = json.loads((seeded / "run.json").read_text())["seed"]
    summary = run(Request(config(seed=None), seeded, prompts=ten_prompts))
    assert summary.finished == summary.requested == 10
    assert summary.skipped >= images_first
    whole = tmp_path / "whole"
    run(Request(config(seed=seed), whole, prompts=ten_prompts))
    assert images(seeded) == images(whole)
    assert sorted(row["index"] for row in rows(seeded)) == list(range(10))
    assert check_folder(seeded).whole


@pytest.mark.process
def test_a_process_ends_though_its_pipe_stays_open(tmp_path):
    code = (
        "import sys; from pathlib import Path; from tests.fake_generator import *;"
        "run(Request(config(), Path(sys.argv[1]), "
        "stdin=sys.stdin.buffer, inline=(), fail_fast=True))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"fail\n")
    process.stdin.flush()
    assert process.wait(20) == 0
    assert process.stderr.read() == b""
    process.stdin.close()
    process.stderr.close()
