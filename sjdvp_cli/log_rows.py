"""Data for programs: log rows, paths and the summary, on stdout or in a file."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import typer

from sjdvp.errors import ConfigError
from sjdvp.events import Event, ImageFinished, RunFinished
from sjdvp_cli.options import expanded
from sjdvp_cli.streams import silence_stdout


@dataclass(slots=True)
class DataLines:
    """A listener that writes the data that the flags ask for, line by line.

    The run goes on when the reader of stdout is gone or the disk of these lines is full: the
    images are what matters.
    """

    out: Path
    log: TextIO | None = None  # a copy of every log row
    rows: bool = False  # log rows on stdout
    paths: bool = False  # paths of finished images on stdout
    end: str = "\n"  # after a path
    summary: bool = False  # the summary on stdout, at the end
    closed: bool = False  # stdout takes no more
    lost: bool = False  # a line could not be written

    def __call__(self, event: Event) -> None:
        """Write the lines of one event."""
        if isinstance(event, ImageFinished):
            self._image(event.row)
        elif isinstance(event, RunFinished) and self.summary:
            self._say(json.dumps(event.summary), "\n")

    def _image(self, row: Mapping[str, Any]) -> None:
        self._copy(json.dumps(row))
        if self.rows:
            self._say(json.dumps(row), "\n")
        if self.paths and row["status"] == "ok":
            self._say(str(self.out / row["file"]), self.end)

    def _copy(self, line: str) -> None:
        if self.log is None:
            return
        try:
            self.log.write(line + "\n")
            self.log.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # `close` writes again what is left
                self.log.close()
            self.log = None
            self._lose("the copy of the log", error)

    def _say(self, text: str, end: str) -> None:
        if self.closed:
            return
        try:
            typer.echo(text + end, nl=False)
        except BrokenPipeError:
            self._close()
            typer.echo("sjdvp: warning: the reader of stdout is gone; the run goes on", err=True)
        except OSError as error:
            self._close()
            self._lose("stdout", error)

    def _close(self) -> None:
        self.closed = True
        silence_stdout()

    def _lose(self, name: str, error: OSError) -> None:
        self.lost = True
        typer.echo(
            f"sjdvp: warning: cannot write {name} ({error.strerror}); the run goes on and will "
            "end with exit code 1",
            err=True,
        )


@contextmanager
def data_lines(
    out: Path, *, log: str | None, paths: bool, null: bool, summary: bool
) -> Iterator[DataLines]:
    """Open the destinations that the flags of `generate` name."""
    paths = paths or null
    if log == "-" and paths:
        raise ConfigError("--log - and --print paths both use stdout", "give --log a file")
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
