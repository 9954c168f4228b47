"""The main job: prompts in, images and a log out; safe to interrupt and to run again. Imports no torch."""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from sjdvp.config import RunConfig
from sjdvp.errors import ConfigError
from sjdvp.events import ImageFinished, Listener, Note, RunFinished, RunStarted, one_at_a_time
from sjdvp.jobs import ImageGenerator, ImageResult
from sjdvp.runs.background import Background
from sjdvp.runs.folder import (
    PickWindow,
    RunInfo,
    Wanted,
    check_fits,
    given_window,
    open_folder,
    settled,
)
from sjdvp.runs.job_queue import PipeFeed, TaskQueue, file_feed
from sjdvp.runs.jsonl import Appender
from sjdvp.runs.layout import log_path
from sjdvp.runs.locks import folder_lock, remove_leftovers, shard_lock
from sjdvp.runs.log import finished, read_log
from sjdvp.runs.long_prompts import LongPrompts
from sjdvp.runs.pinned import pinned
from sjdvp.runs.plan import Plan, Task
from sjdvp.runs.prompts import (
    Prompt,
    PromptSet,
    ReadOptions,
    inline_prompts,
    read_prompts,
    stream_prompts,
)
from sjdvp.runs.prompts_log import PromptsLog, check_unchanged
from sjdvp.runs.row import RowMaker
from sjdvp.runs.sharding import Selection, Shard, rank
from sjdvp.runs.signals import stoppable
from sjdvp.runs.summary import Summary, Tally
from sjdvp.runs.writer import Saver

_FEW = 4  # images: the smallest batch that auto stands for

OpenGenerator = Callable[[RunConfig], AbstractContextManager[ImageGenerator]]


@dataclass(frozen=True, slots=True)
class Request:
    """What one call of `generate` is asked to do. Exactly one of `prompts`, `inline` and `stdin` gives the prompts."""

    config: RunConfig
    out: Path
    prompts: Path | tuple[Path, ...] | None = None  # prompt files or folders, in this order
    inline: tuple[str, ...] = ()
    stdin: BinaryIO | None = None  # prompts read line by line as they come
    reading: ReadOptions = field(default_factory=ReadOptions)
    shard: Shard = field(default_factory=Shard)
    selection: Selection = field(default_factory=Selection)
    overwrite: bool = False  # draw again what is there already
    retry_failed: bool = True
    fail_fast: bool = False  # stop at the first failed image
    argv: tuple[str, ...] = ()  # stored in run.json

    def __post_init__(self) -> None:
        if [self.prompts is not None, bool(self.inline), self.stdin is not None].count(True) != 1:
            raise ConfigError(
                "prompts must come from one place", "give either --prompts or --prompt"
            )
        if self.stdin is not None and self.shard.count > 1:
            raise ConfigError(
                "a pipe cannot be shared between shards", "write the prompts to a file first"
            )


@dataclass(frozen=True, slots=True)
class Preview:
    """What `generate` would do: nothing was written and nothing loaded."""

    requested: int | None  # images asked of this process; None: prompts come from a pipe
    done: int  # of those, finished by earlier runs
    seed: int | None  # None: would be drawn
    format: str
    skipped_lines: int
    duplicates: int
    empty_rows: int = 0  # skipped, as they hold no prompt
    notes: tuple[str, ...] = ()  # parts of the prompt files that are not read


def preview(request: Request) -> Preview:
    """Check a request as `generate` would (prompts, folder, settings) without writing: the `--dry-run`.

    Raises what `generate` raises before generation.
    """
    prompts, info = _examine(request)
    seed = request.config.run.seed if info is None else info.seed
    if prompts is None:
        return Preview(None, 0, seed, "pipe", 0, 0)
    counts = _plan(request, seed or 0).count(prompts.prompts)
    return Preview(
        counts.total(),
        counts["finished"],
        seed,
        prompts.format,
        prompts.skipped,
        prompts.duplicates,
        prompts.empty,
        prompts.notes,
    )


