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
from sjdvp_cli.live import closing_line, watch
from sjdvp_cli.options import Progress, option, takes_options
from sjdvp_cli.prompts import Reading, Source, read_given
from sjdvp_cli.report import show_results, write_files
from sjdvp_cli.settings import VariantSettings

if TYPE_CHECKING:
    from sjdvp.compare import ComparisonRequest, OpenGenerators, Resolve

_decoders, _prompts, _output = map(option, ("Decoders", "Prompts", "Output"))


@dataclass(frozen=True, slots=True)
class Sweep:
    """Which decoders take turns, and on how many prompts."""

    sweep: Annotated[
        list[str] | None,
        _decoders(
            "--sweep",
            metavar="KEY=A,B,…",
            help="Try each value of a decoder setting, such as window=8,16; may be repeated.",
            show_default="none",
        ),
    ] = None
    limit: Annotated[
        int | None,
        _prompts(
            "--limit",
            metavar="N",
            min=1,
            help="Only the first N rows of the prompts.",
            show_default="all rows",
        ),
    ] = None

    def values(self) -> dict[str, list[str]]:
        """Return the values of each setting that is varied."""
        return dict(parse_sweep(text) for text in self.sweep or [])


@dataclass(frozen=True, slots=True)
class Comparison(Sweep):
    """What is compared, and where it goes."""

    decoders: Annotated[
        str | None,
        _decoders(
            "--decoders",
            metavar="A,B,…",
            help="Decoders to compare, such as ar,sjd,sjdvp,sjdvp-adaptive.",
            show_default="none",
        ),
    ] = None
    out: Annotated[
        Path | None,
        _output(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder for the report and one run folder per decoder.",
            show_default="none",
        ),
    ] = None
    warmup: Annotated[
        int,
        _decoders("--warmup", metavar="N", min=0, help="Images per decoder that are not measured."),
    ] = 1


@takes_options
def command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Finished run folders, instead of --decoders."),
    ] = None,
    *,
    comparison: Comparison,
    source: Source,
    reading: Reading,
    settings: VariantSettings,
    output: Progress,
) -> int:
    """Compare decoders on the same prompts, seeds and device: table, JSON and HTML report.

    The decoders take turns, one batch each, so that a slow moment of the machine affects all alike.
    """
    from sjdvp.compare import variant_folders

    code = 0
    if not folders:
        request = _request(comparison, source, reading, settings)
        code = run_comparison(request, output, open_generators)
        folders = variant_folders(request)
    elif comparison.decoders or source.prompts or source.prompt:
        raise ConfigError(
            "finished run folders take no --decoders and no prompts", "give one or the other"
        )
    _show(folders, comparison.out, as_json=output.as_json)
    return code


def _request(
    comparison: Comparison, source: Source, reading: Reading, settings: VariantSettings
) -> "ComparisonRequest":
    from sjdvp.compare import ComparisonRequest, plan_variants
    from sjdvp.runs.sharding import Selection

    if not (comparison.decoders and comparison.out):
        raise ConfigError(
            "compare needs --decoders and --out, or finished run folders",
            "for example sjdvp compare --decoders ar,sjd,sjdvp --prompts prompts.txt --out cmp",
        )
    names = parse_decoders(comparison.decoders)
    variants = plan_variants(names, comparison.values(), resolver(settings))
    return ComparisonRequest(
        variants,
        comparison.out,
        read_given(source, reading),
        Selection(None, comparison.limit),
        comparison.warmup,
        ("sjdvp", *sys.argv[1:]),
    )


def resolver(settings: VariantSettings) -> "Resolve":
    """Return a function that resolves a variant: the flags, and its own values above them."""
    overrides = {"run.batch_size": "1"} | settings.overrides()

    def with_settings(more: Mapping[str, Any]) -> Resolved:
        return resolve(settings.profile, {**overrides, **more})

    return with_settings


def run_comparison(
    request: "ComparisonRequest", output: Progress, open_generators: "OpenGenerators"
) -> int:
    """Generate the images of a comparison and show the progress; returns the exit code."""
    from sjdvp.compare import compare
    from sjdvp_cli.generate import check_model

    ends: list[Mapping[str, Any]] = []
    try:
        with watch(output.progress, quiet=output.quiet, verbose=False) as (_, show):

            def listen(event: Event) -> None:
                show(event)
                if isinstance(event, RunFinished):
                    ends.append(event.summary)

            return compare(request, open_generators, listen, check_model).exit_code
    finally:
        for summary in ends:
            typer.echo(closing_line(summary), err=True)


def _show(folders: Sequence[Path], out: Path | None, *, as_json: bool) -> None:
    from sjdvp.report.load import load_runs, require_fair
    from sjdvp.report.table import as_json as table_json
    from sjdvp.report.table import make_results

    runs = load_runs(folders)
    require_fair(runs)
    results = make_results(runs)
    if as_json:
        typer.echo(json.dumps(table_json(runs, results)))
    else:
        show_results(results)
    if out:
        write_files(runs, results, out / "report.html")


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
