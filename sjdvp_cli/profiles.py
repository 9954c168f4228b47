"""`sjdvp profiles`: what presets there are, what one of them comes to, whether a file is right."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sjdvp.errors import ConfigError
from sjdvp.profiles import Resolved, list_profiles, resolve
from sjdvp_cli.errors import report
from sjdvp_cli.options import Settings, takes_options
from sjdvp_cli.tables import show_table


@takes_options
def command(
    settings: Settings,
    action: Annotated[
        Literal["list", "show", "check"], typer.Argument(help="What to do.")
    ] = "list",
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME|FILE.yaml", help="Profiles to show or check."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """List presets of settings; show or check one."""
    return {"list": _list, "show": _show, "check": _check}[action](settings, names or [], as_json)


def _list(settings: Settings, names: list[str], as_json: bool) -> int:
    every = list_profiles()
    found = [profile for profile in every if not profile.problem]
    if as_json:
        typer.echo(
            json.dumps({p.name: {"description": p.description, "path": str(p.path)} for p in found})
        )
    else:
        show_table(["profile", "description"], [[p.name, p.description] for p in found])
    for profile in every:
        if profile.problem:
            typer.echo(f"sjdvp: warning: left out: {profile.problem}", err=True)
    return 0


def _show(settings: Settings, names: list[str], as_json: bool) -> int:
    if len(names) > 1 or (names and settings.profile):
        raise ConfigError("profiles show takes one profile")
    resolved = resolve(names[0] if names else settings.profile, settings.overrides())
    values = _values(resolved)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    key: {"value": value, "from": resolved.origins[key]}
                    for key, value in values.items()
                }
            )
        )
    else:
        show_table(
            ["setting", "value", "from"],
            [[key, _text(value), resolved.origins[key]] for key, value in values.items()],
        )
    for note in resolved.notes:
        typer.echo(f"sjdvp: {note}", err=True)
    return 0


def _check(settings: Settings, names: list[str], as_json: bool) -> int:
    """Print the fingerprints of the profiles that are right; then say what is wrong with the others, and return 2."""
    prints, errors = {}, {}
    for name in names or [profile.name for profile in list_profiles()]:
        try:
            prints[name] = resolve(name, settings.overrides()).config.fingerprint()
        except ConfigError as error:
            errors[str(error)] = (
                error  # once, where it is not this profile's: a flag's, or the user file's
            )
    if as_json:
        typer.echo(
            json.dumps({name: {"fingerprint": fingerprint} for name, fingerprint in prints.items()})
        )
    else:
        show_table(
            ["profile", "fingerprint"],
            [[Path(name).stem, fingerprint] for name, fingerprint in prints.items()],
        )
    tokens = [report(str(error), error.hint, error.exit_code) for error in errors.values()]
    return max(tokens, default=0)


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
    """Write a value as YAML would, so that it can be copied into a profile."""
    return value if isinstance(value, str) else json.dumps(value)
