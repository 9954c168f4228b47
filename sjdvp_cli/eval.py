"""`sjdvp eval`: CLIP score and Fréchet distances of finished runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sjdvp.config import lossless_label
from sjdvp.errors import ConfigError
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.quality import Quality

HEADINGS = ("run", "lossless", "images", "CLIP score", "FID of CLIP", "FID")


def command(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Run folders, or the folder of a comparison."),
    ],
    clip: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="CLIP weights in the transformers format.", show_default="none"
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Images to measure the Fréchet distance to.", show_default="none"
        ),
    ] = None,
    inception: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Inception weights of torch-fidelity, for FID.",
            show_default="none",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="Device of the models.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Measure image quality: CLIP score and Fréchet distance.

    Install the packages for it first, in the checkout of sjdvp: pip install '.[eval]'
    """
    if not clip and not inception:
        raise ConfigError(
            "eval needs --clip or --inception",
            "CLIP score: --clip DIR; FID: --inception FILE --reference DIR",
        )
    if inception and not reference:
        raise ConfigError("--inception needs --reference", "FID is a distance to reference images")
    from sjdvp.engine.devices import pick_device
    from sjdvp.quality import measure

    found = measure(
        folders, clip=clip, reference=reference, inception=inception, device=pick_device(device)
    )
    if as_json:
        typer.echo(json.dumps({"runs": [asdict(run) for run in found]}))
        return 0
    show_table(HEADINGS, map(_cells, found))
    return 0


def _cells(run: "Quality") -> list[str]:
    measures = (run.clip_score, run.fid_clip, run.fid)
    label = lossless_label(run.lossless, run.quantize)
    return [run.run, label, str(run.images), *map(_text, measures)]


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
