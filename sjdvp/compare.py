"""The same prompts and seeds through several decoders, in turns of one batch, each into a run folder of its own. Imports no torch.

Nothing but the decoder differs between the variants, and all share one loaded model; so what differs in the figures is the decoder.
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
    setting_types,
    unknown_key,
)
from sjdvp.errors import ConfigError, FolderError
from sjdvp.events import ImageFinished, Listener, Note, RunFinished, RunStarted
from sjdvp.jobs import ImageGenerator, Job
from sjdvp.profiles import Resolved
from sjdvp.runs.folder import OpenRun, RunFolder, check_fits
from sjdvp.runs.job_queue import Task
from sjdvp.runs.jsonl import JsonRow
from sjdvp.runs.prompts import PromptSet
from sjdvp.runs.run_json import Wanted
from sjdvp.runs.sharding import RUN, Selection, image_seed, new_run_seed
from sjdvp.runs.signals import raise_if_stopped, stoppable
from sjdvp.runs.summary import RunCounts, RunSummary
from sjdvp.runs.writer import ImageWriter

OpenGenerators = Callable[[Sequence[RunConfig]], AbstractContextManager[Sequence[ImageGenerator]]]
Resolve = Callable[
    [Mapping[str, Any]], Resolved
]  # overrides by dotted key, on top of everything else that was given

_RELAX = {
    "lantern": ("neighbours", "delta", "scale"),
    "gsd": ("group", "delta", "distance"),
}  # what each relaxed verifier reads


@dataclass(frozen=True, slots=True)
class Variant:
    """One decoder of a comparison: its name, which is its folder's too, and its settings."""

    name: str
    config: RunConfig


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """What one call of `compare` is asked to draw."""

    variants: tuple[Variant, ...]
    out: Path
    prompts: PromptSet
    selection: Selection
    warmup: int = 1  # images that every variant draws and forgets before anything is measured
    argv: tuple[str, ...] = ()


def plan_variants(
    decoders: Sequence[str], sweep: Mapping[str, Sequence[str]], resolve: Resolve
) -> tuple[Variant, ...]:
    """Return a variant for each decoder, or for each point of the grid `sweep` that means something to that decoder.

    `sweep` holds values by setting of the decoder, with or without the leading `decoder.`. A setting that changes nothing in a
    decoder (the window of `ar`, the prediction of `sjd`) does not multiply it.
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
    """Return the decoder without the parameters of parts that it does not have."""
    prediction = decoder.prediction if decoder.prediction.kind != "none" else PredictionConfig()
    relax = RelaxConfig(
        **{name: getattr(decoder.relax, name) for name in _RELAX.get(decoder.verifier, ())}
    )
    return replace(decoder, prediction=prediction, relax=relax)


def compare(
    request: ComparisonRequest, open_generators: OpenGenerators, listen: Listener
) -> RunSummary:
    """Draw what is not on disk yet, the variants taking turns; tells the same events as `generate`.

    Each turn of a variant is one batch; who goes first moves on by one with every turn, so that a slow moment strikes all alike.
    Raises ConfigError and FolderError before generation, StorageError when the disk refuses, Interrupted after a signal.
    """
    with stoppable(), contextlib.ExitStack() as held:
        tracks = [held.enter_context(_open_track(variant, request)) for variant in _seeded(request)]
        tally = _announce(request, tracks, listen)
        start = time.perf_counter()
        try:
            if any(track.todo for track in tracks):
                with open_generators(_pinned(tracks, request.out)) as generators:
                    _draw(request, tracks, generators, tally, listen)
        finally:
            summary = tally.summary(time.perf_counter() - start)
            listen(RunFinished(summary.as_json()))
    return summary


def variant_folders(request: ComparisonRequest) -> list[Path]:
    """Return the run folders of a comparison, in the order of its variants."""
    return [request.out / variant.name for variant in request.variants]


def _seeded(request: ComparisonRequest) -> list[Variant]:
    """Check that every folder fits its variant, and give all variants one seed: the given one, that of the folders, or a new one."""
    if not request.variants:
        raise ConfigError("no decoder is given", "for example --decoders ar,sjd,sjdvp")
    if (request.out / RUN).exists():
        raise FolderError(
            f"{request.out} is a run folder itself",
            "give a new folder, for a run folder of each decoder",
        )
    if any(variant.config.run.batch_size == "auto" for variant in request.variants):
        raise ConfigError(
            "a comparison needs a batch size of its own choice",
            "give --batch-size 1, or another number",
        )
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
    for variant in (
        variants
    ):  # again, now that the seed is known: folders of different seeds do not fit together
        check_fits(request.out / variant.name, variant.config, request.prompts)
    return variants


def _announce(
    request: ComparisonRequest, tracks: Sequence["_Track"], listen: Listener
) -> RunCounts:
    tally = RunCounts()
    for track in tracks:
        tally.requested += len(track.todo) + track.done
        tally.skipped += track.done
    config = tracks[0].config
    lossless = all(track.config.decoder.lossless for track in tracks)
    names = ", ".join(track.name for track in tracks)
    listen(
        RunStarted(
            tally.requested, tally.skipped, str(request.out), names, lossless, config.run.device
        )
    )
    if len({track.done for track in tracks}) > 1:
        listen(
            Note(
                "warning",
                "some decoders have drawn more before: their times were not measured in turns with the others",
            )
        )
    return tally


def _pinned(tracks: Sequence["_Track"], out: Path) -> list[RunConfig]:
    """Return the settings of the variants with paths for hub ids, all at one revision: that of the first variant's folder."""
    first, *others = tracks
    model = first.run.located_config().model
    for track in others:
        kept = track.run.keep_revision(model.revision)
        if kept != model.revision:
            raise FolderError(
                f"{out / track.name} was drawn with revision {kept} of the weights, and {out / first.name} with {model.revision}",
                "compare them in a new folder",
            )
    return [replace(track.config, model=model) for track in tracks]


