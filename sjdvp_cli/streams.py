"""The process's own stdin, stdout and stderr, which its caller may have closed, or sent to a file on a full disk.

Data that cannot be written is an error to be told; words for people that cannot be written stop nothing. Both are UTF-8, because
paths and prompts are, whatever the locale of a cron job says; and click would put a stream of its own over one that is ASCII.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator


class StdoutError(OSError):
    """Data could not be written on stdout, though somebody wants it."""


class Data(io.TextIOWrapper):
    """Stdout; what cannot be written is told from the errors of other files."""

    def write(self, text: str) -> int:
        """Write text; raises BrokenPipeError when nobody reads any more, StdoutError for any other refusal."""
        with _told_apart():
            return super().write(text)

    def flush(self) -> None:
        """Hand over what is buffered; raises as `write` does."""
        with _told_apart():
            super().flush()


class Words(io.TextIOWrapper):
    """Stderr; what cannot be written is lost, and the work goes on."""

    def write(self, text: str) -> int:
        """Write text where that can be done."""
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Hand over what is buffered where that can be done."""
        with contextlib.suppress(OSError):
            super().flush()


def prepare_streams() -> None:
    """Make the three streams fit for use, before anything is read or written."""
    for name, mode in (
        ("stdin", "r"),
        ("stdout", "w"),
        ("stderr", "w"),
    ):  # in the order of their descriptors, see _nothing
        if getattr(sys, name) is None:
            stream = open(_nothing(), mode, encoding="utf-8")  # noqa: SIM115 (open as long as the process is)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    out, err = sys.stdout, sys.stderr
    if isinstance(out, io.TextIOWrapper):
        at_once = out.write_through
        sys.stdout = Data(
            out.buffer,
            "utf-8",
            "surrogateescape",
            line_buffering=out.line_buffering,
            write_through=at_once,
        )
    if isinstance(err, io.TextIOWrapper):
        sys.stderr = Words(err.buffer, "utf-8", err.errors, line_buffering=True)


def silence_stdout() -> None:
    """Point stdout at nothing once it takes no more, so that the interpreter's last flush does not fail again."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)


def _nothing() -> int:
    """Open the null device, on the lowest descriptor that is free: that of the stream that is closed."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(descriptor, True)
    return descriptor


@contextlib.contextmanager
def _told_apart() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StdoutError(error.errno, error.strerror) from error
