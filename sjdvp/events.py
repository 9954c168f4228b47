"""Events of a run, for listeners such as the progress bar. The library itself prints nothing."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The work is known; no model is loaded yet."""

    total: int | None  # requested images; None: prompts come from a pipe that has not ended
    done: int  # of those, finished by an earlier run
    out: str
    decoder: str  # in words: with the preset behind `best` and the window, or several
    lossless: str  # in words: towards which weights the decoder is lossless, or that it is not


@dataclass(frozen=True, slots=True)
class GenerationStarted:
    """The model is loaded and compiled; the first forward pass follows."""


@dataclass(frozen=True, slots=True)
class ImagesInProgress:
    """How far the images in progress are."""

    in_progress: float  # the sum of their committed parts, 0 to 1 each


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


Event = RunStarted | GenerationStarted | ImagesInProgress | Note | ImageFinished | RunFinished
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