def _draw(
    request: ComparisonRequest,
    tracks: Sequence["_Track"],
    generators: Sequence[ImageGenerator],
    tally: RunCounts,
    listen: Listener,
) -> None:
    variants = [
        (track, generator)
        for track, generator in zip(tracks, generators, strict=True)
        if track.todo
    ]
    for track, generator in variants:
        for _ in generator.generate(_Jobs(_warmup_jobs(request, track.run.info.seed))):
            pass
    allowed = tracks[0].config.run.max_failures
    for turn in itertools.count():
        variants = [variant for variant in variants if variant[0].todo]
        if not variants:
            return
        first = turn % len(variants)
        for track, generator in variants[first:] + variants[:first]:
            for row in track.take_turn(generator):
                tally.add(row)
                listen(ImageFinished(row))
        if allowed is not None and tally.failed > allowed:
            listen(Note("warning", f"stopped: {tally.failed} failed images, {allowed} allowed"))
            return


def _warmup_jobs(request: ComparisonRequest, seed: int) -> list[Job]:
    """Return images beyond those of the run, so that none of them is drawn twice with the same seed."""
    prompts = request.prompts.prompts
    jobs = []
    for i in range(request.warmup):
        prompt = prompts[i % len(prompts)]
        sample = 2**20 + i
        jobs.append(Job(prompt.index, sample, image_seed(seed, prompt.index, sample), prompt.text))
    return jobs


@dataclass(slots=True)
class _Track:
    """A variant on disk, locked and open for writing."""

    name: str
    run: OpenRun
    todo: list[Task]
    done: int  # images finished by earlier runs
    writer: ImageWriter

    @property
    def config(self) -> RunConfig:
        """The settings of the variant."""
        return self.run.config

    def take_turn(self, generator: ImageGenerator) -> Iterator[JsonRow]:
        """Draw and save the next batch; yields the rows as they are on disk."""
        size = self.config.run.batch_size
        assert size != "auto"  # `compare` has seen to it
        turn = {task.job: task for task in self.todo[:size]}
        del self.todo[:size]
        for image in generator.generate(_Jobs(turn)):
            task = turn[image.job]
            yield self.writer.save(task.prompt, image, task.attempt)


@contextlib.contextmanager
def _open_track(variant: Variant, request: ComparisonRequest) -> Iterator[_Track]:
    wanted = Wanted(variant.config.run.num_images_per_prompt, request.selection)
    root, prompts = request.out / variant.name, request.prompts
    with (
        RunFolder.open(root, variant.config, prompts, wanted=wanted, argv=request.argv) as run,
        run.writer() as writer,
    ):
        plan = run.plan(request.selection)
        todo = [task for prompt in prompts.prompts for task in plan.tasks(prompt)]
        done = plan.count(prompts.prompts)["finished"]
        yield _Track(variant.name, run, todo, done, writer)


class _Jobs:
    """A JobQueue of a few jobs."""

    def __init__(self, jobs: Sequence[Job] | Mapping[Job, Task]) -> None:
        self._rest = iter(jobs)

    def take(self, *, wait: bool) -> Job | None:
        """Return the next job, or None."""
        raise_if_stopped()
        return next(self._rest, None)
