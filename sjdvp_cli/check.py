"""`sjdvp check`: whether a run folder is complete."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sjdvp_cli.tables import show_table


def command(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Check a run folder: images and saved tokens present and as logged; exit 1 when not."""
    from sjdvp.runs.check import check_folder

    found = check_folder(out)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        groups = {"missing": found.missing, "corrupt": found.corrupt, "foreign": found.foreign}
        show_table(
            ["problem", "file", "reason"],
            [[name, f.file, f.reason] for name, group in groups.items() for f in group],
        )
        counts = ", ".join(f"{len(group)} {name}" for name, group in groups.items() if group)
        ok = f"{found.ok}/{found.expected} ok"
        ok += f", {found.tokens_only} of them tokens only" if found.tokens_only else ""
        advice = (
            "; delete what is corrupt, then run the same command to generate it again"
            if found.corrupt
            else ""
        )
        typer.echo(
            f"sjdvp: {ok}{', ' if counts else ''}{counts}{advice}",
            err=True,
        )
    return 0 if found.whole else 1
