"""Which images are left to generate, and the queue that hands them to the generator.

Prompts come from a file or from a pipe, and are planned one at a time as the generator asks.
"""

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sjdvp.errors import SjdvpError
from sjdvp.jobs import REPORT_S, Job
from sjdvp.runs.jsonl import JsonRow
from sjdvp.runs.log import ImageKey, LogEntry
from sjdvp.runs.prompts.asked import asked_size
from sjdvp.runs.prompts.model import Prompt
from sjdvp.runs.redo import Redo
from sjdvp.runs.run_json import Wanted
from sjdvp.runs.sharding import Seeds, Shard
from sjdvp.runs.signals import raise_if_stopped
from sjdvp.runs.tokens import SavedTokens

# wait? -> the next prompt; None: the end, or nothing yet when not waiting
NextPrompt = Callable[[bool], Prompt | None]
ImageState = Literal["todo", "finished", "failed"]

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Task:
    """One image to generate: its job, and what its log row needs beside it."""

    prompt: Prompt
    job: Job
    attempt: int  # from 1
    reroll: int = 0  # how often a new seed was asked for
    earlier: JsonRow | None = None  # the log row of the attempt that made the tokens of the job


@dataclass(frozen=True, slots=True)
class WithoutPixels:
    """An image whose tokens are there and whose file is not."""

    row: JsonRow  # its last log row
    tokens: SavedTokens


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of one process: a pure function of the log and the request, so it can be resumed."""

    seeds: Seeds
    wanted: Wanted
    shard: Shard
    entries: Mapping[ImageKey, LogEntry]
    finished: frozenset[ImageKey]
    redo: Redo | None = None
    retry_failed: bool = True
    without_pixels: Mapping[ImageKey, WithoutPixels] = field(default_factory=dict)
    size: tuple[int | None, int | None] = (None, None)  # of images whose rows ask for none

    def count(self, prompts: Iterable[Prompt]) -> Counter[ImageState]:
        """Count the images of `prompts` by state; `failed` are those that are not tried again."""
        return Counter(state for prompt in prompts for _, state in self._states(prompt))

    def tasks(self, prompt: Prompt) -> list[Task]:
        """Return the images of one prompt that are left to generate."""
        return [
            self._task(prompt, sample) for sample, state in self._states(prompt) if state == "todo"
        ]

    def _states(self, prompt: Prompt) -> Iterator[tuple[int, ImageState]]:
        if self.shard.takes(prompt.index):
            for sample in self.wanted.samples(prompt):
                yield sample, self._state(prompt, sample)

    def _state(self, prompt: Prompt, sample: int) -> ImageState:
        key = (prompt.index, sample)
        entry = self.entries.get(key)
        if entry is None or not entry.is_of(prompt, self.seeds) or self._is_due(key):
            return "todo"
        if key in self.finished:
            return "finished"
        return "failed" if entry.status == "failed" and not self.retry_failed else "todo"

    def _task(self, prompt: Prompt, sample: int) -> Task:
        key = (prompt.index, sample)
        entry = self.entries.get(key)
        reroll = entry.reroll if entry else 0
        due = self._is_due(key)
        if due and self.redo and self.redo.kind == "reroll":
            reroll += 1
        attempt = entry.attempt + 1 if entry else 1
        job = self._job(prompt, sample, reroll)
        found = self.without_pixels.get(key)
        if found and entry and entry.is_of(prompt, self.seeds) and not due:
            return Task(
                prompt, replace(job, tokens=found.tokens.decode()), attempt, reroll, found.row
            )
        return Task(prompt, job, attempt, reroll)

    def _job(self, prompt: Prompt, sample: int, reroll: int) -> Job:
        return Job(
            prompt.index,
            sample,
            self.seeds.of(prompt, sample, reroll),
            prompt.text,
            cfg_scale=prompt.asked.get("cfg_scale"),
            negative_prompt=prompt.asked.get("negative_prompt"),
            size=asked_size(prompt, self.size),
        )

    def _is_due(self, key: ImageKey) -> bool:
        return self.redo is not None and self.redo.is_due(key)


class TaskQueue:
    """A JobQueue that remembers the tasks it has handed out until their images come back.

    An error while reading or planning ends the queue, so that the images in progress are finished
    first; `raise_error` raises it then. `check` is called at every `take` and may raise to stop at
    once.
    """

    def __init__(self, next_prompt: NextPrompt, plan: Callable[[Prompt], list[Task]]) -> None:
        self.check: Callable[[], None] = lambda: None
        self.on_start: Callable[[], None] = lambda: None  # called at the first `take`
        self.on_progress: Callable[[float], None] = lambda in_progress: None
        self._reported = 0.0
        self._started = False
        self._next_prompt = next_prompt
        self._plan = plan
        self._ready: deque[Task] = deque()
        self._in_progress: dict[Job, Task] = {}
        self._error: SjdvpError | None = None

    def take(self, *, wait: bool) -> Job | None:
        """See `sjdvp.jobs.JobQueue`."""
        if not self._started:
            self._started = True
            self.on_start()
        self.check()
        raise_if_stopped()
        if not self._fill(wait):
            return None
        task = self._ready.popleft()
        self._in_progress[task.job] = task
        return task.job

    def report(self, in_progress: float) -> None:
        """See `sjdvp.jobs.JobQueue`; `on_progress` is called every REPORT_S at most."""
        now = time.monotonic()
        if now - self._reported >= REPORT_S:
            self._reported = now
            self.on_progress(in_progress)

    def has_work(self) -> bool:
        """Wait for the first task; return False when there is none."""
        return self._fill(wait=True)

    def finish(self, job: Job) -> Task:
        """Return the task of a job whose image has come back, and forget it."""
        return self._in_progress.pop(job)

    def raise_error(self) -> None:
        """Raise what ended the queue early, if anything."""
        if self._error is not None:
            raise self._error

    def _fill(self, wait: bool) -> bool:
        try:
            while not self._ready and self._error is None:
                prompt = self._next_prompt(wait)
                if prompt is None:
                    break
                self._ready += self._plan(prompt)
        except SjdvpError as error:
            self._error = error
        return bool(self._ready)


def from_list(prompts: Iterable[Prompt]) -> NextPrompt:
    """Return a source of prompts that are all known."""
    rest = iter(prompts)
    return lambda wait: next(rest, None)


class PipeReader:
    """A source of prompts that arrive over time, read ahead in a thread of its own."""

    def __init__(self, prompts: Iterator[Prompt]) -> None:
        self._items: queue.Queue[Prompt | Exception | None] = queue.Queue(maxsize=256)
        self._ended = False
        threading.Thread(target=self._read, args=(prompts,), name="sjdvp-read", daemon=True).start()

    def __call__(self, wait: bool) -> Prompt | None:
        """Return the next prompt (see NextPrompt); raises what reading raised."""
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
        except Exception as error:  # noqa: BLE001 (raised in the thread that takes the prompts)
            self._items.put(error)
        else:
            self._items.put(None)
