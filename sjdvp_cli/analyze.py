"""`sjdvp analyze`: statistics of what decoders do, iteration by iteration."""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sjdvp.config import RunConfig
from sjdvp.errors import ConfigError
from sjdvp.jobs import ImageGenerator
from sjdvp_cli.compare import Sweep, parse_decoders, resolver, run_comparison
from sjdvp_cli.options import Progress, option, takes_options
from sjdvp_cli.prompts import Reading, Source, read_given
from sjdvp_cli.settings import VariantSettings
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.compare import ComparisonRequest

_decoders, _output = map(option, ("Decoders", "Output"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis(Sweep):
    """Which decoders are observed, and where the results go."""

    out: Annotated[
        Path,
        _output(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder for the report and one run folder per decoder.",
        ),
    ]
    decoders: Annotated[
        str,
        _decoders("--decoders", metavar="A,B,…", help="Decoders to analyze."),
    ] = "sjd"
    grids: Annotated[
        bool, _decoders("--grids", help="Also vary window, N, L, decay and beta of the prediction.")
    ] = False


@takes_options
def command(
    *,
    analysis: Analysis,
    source: Source,
    reading: Reading,
    settings: VariantSettings,
    output: Progress,
) -> int:
    """Analyze decoders: how distributions change, and what prediction gains.

    Also shows how much likelihood relaxed verifiers lose. For times use compare or bench.
    """
    from sjdvp.analysis.metrics import read_sums, sums_path
    from sjdvp.analysis.summary import Analyzed, as_json, tables, write_page
    from sjdvp.compare import variant_folders
    from sjdvp.report.load import load_runs
    from sjdvp.runs.atomic import storage_hint

    request = _request(analysis, source, reading, settings)
    folders = variant_folders(request)
    sums = [sums_path(folder) for folder in folders]
    code = run_comparison(request, output, lambda configs: open_watched(configs, sums))
    runs = load_runs(folders)
    analyzed = Analyzed.of(runs, read_sums(runs))
    found = as_json(analyzed)
    if output.as_json:
        typer.echo(json.dumps(found))
    else:
        for i, table in enumerate(tables(analyzed)):
            typer.echo("\n" * (i > 0) + table.title)
            show_table(table.headings, table.rows)
    with storage_hint("free some space, then run the same command: finished images are kept"):
        written = write_page(analyzed, found, request.out / "analysis.html")
    for path in written:
        typer.echo(f"sjdvp: wrote {path}", err=True)
    return code


def _request(
    analysis: Analysis, source: Source, reading: Reading, settings: VariantSettings
) -> "ComparisonRequest":
    from sjdvp.analysis.variants import plan
    from sjdvp.compare import ComparisonRequest
    from sjdvp.runs.sharding import Selection

    variants = plan(
        parse_decoders(analysis.decoders),
        analysis.values(),
        grids=analysis.grids,
        resolve=resolver(settings),
    )
    if any(variant.config.sampling.temperature == 0 for variant in variants):
        raise ConfigError(
            "analyze needs a temperature above 0: greedy decoding uses no distributions",
            "leave out jacobi and --temperature 0",
        )
    return ComparisonRequest(
        variants,
        analysis.out,
        read_given(source, reading),
        Selection(None, analysis.limit),
        warmup=0,
        argv=("sjdvp", *sys.argv[1:]),
    )


def open_watched(
    configs: Sequence[RunConfig], sums: Sequence[Path]
) -> AbstractContextManager[Sequence[ImageGenerator]]:
    """Load the observed engines; torch is imported here and not before."""
    from sjdvp.analysis.observer import open_watched

    return open_watched(configs, sums)
