"""`sjdvp generate`: prompts in, images and a log out; with --dry-run only the plan."""

import contextlib
import json
import os
import signal
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sjdvp.config import RunConfig, lossless_label
from sjdvp.errors import BusyError, ConfigError, Interrupted, NotCachedError, SjdvpError, SlurmError
from sjdvp.events import Event, Listener, one_at_a_time
from sjdvp.jobs import ImageGenerator
from sjdvp.presets import resolved_name
from sjdvp.text import counted
from sjdvp_cli.errors import report
from sjdvp_cli.live import closing_line, watch
from sjdvp_cli.log_rows import data_lines
from sjdvp_cli.options import Progress, option, takes_options
from sjdvp_cli.processes import Processes
from sjdvp_cli.prompts import Reading, Source
from sjdvp_cli.settings import Settings
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.generate import Request
    from sjdvp.runs.sharding import Ranges, Selection

_images, _rows, _output = map(option, ("Images", "Rows", "Output"))
LARGEST_AUTO_WINDOW = 32
_BEFORE = 2  # exit code of a problem found before generation: running again would not help


@dataclass(frozen=True, slots=True)
class Images:
    """Where images go, and which part of them is made by this command."""

    out: Annotated[
        Path,
        _images("--out", "-o", metavar="DIR", help="Run folder: created if absent, else resumed."),
    ]
    shard: Annotated[
        str,
        _images(
            "--shard",
            metavar="K/N|auto",
            help="Part K (from 0) of N; auto reads it from SLURM or torchrun.",
        ),
    ] = "0/1"
    skip_if_running: Annotated[
        bool,
        _images(
            "--skip-if-running",
            help="Exit 0 when another process is already generating this part.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of the prompt file, and which of their images are generated."""

    indices: Annotated[
        str | None,
        _rows(
            "--indices", metavar="3,10-20", help="Only these prompt rows.", show_default="all rows"
        ),
    ] = None
    limit: Annotated[
        int | None,
        _rows(
            "--limit",
            metavar="N",
            min=0,
            help="Only the first N prompt rows.",
            show_default="all rows",
        ),
    ] = None
    sample: Annotated[
        int | None,
        _rows(
            "--sample",
            metavar="K",
            min=0,
            help="Only image K (from 0) of each prompt; -n is the number of images.",
            show_default="all images",
        ),
    ] = None
    image_seed: Annotated[
        int | None,
        _rows(
            "--image-seed",
            metavar="N",
            min=0,
            max=2**53 - 1,
            help="Seed of the only image, as `sjdvp show` prints it.",
            show_default="from --seed, row and sample",
        ),
    ] = None
    overwrite: Annotated[
        bool, _rows("--overwrite", help="Generate existing images again, with the same seeds.")
    ] = False
    reroll: Annotated[
        str | None,
        _rows(
            "--reroll",
            metavar="3,10-20",
            help="Generate the images of these prompt rows again with new seeds.",
            show_default="none",
        ),
    ] = None
    update_prompts: Annotated[
        str | None,
        _rows(
            "--update-prompts",
            metavar="3,10-20",
            help="Accept changed prompts in these rows and generate their images again.",
            show_default="none",
        ),
    ] = None
    retry_failed: Annotated[
        bool,
        _rows(
            "--retry-failed/--no-retry-failed",
            help="Retry images that failed in an earlier run.",
            show_default="--retry-failed",
        ),
    ] = True
    fail_fast: Annotated[bool, _rows("--fail-fast", help="Stop at the first failed image.")] = False

    def selection(self) -> "Selection":
        """Return the rows that are asked for; raises ConfigError."""
        from sjdvp.runs.sharding import Selection, parse_indices

        if self.reroll and self.indices:
            raise ConfigError(
                "--reroll and --indices both name rows", "give only --reroll with the rows"
            )
        if self.reroll:
            return Selection(parse_indices(self.reroll, "--reroll"), self.limit)
        return Selection(parse_indices(self.indices) if self.indices else None, self.limit)

    def updates(self) -> "Ranges":
        """Return the rows whose prompts may have changed; raises ConfigError."""
        from sjdvp.runs.sharding import parse_indices

        text = self.update_prompts
        return parse_indices(text, "--update-prompts") if text else ()


@dataclass(frozen=True, slots=True)
class Output(Progress):
    """What is shown and printed."""

    dry_run: Annotated[
        bool,
        _output(
            "--dry-run",
            help="Check prompts, settings and folder, and print the plan; no model is loaded.",
        ),
    ] = False
    log: Annotated[
        str | None,
        _output(
            "--log",
            metavar="FILE|-",
            help="Also write each log row to this file; - is stdout.",
            show_default="none",
        ),
    ] = None
    printed: Annotated[
        Literal["paths"] | None,
        _output(
            "--print",
            metavar="paths",
            help="Print the path of each finished image on stdout.",
            show_default="none",
        ),
    ] = None
    null: Annotated[
        bool,
        _output("--null", "-0", help="Like --print paths, with a NUL character after each path."),
    ] = False
    verbose: Annotated[bool, _output("--verbose", "-v", help="Print a line for each image.")] = (
        False
    )


@takes_options
def command(
    source: Source,
    reading: Reading,
    images: Images,
    rows: Rows,
    settings: Settings,
    processes: Processes,
    output: Output,
) -> int:
    """Generate images for prompts. Safe to interrupt: the same command resumes."""
    resolved = settings.resolve()
    for note in resolved.notes:
        typer.echo(f"sjdvp: warning: {note}", err=True)
    request = make_request(source, reading, rows, resolved.config, images.out, images.shard)
    processes.check(resolved.config)
    if output.dry_run:
        return _show_plan(request, as_json=output.as_json)
    paths = output.printed == "paths"
    with data_lines(
        images.out, log=output.log, paths=paths, null=output.null, summary=output.as_json
    ) as lines:
        try:
            return _generate(request, processes, lines, output) or int(lines.lost)
        except BusyError as error:
            if not images.skip_if_running:
                raise
            typer.echo(f"sjdvp: nothing done: {error}", err=True)
            return 0


def make_request(
    source: Source, reading: Reading, rows: Rows, config: RunConfig, out: Path, shard: str
) -> "Request":
    """Return the request that the flags make; raises ConfigError."""
    from sjdvp.generate import Request
    from sjdvp.runs.sharding import parse_shard

    source.check()
    return Request(
        config=config,
        out=out,
        prompts=source.paths or None,
        inline=tuple(source.prompt or ()),
        stdin=sys.stdin.buffer if source.is_stdin else None,
        reading=reading.options(),
        shard=parse_shard(shard, os.environ),
        selection=rows.selection(),
        sample=rows.sample,
        image_seed=rows.image_seed,
        overwrite=rows.overwrite,
        reroll=rows.reroll is not None,
        updates=rows.updates(),
        retry_failed=rows.retry_failed,
        fail_fast=rows.fail_fast,
        argv=("sjdvp", *sys.argv[1:]),
    )


def _show_plan(request: "Request", *, as_json: bool) -> int:
    """Check a request as `generate` would, and print the plan; loads no model, writes nothing."""
    from sjdvp.generate import preview

    config, seen = request.config, preview(request)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    **asdict(seen),
                    "out": str(request.out),
                    "settings": config.pixel_settings(),
                }
            )
        )
        return 0
    sampling, decoder, copies = config.sampling, config.decoder, config.run.num_images_per_prompt
    plan: dict[str, Any] = {
        "images": "unknown: prompts come from stdin"
        if seen.requested is None
        else f"{seen.requested}, {seen.done} of them finished",
        "images per prompt": copies,
        "prompts": f"{seen.format}, {counted(seen.skipped_lines, 'blank line')} skipped, "
        f"{counted(seen.duplicates, 'duplicate')}",
        "empty rows": f"{seen.empty_rows} skipped" if seen.empty_rows else None,
        "left out": "; ".join(seen.notes) or None,
        "shard": request.shard,
        "files": ", ".join([str(request.out / file) for file in seen.files] + ["…"]),
        "profile": f"{config.profile} ({config.model.backbone})",
        "size": f"{config.model.width}x{config.model.height}"
        if config.model.width
        else "default of the model",
        "sampling": f"CFG scale {sampling.cfg_scale}, temperature {sampling.temperature}, "
        f"top-k {sampling.top_k}, top-p {sampling.top_p}, min-p {sampling.min_p}",
        "negative prompt": sampling.negative_prompt,
        "decoder": f"{resolved_name(decoder.preset)}, window {decoder.window}, "
        f"{lossless_label(decoder.lossless, config.model.quantize)}",
        "seed": "random" if seen.seed is None else seen.seed,
        "batch size": config.run.batch_size,
        "device": config.run.device,
        "fingerprint": config.fingerprint(),
    }
    rows = [[key, str(value)] for key, value in plan.items() if value is not None]
    show_table(["what", "value"], rows)
    return 0


