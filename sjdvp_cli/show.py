"""`sjdvp show`: the settings stored in an image, and the command that generates it again."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sjdvp.errors import ConfigError, FolderError
from sjdvp_cli import regenerate
from sjdvp_cli.tables import show_table


def command(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="Image written by sjdvp.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the stored log row as JSON.")
    ] = False,
) -> None:
    """Show the settings in an image, then the command that makes it again."""
    from sjdvp.runs.writer import read_metadata

    row = read_metadata(image).get("sjdvp")
    if row is None:
        raise FolderError(
            f"{image} holds no settings",
            "it was written with --no-metadata, or by another program",
        )
    if as_json:
        typer.echo(json.dumps(row))
        return
    show_table(
        ["setting", "value"],
        [
            [key, value if isinstance(value, str) else json.dumps(value)]
            for key, value in row.items()
        ],
    )
    try:
        typer.echo(regenerate.command_of(row, _model_of_run(image)))
    except ConfigError as error:
        typer.echo(f"sjdvp: no command to generate it again: {error}", err=True)


def _model_of_run(image: Path) -> Mapping[str, Any]:
    """Return the settings of the model in the run folder that holds an image; {} without one."""
    from sjdvp.runs.run_json import read_run

    with contextlib.suppress(FolderError):
        if info := read_run(image.absolute().parent.parent):
            return dict(info.pixel_settings["model"])
    return {}
