"""Which image is decoded in which batch slot. Pure Python: it touches no tensor."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

from sjdvp.jobs import Job, JobQueue


@dataclass(slots=True)
class ImageSequence:
    """An image being decoded, and when its stages ended (seconds of `time.perf_counter`)."""

    job: Job
    warmup: bool  # whether it started before the first step: its times include compilation
    n_committed: int = 1  # image positions; the prefill gives position 0
    prompt_tokens: int = 0
    truncated: bool = False
    started: float = field(default_factory=perf_counter)
    prefilled: float = 0.0
    decoded: float = 0.0


class Slots:
    """Batch slots of a fixed number; a free one takes the next job (continuous batching)."""

    def __init__(self, batch_size: int) -> None:
        self._sequences: list[ImageSequence | None] = [None] * batch_size

    def free(self) -> list[int]:
        """Return the slots without a sequence."""
        return [slot for slot, sequence in enumerate(self._sequences) if sequence is None]

    def busy(self) -> list[tuple[int, ImageSequence]]:
        """Return the occupied slots with their sequences."""
        return [(slot, sequence) for slot, sequence in enumerate(self._sequences) if sequence]

    def assign(self, slot: int, sequence: ImageSequence) -> None:
        """Put a sequence into a free slot."""
        self._sequences[slot] = sequence

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._sequences[slot] = None


def next_jobs(queue: JobQueue, free_slots: list[int], *, wait: bool) -> Iterator[tuple[int, Job]]:
    """Yield (slot, job) while there are free slots and jobs; only the first job is waited for."""
    for slot in free_slots:
        job = queue.take(wait=wait)
        if job is None:
            return
        yield slot, job
        wait = False
