"""Stopping in good order: SIGINT, SIGTERM and SIGUSR1 (a scheduler's warning) become an exception on the main thread."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from sjdvp.errors import Interrupted

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


_heard: list[int] = []  # the signals of the block that is under way


class _Stop(
    KeyboardInterrupt
):  # not an Exception: code that keeps one image's failure from the others must not catch it
    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Raise Interrupted when one of `STOPPING` comes during the block; a signal that was ignored stays ignored.

    On another thread than the main one signals cannot be caught, and only a KeyboardInterrupt raised inside becomes Interrupted.
    """
    main = threading.current_thread() is threading.main_thread()
    caught = [s for s in STOPPING if main and signal.getsignal(s) is not signal.SIG_IGN]
    _heard.clear()
    before = {signum: signal.signal(signum, _stop) for signum in caught}
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(stop.signum if isinstance(stop, _Stop) else signal.SIGINT) from stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def raise_if_stopped() -> None:
    """Raise again what a signal has raised: in a finaliser, Python prints an exception and goes on as if it had not been."""
    if _heard:
        raise _Stop(_heard[0])


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    _heard.append(signum)
    raise _Stop(signum)
