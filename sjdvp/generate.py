"""The main job: prompts in, images and a log out; safe to interrupt and to run again.

Imports no torch.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from sjdvp.config import TOKENS_ONLY, RunConfig, lossless_label
from sjdvp.errors import ConfigError
from sjdvp.events import (
    GenerationStarted,
    ImageFinished,
    ImagesInProgress,
    Listener,
    Note,
    RunFinished,
    RunStarted,
    one_at_a_time,
)
from sjdvp.jobs import ImageResult, OpenGenerator
from sjdvp.presets import resolved_name
from sjdvp.runs.folder import CheckModel, OpenRun, RunFolder, check_fits, make_plan
from sjdvp.runs.job_queue import PipeReader, Task, TaskQueue, from_list
from sjdvp.runs.prompts import (
    Prompt,
    PromptSet,
    ReadOptions,
    inline_prompts,
    read_prompts,
    stream_prompts,
)
from sjdvp.runs.prompts.asked import SizeCheck, asked_size, check_asked
from sjdvp.runs.redo import Kind as RedoKind
from sjdvp.runs.run_json import PickWindow, Wanted, given_window
from sjdvp.runs.sharding import Ranges, Selection, Shard, image_file, rank
from sjdvp.runs.signals import stoppable
from sjdvp.runs.summary import RunCounts, RunSummary, TruncationWarnings
from sjdvp.runs.writer import Background
from sjdvp.text import counted

_SMALLEST_AUTO_BATCH = 4
_FIRST_FILES = 3  # named by a preview


@dataclass(frozen=True, slots=True)
class Request:
    """What one call of `generate` is asked to do.

    Exactly one of `prompts`, `inline` and `stdin` gives the prompts.
    """

    config: RunConfig
    out: Path
    prompts: Path | tuple[Path, ...] | None = None  # prompt files or folders, in this order
    inline: tuple[str, ...] = ()
    stdin: BinaryIO | None = None  # prompts read line by line as they come
    reading: ReadOptions = field(default_factory=ReadOptions)
    shard: Shard = field(default_factory=Shard)
    selection: Selection = field(default_factory=Selection)
    overwrite: bool = False  # generate existing images again
    reroll: bool = False  # generate existing images again, with new seeds
    updates: Ranges = ()  # rows whose prompts may have changed
    sample: int | None = None  # the only image of each prompt; None: all
    image_seed: int | None = None  # of the only image
    retry_failed: bool = True
    fail_fast: bool = False  # stop at the first failed image
    argv: tuple[str, ...] = ()  # stored in run.json

    def __post_init__(self) -> None:
        if [self.prompts is not None, bool(self.inline), self.stdin is not None].count(True) != 1:
            raise ConfigError(
                "prompts must come from one place", "give either --prompts or --prompt"
            )
        if self.stdin is not None and self.shard.count > 1:
            raise ConfigError("shards cannot share a pipe", "write the prompts to a file first")
        if self.overwrite and self.reroll:
            raise ConfigError("--overwrite keeps the seeds, --reroll makes new ones", "give one")
        if self.stdin is not None and (self.updates or self.image_seed is not None):
            raise ConfigError(
                "--update-prompts and --image-seed need all prompts at once",
                "write the prompts to a file first",
            )
        backbone = self.config.model.backbone
        if backbone in TOKENS_ONLY and not self.config.run.save_tokens:
            raise ConfigError(
                f"{backbone} has no VQ decoder: its image tokens are all that it makes",
                "save them with --save-tokens; docs/examples has a program that makes pixels",
                "run.save_tokens",
            )
        copies = self.config.run.num_images_per_prompt
        if self.sample is not None and not 0 <= self.sample < copies:
            raise ConfigError(
                f"there is no sample {self.sample} of {counted(copies, 'image')} per prompt",
                "samples are numbered from 0; -n gives their number",
            )

    @property
    def wanted(self) -> Wanted:
        """The images that are asked for."""
        run = self.config.run
        return Wanted(run.num_images_per_prompt, self.selection, self.sample, run.save_tokens)

    @property
    def redo(self) -> RedoKind | None:
        """Whether existing images are generated again, and how."""
        return "overwrite" if self.overwrite else "reroll" if self.reroll else None


@dataclass(frozen=True, slots=True)
class Preview:
    """What `generate` would do; nothing was written and nothing loaded."""

    requested: int | None  # images asked of this process; None: prompts come from a pipe
    done: int  # of those, finished by earlier runs
    seed: int | None  # None: would be random
    format: str
    skipped_lines: int
    duplicates: int
    empty_rows: int = 0  # skipped, as they hold no prompt
    notes: tuple[str, ...] = ()  # parts of the prompt files that are not read
    files: tuple[str, ...] = ()  # of the first images, relative to the run folder


def preview(request: Request) -> Preview:
    """Check prompts, folder and settings as `generate` would, without writing: the `--dry-run`.

    Raises what `generate` raises before generation.
    """
    prompts = _read(request)
    info = check_fits(request.out, request.config, prompts, request.image_seed, request.updates)
    seed = request.config.run.seed if info is None else info.seed
    if prompts is None:
        return Preview(None, 0, seed, "pipe", 0, 0)
    plan = make_plan(
        request.out,
        info,
        request.shard,
        request.wanted,
        request.redo,
        retry_failed=request.retry_failed,
    )
    counts = plan.count(prompts.prompts)
    return Preview(
        counts.total(),
        counts["finished"],
        seed,
        prompts.format,
        prompts.skipped,
        prompts.duplicates,
        prompts.empty,
        prompts.notes,
        tuple(itertools.islice(_files(request, prompts), _FIRST_FILES)),
    )


def _files(request: Request, prompts: PromptSet) -> Iterator[str]:
    for prompt in filter(lambda prompt: request.shard.takes(prompt.index), prompts.prompts):
        copies = prompt.copies(request.wanted.images_per_prompt)
        for sample in request.wanted.samples(prompt):
            yield image_file(prompt.index, sample, copies, request.config.run.image_format)


def generate(
    request: Request,
    open_generator: OpenGenerator,
    listen: Listener,
    pick_window: PickWindow = given_window,
    check_model: CheckModel = lambda config: None,
) -> RunSummary:
    """Generate every requested image that is not on disk yet.

    `open_generator` is called once, after all checks, and only when an image is missing; for an
    ImageGenerator that needs no opening, use `contextlib.nullcontext`. `pick_window` chooses the
    window of a new folder when it is `auto`; `check_model` may refuse the settings before a new
    folder is made. `listen` gets RunStarted, Notes, one ImageFinished per image (from another
    thread, never two calls at a time) and RunFinished, which comes also when the run ends with an
    error or a signal.

    Raises before generation: PromptError, ConfigError, FolderError, and what `check_model` raises.
    Later: StorageError; Interrupted after a signal, when the finished images are saved; PromptError
    for a bad line in a pipe.
    """
    listen = one_at_a_time(listen)
    with stoppable():
        prompts = _read(request)
        check_sizes = SizeCheck(request.config, check_model)
        if prompts is not None:
            check_sizes(prompts.prompts)
        with RunFolder.open(
            request.out,
            request.config,
            prompts,
            wanted=request.wanted,
            shard=request.shard,
            argv=request.argv,
            pick_window=pick_window,
            image_seed=request.image_seed,
            updates=request.updates,
            check_model=check_model,
            tell=lambda message: listen(Note("warning", message)),
        ) as folder:
            run = _Run(request, folder, listen, check_sizes)
            run.announce(prompts)
            return run.generate(prompts, open_generator)


def _read(request: Request) -> PromptSet | None:
    """Read the prompts; None: they come from a pipe."""
    if request.stdin is not None:
        return None
    if request.prompts is not None:
        prompts = read_prompts(request.prompts, request.reading)
    else:
        prompts = inline_prompts(request.inline, request.reading)
    check_asked(prompts.prompts, request.config)
    _require_rows(request.selection, len(prompts), prompts.source)
    _require_rows(Selection(request.updates or None), len(prompts), prompts.source)
    images = sum(len(request.wanted.samples(prompt)) for prompt in prompts.prompts)
    if request.image_seed is not None and images != 1:
        raise ConfigError(
            f"--image-seed is the seed of one image, and {counted(images, 'image')} would get it",
            "give one --prompt, or one row with --indices, and one --sample",
        )
    return prompts


def _require_rows(selection: Selection, count: int, source: str) -> None:
    """Raise ConfigError when `selection` names a row that `source` does not have."""
    last = max((last for _, last in selection.indices or ()), default=0)
    if last >= count:
        raise ConfigError(f"there is no row {last}: {source} has rows 0 to {count - 1}")


class _Run:
    """One call of `generate`, holding its shard."""

    def __init__(
        self, request: Request, folder: OpenRun, listen: Listener, check_sizes: SizeCheck
    ) -> None:
        self.request = request
        self.folder = folder
        self.listen = listen
        self.check_sizes = check_sizes
        self.plan = folder.plan(request.wanted, request.redo, retry_failed=request.retry_failed)
        self.counts = RunCounts()
        self._truncations = TruncationWarnings(listen)
        self._stopped = ""  # why the run was stopped early
        self._start = time.perf_counter()
        self._start_s = 0.0  # from there to the first forward pass

    def announce(self, prompts: PromptSet | None) -> None:
        """Tell what is known before generation."""
        config = self.folder.config
        if prompts is not None:
            self.count(prompts.prompts)
        self.listen(
            RunStarted(
                total=None if prompts is None else self.counts.requested,
                done=self.counts.skipped,
                out=str(self.request.out),
                decoder=f"decoder {resolved_name(config.decoder.preset)}, "
                f"window {config.decoder.window}",
                lossless=lossless_label(config.decoder.lossless, config.model.quantize),
            )
        )
        seed = f"run seed {self.plan.seeds.run}" if config.run.seed is None else ""
        licence = f"licence of the weights: {config.model.licence}" if config.model.licence else ""
        warnings = {self.folder.taken_over, *(prompts.notes if prompts is not None else ())}
        remarks = prompts.remarks() if prompts is not None else []
        for note in filter(None, [self.folder.taken_over, seed, licence, *remarks]):
            self.listen(Note("warning" if note in warnings else "info", note))

    def count(self, prompts: tuple[Prompt, ...]) -> None:
        """Add the images of more prompts to the counts."""
        counts = self.plan.count(prompts)
        self.counts.requested += counts.total()
        self.counts.skipped += counts["finished"]
        self.counts.failed += counts["failed"]

    def generate(self, prompts: PromptSet | None, open_generator: OpenGenerator) -> RunSummary:
        """Generate the images that are missing; tell the summary however that ends."""
        try:
            with self._queue(prompts) as tasks:
                if tasks.has_work():
                    self._generate(tasks, open_generator)
                if self._stopped:  # told after the images that were still being saved
                    self.listen(Note("warning", self._stopped))
                tasks.raise_error()
            if self.counts.left(retry_failed=self.request.retry_failed) == 0:
                self.folder.end_redo()
        finally:
            self._truncations.close()
            wall_s = time.perf_counter() - self._start
            summary = self.counts.summary(wall_s, self._start_s)
            self.listen(RunFinished(summary.as_json()))
        return summary

    def _generate(self, tasks: TaskQueue, open_generator: OpenGenerator) -> None:
        with (
            open_generator(self._generator_config()) as generator,
            self._saving() as saving,
        ):
            tasks.check = saving.check
            tasks.on_start = self._generation_starts
            tasks.on_progress = lambda in_progress: self.listen(ImagesInProgress(in_progress))
            for image in self._until_too_many_fail(generator.generate(tasks)):
                saving.put((tasks.finish(image.job), image))

    def _generation_starts(self) -> None:
        self._start_s = time.perf_counter() - self._start
        self.listen(GenerationStarted())

    @contextlib.contextmanager
    def _queue(self, prompts: PromptSet | None) -> Iterator[TaskQueue]:
        if prompts is not None:
            yield TaskQueue(from_list(self._by_size(prompts)), self.plan.tasks)
            return
        request = self.request
        assert request.stdin is not None
        with self.folder.prompts_log() as prompts_log:

            def tasks(prompt: Prompt) -> list[Task]:
                check_asked([prompt], request.config)
                self.check_sizes([prompt])
                prompts_log.add([prompt])
                self.count((prompt,))
                return self.plan.tasks(prompt)

            arriving = stream_prompts(
                request.stdin,
                request.reading,
                lambda level, message: self.listen(Note(level, message)),
            )
            yield TaskQueue(PipeReader(_selected(arriving, request.selection)), tasks)

    def _by_size(self, prompts: PromptSet) -> list[Prompt]:
        """Return the prompts, those of one image size together: each size is another engine."""
        size = self.plan.size
        return sorted(prompts.prompts, key=lambda prompt: asked_size(prompt, size) or (0, 0))

    def _generator_config(self) -> RunConfig:
        """Return the settings of the generator: a batch is not larger than a few images left.

        An idle slot costs as much as a busy one.
        """
        config = self.folder.located_config()
        todo = self.counts.requested - self.counts.skipped
        piped = self.request.stdin is not None
        if config.run.batch_size != "auto" or piped or todo >= _SMALLEST_AUTO_BATCH:
            return config
        return replace(config, run=replace(config.run, batch_size=todo))

    @contextlib.contextmanager
    def _saving(self) -> Iterator[Background[tuple[Task, ImageResult]]]:
        with self.folder.writer(rank(os.environ)) as writer:

            def save(done: tuple[Task, ImageResult]) -> None:
                row = writer.save(*done)
                compile_s = done[1].stats.get("compile_s") or 0.0
                self.counts.compile_s = max(self.counts.compile_s, compile_s)
                self.counts.add(row)
                self._truncations.add(row)
                self.listen(ImageFinished(row))

            with Background(save) as background:
                yield background

    def _until_too_many_fail(self, images: Iterator[ImageResult]) -> Iterator[ImageResult]:
        allowed = 0 if self.request.fail_fast else self.folder.config.run.max_failures
        failures = 0
        for image in images:
            yield image
            failures += image.error is not None
            if allowed is not None and failures > allowed:
                self._stopped = f"stopped: {counted(failures, 'failed image')}, {allowed} allowed"
                return


def _selected(arriving: Iterator[Prompt], selection: Selection) -> Iterator[Prompt]:
    """Yield prompts up to the last selected one; raises ConfigError when that row does not come."""
    count = 0
    for prompt in itertools.islice(arriving, selection.end):
        count += 1
        yield prompt
    if selection.end is None or count < selection.end:
        _require_rows(selection, count, "stdin")
