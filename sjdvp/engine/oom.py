"""Out of memory: fewer images at a time, down to one. An image that does not fit alone fails."""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from sjdvp.errors import DeviceError, ImageError
from sjdvp.jobs import ImageGenerator, ImageResult, Job, JobQueue, error_fields

_HINT = "use a smaller --size or --window, a smaller --dtype, or a device with more memory"
# torch raises a plain RuntimeError on the CPU, from CUDA graphs, and from the libraries of a GPU.
_MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",  # expandable segments
    "STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # no memory for the handle
    "Unable to find a valid cuDNN algorithm",  # no memory for any workspace
)


class ElasticBatch:
    """A generator that is rebuilt with half the batch size when memory runs out.

    Implements `sjdvp.jobs.ImageGenerator`.
    """

    def __init__(self, make: Callable[[int], ImageGenerator], batch_size: int) -> None:
        self._make = make
        self._batch_size = batch_size

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """See `sjdvp.jobs.ImageGenerator`. Images in flight at the time start again."""
        jobs = _ReplayQueue(source)
        while True:
            try:
                for image in self._generator().generate(jobs):
                    jobs.in_flight.remove(image.job)
                    yield image
                return
            except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
                if not is_out_of_memory(error):
                    raise
            release_memory()  # not in the except clause: the error holds tensors of its frames
            if self._batch_size > 1:
                self._batch_size //= 2
            elif len(jobs.in_flight) > 1:
                jobs.one_at_a_time = True  # to find out which of them does not fit
            elif jobs.in_flight:
                failure = ImageError("out of memory, with this image alone on the device", _HINT)
                yield ImageResult(jobs.in_flight.pop(), None, error=error_fields(failure))
            else:
                raise DeviceError("out of memory with no image in flight", _HINT)
            jobs.replay()

    def _generator(self) -> ImageGenerator:
        while True:
            try:
                return self._make(self._batch_size)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if self._batch_size == 1:
                    what = "there is not enough memory to generate one image at a time"
                    raise DeviceError(what, _HINT) from error
            release_memory()
            self._batch_size //= 2


class _ReplayQueue:
    """A job queue that remembers the jobs in flight and can hand them out again."""

    def __init__(self, source: JobQueue) -> None:
        self._source = source
        self._again: deque[Job] = deque()
        self.in_flight: list[Job] = []
        self.one_at_a_time = False

    def take(self, *, wait: bool) -> Job | None:
        """See `sjdvp.jobs.JobQueue`."""
        if self.one_at_a_time and self.in_flight:
            return None
        job = self._again.popleft() if self._again else self._source.take(wait=wait)
        if job is not None:
            self.in_flight.append(job)
        return job

    def report(self, in_progress: float) -> None:
        """See `sjdvp.jobs.JobQueue`."""
        self._source.report(in_progress)

    def replay(self) -> None:
        """Hand out the jobs in flight again."""
        self._again.extendleft(reversed(self.in_flight))
        self.in_flight = []


@contextmanager
def must_fit(what: str, device: torch.device, hint: str = "see `sjdvp doctor`") -> Iterator[None]:
    """Raise DeviceError, `what` does not fit, when memory runs out inside the block."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceError(f"{what} do not fit into the memory of {device}", hint) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the device or the machine has no memory left.

    An error that was raised while another was handled counts by either: out of memory inside a
    capture ends the capture, which fails too and hides the cause.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if any(message in str(error) for message in _MESSAGES):
        return True
    return error.__context__ is not None and is_out_of_memory(error.__context__)


def release_memory() -> None:
    """Free what nothing refers to any more."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
