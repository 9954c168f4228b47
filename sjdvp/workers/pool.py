"""A generator that is several worker processes. What a dying worker held is drawn by the others, and the worker is replaced."""

import contextlib
import multiprocessing
import os
import pickle
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running

from sjdvp.config import RunConfig
from sjdvp.errors import DeviceError
from sjdvp.jobs import ImageResult, Job, JobQueue
from sjdvp.runs.signals import STOPPING
from sjdvp.workers.process import Broken, OpenGenerator, Take, work

_POLL_S = 0.1  # how often a source that had nothing is asked again
_FAREWELL_S = 2.0  # for a process whose pipe is closed already
_JOB_TRIES = 3  # an image in flight at this many deaths is taken for their cause
_LIVES = 3  # a worker that dies this often without a image in between is not replaced any more


@dataclass(slots=True)
class _Worker:
    """One process and what it is doing."""

    device: str
    process: BaseProcess
    pipe: Connection
    held: list[Job] = field(default_factory=list)  # handed out, no image yet
    waiting: bool = False  # it has asked, and will be answered when there is a job
    broken: Broken | None = None


class Workers:
    """Draws with one process a device; a device may stand there several times (`cpu`). Implements `sjdvp.jobs.ImageGenerator`."""

    def __init__(
        self,
        config: RunConfig,
        devices: Sequence[str],
        open_generator: OpenGenerator,
        tell: Callable[[str], None],
    ) -> None:
        self._config = config
        self._devices = devices
        self._open_generator = open_generator
        self._tell = tell
        self._threads = max(1, (os.cpu_count() or 1) // len(devices))
        self._again: list[
            tuple[Job, str]
        ] = []  # images of workers that died, and the device they died on
        self._tries: Counter[Job] = Counter()
        self._deaths: Counter[int] = Counter()  # by place, since its last image
        self._workers: dict[int, _Worker] = {}  # by place

    def start(self) -> None:
        """Start all processes; `close` must follow."""
        for place in range(len(self._devices)):
            self._start(place)

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """See `sjdvp.jobs.ImageGenerator`."""
        while True:
            for place in self._spoken():
                yield from self._hear(place, source)
            for worker in self._workers.values():
                if worker.waiting:
                    self._answer(worker, self._next(worker, source), wait=True)
            idle = [worker for worker in self._workers.values() if worker.waiting]
            if (
                idle
                and not self._again
                and not any(worker.held for worker in self._workers.values())
            ):
                job = source.take(wait=True)  # nobody draws, so nobody is kept waiting
                if job is None:
                    return
                self._answer(idle[0], job, wait=True)

    def close(self) -> None:
        """End all workers at once: they hold nothing that could be lost."""
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.process.join()
            worker.pipe.close()
        self._workers = {}

    def _start(self, place: int) -> None:
        device = self._devices[place]
        config = replace(self._config, run=replace(self._config.run, device=device))
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(
            target=work, args=(theirs, pickle.dumps(self._open_generator), config, self._threads)
        )
        with _signals_held_back():
            process.start()
        theirs.close()
        self._workers[place] = _Worker(device, process, pipe)

    def _spoken(self) -> list[int]:
        polling = any(worker.waiting for worker in self._workers.values())
        ready = wait(
            [worker.pipe for worker in self._workers.values()], _POLL_S if polling else None
        )
        return [place for place, worker in self._workers.items() if worker.pipe in ready]

    def _hear(self, place: int, source: JobQueue) -> Iterator[ImageResult]:
        worker = self._workers[place]
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            yield from self._bury(place)
            return
        if isinstance(message, ImageResult):
            worker.held.remove(message.job)
            self._deaths[place] = 0
            yield message
        elif isinstance(message, Broken):
            worker.broken = message
        elif isinstance(message, Take):
            self._answer(worker, self._next(worker, source), wait=message.wait)

    def _answer(self, worker: _Worker, job: Job | None, *, wait: bool) -> None:
        worker.waiting = job is None and wait
        if worker.waiting:
            return
        if job is not None:
            worker.held.append(job)
        with contextlib.suppress(OSError):  # it has died: the next `recv` says so
            worker.pipe.send(job)

    def _next(self, worker: _Worker, source: JobQueue) -> Job | None:
        """Return what a worker shall draw next. An image that was in flight at a death is drawn alone, elsewhere if possible."""
        if any(self._tries[job] for job in worker.held):
            return None
        for suspect in self._again:
            if not worker.held and (suspect[1] != worker.device or self._only(worker.device)):
                self._again.remove(suspect)
                return suspect[0]
        return source.take(wait=False)

    def _only(self, device: str) -> bool:
        return all(worker.device == device for worker in self._workers.values())

    def _bury(self, place: int) -> Iterator[ImageResult]:
        worker = self._workers.pop(place)
        worker.process.join(_FAREWELL_S)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self._deaths[place] += 1
        reason = _reason(worker)
        for job in worker.held:
            self._tries[job] += 1
            if self._tries[job] < _JOB_TRIES:
                self._again.append((job, worker.device))
            else:
                self._deaths[place] = 0  # the cause is found
                yield ImageResult(job, None, error=_failure(reason))
        self._mourn(place, worker, reason)

    def _mourn(self, place: int, worker: _Worker, reason: str) -> None:
        """Replace a dead worker, or say that it is not replaced; raises when there is none left, or what is wrong for all."""
        if worker.broken and worker.broken.error:
            raise worker.broken.error
        report = f"\n{worker.broken.report.rstrip()}" if worker.broken else ""
        if self._deaths[place] < _LIVES:
            self._tell(
                f"worker {place} ({worker.device}) {reason}; its images are drawn again{report}"
            )
            self._start(place)
            return
        self._tell(
            f"worker {place} ({worker.device}) {reason} {_LIVES} times in a row; it is not replaced{report}"
        )
        if not self._workers:
            raise DeviceError(
                "all workers have died", "the lines above say how; `sjdvp doctor` may know why"
            )


@contextlib.contextmanager
def open_workers(
    config: RunConfig,
    devices: Sequence[str],
    open_generator: OpenGenerator,
    tell: Callable[[str], None],
) -> Iterator[Workers]:
    """Start a worker on each device for as long as the context lasts; `tell` hears what people should know of them.

    `open_generator` opens the generator in each worker's process: a function that can be imported there.
    """
    workers = Workers(config, devices, open_generator, tell)
    try:
        workers.start()
        yield workers
    finally:
        workers.close()


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Keep signals from a process that is being started until it knows what to do with them: it inherits the mask."""
    ensure_running()  # the first process would start it, and that unblocks SIGINT and SIGTERM
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reason(worker: _Worker) -> str:
    if worker.broken:
        return f"broke ({worker.broken.report.strip().splitlines()[-1]})"
    code = worker.process.exitcode or 0
    if code == -signal.SIGKILL:
        return "was killed (by hand, or because the machine has no memory left)"
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _failure(reason: str) -> dict[str, str]:
    return {
        "type": "WorkerDied",
        "message": f"each of the {_JOB_TRIES} workers that tried it {reason}",
        "hint": "the same command tries it again",
    }
