"""When memory runs out: fewer images at a time, down to one; an image that does not fit alone fails, and the others go on."""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from sjdvp.errors import DeviceError, ImageError
from sjdvp.jobs import ImageGenerator, ImageResult, Job, JobQueue

_HINT = "use a smaller --size or --window, a smaller --dtype, or a device with more memory"
# Where torch raises a plain RuntimeError: on the CPU, from a CUDA graph, and from the libraries of a GPU.
_SAYS = (
    "can't allocate memory",
    "not enough memory",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",
)


class ElasticBatch:
    """A generator that is made anew with half as many rows when memory runs out. Implements `sjdvp.jobs.ImageGenerator`."""

    def __init__(self, make: Callable[[int], ImageGenerator], batch_size: int) -> None:
        self._make = make
        self._n_rows = batch_size

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """See `sjdvp.jobs.ImageGenerator`. What was in flight when memory ran out is drawn again, from its start."""
        jobs = _Kept(source)
        while True:
            try:
                for image in self._generator().generate(jobs):
                    jobs.held.remove(image.job)
                    yield image
                return
            except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
                if not is_out_of_memory(error):
                    raise
            release_memory()  # after the except clause: the error holds the tensors of the frames that it passed
            if self._n_rows > 1:
                self._n_rows //= 2
            elif len(jobs.held) > 1:
                jobs.one_at_a_time = True  # which of them does not fit?
            elif jobs.held:
                yield ImageResult(jobs.held.pop(), None, error=_failure())
            else:
                raise DeviceError("memory ran out with no image in flight", _HINT)
            jobs.give_back()

    def _generator(self) -> ImageGenerator:
        while True:
            try:
                return self._make(self._n_rows)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if self._n_rows == 1:
                    raise DeviceError(
                        "there is not enough memory to draw one image at a time", _HINT
                    ) from error
            release_memory()
            self._n_rows //= 2


class _Kept:
    """A source that remembers the jobs it has handed out, and can hand them out again."""

    def __init__(self, source: JobQueue) -> None:
        self._source = source
        self._again: deque[Job] = deque()
        self.held: list[Job] = []
        self.one_at_a_time = False

    def take(self, *, wait: bool) -> Job | None:
        """See `sjdvp.jobs.JobQueue`."""
        if self.one_at_a_time and self.held:
            return None
        job = self._again.popleft() if self._again else self._source.take(wait=wait)
        if job is not None:
            self.held.append(job)
        return job

    def give_back(self) -> None:
        """Hand out again what was handed out."""
        self._again.extendleft(reversed(self.held))
        self.held = []


@contextmanager
def must_fit(what: str, device: torch.device, hint: str = "see `sjdvp doctor`") -> Iterator[None]:
    """Turn running out of memory inside the block into a DeviceError: `what` does not fit."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceError(f"{what} do not fit into the memory of {device}", hint) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device or the machine has no memory left."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        text in str(error) for text in _SAYS
    )


def release_memory() -> None:
    """Give back what nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _failure() -> dict[str, str]:
    error = ImageError("memory ran out, with this image alone on the device", _HINT)
    return {"type": type(error).__name__, "message": str(error), "hint": error.hint}
