"""`sjdvp report`: run folders as an HTML page, Markdown and CSV."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sjdvp.errors import ConfigError
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.report.load import Run
    from sjdvp.report.table import DecoderResult


def command(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Run folders, or the folder of a comparison."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE.html",
            help="Page to write; .md and .csv are written beside it.",
            show_default="report.html in the first DIR",
        ),
    ] = None,
) -> int:
    """Write an HTML page, Markdown and CSV from run folders."""
    from sjdvp.report.load import load_runs
    from sjdvp.report.table import make_results

    file = out or folders[0] / "report.html"
    if file.suffix != ".html":
        raise ConfigError(
            f"--out must name a .html file, found {file}", "for example --out report.html"
        )
    runs = load_runs(folders)
    results = make_results(runs)
    show_results(results)
    write_files(runs, results, file)
    return 0


def show_results(results: Sequence["DecoderResult"]) -> None:
    """Print the table of decoders; on a terminal in two parts, each narrow enough to read."""
    from sjdvp.report.table import METRIC_HEADINGS, SPEEDUP_HEADINGS, metric_cells, speedup_cells

    if not sys.stdout.isatty():
        rows = [metric_cells(result) + speedup_cells(result)[2:] for result in results]
        show_table(METRIC_HEADINGS, rows)
        return
    show_table(METRIC_HEADINGS, map(metric_cells, results))
    if len(results) > 1:
        typer.echo()
        show_table(SPEEDUP_HEADINGS, map(speedup_cells, results))


def write_files(runs: Sequence["Run"], results: Sequence["DecoderResult"], file: Path) -> None:
    """Write the page `file`, and Markdown and CSV beside it; print their names."""
    from sjdvp.report.write import write_report
    from sjdvp.runs.atomic import storage_hint

    with storage_hint("free some space, or write elsewhere: sjdvp report DIR --out FILE.html"):
        paths = write_report(runs, results, file)
    for path in paths:
        typer.echo(f"sjdvp: wrote {path} ({_size(path.stat().st_size)})", err=True)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
