"""The same prompts and seeds through several decoders, each into its own run folder.

The decoders share one loaded model and take turns of one batch, so that the metrics differ only by
the decoder. Imports no torch.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sjdvp.config import (
    DecoderConfig,
    PredictionConfig,
    RelaxConfig,
    RunConfig,
    lossless_label,
    setting_types,
    unknown_key,
)
from sjdvp.errors import ConfigError, FolderError
from sjdvp.events import ImageFinished, Listener, Note, RunFinished, RunStarted
from sjdvp.jobs import ImageGenerator, Job
from sjdvp.profiles import Resolved
from sjdvp.runs.folder import CheckModel, OpenRun, RunFolder, check_fits
from sjdvp.runs.job_queue import Task
from sjdvp.runs.jsonl import JsonRow
from sjdvp.runs.prompts import PromptSet
from sjdvp.runs.prompts.asked import check_asked, check_one_engine
from sjdvp.runs.run_json import Wanted
from sjdvp.runs.sharding import RUN, Selection, image_seed, new_run_seed
from sjdvp.runs.signals import raise_if_stopped, stoppable
from sjdvp.runs.summary import RunCounts, RunSummary
from sjdvp.runs.writer import ImageWriter
from sjdvp.text import counted

OpenGenerators = Callable[[Sequence[RunConfig]], AbstractContextManager[Sequence[ImageGenerator]]]
# From overrides by dotted key, above everything else that was given.
Resolve = Callable[[Mapping[str, Any]], Resolved]

# The settings of decoder.relax that each relaxed verifier reads.
_RELAX = {"lantern": ("neighbours", "delta", "scale"), "gsd": ("group", "delta", "distance")}


@dataclass(frozen=True, slots=True)
class Variant:
    """One decoder of a comparison: its name, also that of its folder, and its settings."""

    name: str
    config: RunConfig


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """What one call of `compare` is asked to generate."""

    variants: tuple[Variant, ...]
    out: Path
    prompts: PromptSet
    selection: Selection
    warmup: int = 1  # images of every variant before the measurement, not saved
    argv: tuple[str, ...] = ()


def plan_variants(
    decoders: Sequence[str], sweep: Mapping[str, Sequence[str]], resolve: Resolve
) -> tuple[Variant, ...]:
    """Return a variant for each decoder, or for each point of the grid `sweep`.

    `sweep` has values by setting of the decoder, with or without the leading `decoder.`. A setting
    that changes nothing in a decoder (the window of `ar`, the prediction of `sjd`) is not varied.
    """
    grid = {_decoder_key(key): values for key, values in sweep.items()}
    variants = []
    for decoder in dict.fromkeys(decoders):
        mine = {
            key: values for key, values in grid.items() if _matters(decoder, key, values, resolve)
        }
        for point in itertools.product(*mine.values()):
            chosen = dict(zip(mine, point, strict=True))
            name = ",".join(
                [
                    decoder,
                    *(f"{key.removeprefix('decoder.')}={value}" for key, value in chosen.items()),
                ]
            )
            variants.append(Variant(name, resolve({"decoder.preset": decoder, **chosen}).config))
    return tuple(variants)


def _decoder_key(key: str) -> str:
    full = key if key.startswith("decoder.") else f"decoder.{key}"
    known = [
        name for name in setting_types() if name.startswith("decoder.") and name != "decoder.preset"
    ]
    if full not in known:
        raise unknown_key(full, known)
    return full


def _matters(decoder: str, key: str, values: Sequence[str], resolve: Resolve) -> bool:
    seen = {
        _effective(resolve({"decoder.preset": decoder, key: value}).config.decoder)
        for value in values
    }
    plain = _effective(resolve({"decoder.preset": decoder}).config.decoder)
    return bool(seen - {plain})


def _effective(decoder: DecoderConfig) -> DecoderConfig:
    """Return the decoder with defaults for the parameters that it does not read."""
    prediction = decoder.prediction if decoder.prediction.kind != "none" else PredictionConfig()
    relax = RelaxConfig(
        **{name: getattr(decoder.relax, name) for name in _RELAX.get(decoder.verifier, ())}
    )
    return replace(decoder, prediction=prediction, relax=relax)


def compare(
    request: ComparisonRequest,
    open_generators: OpenGenerators,
    listen: Listener,
    check_model: CheckModel = lambda config: None,
) -> RunSummary:
    """Generate the missing images of alternating variants; emits the same events as `generate`.

    A turn is one batch of one variant, and the first variant of a round changes with every round,
    so that a slow moment of the machine affects all alike. Raises ConfigError and FolderError
    before generation, what `check_model` raises before folders are made, StorageError when the disk
    refuses, Interrupted after a signal.
    """
    with stoppable(), contextlib.ExitStack() as held:
        variants = _seeded(request)
        if not all((request.out / variant.name / RUN).exists() for variant in variants):
            check_model(variants[0].config)
        runs = [held.enter_context(_open_variant(variant, request, listen)) for variant in variants]
        counts = _announce(request, runs, listen)
        start = ready = time.perf_counter()
        try:
            if any(run.todo for run in runs):
                with open_generators(_pinned(runs, request.out)) as generators:
                    ready = time.perf_counter()
                    _take_turns(request, runs, generators, counts, listen)
        finally:
            summary = counts.summary(time.perf_counter() - start, ready - start)
            listen(RunFinished(summary.as_json()))
    return summary


def variant_folders(request: ComparisonRequest) -> list[Path]:
    """Return the run folders of a comparison, in the order of its variants."""
    return [request.out / variant.name for variant in request.variants]


def _seeded(request: ComparisonRequest) -> list[Variant]:
    """Check that each folder fits its variant, and give all variants one seed.

    It is the given seed, that of the folders, or a new one.
    """
    if not request.variants:
        raise ConfigError("a comparison needs decoders", "for example --decoders ar,sjd,sjdvp")
    if (request.out / RUN).exists():
        raise FolderError(
            f"{request.out} is a run folder itself",
            "give a new folder; each decoder gets a run folder in it",
        )
    if any(variant.config.run.batch_size == "auto" for variant in request.variants):
        raise ConfigError(
            "a comparison needs a fixed batch size, not auto",
            "give --batch-size 1, or another number",
        )
    check_asked(request.prompts.prompts, request.variants[0].config)
    check_one_engine(request.prompts.prompts, request.variants[0].config)
    fits = [
        check_fits(request.out / variant.name, variant.config, request.prompts)
        for variant in request.variants
    ]
    known = [info.seed for info in fits if info is not None]
    given = request.variants[0].config.run.seed
    seed = given if given is not None else known[0] if known else new_run_seed()
    variants = [
        replace(variant, config=replace(variant.config, run=replace(variant.config.run, seed=seed)))
        for variant in request.variants
    ]
    for variant in variants:  # again with the seed: the folders must have the same one
        check_fits(request.out / variant.name, variant.config, request.prompts)
    return variants


def _announce(
    request: ComparisonRequest, runs: Sequence["VariantRun"], listen: Listener
) -> RunCounts:
    counts = RunCounts()
    for run in runs:
        counts.requested += len(run.todo) + run.done
        counts.skipped += run.done
    relaxed = [run.name for run in runs if not run.config.decoder.lossless]
    label = lossless_label(len(relaxed) < len(runs), runs[0].config.model.quantize)
    if 0 < len(relaxed) < len(runs):
        label = f"all {label} but {', '.join(relaxed)}"
    names = "decoders " + ", ".join(run.name for run in runs)
    listen(RunStarted(counts.requested, counts.skipped, str(request.out), names, label))
    if len({run.done for run in runs}) > 1:
        uneven = "some decoders have more finished images: not all times were measured alternating"
        listen(Note("warning", uneven))
    return counts


def _pinned(runs: Sequence["VariantRun"], out: Path) -> list[RunConfig]:
    """Return the settings with local paths instead of hub ids, all of one revision.

    It is the revision of the first variant's folder.
    """
    first, *others = runs
    model = first.folder.located_config().model
    for run in others:
        kept = run.folder.keep_revision(model.revision)
        if kept != model.revision:
            raise FolderError(
                f"{out / run.name} has revision {kept} of the weights, {out / first.name} has "
                f"{model.revision}",
                "compare in a new folder",
            )
    return [replace(run.config, model=model) for run in runs]


def _take_turns(
    request: ComparisonRequest,
    runs: Sequence["VariantRun"],
    generators: Sequence[ImageGenerator],
    counts: RunCounts,
    listen: Listener,
) -> None:
    variants = [
        (run, generator) for run, generator in zip(runs, generators, strict=True) if run.todo
    ]
    for run, generator in variants:
        for _ in generator.generate(_Jobs(_warmup_jobs(request, run.folder.info.seed))):
            pass
    allowed = runs[0].config.run.max_failures
    for turn in itertools.count():
        variants = [variant for variant in variants if variant[0].todo]
        if not variants:
            return
        first = turn % len(variants)
        for run, generator in variants[first:] + variants[:first]:
            for row in run.take_turn(generator):
                counts.add(row)
                listen(ImageFinished(row))
        if allowed is not None and counts.failed > allowed:
            failed = counted(counts.failed, "failed image")
            listen(Note("warning", f"stopped: {failed}, {allowed} allowed"))
            return


def _warmup_jobs(request: ComparisonRequest, seed: int) -> list[Job]:
    """Return jobs whose seeds are not those of any image of the run."""
    prompts = request.prompts.prompts
    jobs = []
    for i in range(request.warmup):
        prompt = prompts[i % len(prompts)]
        sample = 2**20 + i
        jobs.append(Job(prompt.index, sample, image_seed(seed, prompt.index, sample), prompt.text))
    return jobs


@dataclass(slots=True)
class VariantRun:
    """A variant whose run folder is locked and open for writing."""

    name: str
    folder: OpenRun
    todo: list[Task]
    done: int  # images of earlier runs
    writer: ImageWriter

    @property
    def config(self) -> RunConfig:
        """The settings of the variant."""
        return self.folder.config

    def take_turn(self, generator: ImageGenerator) -> Iterator[JsonRow]:
        """Generate and save the next batch; yields the log rows as they are on disk."""
        size = self.config.run.batch_size
        assert size != "auto"  # `_seeded` has checked it
        turn = {task.job: task for task in self.todo[:size]}
        del self.todo[:size]
        for image in generator.generate(_Jobs(turn)):
            yield self.writer.save(turn[image.job], image)


@contextlib.contextmanager
def _open_variant(
    variant: Variant, request: ComparisonRequest, listen: Listener
) -> Iterator[VariantRun]:
    def warn(message: str) -> None:
        listen(Note("warning", message))

    settings = variant.config.run
    wanted = Wanted(settings.num_images_per_prompt, request.selection, tokens=settings.save_tokens)
    root, prompts = request.out / variant.name, request.prompts
    with (
        RunFolder.open(
            root, variant.config, prompts, wanted=wanted, argv=request.argv, tell=warn
        ) as run,
        run.writer() as writer,
    ):
        plan = run.plan(wanted)
        todo = [task for prompt in prompts.prompts for task in plan.tasks(prompt)]
        done = plan.count(prompts.prompts)["finished"]
        yield VariantRun(variant.name, run, todo, done, writer)


class _Jobs:
    """A JobQueue of a few jobs."""

    def __init__(self, jobs: Sequence[Job] | Mapping[Job, Task]) -> None:
        self._rest = iter(jobs)

    def take(self, *, wait: bool) -> Job | None:
        """Return the next job, or None."""
        raise_if_stopped()
        return next(self._rest, None)

    def report(self, in_progress: float) -> None:
        """See `sjdvp.jobs.JobQueue`."""
