"""`sjdvp export`: finished images in the folder shape that an evaluator wants."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def command(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Run folder.")],
    *,
    layout: Annotated[
        Literal["geneval", "t2i-compbench", "dpg", "hpsv2", "flat", "imagefolder"],
        typer.Option(help="Whose folder shape.", show_default=False),
    ],
    target: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="Where; default: export-LAYOUT in the run folder."
        ),
    ] = None,
) -> int:
    """Lay images out as an evaluator wants them."""
    from sjdvp.runs.atomic import advice
    from sjdvp.runs.export import export_folder

    target = target or out / f"export-{layout}"
    with advice("make room, or export elsewhere: --to DIR"):
        done = export_folder(out, target, layout)
    for reason in done.left_out:
        typer.echo(f"sjdvp: left out: {reason}", err=True)
    typer.echo(f"sjdvp: {done.written} images in {target}", err=True)
    return 1 if done.left_out else 0
