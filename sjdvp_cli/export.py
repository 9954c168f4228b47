"""`sjdvp export`: finished images in the folder layout of a benchmark."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sjdvp.text import counted

Layout = Literal[
    "geneval",
    "t2i-compbench",
    "dpg",
    "hpsv2",
    "wise",
    "tiif",
    "mjhq",
    "genai-bench",
    "flat",
    "imagefolder",
    "captions",
    "webdataset",
]


def command(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Run folder.")],
    *,
    layout: Annotated[
        Layout,
        typer.Option(help="Layout to write.", show_default=False),
    ],
    target: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Folder to write.",
            show_default="export-LAYOUT in the run folder",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of an earlier export.")
    ] = False,
) -> int:
    """Write finished images in the folder layout of a benchmark or trainer, as hard links."""
    from sjdvp.runs.atomic import storage_hint
    from sjdvp.runs.export import export_folder

    target = target or out / f"export-{layout}"
    with storage_hint("free some space, or export elsewhere: --to DIR"):
        done = export_folder(out, target, layout, overwrite=overwrite)
    for reason in done.left_out:
        typer.echo(f"sjdvp: left out: {reason}", err=True)
    typer.echo(f"sjdvp: {counted(done.written, 'image')} in {target}", err=True)
    return 1 if done.left_out else 0
