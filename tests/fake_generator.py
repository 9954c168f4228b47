"""An ImageGenerator without a model: its images are noise, a pure function of the job's seed."""

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from sjdvp.config import TOKENS_ONLY, RunConfig, RunSettings
from sjdvp.events import ImageFinished, ignore
from sjdvp.generate import Request, generate
from sjdvp.jobs import ImageResult, Job, JobQueue, token_digest
from sjdvp.runs.jsonl import read_rows
from sjdvp.runs.sharding import log_paths
from sjdvp.runs.summary import RunSummary

SIZE = 16


def noise(job: Job) -> np.ndarray:
    return np.random.default_rng(job.seed).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)


def tokens_of(job: Job) -> tuple[int, ...]:
    return tuple(np.random.default_rng(job.seed).integers(0, 70_000, 8).tolist())


class FakeGenerator:
    """Generates `batch` jobs at a time and yields them last first.

    Prompts that start with `fail` fail, and with `pixels` in this way: the tokens are there.
    A model without a VQ decoder (`tokens_only`) makes tokens and no image.
    """

    tokens_only = False

    def __init__(self, batch: int = 3, seconds: float = 0.0) -> None:
        self.batch = batch
        self.seconds = seconds
        self.opened = 0
        self.generated: list[Job] = []

    def open(self, config: RunConfig):
        self.opened += 1
        self.tokens_only = config.model.backbone in TOKENS_ONLY
        return nullcontext(self)

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        while jobs := self._take(source):
            time.sleep(self.seconds)
            for job in reversed(jobs):
                self.generated.append(job)
                yield self._image(job)

    def _take(self, source: JobQueue) -> list[Job]:
        jobs: list[Job] = []
        while len(jobs) < self.batch:
            job = source.take(wait=not jobs)
            if job is None:
                break
            jobs.append(job)
        return jobs

    def _image(self, job: Job) -> ImageResult:
        stats = {
            "nfe": 10,
            "image_tokens": 64,
            "drafted": 40,
            "accepted": 20,
            "latency_s": 0.5,
            "token_sha256": token_digest(tokens_of(job)),
        }
        if job.tokens is not None:
            assert job.tokens == tokens_of(job)
            stats = {"token_sha256": stats["token_sha256"], "pixels_s": 0.25}
        if job.prompt.startswith("pixels") and job.tokens is None:
            error = {"type": "ImageError", "message": "out of memory", "hint": ""}
            return ImageResult(job, None, stats, error, tokens_of(job))
        if job.prompt.startswith("fail"):
            return ImageResult(
                job,
                None,
                stats | {"tokens_per_nfe": float("nan")},
                {"type": "Bad", "message": "no image", "hint": ""},
            )
        image_HWC = None if self.tokens_only else noise(job)
        return ImageResult(job, image_HWC, stats, tokens=tokens_of(job))


def config(**run: object) -> RunConfig:
    """Return settings with a fixed seed."""
    return RunConfig(run=RunSettings(**{"seed": 7, **run}))


def rows(out: Path) -> list[dict]:
    """Return the log rows of a run folder."""
    return [row for path in log_paths(out) for row in read_rows(path)]


def images(out: Path) -> dict[str, bytes]:
    """Return the image files of a run folder."""
    return {path.name: path.read_bytes() for path in sorted((out / "images").iterdir())}


def run(request: Request, generator: FakeGenerator | None = None, listen=ignore) -> RunSummary:
    """Generate with a FakeGenerator."""
    generator = generator or FakeGenerator()
    return generate(request, generator.open, listen)


def main() -> None:
    """Generate the prompts of a file slowly, from another process: PROMPTS OUT SECONDS."""
    request = Request(RunConfig(), Path(sys.argv[2]), prompts=Path(sys.argv[1]))
    generator = FakeGenerator(batch=2, seconds=float(sys.argv[3]))

    def tell(event: object) -> None:
        if isinstance(event, ImageFinished):
            print(event.row["file"], flush=True)

    generate(request, generator.open, tell)


if __name__ == "__main__":
    main()
