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

Format = Literal[
    "auto", "txt", "tsv", "csv", "jsonl", "json", "coco", "geneval", "yaml", "parquet", "dir"
]


@dataclass(frozen=True, slots=True)
class Source:
    """Where prompts come from."""

    prompts: Annotated[
        list[str] | None,
        _prompts(
            "--prompts",
            metavar="FILE|DIR|-",
            help="Prompt file or folder; may be repeated; - reads stdin.",
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
    def paths(self) -> tuple[Path, ...]:
        """The prompt files, in their order; none where prompts come from stdin or from flags."""
        return () if self.is_stdin else tuple(expanded(Path(name)) for name in self.prompts or ())

    @property
    def is_stdin(self) -> bool:
        """Whether prompts come from stdin."""
        return self.prompts == ["-"]

    def check(self) -> None:
        """Raise ConfigError unless prompts come from exactly one place."""
        if bool(self.prompts) == bool(self.prompt):
            raise ConfigError(
                "prompts must come from either --prompts or --prompt",
                "for example --prompts prompts.txt",
            )
        if "" in (self.prompts or ()):  # an unset variable: not the folder that one is in
            raise ConfigError("--prompts is empty", "give a file, a folder or -")
        if self.prompts and "-" in self.prompts and not self.is_stdin:
            raise ConfigError("stdin (-) is not read together with files", "cat FILE - | sjdvp ...")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a prompt file is read."""

    format: Annotated[
        Format, _prompts("--format", help="Format of the files; auto recognises it.")
    ] = "auto"
    columns: Annotated[
        list[str] | None,
        _prompts(
            "--column",
            metavar="NAME",
            help="Column or key of the prompt; A.B selects B inside A. If repeated, each row uses "
            "the first one that it has.",
            show_default="found by its name",
        ),
    ] = None
    delimiter: Annotated[
        str,
        _prompts(
            "--delimiter",
            metavar="CHARACTER",
            help="Character between the cells of csv and tsv; \\t is TAB.",
            show_default="by the first line",
        ),
    ] = ""
    no_header: Annotated[
        bool,
        _prompts("--no-header", help="The table has no header; its columns are named 1, 2, 3 …"),
    ] = False
    id_column: Annotated[
        str,
        _prompts("--id-column", metavar="NAME", help="Column of the id.", show_default="id"),
    ] = ""
    no_ids: Annotated[
        bool,
        _prompts("--no-ids", help="Give rows no id; a column named id is kept like any other."),
    ] = False
    skip_empty: Annotated[
        bool, _prompts("--skip-empty", help="Skip rows without a prompt instead of refusing them.")
    ] = False
    ignore_columns: Annotated[
        bool,
        _prompts(
            "--ignore-columns",
            help="Do not use the columns seed, n, width, height, size, cfg_scale, negative_prompt "
            "and filename; keep them like other columns.",
        ),
    ] = False
    template: Annotated[
        str,
        _prompts(
            "--template",
            metavar="TEXT",
            help="Build prompts from columns, such as '{prompt}, {style}'.",
            show_default="none",
        ),
    ] = ""

    def options(self) -> "ReadOptions":
        """Return what the flags say, as the library reads it; raises ConfigError."""
        from sjdvp.runs.prompts import ReadOptions

        return ReadOptions(
            format=self.format,
            columns=tuple(self.columns or ()),
            delimiter=self.delimiter,
            header=not self.no_header,
            id_column=self.id_column,
            ids=not self.no_ids,
            skip_empty=self.skip_empty,
            ignore_columns=self.ignore_columns,
            template=self.template,
        )


@takes_options
def command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|DIR|-", help="Prompt files or folders, in this order; - reads stdin."
        ),
    ],
    *,
    reading: Reading,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the prompts that files or folders hold."""
    found = read_given(Source(prompts=files), reading)
    if as_json:
        counts = {"count": len(found), "skipped": found.skipped, "empty": found.empty}
        told = {"duplicates": found.duplicates, "format": found.format, "notes": found.notes}
        # Only the tokenizer of a model knows where a prompt would be truncated.
        typer.echo(json.dumps({**counts, **told, "truncated_at": None}))
        return
    if any(prompt.id is not None for prompt in found.prompts):
        rows = [[str(prompt.index), prompt.id or "", prompt.text] for prompt in found.prompts]
        show_table(["row", "id", "prompt"], rows)
    else:
        show_table(
            ["row", "prompt"], [[str(prompt.index), prompt.text] for prompt in found.prompts]
        )
    for note in found.notes:
        typer.echo(f"sjdvp: warning: {note}", err=True)
    typer.echo(f"sjdvp: {describe(found)}", err=True)


def describe(found: "PromptSet") -> str:
    """Return one line about prompts that were read."""
    parts = [f"{counted(len(found), 'prompt')} ({found.format})"]
    parts += [f"{counted(found.skipped, 'blank line')} skipped"] if found.skipped else []
    parts += [f"{counted(found.empty, 'row')} without a prompt skipped"] if found.empty else []
    parts += [counted(found.duplicates, "duplicate")] if found.duplicates else []
    return ", ".join(parts)


def read_given(source: Source, reading: Reading) -> "PromptSet":
    """Read the prompts that the flags name, to their end."""
    from sjdvp.runs.prompts import inline_prompts, read_prompts, read_stream

    source.check()
    options = reading.options()
    if source.is_stdin:
        return read_stream(sys.stdin.buffer, options)
    if source.paths:
        return read_prompts(source.paths, options)
    return inline_prompts(source.prompt or (), options)
