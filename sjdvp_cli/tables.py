"""Rows for stdout: an aligned table for a person at a terminal, tab-separated cells without a heading for a program."""

import sys
from collections.abc import Iterable, Sequence

import typer

from sjdvp.text import printable

_SHORT = 8  # a cell of so many characters is one figure, such as `86.3 %`
_LONG_WORD = 16  # longer ones may be broken


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text cells."""
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
    """Return the gap between columns, and widths in which no figure is broken; None: where that cannot be, as they come."""
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
    """Return the part of a cell that is to stay in one piece: a figure, the longest word; of a path, only so much."""
    return cell if len(cell) <= _SHORT else max(cell.split(), key=len, default="")[:_LONG_WORD]