def generate(
    request: Request,
    open_generator: OpenGenerator,
    listen: Listener,
    pick_window: PickWindow = given_window,
) -> Summary:
    """Draw every requested image that is not on disk yet.

    `open_generator` is called once, after all checks, and only when there is something to draw; a plain ImageGenerator fits through
    `contextlib.nullcontext`. `pick_window` is asked when a new folder is to have the window `auto`. `listen` hears RunStarted,
    Notes, one ImageFinished an image (from another thread, never two calls at a time) and RunFinished, which comes also when the
    run ends by an error or a signal.

    Raises PromptError, ConfigError, FolderError before generation; StorageError when the disk refuses a write; Interrupted after
    SIGINT or SIGTERM (images that were complete are saved); PromptError also later, for a pipe with a bad line.
    """
    listen = one_at_a_time(listen)
    with stoppable(), contextlib.ExitStack() as held:
        prompts, _ = _examine(request)
        wanted = Wanted(request.config.run.num_images_per_prompt, request.selection)
        info = open_folder(request.out, request.config, wanted, prompts, request.argv, pick_window)
        request = replace(request, config=settled(request.config, info.window))
        remove_leftovers(request.out)
        stale = held.enter_context(shard_lock(request.out, request.shard))
        check_fits(
            request.out, request.config
        )  # again: until now another process might have begun the folder anew
        run = _Run(request, info, listen)
        run.announce(prompts, stale)
        source = (
            _from_pipe(request, run, held) if prompts is None else _from_file(request, run, prompts)
        )
        return run.draw(source, open_generator)


def _examine(request: Request) -> tuple[PromptSet | None, RunInfo | None]:
    """Read the prompts (None: a pipe) and see whether the folder fits; writes nothing."""
    prompts = _read(request)
    info = check_fits(request.out, request.config)
    if prompts is not None:
        _require_rows(request.selection, len(prompts), prompts.source)
        if info is not None:
            check_unchanged(request.out, prompts.prompts)
    return prompts, info


def _require_rows(selection: Selection, count: int, source: str) -> None:
    """Raise ConfigError when `selection` names a row that a source of `count` prompts does not have."""
    last = max((last for _, last in selection.indices or ()), default=0)
    if last >= count:
        raise ConfigError(f"row {last} is asked for, but {source} has rows 0 to {count - 1}")


def _read(request: Request) -> PromptSet | None:
    if request.prompts is not None:
        return read_prompts(request.prompts, request.reading)
    return inline_prompts(request.inline, request.reading) if request.inline else None


def _plan(request: Request, seed: int) -> Plan:
    entries = read_log(request.out)
    return Plan(
        seed=seed,
        images_per_prompt=request.config.run.num_images_per_prompt,
        shard=request.shard,
        selection=request.selection,
        entries=entries,
        finished=frozenset(finished(request.out, entries)),
        overwrite=request.overwrite,
        retry_failed=request.retry_failed,
    )


