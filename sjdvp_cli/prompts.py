"""`sjdvp prompts`: what would be read from a prompt file."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sjdvp_cli.options import Format
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.runs.prompts import PromptSet


def command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE|DIR|-", help="Prompt file or folder; - reads stdin.")
    ],
    format: Annotated[
        Format,
        typer.Option(help="What the file is; auto goes by name and content.", show_default=False),
    ] = "auto",
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column or key that holds the prompt.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell what would be read from a prompt file."""
    found = read_whole(file, format, column)
    counts = {
        "count": len(found),
        "skipped": found.skipped,
        "duplicates": found.duplicates,
        "format": found.format,
    }
    if as_json:
        typer.echo(
            json.dumps({**counts, "truncated_at": None})
        )  # only the model's tokenizer knows where a text is cut
        return
    show_table(["row", "prompt"], [[str(prompt.index), prompt.text] for prompt in found.prompts])
    typer.echo(
        "sjdvp: {count} prompts ({format}), {skipped} blank lines skipped, {duplicates} duplicates".format(
            **counts
        ),
        err=True,
    )


def read_whole(file: Path, format: str, column: str | None) -> "PromptSet":
    """Read a prompt file or folder, or stdin to its end where `file` is -."""
    from sjdvp.runs.prompts import ReadOptions, read_prompts, read_stream

    options = ReadOptions(format, (column,) if column else ())
    if str(file) == "-":
        return read_stream(sys.stdin.buffer, options)
    return read_prompts(file, options)
