"""Jobs that need different engines, one group after another: image sizes, and guidance or none."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sjdvp.config import RunConfig
from sjdvp.engine.oom import release_memory
from sjdvp.jobs import ImageGenerator, ImageResult, Job, JobQueue


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
