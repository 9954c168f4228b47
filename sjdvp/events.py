"""What the engine and the runner tell their listeners: progress bars, plain logs and tests listen; nobody prints from inside."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The work is known: `total` images are requested of this process, `done` of them were finished by an earlier run."""

    total: int | None  # None: prompts come from a pipe that has not ended
    done: int
    out: str
    decoder: str
    lossless: bool
    device: str


@dataclass(frozen=True, slots=True)
class Note:
    """A line for people: `level` is info or warning."""

    level: str
    message: str


@dataclass(frozen=True, slots=True)
class ImageFinished:
    """One image is on disk (or has failed); `row` is its log row as written."""

    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The end of a run; `summary` is what `generate --json` prints."""

    summary: Mapping[str, Any]


Event = RunStarted | Note | ImageFinished | RunFinished
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""


def one_at_a_time(listen: Listener) -> Listener:
    """Return a listener that several threads may call, for one that only one may call at a time."""
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock:
            listen(event)

    return tell
