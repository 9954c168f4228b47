"""Which job sits in which row. Pure Python: it touches no tensor and can be tested in microseconds."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from sjdvp.jobs import Job, JobSource

T = TypeVar("T")


class Rows(Generic[T]):
    """A fixed number of rows; a free row is given the next job at once (continuous batching). `T` is what is kept for each."""

    def __init__(self, n_rows: int) -> None:
        self.seats: list[T | None] = [None] * n_rows

    def free(self) -> list[int]:
        """Return the rows without a job."""
        return [row for row, seat in enumerate(self.seats) if seat is None]

    def busy(self) -> list[tuple[int, T]]:
        """Return the rows that decode, with what is kept for them."""
        return [(row, seat) for row, seat in enumerate(self.seats) if seat is not None]

    def sit(self, row: int, seat: T) -> None:
        """Put a job in a free row."""
        self.seats[row] = seat

    def leave(self, row: int) -> None:
        """Free a row."""
        self.seats[row] = None


def arrivals(source: JobSource, free: list[int], *, wait: bool) -> Iterator[tuple[int, Job]]:
    """Yield (row, job) while there are free rows and jobs; wait for the first job only if `wait`."""
    for row in free:
        job = source.take(wait=wait)
        if job is None:
            return
        yield row, job
        wait = False
