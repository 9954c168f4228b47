"""`sjdvp compare`: the same prompts and seeds through several decoders."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sjdvp.config import RunConfig
from sjdvp.errors import ConfigError
from sjdvp.events import Event, RunFinished
from sjdvp.jobs import ImageGenerator
from sjdvp.profiles import Resolved, resolve
from sjdvp_cli.live import Mode, closing_line, watch
from sjdvp_cli.options import Format, Settings, option, takes_options
from sjdvp_cli.prompts import read_whole
from sjdvp_cli.report import show_lines, write_files

if TYPE_CHECKING:
    from sjdvp.compare import OpenGenerators, Request
    from sjdvp.runs.prompts import PromptSet

_what, _prompts, _output = map(option, ("Comparison", "Prompts", "Output"))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared, and where it goes."""

    decoders: Annotated[
        str | None, _what("--decoders", metavar="A,B,…", help="Decoders that take turns.")
    ] = None
    sweep: Annotated[
        list[str] | None,
        _what("--sweep", metavar="KEY=A,B,…", help="Each value of a decoder setting."),
    ] = None
    out: Annotated[
        Path | None,
        _what("--out", "-o", metavar="DIR", help="A run folder for each decoder, and the page."),
    ] = None
    warmup: Annotated[
        int, _what("--warmup", metavar="N", min=0, help="Images drawn before measuring; default 1.")
    ] = 1


@dataclass(frozen=True, slots=True)
class Prompts:
    """Where prompts come from."""

    prompts: Annotated[
        Path | None,
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
    limit: Annotated[
        int | None, _prompts("--limit", metavar="N", min=1, help="Only the first N rows.")
    ] = None


@dataclass(frozen=True, slots=True)
class Output:
    """What is shown and printed."""

    as_json: Annotated[bool, _output("--json", help="One JSON object on stdout at the end.")] = (
        False
    )
    progress: Annotated[Mode, _output("--progress", help="How progress is shown on stderr.")] = (
        "auto"
    )
    quiet: Annotated[
        bool, _output("--quiet", "-q", help="Only warnings, failures and the last line.")
    ] = False


@takes_options
def command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Finished run folders, drawn before."),
    ] = None,
    *,
    comparison: Comparison,
    prompts: Prompts,
    settings: Settings,
    output: Output,
) -> int:
    """Compare decoders: the same prompts, seeds and device, in turns."""
    from sjdvp.compare import variant_folders

    code = 0
    if not folders:
        request = _request(comparison, prompts, settings)
        code = draw(request, output, open_generators)
        folders = variant_folders(request)
    elif comparison.decoders or prompts.prompts or prompts.prompt:
        raise ConfigError(
            "finished folders are compared as they are",
            "leave --decoders and --prompts out, or the folders",
        )
    _show(folders, comparison.out, as_json=output.as_json)
    return code


def _request(comparison: Comparison, given: Prompts, settings: Settings) -> "Request":
    from sjdvp.compare import Request, plan_variants
    from sjdvp.runs.sharding import Selection

    if not (comparison.decoders and comparison.out):
        raise ConfigError(
            "compare needs --decoders and --out, or finished run folders",
            "for example --decoders ar,sjd,sjdvp",
        )
    if settings.decoder:
        raise ConfigError(
            f"--decoder {settings.decoder}: a comparison has several", "give --decoders A,B,…"
        )
    overrides = {"run.batch_size": "1"} | settings.overrides()

    def with_settings(more: Mapping[str, Any]) -> Resolved:
        return resolve(settings.profile, {**overrides, **more})

    sweep = dict(parse_sweep(text) for text in comparison.sweep or [])
    variants = plan_variants(parse_decoders(comparison.decoders), sweep, with_settings)
    selection = Selection(None, given.limit)
    return Request(
        variants,
        comparison.out,
        read_given(given),
        selection,
        comparison.warmup,
        ("sjdvp", *sys.argv[1:]),
    )


def read_given(given: Prompts) -> "PromptSet":
    """Read the prompts that the flags name."""
    from sjdvp.runs.prompts import inline_prompts

    if bool(given.prompts) == bool(given.prompt):
        raise ConfigError(
            "prompts come from either --prompts or --prompt", "for example --prompts prompts.txt"
        )
    return (
        read_whole(given.prompts, given.format, given.column)
        if given.prompts
        else inline_prompts(given.prompt or ())
    )


def draw(request: "Request", output: Output, open_generators: "OpenGenerators") -> int:
    """Draw the images of a comparison, showing how it goes; returns the exit code."""
    from sjdvp.compare import compare

    ends: list[Mapping[str, Any]] = []
    try:
        with watch(output.progress, quiet=output.quiet, verbose=False) as (_, show):

            def listen(event: Event) -> None:
                show(event)
                if isinstance(event, RunFinished):
                    ends.append(event.summary)

            return compare(request, open_generators, listen).exit_code
    finally:
        for summary in ends:
            typer.echo(closing_line(summary), err=True)


def _show(folders: Sequence[Path], out: Path | None, *, as_json: bool) -> None:
    from sjdvp.report.fair import require_fair
    from sjdvp.report.load import load_runs
    from sjdvp.report.table import as_json as table_json
    from sjdvp.report.table import make_lines

    runs = load_runs(folders)
    require_fair(runs)
    lines = make_lines(runs)
    if as_json:
        typer.echo(json.dumps(table_json(runs, lines)))
    else:
        show_lines(lines)
    if out:
        write_files(runs, lines, out / "report.html")


def open_generators(
    configs: Sequence[RunConfig],
) -> AbstractContextManager[Sequence[ImageGenerator]]:
    """Load the engines; torch is imported here and not before."""
    from sjdvp.engine.loading import open_engines

    return open_engines(configs)


def parse_decoders(text: str) -> list[str]:
    """Read `A,B` of `--decoders`."""
    names = [name.strip() for name in text.split(",")]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"--decoders {text} names {twice} twice", "name each decoder once")
    return names


def parse_sweep(text: str) -> tuple[str, list[str]]:
    """Read `key=a,b` of `--sweep`."""
    key, equals, values = text.partition("=")
    found = [value.strip() for value in values.split(",") if value.strip()]
    if not (equals and found):
        raise ConfigError(
            f"--sweep must be KEY=VALUE,VALUE,…, found {text!r}",
            "for example --sweep window=8,16,32",
        )
    return key.strip(), found
