"""An ImageGenerator made of worker processes; a worker that dies is replaced."""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running

from sjdvp.config import RunConfig
from sjdvp.errors import DeviceError
from sjdvp.jobs import ImageResult, Job, JobQueue, OpenGenerator
from sjdvp.runs.signals import STOPPING
from sjdvp.workers.process import Broken, InProgress, Take, work

_POLL_S = 0.1  # between two questions to a queue that had nothing
_EXIT_S = 2.0  # to wait for a process whose pipe is closed
_JOB_TRIES = 3  # a job that this many workers died with is taken for the cause
_AHEAD = 16  # jobs per worker that are taken in advance, to share them evenly
_MOST_DEATHS = 3  # in a row, without an image; then a worker is not replaced


@dataclass(slots=True)
class _Worker:
    """A worker process and its state."""

    device: str
    process: BaseProcess
    pipe: Connection
    held: list[Job] = field(default_factory=list)  # sent to it, no image yet
    in_progress: float = 0.0  # the sum of the committed parts of its images
    waiting: bool = False  # it has asked for a job and has no answer yet
    broken: Broken | None = None


class Workers:
    """An ImageGenerator of one process per entry of `devices`, which may repeat a device."""

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
        # jobs of workers that died, and the device they died on
        self._retries: list[tuple[Job, str]] = []
        self._tries: Counter[Job] = Counter()
        self._deaths: Counter[int] = Counter()  # by worker number, since its last image
        self._workers: dict[int, _Worker] = {}  # by worker number
        self._ahead: deque[Job] = deque()  # taken from the queue, not sent to a worker yet

    def start(self) -> None:
        """Start all processes; `close` must follow."""
        for number in range(len(self._devices)):
            self._start(number)

    def generate(self, source: JobQueue) -> Iterator[ImageResult]:
        """See `sjdvp.jobs.ImageGenerator`."""
        while True:
            for number in self._ready():
                yield from self._receive(number, source)
            for worker in self._workers.values():
                if worker.waiting:
                    self._answer(worker, self._next(worker, source), wait=True)
            idle = [worker for worker in self._workers.values() if worker.waiting]
            if (
                idle
                and not self._retries
                and not any(worker.held for worker in self._workers.values())
            ):
                job = source.take(wait=True)  # all workers are idle: waiting delays none
                if job is None:
                    return
                self._answer(idle[0], job, wait=True)

    def close(self) -> None:
        """Kill all workers: they hold nothing that could be lost."""
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.process.join()
            worker.pipe.close()
        self._workers = {}

    def _start(self, number: int) -> None:
        device = self._devices[number]
        config = replace(self._config, run=replace(self._config.run, device=device))
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(
            target=work, args=(theirs, pickle.dumps(self._open_generator), config, self._threads)
        )
        with _signals_held_back():
            process.start()
        theirs.close()
        self._workers[number] = _Worker(device, process, pipe)

    def _ready(self) -> list[int]:
        polling = any(worker.waiting for worker in self._workers.values())
        ready = wait(
            [worker.pipe for worker in self._workers.values()], _POLL_S if polling else None
        )
        return [number for number, worker in self._workers.items() if worker.pipe in ready]

    def _receive(self, number: int, source: JobQueue) -> Iterator[ImageResult]:
        worker = self._workers[number]
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            yield from self._remove(number)
            return
        if isinstance(message, ImageResult):
            worker.held.remove(message.job)
            worker.in_progress = max(0.0, worker.in_progress - 1)
            self._deaths[number] = 0
            yield message
        elif isinstance(message, InProgress):
            worker.in_progress = message.in_progress
            source.report(sum(worker.in_progress for worker in self._workers.values()))
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
        """Return the next job of a worker.

        A job that a worker died with is tried alone, and on another device if there is one.
        """
        if any(self._tries[job] for job in worker.held):
            return None
        for retry in self._retries:
            if not worker.held and (retry[1] != worker.device or self._only(worker.device)):
                self._retries.remove(retry)
                return retry[0]
        return self._fair_share(worker, source)

    def _fair_share(self, worker: _Worker, source: JobQueue) -> Job | None:
        """Return the next job unless the worker holds its share of the jobs that are known.

        Without this, the first workers would fill their batches while others stay idle.
        """
        while len(self._ahead) < _AHEAD * len(self._workers):
            job = source.take(wait=False)
            if job is None:
                break
            self._ahead.append(job)
        n_held = sum(len(other.held) for other in self._workers.values())
        share = math.ceil((n_held + len(self._ahead)) / len(self._workers))
        return self._ahead.popleft() if self._ahead and len(worker.held) < share else None

    def _only(self, device: str) -> bool:
        return all(worker.device == device for worker in self._workers.values())

    def _remove(self, number: int) -> Iterator[ImageResult]:
        worker = self._workers.pop(number)
        worker.process.join(_EXIT_S)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self._deaths[number] += 1
        reason = _reason(worker)
        for job in worker.held:
            self._tries[job] += 1
            if self._tries[job] < _JOB_TRIES:
                self._retries.append((job, worker.device))
            else:
                self._deaths[number] = 0  # the job is the cause
                yield ImageResult(job, None, error=_failure(reason))
        self._replace(number, worker, reason)

    def _replace(self, number: int, worker: _Worker, reason: str) -> None:
        """Replace a dead worker, unless it died too often.

        Raises the error of a worker when it concerns all of them, DeviceError when none is left.
        """
        if worker.broken and worker.broken.error:
            raise worker.broken.error
        report = f"\n{worker.broken.report.rstrip()}" if worker.broken else ""
        if self._deaths[number] < _MOST_DEATHS:
            self._tell(
                f"worker {number} ({worker.device}) {reason}; "
                f"its images are generated again{report}"
            )
            self._start(number)
            return
        self._tell(
            f"worker {number} ({worker.device}) {reason} {_MOST_DEATHS} times in a row; "
            f"it is not replaced{report}"
        )
        if not self._workers:
            raise DeviceError("all workers have died", "see the lines above, and `sjdvp doctor`")


@contextlib.contextmanager
def open_workers(
    config: RunConfig,
    devices: Sequence[str],
    open_generator: OpenGenerator,
    tell: Callable[[str], None],
) -> Iterator[Workers]:
    """Start a worker for each entry of `devices`; kill them when the context ends.

    `tell` gets messages for the user. `open_generator` opens the generator in each process: a
    function that can be imported there.
    """
    workers = Workers(config, devices, open_generator, tell)
    try:
        workers.start()
        yield workers
    finally:
        workers.close()


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Block signals while a process is started, which inherits that until it sets its handlers."""
    # The first process would start the resource tracker, which unblocks SIGINT and SIGTERM.
    ensure_running()
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
        return "was killed (by hand, or because the memory ran out)"
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _failure(reason: str) -> dict[str, str]:
    return {
        "type": "WorkerDied",
        "message": f"each of the {_JOB_TRIES} workers that tried it {reason}",
        "hint": "run the same command to try it again",
    }
