"""Which job sits in which row. Pure Python: it touches no tensor and can be tested in microseconds."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from sjdvp.jobs import Job, JobQueue

T = TypeVar("T")


class Slots(Generic[T]):
    """A fixed number of rows; a free row is given the next job at once (continuous batching). `T` is what is kept for each."""

    def __init__(self, batch_size: int) -> None:
        self.sequences: list[T | None] = [None] * batch_size

    def free(self) -> list[int]:
        """Return the rows without a job."""
        return [row for row, sequence in enumerate(self.sequences) if sequence is None]

    def busy(self) -> list[tuple[int, T]]:
        """Return the rows that decode, with what is kept for them."""
        return [
            (row, sequence) for row, sequence in enumerate(self.sequences) if sequence is not None
        ]

    def sit(self, row: int, sequence: T) -> None:
        """Put a job in a free row."""
        self.sequences[row] = sequence

    def leave(self, row: int) -> None:
        """Free a row."""
        self.sequences[row] = None


def arrivals(source: JobQueue, free: list[int], *, wait: bool) -> Iterator[tuple[int, Job]]:
    """Yield (row, job) while there are free rows and jobs; wait for the first job only if `wait`."""
    for row in free:
        job = source.take(wait=wait)
        if job is None:
            return
        yield row, job
        wait = False
