"""Rows for stdout: an aligned table for a person at a terminal, tab-separated cells without a heading for a program."""

import sys
from collections.abc import Iterable, Sequence

import typer

from sjdvp.text import printable


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text cells."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in cells:
            typer.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in cells:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)
