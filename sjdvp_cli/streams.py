"""Stdin, stdout and stderr, which the caller may have closed or redirected to a full disk.

Data that cannot be written to stdout is an error; messages that cannot be written to stderr are
dropped. Both streams are UTF-8 in every locale, because paths and prompts are; click would wrap an
ASCII stream in one of its own.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator


class StdoutError(OSError):
    """Data could not be written to stdout."""


class DataStream(io.TextIOWrapper):
    """Stdout; a failed write is told apart from the errors of other files."""

    def write(self, text: str) -> int:
        """Write text; raises BrokenPipeError when the reader is gone, else StdoutError."""
        with _told_apart():
            return super().write(text)

    def flush(self) -> None:
        """Flush; raises as `write` does."""
        with _told_apart():
            super().flush()


class MessageStream(io.TextIOWrapper):
    """Stderr; what cannot be written is dropped, and the run goes on."""

    def write(self, text: str) -> int:
        """Write text, if possible."""
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if possible."""
        with contextlib.suppress(OSError):
            super().flush()


def prepare_streams() -> None:
    """Replace closed streams and set the encoding, before anything is read or written."""
    # In the order of the descriptors, see _nothing.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(_nothing(), mode, encoding="utf-8")  # noqa: SIM115 (stays open)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    out, err = sys.stdout, sys.stderr
    if isinstance(out, io.TextIOWrapper):
        at_once = out.write_through
        sys.stdout = DataStream(
            out.buffer,
            "utf-8",
            "surrogateescape",
            line_buffering=out.line_buffering,
            write_through=at_once,
        )
    if isinstance(err, io.TextIOWrapper):
        sys.stderr = MessageStream(err.buffer, "utf-8", err.errors, line_buffering=True)


def silence_stdout() -> None:
    """Redirect stdout to the null device, so that the last flush does not fail again."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)


def _nothing() -> int:
    """Open the null device on the lowest free descriptor: that of the closed stream."""
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
