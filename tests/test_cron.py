"""Runs without a person: no terminal, no home, no locale, no stdin, readers that go away, two runs at once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sjdvp.runs.check import check_folder
from sjdvp.runs.jsonl import read_rows

ROOT = Path(__file__).parents[1]
BARE = {
    "PATH": "/usr/bin:/bin",
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONPATH": str(ROOT),
}
COMMAND = [sys.executable, "-m", "tests.workers.program", "generate"]


def start(*arguments: object, **options) -> subprocess.Popen[bytes]:
    defaults = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": BARE,
        "cwd": ROOT,
        "stdin": subprocess.DEVNULL,
    }
    return subprocess.Popen([*COMMAND, *map(str, arguments)], **{**defaults, **options})


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text(
        "".join(f"chat {i} \u732b \u202e\x1b[31m\n" for i in range(12)), encoding="utf-8"
    )
    return file


@pytest.mark.parametrize("workers", [[], ["--workers", 2]])
def test_as_cron_runs_it(out, prompts, workers):
    """With stdin closed, not just empty; what it says holds no control character, so that a log of it is safe to show."""
    process = start(
        "--prompts", prompts, "-o", out, "-v", *workers, stdin=None, preexec_fn=lambda: os.close(0)
    )
    said, told = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b""), told
    assert check_folder(out).whole
    lines = told.decode("utf-8").splitlines()
    assert lines[-1] == "sjdvp: 12/12 ok"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e\u2028]", "".join(lines))
    assert "\\x1b[31m" in "".join(lines)


def test_a_reader_that_takes_one_line_and_goes(out, prompts):
    """`--log - | head -1`: the run goes on, its product is the images."""
    process = start("--prompts", prompts, "-o", out, "--log", "-")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["status"] == "ok"
    process.stdout.close()
    assert process.wait(60) == 0
    assert check_folder(out).whole


def test_a_slow_producer(out):
    """Each prompt is drawn as it comes, long before the input ends."""
    process = start("--prompts", "-", "-o", out, "--print", "paths", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for i in range(3):
        process.stdin.write(f"prompt {i}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode().strip() == str(out / f"images/{i:06d}.png")
    process.stdin.close()
    assert process.wait(60) == 0


@pytest.mark.parametrize(("flags", "code"), [([], 2), (["--skip-if-running"], 0)])
def test_two_runs_overlap(out, prompts, flags, code):
    first = start("--prompts", "-", "-o", out, "--print", "paths", stdin=subprocess.PIPE)
    assert first.stdin is not None
    assert first.stdout is not None
    first.stdin.write(prompts.read_bytes().splitlines(keepends=True)[0])
    first.stdin.flush()
    first.stdout.readline()
    second = start(
        "--prompts",
        prompts,
        "-o",
        out,
        *flags,
        "--seed",
        json.loads((out / "run.json").read_text())["seed"],
    )
    _, told = second.communicate(timeout=60)
    assert second.returncode == code
    assert f"is being drawn by process {first.pid} on".encode() in told
    first.stdin.close()
    assert first.wait(60) == 0
    assert [row["index"] for row in read_rows(out / "log.shard-000-of-001.jsonl")] == [0]


@pytest.mark.parametrize(
    ("signal_name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129), ("SIGUSR1", 138)]
)
def test_a_signal_to_all_processes_of_a_run(out, tmp_path, signal_name, code):
    """As a terminal or a scheduler sends it: the parent saves and ends, its workers say nothing."""
    many = tmp_path / "many.txt"
    many.write_text("".join(f"prompt {i}\n" for i in range(5000)), encoding="utf-8")
    number = getattr(signal, signal_name)
    heard = {
        "process_group": 0,
        "preexec_fn": lambda: signal.signal(number, signal.SIG_DFL),
    }  # shells let jobs ignore SIGINT
    process = start("--prompts", many, "-o", out, "--workers", 2, "--print", "paths", "-q", **heard)
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == code
    assert re.fullmatch(rb"sjdvp: \d+/5000 ok, interrupted; run the same command to resume\n", told)
    assert not check_folder(out).corrupt
    assert not list(out.glob("images/.*"))
    with pytest.raises(ProcessLookupError):
        _wait_for_group(process.pid)


def _wait_for_group(group: int) -> None:
    """Raise ProcessLookupError as soon as the group has no process left, within some seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        os.killpg(group, 0)
        time.sleep(0.05)
