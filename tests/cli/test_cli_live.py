"""Progress: plain lines, the bar, the last line."""

import re
import sys

import pytest

from sjdvp.events import (
    GenerationStarted,
    ImageFinished,
    ImagesInProgress,
    Note,
    RunFinished,
    RunStarted,
)
from sjdvp_cli import live
from sjdvp_cli.live import closing_line, watch
from tests.cli.conftest import Terminal


def started(total, done=0):
    return RunStarted(total, done, "imgs", "decoder coupled, window 8", "lossless")


def image(index, status="ok", **more):
    error = (
        None
        if status == "ok"
        else {"type": "ImageError", "message": "the logits are not finite", "hint": "use fp32"}
    )
    metrics = {
        "nfe": 40,
        "drafted": 300,
        "accepted": 150,
        "latency_s": 0.5,
        "file": f"images/{index:06d}.png",
    }
    return ImageFinished(
        {
            "index": index,
            "status": status,
            "prompt": "a\x1b[31m cat",
            "error": error,
            **metrics,
            **more,
        }
    )


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    return now


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_time_left_counts_from_the_first_forward_pass_and_within_images(capsys, clock):
    """A model that loads for five minutes and takes 40 s an image."""
    with watch("plain", quiet=False, verbose=False) as (state, hear):
        hear(started(4))
        clock[0] += 300
        hear(GenerationStarted())
        clock[0] += 30
        hear(ImagesInProgress(0.75))
        clock[0] += 10
        hear(image(0))
        assert state.rate == pytest.approx(1 / 40)
    loaded, within, one = lines(capsys)[1:]
    assert loaded == "sjdvp: 0/4"
    assert within.startswith("sjdvp: 0.8/4, 1.50 images/min, 2:10 left")
    assert one.startswith("sjdvp: 1/4, 1.50 images/min, 2:00 left")


def test_the_count_never_falls(capsys, clock):
    """An image whose tokens are complete is in no slot, and not saved yet."""
    with watch("plain", quiet=False, verbose=False) as (_, hear):
        hear(started(4))
        hear(GenerationStarted())
        for in_progress, index in ((3.0, None), (0.5, None), (0.6, 0), (0.7, 1), (0.9, 2)):
            clock[0] += 40
            hear(ImagesInProgress(in_progress))
            if index is not None:
                hear(image(index))
    counts = [float(line.split()[1].split("/")[0]) for line in lines(capsys)[1:]]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (3, 3)


def test_plain_speaks_every_five_percent(capsys, clock):
    with watch("plain", quiet=False, verbose=False) as (_, hear):
        hear(started(100, done=20))
        for index in range(11):
            clock[0] += 1
            hear(image(index))
    first, *rest = lines(capsys)
    assert (
        first
        == "sjdvp: 100 images (20 finished before) to imgs; decoder coupled, window 8, lossless"
    )
    assert rest == [
        "sjdvp: 25/100, 1.00 images/s, 1:15 left, NFE 40.0, accepted 50 %",
        "sjdvp: 30/100, 1.00 images/s, 1:10 left, NFE 40.0, accepted 50 %",
    ]


def test_plain_speaks_every_thirty_seconds(capsys, clock):
    with watch("plain", quiet=False, verbose=False) as (_, hear):
        hear(started(10_000))
        for index in range(7):
            clock[0] += 10
            hear(image(index))
    assert [line.split(",")[0] for line in lines(capsys)[1:]] == [
        "sjdvp: 3/10000",
        "sjdvp: 6/10000",
    ]


def test_a_pipe_without_end_has_no_eta(capsys, clock):
    with watch("plain", quiet=False, verbose=False) as (_, hear):
        hear(started(None))
        clock[0] += 40
        hear(image(0))
    assert lines(capsys)[1] == "sjdvp: 1/?, 1.50 images/min, NFE 40.0, accepted 50 %"


def test_quiet_keeps_warnings_and_failures(capsys):
    with watch("auto", quiet=True, verbose=False) as (_, hear):
        for event in (
            started(2),
            Note("info", "hello"),
            Note("warning", "beware"),
            image(0),
            image(1, "failed"),
        ):
            hear(event)
    assert lines(capsys) == [
        "sjdvp: warning: beware",
        r"sjdvp: failed: prompt row 1, a\x1b[31m cat: "
        r"ImageError: the logits are not finite (use fp32)",
    ]


def test_verbose_has_a_line_for_each_image(capsys):
    with watch("none", quiet=False, verbose=True) as (_, hear):
        hear(image(3))
    assert lines(capsys) == [r"sjdvp: images/000003.png  NFE 40, 0.50 s  a\x1b[31m cat"]


def test_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with watch("auto", quiet=False, verbose=False) as (state, hear):
        for event in (
            started(3),
            Note("info", "a note [red]above[/red]"),
            image(0),
            image(1, "failed"),
            RunFinished({"ok": 1}),
        ):
            hear(event)
    shown = terminal.getvalue()
    assert "sjdvp: a note [red]above[/red]" in shown
    assert "2/3" in shown
    assert "NFE 40.0" in shown
    assert "1 failed" in shown
    assert state.summary == {"ok": 1}


def test_a_narrow_terminal_shows_count_and_rate_first(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with watch("auto", quiet=False, verbose=False) as (_, hear):
        for event in (started(1500), image(0), image(1)):
            hear(event)
    assert re.search(r"2/1500, [\d.]+ images/s", terminal.getvalue())


def test_long_prompts_are_cut(capsys):
    with watch("none", quiet=False, verbose=True) as (_, hear):
        hear(image(3, prompt="x" * 1_000_000))
        hear(image(4, "failed", prompt="x" * 1_000_000))
    assert all(len(line) < 200 and "xxx…" in line for line in lines(capsys))


def test_no_advice_to_resume_where_it_would_generate_nothing():
    summary = {"ok": 3, "skipped": 0, "failed": 1, "requested": 4}
    assert closing_line(summary, retry_failed=False) == "sjdvp: 3/4 ok, 1 failed"
    assert closing_line({**summary, "requested": 5}, retry_failed=False).endswith(
        "; run the same command to resume"
    )


@pytest.mark.parametrize(
    ("ok", "skipped", "failed", "requested", "line"),
    [
        (1500, 97, 3, 1600, "sjdvp: 1597/1600 ok, 3 failed; run the same command to resume"),
        (16, 0, 0, 16, "sjdvp: 16/16 ok"),
        (5, 0, 0, 16, "sjdvp: 5/16 ok; run the same command to resume"),
        (0, 0, 0, 0, "sjdvp: 0/0 ok"),
    ],
)
def test_last_line(ok, skipped, failed, requested, line):
    assert (
        closing_line({"ok": ok, "skipped": skipped, "failed": failed, "requested": requested})
        == line
    )
