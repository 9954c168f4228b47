"""What goes into an engine and what comes out: one job is one image. Imports no torch."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sjdvp.config import RunConfig
from sjdvp.errors import ImageError

if TYPE_CHECKING:
    import numpy as np


# tokens: complete without an image, which the model cannot make
Status = Literal["ok", "failed", "tokens"]
FINISHED: tuple[Status, ...] = ("ok", "tokens")

REPORT_S = 0.5  # between two reports of progress within images


@dataclass(frozen=True, slots=True)
class Job:
    """One image to generate.

    Its pixels are a pure function of the run's pixel settings, `prompt` and `seed`.
    """

    index: int  # row of the prompt
    sample: int  # which of the images of that prompt
    seed: int  # below 2^53
    prompt: str
    tokens: tuple[int, ...] | None = None  # its image tokens, when only its pixels are missing
    # What the image's row asks for; None: what the settings of the run say.
    cfg_scale: float | None = None
    negative_prompt: str | None = None
    size: tuple[int, int] | None = None  # width and height in pixels


@dataclass(frozen=True, slots=True)
class ImageResult:
    """One finished image, or its failure: at most one of `image_HWC` and `error` is set.

    Neither is set where the model has no VQ decoder: its tokens are the result.
    `stats` has the measured fields of the log row (nfe, image_tokens, drafted, accepted, ...,
    seconds with `_s` in the key), the same keys for failed images. `tokens` are there also when
    only the pixels failed.
    """

    job: Job
    image_HWC: "np.ndarray[Any, Any] | None"  # uint8, RGB
    stats: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] | None = None  # type, message, hint
    tokens: tuple[int, ...] | None = None  # image tokens in raster order

    @property
    def status(self) -> Status:
        """The `status` of its log row."""
        if self.error is not None:
            return "failed"
        return "tokens" if self.image_HWC is None else "ok"


def error_fields(error: ImageError | None) -> dict[str, str] | None:
    """Return the `error` of a log row; null for an image that succeeded."""
    if error is None:
        return None
    return {"type": type(error).__name__, "message": str(error), "hint": error.hint}


def token_digest(tokens: Iterable[int]) -> str:
    """Return the SHA-256 of image tokens as comma-separated decimals."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()


class JobQueue(Protocol):
    """Where an engine takes its next job from."""

    def take(self, *, wait: bool) -> Job | None:
        """Return the next job.

        None: the queue has ended (`wait` true) or has nothing yet (`wait` false).
        """

    def report(self, in_progress: float) -> None:
        """Hear the progress of the images under way: the sum of their parts, 0 to 1 each."""


class JobList:
    """A JobQueue of jobs that are all known; takes each of them once, in order."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = deque(jobs)

    def take(self, *, wait: bool) -> Job | None:
        """See `JobQueue`."""
        return self._jobs.popleft() if self._jobs else None

    def report(self, in_progress: float) -> None:
        """See `JobQueue`."""


class ImageGenerator(Protocol):
    """Anything that turns jobs into images: the engine, workers, or a fake in a test."""

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """Generate every job, several at a time, and yield each image as it is ready, in any order.

        A failed image is an ImageResult with an error; an exception means that the generator
        itself cannot continue.
        """


OpenGenerator = Callable[[RunConfig], AbstractContextManager[ImageGenerator]]