class _Run:
    """One call of `generate` while it holds its shard."""

    def __init__(self, request: Request, info: RunInfo, listen: Listener) -> None:
        self.request = request
        self.listen = listen
        self.plan = _plan(request, info.seed)
        self.tally = Tally()
        self._long = LongPrompts(listen)
        self._stopped = ""  # why, when it was stopped early
        self._start = time.perf_counter()

    def announce(self, prompts: PromptSet | None, stale: str) -> None:
        """Say what is known before anything is drawn."""
        config = self.request.config
        if prompts is not None:
            self.count(prompts.prompts)
        done, total = self.tally.skipped, None if prompts is None else self.tally.requested
        decoder = config.decoder
        self.listen(
            RunStarted(
                total,
                done,
                str(self.request.out),
                decoder.preset,
                decoder.lossless,
                config.run.device,
            )
        )
        notes = [stale, f"run seed {self.plan.seed}" if config.run.seed is None else ""]
        notes.append(
            f"the weights' licence: {config.model.licence}" if config.model.licence else ""
        )
        notes += prompts.remarks() if prompts is not None else []
        warnings = {stale, *(prompts.notes if prompts is not None else ())}
        for note in filter(None, notes):
            self.listen(Note("warning" if note in warnings else "info", note))

    def count(self, prompts: tuple[Prompt, ...]) -> None:
        """Take the images of more prompts into the account."""
        counts = self.plan.count(prompts)
        self.tally.requested += counts.total()
        self.tally.skipped += counts["finished"]
        self.tally.failed += counts["failed"]

    def draw(self, source: TaskQueue, open_generator: OpenGenerator) -> Summary:
        """Draw what the source gives; the summary is told however it ends."""
        try:
            if source.has_work():
                with (
                    open_generator(pinned(self._generator_config(), self.request.out)) as generator,
                    self._saving() as saving,
                ):
                    source.check = saving.check
                    for image in self._until_too_many_fail(generator.generate(source)):
                        saving.put((source.claim(image.job), image))
            if self._stopped:  # said after the lines of the images that were still being saved
                self.listen(Note("warning", self._stopped))
            source.raise_error()
        finally:
            self._long.close()
            summary = self.tally.summary(time.perf_counter() - self._start)
            self.listen(RunFinished(summary.as_json()))
        return summary

    def _generator_config(self) -> RunConfig:
        """Return the settings with no more rows than images where those are few: an idle row costs as much as a busy one."""
        config, todo = self.request.config, self.tally.requested - self.tally.skipped
        if config.run.batch_size != "auto" or self.request.stdin is not None or todo >= _FEW:
            return config
        return replace(config, run=replace(config.run, batch_size=todo))

    @contextlib.contextmanager
    def _saving(self) -> Iterator[Background[tuple[Task, ImageResult]]]:
        request = self.request
        rows = RowMaker(request.config, request.shard, rank(os.environ))
        with Appender(log_path(request.out, request.shard)) as log:
            saver = Saver(
                request.out,
                log,
                rows,
                request.config.run.num_images_per_prompt,
                request.config.run.metadata,
            )

            def save(done: tuple[Task, ImageResult]) -> None:
                task, image = done
                row = saver.save(task.prompt, image, task.attempt)
                self.tally.add(row)
                self._long.hear(row)
                self.listen(ImageFinished(row))

            with Background(save) as background:
                yield background

    def _until_too_many_fail(self, images: Iterator[ImageResult]) -> Iterator[ImageResult]:
        allowed = 0 if self.request.fail_fast else self.request.config.run.max_failures
        failures = 0
        for image in images:
            yield image
            failures += image.error is not None
            if allowed is not None and failures > allowed:
                self._stopped = f"stopped: {failures} failed images, {allowed} allowed"
                return


def _from_file(request: Request, run: _Run, prompts: PromptSet) -> TaskQueue:
    with folder_lock(request.out), PromptsLog(request.out) as prompts_log:
        prompts_log.admit(prompts.prompts)
    return TaskQueue(file_feed(prompts.prompts), run.plan.tasks)


def _from_pipe(request: Request, run: _Run, held: contextlib.ExitStack) -> TaskQueue:
    assert request.stdin is not None
    prompts_log = held.enter_context(PromptsLog(request.out))
    arriving = stream_prompts(request.stdin, request.reading)

    def tasks(prompt: Prompt) -> list[Task]:
        prompts_log.admit([prompt])
        run.count((prompt,))
        return run.plan.tasks(prompt)

    return TaskQueue(PipeFeed(_selected(arriving, request.selection)), tasks)


def _selected(arriving: Iterator[Prompt], selection: Selection) -> Iterator[Prompt]:
    """Yield prompts up to the last that `selection` wants; raises ConfigError when the pipe ends before that row."""
    count = 0
    for prompt in itertools.islice(arriving, selection.end):
        count += 1
        yield prompt
    if selection.end is None or count < selection.end:
        _require_rows(selection, count, "stdin")
