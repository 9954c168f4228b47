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
    from sjdvp.report.table import Line


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
    from sjdvp.report.table import make_lines

    file = out or folders[0] / "report.html"
    if file.suffix != ".html":
        raise ConfigError(
            f"--out must name a .html file, found {file}", "for example --out report.html"
        )
    runs = load_runs(folders)
    lines = make_lines(runs)
    show_lines(lines)
    write_files(runs, lines, file)
    return 0


def show_lines(lines: Sequence["Line"]) -> None:
    """Print the table of decoders; on a terminal in two parts, each narrow enough to read."""
    from sjdvp.report.table import FIGURES, GAINS, figure_cells, gain_cells

    if not sys.stdout.isatty():
        show_table(FIGURES, [figure_cells(line) + gain_cells(line)[2:] for line in lines])
        return
    show_table(FIGURES, map(figure_cells, lines))
    if len(lines) > 1:
        typer.echo()
        show_table(GAINS, map(gain_cells, lines))


def write_files(runs: Sequence["Run"], lines: Sequence["Line"], file: Path) -> None:
    """Write the page `file`, and Markdown and CSV beside it; print their names."""
    from sjdvp.report.write import write_report
    from sjdvp.runs.atomic import storage_hint

    with storage_hint("free some space, or write elsewhere: sjdvp report DIR --out FILE.html"):
        paths = write_report(runs, lines, file)
    for path in paths:
        typer.echo(f"sjdvp: wrote {path} ({_size(path.stat().st_size)})", err=True)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
