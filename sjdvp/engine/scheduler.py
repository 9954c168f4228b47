"""Which image is decoded when, and in which batch slot. Pure Python: it touches no tensor.

Jobs that need different engines come in groups, one group after another.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from sjdvp.config import RunConfig
from sjdvp.engine.oom import release_memory
from sjdvp.jobs import ImageGenerator, ImageResult, Job, JobQueue


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


class EngineKind(NamedTuple):
    """What an engine has one of: a function of the job and the settings of the run alone."""

    size: tuple[int, int] | None  # width and height in pixels; None: the run's
    guided: bool  # whether it has the unconditional branch

    @classmethod
    def of(cls, job: Job, config: RunConfig) -> "EngineKind":
        """Return the kind of engine that a job needs."""
        scales = {config.sampling.cfg_scale, job.cfg_scale}
        return cls(job.size, bool(scales - {1, None}))


@dataclass(slots=True)
class Groups:
    """Generates the jobs of each kind with an engine of that kind, made by `make`.

    One engine exists at a time, so a queue should keep jobs of a kind together. Implements
    `sjdvp.jobs.ImageGenerator`.
    """

    make: Callable[[EngineKind], ImageGenerator]
    config: RunConfig
    description: str = field(default="", kw_only=True)  # for people

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """See `sjdvp.jobs.ImageGenerator`."""
        jobs = _OneKind(source, self.config)
        while (kind := jobs.next_kind()) is not None:
            yield from self.make(kind).generate(jobs)
            release_memory()


class _OneKind:
    """A JobQueue that ends before a job of another kind than the first."""

    def __init__(self, source: JobQueue, config: RunConfig) -> None:
        self._source, self._config = source, config
        self._held: Job | None = None  # taken from the source and not handed out
        self._kind: EngineKind | None = None

    def next_kind(self) -> EngineKind | None:
        """Wait for the next job, and hand out those of its kind; None at the end."""
        if self._held is None:
            self._held = self._source.take(wait=True)
        self._kind = None if self._held is None else EngineKind.of(self._held, self._config)
        return self._kind

    def take(self, *, wait: bool) -> Job | None:
        """See `sjdvp.jobs.JobQueue`."""
        job, self._held = self._held or self._source.take(wait=wait), None
        if job is not None and EngineKind.of(job, self._config) != self._kind:
            self._held, job = job, None
        return job

    def report(self, in_progress: float) -> None:
        """See `sjdvp.jobs.JobQueue`."""
        self._source.report(in_progress)
