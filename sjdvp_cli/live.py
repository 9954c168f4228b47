"""Progress for people, on stderr: a bar on a terminal, otherwise one plain line every 30 seconds or 5 %."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import typer

from sjdvp.events import Event, ImageFinished, Note, RunFinished, RunStarted
from sjdvp.runs.summary import Tally
from sjdvp.text import printable, shortened

if TYPE_CHECKING:
    from rich.progress import Progress

Mode = Literal["auto", "bar", "plain", "none"]

PLAIN_SECONDS = 30.0
PLAIN_SHARE = 0.05
BAR_WIDTH = (
    90  # columns: the figures take up to 75, and on a narrower terminal they matter more than a bar
)


@dataclass(slots=True)
class Standing:
    """How far a run is, from its events."""

    counts: Tally = field(default_factory=Tally)  # `skipped`: finished by an earlier run
    total: int | None = None  # not known while prompts still come from a pipe
    started: float = 0.0
    summary: Mapping[str, Any] | None = None

    def hear(self, event: Event) -> None:
        """Take one event into account."""
        if isinstance(event, RunStarted):
            self.total, self.counts.skipped, self.started = (
                event.total,
                event.done,
                time.monotonic(),
            )
        elif isinstance(event, RunFinished):
            self.summary = event.summary
        elif isinstance(event, ImageFinished):
            self.counts.add(event.row)

    @property
    def now(self) -> int:
        """Images drawn now or failed now."""
        return self.counts.ok + self.counts.failed

    @property
    def seen(self) -> int:
        """Images that are settled, those finished before among them."""
        return self.counts.skipped + self.now

    @property
    def count(self) -> str:
        """Images settled, of all."""
        return f"{self.seen}/{self.total or '?'}"

    @property
    def rate(self) -> float:
        """Images a second of this run."""
        return self.now / max(time.monotonic() - self.started, 1e-9)

    def figures(self) -> str:
        """Return rate, time left, NFE and acceptance, as far as they are known."""
        parts = []
        if self.now:
            parts.append(_rate(self.rate))
            if self.total is not None:
                parts.append(f"{_clock((self.total - self.seen) / self.rate)} left")
        if self.counts.nfe_mean is not None:
            parts.append(f"NFE {self.counts.nfe_mean:.1f}")
        if self.counts.accept_rate is not None:
            parts.append(f"accepted {100 * self.counts.accept_rate:.0f} %")
        if self.counts.failed:
            parts.append(f"{self.counts.failed} failed")
        return ", ".join(parts)


class View(Protocol):
    """One way to show progress."""

    def say(self, line: str) -> None:
        """Print a line for people."""

    def begin(self, standing: Standing) -> None:
        """Take note of the state at the start."""

    def update(self, standing: Standing) -> None:
        """Show the state after an image."""


@dataclass(slots=True)
class Plain:
    """Lines, at most one every `PLAIN_SECONDS` unless `PLAIN_SHARE` of the images have come since."""

    progress: bool = True
    last_time: float = 0.0
    last_seen: int = 0

    def say(self, line: str) -> None:
        """Print a line."""
        typer.echo(line, err=True)

    def begin(self, standing: Standing) -> None:
        """Count time and images from here."""
        self.last_time, self.last_seen = time.monotonic(), standing.seen

    def update(self, standing: Standing) -> None:
        """Print the state when enough time or images have passed."""
        enough = standing.total is not None and standing.seen - self.last_seen >= max(
            1, PLAIN_SHARE * standing.total
        )
        if self.progress and (enough or time.monotonic() - self.last_time >= PLAIN_SECONDS):
            self.say(f"sjdvp: {standing.count}, {standing.figures()}")
            self.begin(standing)


@dataclass(slots=True)
class Bar:
    """A bar at the bottom of the terminal; lines go above it."""

    progress: "Progress"

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def begin(self, standing: Standing) -> None:
        """Draw the bar."""
        self.progress.add_task(
            "",
            total=standing.total,
            completed=standing.seen,
            figures=f"{standing.count}, loading the model",
        )

    def update(self, standing: Standing) -> None:
        """Move the bar."""
        figures = f"{standing.count}, {standing.figures()}"
        self.progress.update(self.progress.task_ids[0], completed=standing.seen, figures=figures)


@contextmanager
def watch(
    mode: Mode, *, quiet: bool, verbose: bool
) -> Iterator[tuple[Standing, Callable[[Event], None]]]:
    """Show the events of a run; gives the totals and the listener."""
    standing = Standing()
    with _view(mode, quiet) as view:
        yield standing, lambda event: _show(event, standing, view, quiet=quiet, verbose=verbose)


def _show(event: Event, standing: Standing, view: View, *, quiet: bool, verbose: bool) -> None:
    standing.hear(event)
    if isinstance(event, RunStarted):
        if not quiet:
            view.say(_opening(event))
        view.begin(standing)
    elif isinstance(event, Note):
        if event.level != "info" or not quiet:
            view.say(f"sjdvp: {'' if event.level == 'info' else event.level + ': '}{event.message}")
    elif isinstance(event, ImageFinished):
        if event.row["status"] != "ok" or verbose:
            view.say(_image_line(event.row))
        view.update(standing)


def closing_line(
    summary: Mapping[str, Any], *, interrupted: bool = False, retry_failed: bool = True
) -> str:
    """Return the last line of a run, from its summary; it says to resume where that draws what is not there."""
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
        yield Plain(progress=mode != "none" and not quiet)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console, figures = Console(stderr=True), TextColumn("{task.fields[figures]}")
    columns = (BarColumn(bar_width=None), figures) if console.width >= BAR_WIDTH else (figures,)
    with Progress(*columns, console=console, expand=True) as progress:
        yield Bar(progress)


def _opening(event: RunStarted) -> str:
    count = "prompts from a pipe" if event.total is None else f"{event.total} images"
    done = f", {event.done} done before" if event.done else ""
    distribution = "lossless" if event.lossless else "not lossless"
    return f"sjdvp: {count}{done}; decoder {event.decoder} ({distribution}) on {event.device}, to {event.out}"


def _image_line(row: Mapping[str, Any]) -> str:
    prompt = printable(shortened(str(row["prompt"])))
    if row["status"] == "ok":
        return f"sjdvp: {row['file']}  {row['nfe'] or 0} forward passes, {row['latency_s'] or 0:.2f} s  {prompt}"
    error = row["error"] or {}
    hint = f" ({error['hint']})" if error.get("hint") else ""
    return f"sjdvp: failed: image {row['index']}, {prompt}: {error.get('type')}: {error.get('message')}{hint}"


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
