"""`sjdvp prompts`: show what a prompt file holds. Also the flags that name and read prompts."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sjdvp.errors import ConfigError
from sjdvp.text import counted
from sjdvp_cli.options import expanded, option, takes_options
from sjdvp_cli.tables import show_table

if TYPE_CHECKING:
    from sjdvp.runs.prompts import PromptSet, ReadOptions

_prompts = option("Prompts")

Format = Literal["auto", "txt", "tsv", "csv", "jsonl", "json", "coco", "geneval", "dir"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where prompts come from."""

    prompts: Annotated[
        str | None,
        _prompts(
            "--prompts",
            metavar="FILE|DIR|-",
            help="Prompt file or folder; - reads stdin.",
            show_default="none",
        ),
    ] = None
    prompt: Annotated[
        list[str] | None,
        _prompts(
            "--prompt", metavar="TEXT", help="One prompt; may be repeated.", show_default="none"
        ),
    ] = None

    @property
    def path(self) -> Path | None:
        """The prompt file, when there is one."""
        return expanded(Path(self.prompts)) if self.prompts and self.prompts != "-" else None

    def check(self) -> None:
        """Raise ConfigError unless prompts come from exactly one place."""
        if bool(self.prompts) == bool(self.prompt):
            raise ConfigError(
                "prompts must come from either --prompts or --prompt",
                "for example --prompts prompts.txt",
            )


@dataclass(frozen=True, slots=True)
class Reading:
    """How a prompt file is read."""

    format: Annotated[
        Format, _prompts("--format", help="Format of the file; auto goes by name and content.")
    ] = "auto"
    column: Annotated[
        str | None,
        _prompts(
            "--column",
            metavar="NAME",
            help="Column or key that holds the prompt.",
            show_default="found by its name",
        ),
    ] = None

    def options(self) -> "ReadOptions":
        """Return what the flags say, as the library reads it; raises ConfigError."""
        from sjdvp.runs.prompts import ReadOptions

        return ReadOptions(self.format, (self.column,) if self.column else ())


@takes_options
def command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE|DIR|-", help="Prompt file or folder; - reads stdin.")
    ],
    *,
    reading: Reading,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the prompts that a file or folder holds."""
    found = read_whole(file, reading)
    counts = {
        "count": len(found),
        "skipped": found.skipped,
        "duplicates": found.duplicates,
        "format": found.format,
    }
    if as_json:
        # Only the tokenizer of a model knows where a prompt would be truncated.
        typer.echo(json.dumps({**counts, "truncated_at": None}))
        return
    show_table(["row", "prompt"], [[str(prompt.index), prompt.text] for prompt in found.prompts])
    typer.echo(f"sjdvp: {describe(found)}", err=True)


def describe(found: "PromptSet") -> str:
    """Return one line about a prompt file."""
    parts = [f"{counted(len(found), 'prompt')} ({found.format})"]
    parts += [f"{counted(found.skipped, 'blank line')} skipped"] if found.skipped else []
    parts += [counted(found.duplicates, "duplicate")] if found.duplicates else []
    return ", ".join(parts)


def read_whole(file: Path, reading: Reading) -> "PromptSet":
    """Read a prompt file or folder, or stdin to its end where `file` is -."""
    from sjdvp.runs.prompts import read_prompts, read_stream

    if str(file) == "-":
        return read_stream(sys.stdin.buffer, reading.options())
    return read_prompts(file, reading.options())


def read_given(source: Source, reading: Reading) -> "PromptSet":
    """Read the prompts that the flags name, to their end."""
    from sjdvp.runs.prompts import inline_prompts

    source.check()
    if source.prompts:
        return read_whole(source.path or Path("-"), reading)
    return inline_prompts(source.prompt or ())
