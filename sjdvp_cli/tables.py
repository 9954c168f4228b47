"""Tables on stdout: aligned on a terminal, tab-separated without a heading in a pipe."""

import sys
from collections.abc import Iterable, Sequence

import typer

from sjdvp.text import printable

_SHORT = 8  # characters; a cell up to this length is not broken, such as `86.3 %`
_LONG_WORD = 16  # characters; longer words may be broken


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of text cells."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in cells:
            typer.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    gap, widths = _layout(list(zip(headings, *cells, strict=True)), console.width)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(heading, overflow="fold", width=width)
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _layout(columns: Sequence[Sequence[str]], room: int) -> tuple[int, list[int | None]]:
    """Return the gap between columns, and widths that break no number; None where none fit."""
    from rich.cells import cell_len

    whole = [max(map(cell_len, column)) for column in columns]
    narrowest = [max(cell_len(_unbroken(cell)) for cell in column) for column in columns]
    gap = next((gap for gap in (3, 2, 1) if sum(narrowest) + gap * len(columns) <= room), None)
    if gap is None:
        return 1, [None] * len(columns)
    spare = room - gap * len(columns) - sum(narrowest)
    widths: list[int | None] = []
    for full, least in zip(whole, narrowest, strict=True):
        widths.append(min(full, least + spare))
        spare -= min(full, least + spare) - least
    return gap, widths


def _unbroken(cell: str) -> str:
    """Return the part of a cell that must stay in one piece: a number, or the longest word."""
    return cell if len(cell) <= _SHORT else max(cell.split(), key=len, default="")[:_LONG_WORD]
