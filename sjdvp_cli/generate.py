"""`sjdvp generate`: the main job."""

import os
import signal
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sjdvp.config import RunConfig
from sjdvp.errors import BusyError, ConfigError, Interrupted, SjdvpError, SlurmError
from sjdvp.events import Event, Listener, Note, one_at_a_time
from sjdvp.jobs import ImageGenerator
from sjdvp_cli.errors import report
from sjdvp_cli.live import Mode, closing_line, watch
from sjdvp_cli.log_rows import data_lines
from sjdvp_cli.options import Format, Settings, expanded, option, takes_options
from sjdvp_cli.processes import Processes

if TYPE_CHECKING:
    from sjdvp.generate import Request

_prompts, _images, _output = map(option, ("Prompts", "Images", "Output"))
_BEFORE = 2  # the exit code of what is wrong before the first image: running the same command again would not help
_RETRY = "--retry-failed/--no-retry-failed"


@dataclass(frozen=True, slots=True)
class Source:
    """Where prompts come from."""

    prompts: Annotated[
        str | None,
        _prompts("--prompts", metavar="FILE|DIR|-", help="File or folder; - reads stdin."),
    ] = None
    prompt: Annotated[
        list[str] | None, _prompts("--prompt", metavar="TEXT", help="A prompt; may be repeated.")
    ] = None
    format: Annotated[
        Format, _prompts("--format", help="What the file is; auto goes by name and content.")
    ] = "auto"
    column: Annotated[
        str | None,
        _prompts("--column", metavar="NAME", help="Column or key that holds the prompt."),
    ] = None

    @property
    def path(self) -> Path | None:
        """The prompt file, when there is one."""
        return expanded(Path(self.prompts)) if self.prompts and self.prompts != "-" else None


