"""Where the generator's jobs come from: prompts of a file or of a pipe, planned one prompt at a time as the generator asks."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from sjdvp.errors import SjdvpError
from sjdvp.jobs import Job
from sjdvp.runs.plan import Task
from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.signals import raise_if_stopped

Feed = Callable[
    [bool], Prompt | None
]  # wait? -> the next prompt; None: the end, or nothing just now when not waiting

_POLL_S = 0.2


class TaskQueue:
    """A JobQueue that remembers the tasks it has handed out until their images come back.

    An error of the feed or of planning ends the source, so that what is being drawn is finished first; `raise_error` tells it then.
    `check` is called at every take and may raise to stop at once.
    """

    def __init__(self, feed: Feed, plan: Callable[[Prompt], list[Task]]) -> None:
        self.check: Callable[[], None] = lambda: None
        self._feed = feed
        self._plan = plan
        self._ready: deque[Task] = deque()
        self._out: dict[Job, Task] = {}
        self._error: SjdvpError | None = None

    def take(self, *, wait: bool) -> Job | None:
        """Return the next job. None: the source has ended (`wait` true) or has nothing just now (`wait` false)."""
        self.check()
        raise_if_stopped()
        if not self._fill(wait):
            return None
        task = self._ready.popleft()
        self._out[task.job] = task
        return task.job

    def has_work(self) -> bool:
        """Wait for the first task that is to be done; False when there is none."""
        return self._fill(wait=True)

    def claim(self, job: Job) -> Task:
        """Return the task of a job whose image has come back, once."""
        return self._out.pop(job)

    def raise_error(self) -> None:
        """Raise what ended the source early, if anything."""
        if self._error is not None:
            raise self._error

    def _fill(self, wait: bool) -> bool:
        try:
            while not self._ready and self._error is None:
                prompt = self._feed(wait)
                if prompt is None:
                    break
                self._ready += self._plan(prompt)
        except SjdvpError as error:
            self._error = error
        return bool(self._ready)


def file_feed(prompts: Iterable[Prompt]) -> Feed:
    """Feed prompts that are all there."""
    rest = iter(prompts)
    return lambda wait: next(rest, None)


class PipeFeed:
    """Feeds prompts that come in over time, read ahead on a thread of its own."""

    def __init__(self, prompts: Iterator[Prompt]) -> None:
        self._items: queue.Queue[Prompt | Exception | None] = queue.Queue(maxsize=256)
        self._ended = False
        threading.Thread(target=self._read, args=(prompts,), name="sjdvp-read", daemon=True).start()

    def __call__(self, wait: bool) -> Prompt | None:
        """Return the next prompt, see Feed; raises what reading raised."""
        while not self._ended:
            try:
                item = self._items.get(block=wait, timeout=_POLL_S)
            except queue.Empty:
                if not wait:
                    return None
                continue
            if isinstance(item, Prompt):
                return item
            self._ended = True
            if item is not None:
                raise item
        return None

    def _read(self, prompts: Iterator[Prompt]) -> None:
        try:
            for prompt in prompts:
                self._items.put(prompt)
        except Exception as error:  # noqa: BLE001 (it is raised on the thread that takes the prompts)
            self._items.put(error)
        else:
            self._items.put(None)
