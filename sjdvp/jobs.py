"""What goes into an engine and what comes out: one job is one image. Imports no torch."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Job:
    """One image to draw. Its pixels are a pure function of the run's pixel settings, `prompt` and `seed`."""

    index: int  # row of the prompt
    sample: int  # which of the images of that prompt
    seed: int  # below 2^53
    prompt: str


@dataclass(frozen=True, slots=True)
class ImageResult:
    """One finished image, or its failure: exactly one of `image_HWC` (uint8, RGB) and `error` is set.

    `stats` holds the measured fields of the log row (nfe, image_tokens, drafted, accepted, ..., seconds with `_s` in the key);
    it has the same keys for failed images. `error` has the keys type, message, hint.
    """

    job: Job
    image_HWC: "np.ndarray[Any, Any] | None"
    stats: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] | None = None


class JobQueue(Protocol):
    """Where an engine takes its next job from."""

    def take(self, *, wait: bool) -> Job | None:
        """Return the next job. None: the source has ended (`wait` true) or has nothing just now (`wait` false)."""


class JobList:
    """A JobQueue of jobs that are all known; takes each of them once, in order."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = deque(jobs)

    def take(self, *, wait: bool) -> Job | None:
        """See `JobQueue`."""
        return self._jobs.popleft() if self._jobs else None


class ImageGenerator(Protocol):
    """Anything that turns jobs into images: the engine, or a stand-in in a test."""

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """Draw every job of the source, several at a time, and yield each image as it is ready (in any order).

        A failed image is a ImageResult with an error; an exception means that the generator itself cannot go on.
        """
