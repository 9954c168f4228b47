"""`sjdvp decode`: images from saved image tokens."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sjdvp.config import RunConfig, read_setting
from sjdvp.errors import ConfigError
from sjdvp.text import counted
from sjdvp_cli.options import takes_options
from sjdvp_cli.settings import DEVICE, ModelSettings

if TYPE_CHECKING:
    from sjdvp.pixels import Decoded

_LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class DecodeSettings(ModelSettings):
    """The model, whose VQ decoder is used, and where it runs."""

    device: Annotated[str | None, DEVICE] = None


@takes_options
def command(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|FILE", help="Run folder, or one of its tokens files.")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder for the images of all saved tokens.",
            show_default="the run itself, for its missing images",
        ),
    ] = None,
    settings: DecodeSettings,
) -> int:
    """Make images from saved tokens. Only the VQ decoder of the model is loaded."""
    from sjdvp.engine.loading import open_pixel_decoder
    from sjdvp.pixels import complete_run, files_of, write_images

    progress = _Progress()
    if out is None:
        if not source.is_dir():
            raise ConfigError(f"{source} is not a run folder", "give --out DIR for the images")
        decoded = complete_run(
            source, lambda config: open_pixel_decoder(_merged(config, settings)), progress.tell
        )
    else:
        files_of(source)
        with open_pixel_decoder(_config(source, settings)) as decoder:
            decoded = write_images(source, out, decoder, progress.tell)
    for failure in decoded.failures:
        typer.echo(f"sjdvp: failed: {failure}", err=True)
    made = f"{counted(decoded.written, 'image')} made from saved tokens in {out or source}"
    failed = f", {len(decoded.failures)} failed" if decoded.failures else ""
    typer.echo(f"sjdvp: {made}{failed}", err=True)
    return 1 if decoded.failures else 0


@dataclass(slots=True)
class _Progress:
    """A line now and then."""

    last: float = field(default_factory=time.monotonic)

    def tell(self, decoded: "Decoded") -> None:
        now = time.monotonic()
        if now - self.last >= _LINE_EVERY_S:
            self.last = now
            typer.echo(f"sjdvp: {counted(decoded.written, 'image')} made", err=True)


def _config(source: Path, settings: DecodeSettings) -> RunConfig:
    """Return the settings of the run that a file belongs to, else those of the flags."""
    from sjdvp.pixels import config_of
    from sjdvp.runs.run_json import read_run

    info = read_run(source if source.is_dir() else source.parent)
    return settings.resolve().config if info is None else _merged(config_of(info), settings)


def _merged(config: RunConfig, settings: DecodeSettings) -> RunConfig:
    """Return the settings of a run with those that the flags give."""
    given: dict[str, Any] = {
        key: read_setting(key, value) if isinstance(value, str) else value
        for key, value in settings.overrides().items()
    }
    if settings.profile:
        model = settings.resolve().config.model
    else:
        own = {k.removeprefix("model."): v for k, v in given.items() if k.startswith("model.")}
        if "path" in own:
            own = {"revision": None, **own}
        model = replace(config.model, **own)
    device = given.get("run.device", "auto")
    return replace(config, model=model, run=replace(config.run, device=device, device_map=None))
