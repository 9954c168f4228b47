"""`sjdvp show`: the settings stored in an image, and the command that generates it again."""

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sjdvp.config import DecoderConfig, ModelConfig, SamplingConfig
from sjdvp.errors import ConfigError, FolderError
from sjdvp.profiles import resolve
from sjdvp_cli.tables import show_table

_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_SINCE_0_2 = ("min_p", "cfg_interval", "negative_prompt")  # images of 0.1 do not carry them
_NOT_PIXELS = ("licence", "dtype")  # dtype: as the run resolved it
_OUT = "again"


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
        typer.echo(_command_of(row, _model_of_run(image)))
    except ConfigError as error:
        typer.echo(f"sjdvp: no command to generate it again: {error}", err=True)


def _model_of_run(image: Path) -> Mapping[str, Any]:
    """Return the settings of the model in the run folder that holds an image; {} without one."""
    from sjdvp.runs.run_json import read_run

    with contextlib.suppress(FolderError):
        if info := read_run(image.absolute().parent.parent):
            return dict(info.pixel_settings["model"])
    return {}


def _command_of(row: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return the command for the stored log row of an image, quoted for a shell.

    The image holds the names of files without their folders; `model`, the settings of the model in
    its run folder, has them whole. Raises ConfigError when the row lacks what is needed.
    """
    try:
        prompt, seed, profile = str(row["prompt"]), int(row["seed"]), str(row["profile"])
        wanted = dict(_settings(row)) | _whole_paths(row.get("model_settings") or {}, model)
        preset = wanted["decoder.preset"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the settings of the image are incomplete: {error}") from error
    words = ["sjdvp", "generate", "--prompt", prompt, "--image-seed", str(seed)]
    if prompt.startswith("-"):
        words[2:4] = [f"--prompt={prompt}"]
    words += ["--profile", profile, "--decoder", str(preset)]
    defaults = _defaults(profile, str(preset))
    for key, value in wanted.items():
        if any(value != known.get(key) for known in defaults):
            words += ["--set", f"{key}={_text(value)}"]
    return shlex.join([*words, "--out", _OUT])


def _whole_paths(stored: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of files, with folders, whose names are those in the image."""
    return {
        f"model.{key}": whole
        for key, whole in model.items()
        if isinstance(whole, str) and whole != stored.get(key) == Path(whole).name
    }


def _settings(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of the image by dotted key."""
    params = row["params"]
    for f in dataclasses.fields(SamplingConfig):
        value = params.get(f.name, f.default) if f.name in _SINCE_0_2 else params[f.name]
        yield f"sampling.{f.name}", value
    decoder = {f.name: params[f.name] for f in dataclasses.fields(DecoderConfig)}
    yield from _flat("decoder.", decoder)
    model = {f.name: f.default for f in dataclasses.fields(ModelConfig)} | row["model_settings"]
    yield from _flat("model.", {key: model[key] for key in model if key not in _NOT_PIXELS})
    yield "model.dtype", _DTYPES[row["dtype"]]


def _defaults(profile: str, preset: str) -> list[dict[str, Any]]:
    """Return the settings of a profile and decoder, here and where nobody has set anything."""
    environs: tuple[dict[str, str] | None, ...] = (None, {})
    resolved = (resolve(profile, {"decoder.preset": preset}, environ) for environ in environs)
    return [dict(_flat("", one.config.pixel_settings())) for one in resolved]


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
