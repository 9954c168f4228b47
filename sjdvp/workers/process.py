"""The code of a worker process: it has its own generator, writes no file, ends with its parent."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from sjdvp.config import RunConfig
from sjdvp.errors import SjdvpError
from sjdvp.jobs import REPORT_S, Job, OpenGenerator
from sjdvp.runs.signals import STOPPING

_VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # the GPUs of a process


@dataclass(frozen=True, slots=True)
class Take:
    """Message of a worker that asks for a job; the answer is what `JobQueue.take` returns."""

    wait: bool


@dataclass(frozen=True, slots=True)
class InProgress:
    """Message of a worker about its images in progress, see `JobQueue.report`."""

    in_progress: float


@dataclass(frozen=True, slots=True)
class Broken:
    """Message of a worker that failed; `error` is None for a bug, `report` is the traceback."""

    error: SjdvpError | None
    report: str


class PipeSource:
    """The parent's job queue as a worker sees it. See `sjdvp.jobs.JobQueue`."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._reported = 0.0

    def take(self, *, wait: bool) -> Job | None:
        """Ask for a job."""
        self._pipe.send(Take(wait))
        job: Job | None = self._pipe.recv()
        return job

    def report(self, in_progress: float) -> None:
        """Tell the parent, not more often than people want to know."""
        now = time.monotonic()
        if now - self._reported >= REPORT_S:
            self._reported = now
            self._pipe.send(InProgress(in_progress))


def work(pipe: Connection, pickled: bytes, config: RunConfig, threads: int) -> None:
    """Generate the parent's jobs; messages to it: Take, InProgress, ImageResult and, once, Broken.

    `pickled` is an OpenGenerator, still pickled so that its modules, which may be large, are
    imported after the signal handlers and the watch on the parent are set up.
    """
    for signum in STOPPING:
        # A terminal or scheduler sends them to all processes; the parent decides.
        signal.signal(signum, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # there may be no stderr
        os.dup2(2, 1)  # stdout is for the parent's data: no library may print there
    os.environ["HF_HUB_OFFLINE"] = "1"  # before any module reads it: the parent has fetched all
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    config = _with_own_gpu(config)
    try:
        open_generator: OpenGenerator = pickle.loads(pickled)
        with open_generator(config) as generator:
            for image in generator.generate(PipeSource(pipe)):
                pipe.send(image)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone
    except Exception as error:  # noqa: BLE001 (the parent reports it)
        with contextlib.suppress(OSError):
            pipe.send(
                Broken(error if isinstance(error, SjdvpError) else None, traceback.format_exc())
            )


def _with_own_gpu(config: RunConfig) -> RunConfig:
    """Hide all GPUs but the one of this worker, which then is cuda:0.

    A library that names no device would otherwise make a context on the first GPU, in every
    worker.
    """
    kind, _, index = config.run.device.partition(":")
    if kind != "cuda" or not index:
        return config
    # ROCm reads both names, the other one first.
    variable = next((name for name in _VISIBLE if os.environ.get(name)), "CUDA_VISIBLE_DEVICES")
    visible = os.environ.get(variable)
    names = visible.split(",") if visible else []
    os.environ[variable] = names[int(index)] if names else index
    return replace(config, run=replace(config.run, device="cuda:0"))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
