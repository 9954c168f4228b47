"""Stopping cleanly: SIGINT, SIGTERM, SIGHUP and SIGUSR1 become an exception in the main thread."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from sjdvp.errors import Interrupted

# A scheduler sends SIGUSR1 some time before it ends a job.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

_received: list[int] = []  # signals received inside the current `stoppable` block


class _Stop(KeyboardInterrupt):
    """Not an Exception, so that code which handles the failure of one image does not catch it."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Raise Interrupted when one of `STOPPING` arrives during the block.

    A signal that was ignored before stays ignored. Outside of the main thread signals cannot be
    caught, and only a KeyboardInterrupt raised inside becomes Interrupted.
    """
    main = threading.current_thread() is threading.main_thread()
    caught = [s for s in STOPPING if main and signal.getsignal(s) is not signal.SIG_IGN]
    _received.clear()
    before = {signum: signal.signal(signum, _stop) for signum in caught}
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(stop.signum if isinstance(stop, _Stop) else signal.SIGINT) from stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def raise_if_stopped() -> None:
    """Raise again if a signal was received.

    In a finalizer, Python prints the exception and continues, so the first one can get lost.
    """
    if _received:
        raise _Stop(_received[0])


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    _received.append(signum)
    raise _Stop(signum)
