"""`sjdvp profiles`: list the presets, show the settings of one, check files."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sjdvp.config import Quantization
from sjdvp.errors import ConfigError
from sjdvp.models.shapes import shape_of
from sjdvp.profiles import Resolved, list_profiles, resolve
from sjdvp_cli.errors import report
from sjdvp_cli.options import takes_options
from sjdvp_cli.settings import Assignments
from sjdvp_cli.tables import show_table

FORMATS: dict[str, Quantization | None] = {"16-bit": None, "int8": "int8", "int4": "int4"}


@takes_options
def command(
    settings: Assignments,
    action: Annotated[
        Literal["list", "show", "check"],
        typer.Argument(metavar="list|show|check", help="What to do."),
    ] = "list",
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|FILE.yaml]...",
            help="The profile to show (default: emoji), or those to check (default: all).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """List profiles (a model and its settings), show the values of one, or check some."""
    actions: dict[str, Callable[[Mapping[str, Any], list[str], bool], int]] = {
        "list": _list,
        "show": _show,
        "check": _check,
    }
    return actions[action](settings.overrides(), names or [], as_json)


def _list(overrides: Mapping[str, Any], names: list[str], as_json: bool) -> int:
    every = list_profiles()
    found = [profile for profile in every if not profile.problem]
    if as_json:
        plain = {p.name: {"description": p.description, "path": str(p.path)} for p in found}
        typer.echo(json.dumps(plain))
    else:
        headings = ["profile", "description", *(f"{kind} GB" for kind in FORMATS)]
        show_table(headings, [[p.name, p.description, *_gigabytes(p.name)] for p in found])
    for profile in every:
        if profile.problem:
            typer.echo(f"sjdvp: warning: left out: {profile.problem}", err=True)
    return 0


def _gigabytes(profile: str) -> list[str]:
    """Return what the weights of a shipped profile take in each of FORMATS."""
    try:
        shape = shape_of(profile)
    except ConfigError:  # a profile of the user
        return ["–"] * len(FORMATS)
    sizes = [shape.weight_bytes(kind) / 1e9 for kind in FORMATS.values()]
    return [f"{size:.1f}" if size >= 0.1 else f"{size:.3f}" for size in sizes]


def _show(overrides: Mapping[str, Any], names: list[str], as_json: bool) -> int:
    if len(names) > 1:
        raise ConfigError(
            f"profiles show takes one profile, found {len(names)}",
            "for example sjdvp profiles show emoji",
        )
    resolved = resolve(names[0] if names else None, overrides)
    values, origins = _values(resolved), resolved.origins
    if as_json:
        plain = {key: {"value": value, "from": origins[key]} for key, value in values.items()}
        typer.echo(json.dumps(plain))
    else:
        rows = [[key, _text(value), origins[key]] for key, value in values.items()]
        show_table(["setting", "value", "from"], rows)
    for note in resolved.notes:
        typer.echo(f"sjdvp: warning: {note}", err=True)
    return 0


def _check(overrides: Mapping[str, Any], names: list[str], as_json: bool) -> int:
    """Print fingerprints of correct profiles, then the errors of the others; return 2 if any."""
    prints, errors = {}, {}
    for name in names or [profile.name for profile in list_profiles()]:
        try:
            prints[name] = resolve(name, overrides).config.fingerprint()
        except ConfigError as error:
            # By message: an error of --set or of the user file comes with every profile.
            errors[str(error)] = error
    if as_json:
        plain = {name: {"fingerprint": fingerprint} for name, fingerprint in prints.items()}
        typer.echo(json.dumps(plain))
    else:
        rows = [[Path(name).stem, fingerprint] for name, fingerprint in prints.items()]
        show_table(["profile", "fingerprint"], rows)
    codes = [report(str(error), error.hint, error.exit_code) for error in errors.values()]
    return max(codes, default=0)


def _values(resolved: Resolved) -> dict[str, Any]:
    """Return every setting by dotted key, in the order of the dataclasses."""
    values = {}
    for key in resolved.origins:
        value: Any = resolved.config
        for name in key.split("."):
            value = getattr(value, name)
        values[key] = value
    return values


def _text(value: Any) -> str:
    """Write a value as YAML, so that it can be copied into a profile."""
    return value if isinstance(value, str) else json.dumps(value)
