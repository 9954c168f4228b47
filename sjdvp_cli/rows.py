"""Data for programs: log rows, paths and the closing summary, as they come, on stdout or in a file."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import typer

from sjdvp.errors import ConfigError
from sjdvp.events import Event, ImageFinished, RunFinished
from sjdvp_cli.options import expanded


@dataclass(slots=True)
class DataLines:
    """A listener that writes what was asked for, each line at once.

    When the reader of stdout goes away the run goes on: its product is the pictures, not the lines.
    """

    out: Path
    log: TextIO | None = None  # a copy of every log row
    rows: bool = False  # log rows on stdout
    paths: bool = False  # paths of finished pictures on stdout
    end: str = "\n"  # after a path
    summary: bool = False  # the summary on stdout, last
    closed: bool = False

    def __call__(self, event: Event) -> None:
        """Write the lines that belong to one event."""
        if isinstance(event, ImageFinished):
            self._image(event.row)
        elif isinstance(event, RunFinished) and self.summary:
            self._say(json.dumps(event.summary), "\n")

    def _image(self, row: Mapping[str, Any]) -> None:
        if self.log:
            self.log.write(json.dumps(row) + "\n")
            self.log.flush()
        if self.rows:
            self._say(json.dumps(row), "\n")
        if self.paths and row["status"] == "ok":
            self._say(str(self.out / row["file"]), self.end)

    def _say(self, text: str, end: str) -> None:
        if self.closed:
            return
        try:
            typer.echo(text + end, nl=False)
        except BrokenPipeError:
            self.closed = True
            silence_stdout()
            typer.echo("sjdvp: warning: nobody reads stdout any more; the run goes on", err=True)


@contextmanager
def data_lines(out: Path, *, log: str | None, paths: bool, null: bool, summary: bool) -> Iterator[DataLines]:
    """Open the destinations that the flags of `generate` name."""
    paths = paths or null
    if log == "-" and paths:
        raise ConfigError("--log - and --print paths both want stdout", "give --log a file")
    end = "\0" if null else "\n"
    if log is None or log == "-":
        yield DataLines(out, rows=log == "-", paths=paths, end=end, summary=summary)
        return
    with _open_log(log) as file:
        yield DataLines(out, log=file, paths=paths, end=end, summary=summary)


def _open_log(log: str) -> TextIO:
    try:
        return expanded(Path(log)).open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--log {log}: {error.strerror or error}") from error


def silence_stdout() -> None:
    """Point stdout at nothing once its reader has gone, so that the interpreter's last flush does not fail again."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
