"""What runs in a worker process: a generator of its own, fed through a pipe. It writes no file, and ends with its parent."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from sjdvp.config import RunConfig
from sjdvp.errors import SjdvpError
from sjdvp.jobs import ImageGenerator, Job
from sjdvp.runs.signals import STOPPING

OpenGenerator = Callable[[RunConfig], AbstractContextManager[ImageGenerator]]


@dataclass(frozen=True, slots=True)
class Take:
    """A worker asks for a job; the answer is a Job or None, see `sjdvp.jobs.JobQueue`."""

    wait: bool


@dataclass(frozen=True, slots=True)
class Broken:
    """A worker cannot go on. `error` is there when it is the user's business; `report` is its traceback."""

    error: SjdvpError | None
    report: str


class PipeSource:
    """The parent's jobs, seen from a worker."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def take(self, *, wait: bool) -> Job | None:
        """Ask for a job."""
        self._pipe.send(Take(wait))
        job: Job | None = self._pipe.recv()
        return job


def work(pipe: Connection, pickled: bytes, config: RunConfig, threads: int) -> None:
    """Draw what the parent gives until it gives no more; messages to it are Take, ImageResult and, once, Broken.

    `pickled` is an OpenGenerator, still pickled so that its modules, which may be large, are imported under the watch set up here.
    """
    for signum in STOPPING:
        signal.signal(
            signum, signal.SIG_IGN
        )  # a terminal or scheduler sends them to all processes; the parent decides
    with contextlib.suppress(OSError):  # where there is no stderr
        os.dup2(2, 1)  # stdout is the parent's, for data: no library may print there
    os.environ["HF_HUB_OFFLINE"] = (
        "1"  # the parent has fetched what there is; set before any module reads it
    )
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        open_generator: OpenGenerator = pickle.loads(pickled)
        with open_generator(config) as generator:
            for image in generator.generate(PipeSource(pipe)):
                pipe.send(image)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone
    except Exception as error:  # noqa: BLE001 (it is told by the parent, which owns the terminal)
        with contextlib.suppress(OSError):
            pipe.send(
                Broken(error if isinstance(error, SjdvpError) else None, traceback.format_exc())
            )


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
