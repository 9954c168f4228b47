"""Painters for worker processes, which do what their prompts say."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sjdvp.config import RunConfig
from sjdvp.errors import WeightsError
from sjdvp.jobs import ImageResult, Job, JobQueue
from tests.fake_generator import FakeGenerator


class Obedient(FakeGenerator):
    """`sleep 0.3`, `print this`, `die`, `segfault`, `kill`, `raise`: once each while the file FILE
    of `die FILE` is not there.
    """

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        while jobs := self._take(source):
            for job in jobs:
                follow(job)
                yield self._image(job)


def follow(job: Job) -> None:
    what, _, argument = job.prompt.partition(" ")
    if what == "sleep":
        time.sleep(float(argument))
    elif what == "print":
        print(argument, flush=True)
    elif what in ("die", "segfault", "kill", "raise") and not (
        argument and Path(argument).exists()
    ):
        if argument:
            Path(argument).touch()
        {"die": die, "segfault": segfault, "kill": kill, "raise": fail}[what]()


def die() -> None:
    os._exit(3)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise RuntimeError("the device is on fire")


@contextmanager
def open_obedient(config: RunConfig) -> Iterator[Obedient]:
    yield Obedient(batch=2)


class TimedGenerator(FakeGenerator):
    """Notes the process and the times of an image in the key `gpu`; `sleep 0.3` takes
    that long.
    """

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        while (job := source.take(wait=True)) is not None:
            begun = time.monotonic()
            follow(job)
            image = self._image(job)
            yield replace(
                image, stats=image.stats | {"gpu": f"{os.getpid()} {begun} {time.monotonic()}"}
            )


@contextmanager
def open_timed(config: RunConfig) -> Iterator[TimedGenerator]:
    yield TimedGenerator()


@contextmanager
def open_picky(config: RunConfig) -> Iterator[Obedient]:
    """A machine whose second device breaks on everything."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "1":
        raise RuntimeError("this device is lost")
    yield Obedient(batch=1)


@contextmanager
def open_without_weights(config: RunConfig) -> Iterator[Obedient]:
    raise WeightsError("no weights here", "download them")
    yield Obedient()


@contextmanager
def open_quick(config: RunConfig) -> Iterator[FakeGenerator]:
    yield FakeGenerator(batch=2, seconds=0.02)
