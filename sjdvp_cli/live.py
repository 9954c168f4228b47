"""Progress on stderr: a bar on a terminal, else one plain line every 30 seconds or 5 %."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import typer

from sjdvp.events import (
    Event,
    GenerationStarted,
    ImageFinished,
    ImagesInProgress,
    Note,
    RunFinished,
    RunStarted,
)
from sjdvp.jobs import FINISHED
from sjdvp.runs.summary import RunCounts
from sjdvp.text import counted, printable, shortened
from sjdvp_cli.options import Mode

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

PLAIN_SECONDS = 30.0
PLAIN_SHARE = 0.05
BAR_WIDTH = 90  # columns; the numbers take up to 75, so a narrower terminal shows no bar


@dataclass(slots=True)
class RunState:
    """How far a run is, from its events."""

    counts: RunCounts = field(default_factory=RunCounts)  # `skipped`: finished by an earlier run
    total: int | None = None  # unknown while prompts still come from a pipe
    started: float = 0.0  # the first forward pass, or the start while the model is being loaded
    loaded: bool = False
    in_progress: float = 0.0  # the sum of the committed parts of the images in progress
    completed: float = 0.0  # images, with parts of those in progress; it never falls
    summary: Mapping[str, Any] | None = None

    def hear(self, event: Event) -> None:
        """Take one event into account."""
        if isinstance(event, RunStarted):
            self.total, self.counts.skipped, self.started = (
                event.total,
                event.done,
                time.monotonic(),
            )
        elif isinstance(event, GenerationStarted):
            self.loaded, self.started = True, time.monotonic()
        elif isinstance(event, ImagesInProgress):
            self.in_progress = event.in_progress
        elif isinstance(event, RunFinished):
            self.summary = event.summary
        elif isinstance(event, ImageFinished):
            self.counts.add(event.row)
            self.in_progress = max(0.0, self.in_progress - 1)
        # An image whose pixels are being decoded is in neither number for a moment.
        self.completed = max(self.completed, self.seen + self.in_progress)

    @property
    def now(self) -> int:
        """Images finished or failed in this run."""
        return self.counts.ok + self.counts.failed

    @property
    def seen(self) -> int:
        """Images that need no more work, with those of earlier runs."""
        return self.counts.skipped + self.now

    @property
    def count(self) -> str:
        """`completed` of all images."""
        whole = self.completed == self.seen
        done = str(self.seen) if whole else f"{self.completed:.1f}"
        return f"{done}/{self.total or '?'}"

    @property
    def rate(self) -> float:
        """Images per second since the first forward pass."""
        return (self.completed - self.counts.skipped) / max(time.monotonic() - self.started, 1e-9)

    def numbers(self) -> str:
        """Return rate, time left, NFE and acceptance rate, as far as they are known."""
        parts = []
        if self.rate:
            parts.append(_rate(self.rate))
            if self.total is not None:
                parts.append(f"{_clock((self.total - self.completed) / self.rate)} left")
        if self.counts.nfe_mean is not None:
            parts.append(f"NFE {self.counts.nfe_mean:.1f}")
        if self.counts.accept_rate is not None:
            parts.append(f"accepted {100 * self.counts.accept_rate:.0f} %")
        if self.counts.failed:
            parts.append(f"{self.counts.failed} failed")
        return ", ".join(parts)


class View(Protocol):
    """A way to show progress."""

    def say(self, line: str) -> None:
        """Print a line."""

    def begin(self, state: RunState) -> None:
        """Show the state at the start."""

    def update(self, state: RunState) -> None:
        """Show the state after an event."""


@dataclass(slots=True)
class PlainView:
    """Lines: one every `PLAIN_SECONDS`, or after `PLAIN_SHARE` of the images."""

    progress: bool = True
    last_time: float = 0.0
    last_seen: int = 0

    def say(self, line: str) -> None:
        """Print a line."""
        typer.echo(line, err=True)

    def begin(self, state: RunState) -> None:
        """Count time and images from here."""
        self.last_time, self.last_seen = time.monotonic(), state.seen

    def update(self, state: RunState) -> None:
        """Print the state when enough time or images have passed."""
        enough = state.total is not None and state.seen - self.last_seen >= max(
            1, PLAIN_SHARE * state.total
        )
        if self.progress and (enough or time.monotonic() - self.last_time >= PLAIN_SECONDS):
            numbers = ", ".join(filter(None, [state.count, state.numbers()]))
            self.say(f"sjdvp: {numbers}")
            self.begin(state)


@dataclass(slots=True)
class BarView:
    """A bar at the bottom of the terminal; lines go above it."""

    progress: "RichProgress"

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def begin(self, state: RunState) -> None:
        """Show the bar."""
        self.progress.add_task(
            "",
            total=state.total,
            completed=state.seen,
            numbers=f"{state.count}, loading the model",
        )

    def update(self, state: RunState) -> None:
        """Move the bar."""
        numbers = ", ".join(filter(None, [state.count, state.numbers()]))
        self.progress.update(self.progress.task_ids[0], completed=state.completed, numbers=numbers)


@contextmanager
def watch(
    mode: Mode, *, quiet: bool, verbose: bool
) -> Iterator[tuple[RunState, Callable[[Event], None]]]:
    """Show the events of a run; gives its state and the listener."""
    state = RunState()
    with _view(mode, quiet) as view:
        yield state, lambda event: _show(event, state, view, quiet=quiet, verbose=verbose)


def _show(event: Event, state: RunState, view: View, *, quiet: bool, verbose: bool) -> None:
    state.hear(event)
    if isinstance(event, RunStarted):
        if not quiet:
            view.say(_opening(event))
        view.begin(state)
    elif isinstance(event, Note):
        if event.level != "info" or not quiet:
            view.say(f"sjdvp: {'' if event.level == 'info' else event.level + ': '}{event.message}")
    elif isinstance(event, ImageFinished):
        if event.row["status"] not in FINISHED or verbose:
            view.say(_image_line(event.row))
        view.update(state)
    elif isinstance(event, GenerationStarted | ImagesInProgress):
        view.update(state)


def closing_line(
    summary: Mapping[str, Any], *, interrupted: bool = False, retry_failed: bool = True
) -> str:
    """Return the last line of a run, from its summary, with how to generate what is missing."""
    finished, requested, failed = (
        summary["ok"] + summary["skipped"],
        summary["requested"],
        summary["failed"],
    )
    line = f"sjdvp: {finished}/{requested} ok"
    line += f", {failed} failed" if failed else ""
    line += ", interrupted" if interrupted else ""
    left = requested - finished - (0 if retry_failed else failed)
    return line + ("; run the same command to resume" if left else "")


@contextmanager
def _view(mode: Mode, quiet: bool) -> Iterator[View]:
    terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if quiet or mode in ("plain", "none") or (mode == "auto" and not terminal):
        yield PlainView(progress=mode != "none" and not quiet)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    console, numbers = Console(stderr=True), TextColumn("{task.fields[numbers]}")
    columns = (BarColumn(bar_width=None), numbers) if console.width >= BAR_WIDTH else (numbers,)
    with RichProgress(*columns, console=console, expand=True) as progress:
        yield BarView(progress)


def _opening(event: RunStarted) -> str:
    what = "images for prompts from stdin"
    if event.total is not None:
        done = f" ({event.done} finished before)" if event.done else ""
        what = counted(event.total, "image") + done
    return f"sjdvp: {what} to {event.out}; {event.decoder}, {event.lossless}"


def _image_line(row: Mapping[str, Any]) -> str:
    prompt = printable(shortened(str(row["prompt"])))
    if row["status"] in FINISHED:
        cost = f"NFE {row['nfe'] or 0}, {row['latency_s'] or 0:.2f} s"
        name = row["file"] or f"tokens of row {row['index']}, sample {row['sample']}"
        return f"sjdvp: {name}  {cost}  {prompt}"
    error = row["error"] or {}
    hint = f" ({error['hint']})" if error.get("hint") else ""
    reason = f"{error.get('type')}: {error.get('message')}{hint}"
    return f"sjdvp: failed: prompt row {row['index']}, {prompt}: {reason}"


def _rate(images_per_s: float) -> str:
    return (
        f"{images_per_s:.2f} images/s"
        if images_per_s >= 0.1
        else f"{images_per_s * 60:.2f} images/min"
    )


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
