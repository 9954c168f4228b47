"""`sjdvp analyze`: how distributions move while drafts wait, what prediction gains from it, what relaxed decoders cost."""

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
from sjdvp.jobs import ImageGenerator
from sjdvp.profiles import Resolved, resolve
from sjdvp_cli.compare import Output, Prompts, draw, parse_decoders, parse_sweep, read_given
from sjdvp_cli.options import Settings, option, takes_options
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.compare import Request

_what = option("Analysis")


@dataclass(frozen=True, slots=True)
class Analysis:
    """Which decoders are watched, and where the findings go."""

    out: Annotated[
        Path,
        _what("--out", "-o", metavar="DIR", help="A run folder for each decoder, and the page."),
    ]
    decoders: Annotated[
        str, _what("--decoders", metavar="A,B,…", help="Decoders to watch; default sjd.")
    ] = "sjd"
    sweep: Annotated[
        list[str] | None,
        _what("--sweep", metavar="KEY=A,B,…", help="Each value of a decoder setting."),
    ] = None
    grids: Annotated[
        bool, _what("--grids", help="Also vary window, N, L, decay and beta of prediction.")
    ] = False


@takes_options
def command(*, analysis: Analysis, prompts: Prompts, settings: Settings, output: Output) -> int:
    """Observer decoders: how distributions move, what prediction gains, what relaxing costs."""
    from sjdvp.analysis.notes import notes_path, read_notes
    from sjdvp.analysis.page import write_page
    from sjdvp.analysis.summary import Account, as_json, tables
    from sjdvp.compare import variant_folders
    from sjdvp.report.load import load_runs
    from sjdvp.runs.atomic import advice

    request = _request(analysis, prompts, settings)
    folders = variant_folders(request)
    notes = [notes_path(folder) for folder in folders]
    code = draw(request, output, lambda configs: open_watched(configs, notes))
    runs = load_runs(folders)
    account = Account.of(runs, read_notes(runs))
    found = as_json(account)
    if output.as_json:
        typer.echo(json.dumps(found))
    else:
        for i, table in enumerate(tables(account)):
            typer.echo("\n" * (i > 0) + table.title)
            show_table(table.headings, table.rows)
    with advice("make room, then run the same command: what is drawn stays"):
        written = write_page(account, found, request.out / "analysis.html")
    for path in written:
        typer.echo(f"sjdvp: wrote {path}", err=True)
    return code


def _request(analysis: Analysis, prompts: Prompts, settings: Settings) -> "Request":
    from sjdvp.analysis.variants import plan
    from sjdvp.compare import Request
    from sjdvp.runs.sharding import Selection

    if settings.decoder:
        raise ConfigError(
            f"--decoder {settings.decoder}: a analysis has several", "give --decoders A,B,…"
        )
    overrides = {"run.batch_size": "1"} | settings.overrides()

    def with_settings(more: Mapping[str, Any]) -> Resolved:
        return resolve(settings.profile, {**overrides, **more})

    sweep = dict(parse_sweep(text) for text in analysis.sweep or [])
    variants = plan(
        parse_decoders(analysis.decoders), sweep, grids=analysis.grids, resolve=with_settings
    )
    if any(variant.config.sampling.temperature == 0 for variant in variants):
        raise ConfigError(
            "temperature 0 has no distributions to watch, only likeliest tokens",
            "leave out jacobi and --temperature 0",
        )
    selection = Selection(None, prompts.limit)
    return Request(
        variants,
        analysis.out,
        read_given(prompts),
        selection,
        warmup=0,
        argv=("sjdvp", *sys.argv[1:]),
    )


def open_watched(
    configs: Sequence[RunConfig], notes: Sequence[Path]
) -> AbstractContextManager[Sequence[ImageGenerator]]:
    """Load the watched engines; torch is imported here and not before."""
    from sjdvp.analysis.observer import open_watched

    return open_watched(configs, notes)