@dataclass(frozen=True, slots=True)
class Images:
    """Where images go, and which part of them is this command's."""

    out: Annotated[
        Path,
        _images(
            "--out", "-o", metavar="DIR", help="Run folder: made when absent, resumed when not."
        ),
    ]
    shard: Annotated[
        str,
        _images(
            "--shard", metavar="K/N|auto", help="Part K (from 0) of N; auto: SLURM or torchrun."
        ),
    ] = "0/1"
    skip_if_running: Annotated[
        bool, _images("--skip-if-running", help="Exit 0 when this part is being drawn already.")
    ] = False


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of the prompt file, and what of them is drawn."""

    indices: Annotated[
        str | None, _images("--indices", metavar="3,10-20", help="Only these rows.")
    ] = None
    limit: Annotated[
        int | None, _images("--limit", metavar="N", min=0, help="Only the first N rows.")
    ] = None
    overwrite: Annotated[bool, _images("--overwrite", help="Draw again what is there.")] = False
    retry_failed: Annotated[
        bool, _images(_RETRY, help="Try again what failed before (the default).")
    ] = True
    fail_fast: Annotated[bool, _images("--fail-fast", help="Stop at the first failed image.")] = (
        False
    )


@dataclass(frozen=True, slots=True)
class Output:
    """What is shown and printed."""

    dry_run: Annotated[
        bool,
        _output(
            "--dry-run",
            help="Check prompts, settings and folder, print the plan; no model is opened.",
        ),
    ] = False
    log: Annotated[
        str | None, _output("--log", metavar="FILE|-", help="A copy of each log row; - is stdout.")
    ] = None
    printed: Annotated[
        Literal["paths"] | None, _output("--print", help="Print each finished image on stdout.")
    ] = None
    null: Annotated[
        bool, _output("--null", "-0", help="Like --print paths, each ended by NUL.")
    ] = False
    as_json: Annotated[bool, _output("--json", help="One JSON object on stdout at the end.")] = (
        False
    )
    progress: Annotated[Mode, _output("--progress", help="How progress is shown on stderr.")] = (
        "auto"
    )
    quiet: Annotated[
        bool, _output("--quiet", "-q", help="Only warnings, failures and the last line.")
    ] = False
    verbose: Annotated[bool, _output("--verbose", "-v", help="A line for each image.")] = False


@takes_options
def command(
    source: Source,
    images: Images,
    rows: Rows,
    settings: Settings,
    processes: Processes,
    output: Output,
) -> int:
    """Draw images for a file of prompts; safe to run again."""
    resolved = settings.resolve()
    for note in resolved.notes:
        typer.echo(f"sjdvp: warning: {note}", err=True)
    request = make_request(source, rows, resolved.config, images.out, images.shard)
    if output.dry_run:
        from sjdvp_cli.plan import show_plan

        return show_plan(request, as_json=output.as_json)
    paths = output.printed == "paths"
    with data_lines(
        images.out, log=output.log, paths=paths, null=output.null, summary=output.as_json
    ) as lines:
        try:
            return _draw(request, processes, lines, output) or int(lines.lost)
        except BusyError as error:
            if not images.skip_if_running:
                raise
            typer.echo(f"sjdvp: nothing done: {error}", err=True)
            return 0


def make_request(source: Source, rows: Rows, config: RunConfig, out: Path, shard: str) -> "Request":
    """Put what the flags say into a request; raises ConfigError."""
    from sjdvp.generate import Request
    from sjdvp.runs.sharding import Selection, parse_indices, parse_shard

    if bool(source.prompts) == bool(source.prompt):
        raise ConfigError(
            "prompts come from either --prompts or --prompt", "for example --prompts prompts.txt"
        )
    return Request(
        config=config,
        out=out,
        prompts=source.path,
        inline=tuple(source.prompt or ()),
        stdin=sys.stdin.buffer if source.prompts == "-" else None,
        format=source.format,
        column=source.column,
        shard=parse_shard(shard, os.environ),
        selection=Selection(parse_indices(rows.indices) if rows.indices else None, rows.limit),
        overwrite=rows.overwrite,
        retry_failed=rows.retry_failed,
        fail_fast=rows.fail_fast,
        argv=("sjdvp", *sys.argv[1:]),
    )


def _draw(request: "Request", processes: Processes, lines: Listener, output: Output) -> int:
    """Run the job; an error that stops a run under way is told before the last line, which says how to go on."""
    from sjdvp.generate import generate

    stopped: SjdvpError | None = None
    with watch(output.progress, quiet=output.quiet, verbose=output.verbose) as (standing, show):

        @one_at_a_time
        def listen(event: Event) -> None:
            lines(event)
            show(event)

        generator = processes.generator(
            open_generator, lambda message: listen(Note("warning", message))
        )
        try:
            code = generate(request, generator, listen, pick_window).exit_code
        except SjdvpError as error:
            if standing.summary is None and not isinstance(error, Interrupted):
                raise
            stopped, code = error, error.exit_code
    interrupted = isinstance(stopped, Interrupted)
    if stopped and not interrupted:
        report(str(stopped), stopped.hint, code)
    if standing.summary and (code != _BEFORE or standing.summary["ok"]):
        typer.echo(
            closing_line(
                standing.summary, interrupted=interrupted, retry_failed=request.retry_failed
            ),
            err=True,
        )
    elif interrupted:
        typer.echo("sjdvp: interrupted", err=True)
    if isinstance(stopped, Interrupted) and stopped.signum == signal.SIGUSR1:
        _put_back()
    return code


def _put_back() -> None:
    """Go back into the queue of SLURM, which has said (USR1) that the time is nearly up; all that is drawn is on disk."""
    from sjdvp.slurm.queue import own_job, requeue

    job = own_job(os.environ)
    if job:
        typer.echo(f"sjdvp: the time is nearly up, job {job} goes back into the queue", err=True)
        try:
            requeue(job)
        except SlurmError as error:
            typer.echo(f"sjdvp: warning: {error}; send the job again to resume", err=True)


def pick_window(config: RunConfig) -> int:
    """Settle `window: auto`; torch is imported here and not before."""
    from sjdvp.autotune import pick_window

    return pick_window(config, lambda message: typer.echo(f"sjdvp: {message}", err=True))


def open_generator(config: RunConfig) -> AbstractContextManager[ImageGenerator]:
    """Load the engine; torch is imported here and not before."""
    from sjdvp.engine.loading import open_engine

    return open_engine(config)