def _generate(request: "Request", processes: Processes, lines: Listener, output: Output) -> int:
    """Run the job; an error that stops a started run is printed before the last line."""
    from sjdvp.generate import generate

    stopped: SjdvpError | None = None
    with watch(output.progress, quiet=output.quiet, verbose=output.verbose) as (state, show):

        @one_at_a_time
        def listen(event: Event) -> None:
            lines(event)
            show(event)

        generator = processes.generator(request.config, open_generator, listen)
        try:
            code = generate(request, generator, listen, pick_window, check_model).exit_code
        except SjdvpError as error:
            if state.summary is None and not isinstance(error, Interrupted):
                raise
            stopped, code = error, error.exit_code
    interrupted = isinstance(stopped, Interrupted)
    if stopped and not interrupted:
        report(str(stopped), stopped.hint, code)
    if state.summary and (code != _BEFORE or state.summary["ok"]):
        typer.echo(
            closing_line(state.summary, interrupted=interrupted, retry_failed=request.retry_failed),
            err=True,
        )
    elif interrupted:
        typer.echo("sjdvp: interrupted", err=True)
    if isinstance(stopped, Interrupted) and stopped.signum == signal.SIGUSR1:
        _requeue()
    return code


def _requeue() -> None:
    """Requeue the SLURM job after its signal USR1: the time limit is near; all images are saved."""
    from sjdvp.slurm.queue import own_job, requeue

    job = own_job(os.environ)
    if job:
        typer.echo(f"sjdvp: the time limit is near; job {job} is requeued", err=True)
        try:
            requeue(job)
        except SlurmError as error:
            typer.echo(f"sjdvp: warning: {error}; submit the job again to resume", err=True)


def pick_window(config: RunConfig) -> int:
    """Return the number that replaces `window: auto`; torch is imported here and not before."""
    from sjdvp.bench import pick_window

    return pick_window(config, lambda message: typer.echo(f"sjdvp: {message}", err=True))


def check_model(config: RunConfig) -> None:
    """Refuse what the model cannot do, before a folder is made; reads no weights.

    Weights that must be downloaded first are checked when they are loaded.
    """
    from sjdvp.engine.loading import plan_loading

    if config.decoder.window == "auto":
        config = config.with_window(LARGEST_AUTO_WINDOW)
    with contextlib.suppress(NotCachedError):
        plan_loading(config)


def open_generator(config: RunConfig) -> AbstractContextManager[ImageGenerator]:
    """Load the engine; torch is imported here and not before."""
    from sjdvp.engine.loading import open_engine

    return open_engine(config)
