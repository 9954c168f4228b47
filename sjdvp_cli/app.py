"""The entry point: the table of commands, and where an error becomes a message and an exit code.

A command is one file with a function `command` (its docstring is the help) and one line in
`COMMANDS`. Files of commands are imported when they are used, and import heavy packages inside
their functions, so that help and mistakes answer at once.
"""

import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sjdvp import __version__
from sjdvp.errors import ConfigError, SjdvpError
from sjdvp_cli.errors import explain, report
from sjdvp_cli.options import expands_home
from sjdvp_cli.streams import StdoutError, prepare_streams, silence_stdout

# Python searches for garbage cycles after every 700 new objects. Importing torch and transformers
# makes 400,000 that stay; searching them again and again takes 6 % of the time to the first image.
_OBJECTS_BETWEEN_COLLECTIONS = 100_000

COMMANDS = {
    "generate": "sjdvp_cli.generate",
    "prompts": "sjdvp_cli.prompts",
    "profiles": "sjdvp_cli.profiles",
    "compare": "sjdvp_cli.compare",
    "analyze": "sjdvp_cli.analyze",
    "report": "sjdvp_cli.report",
    "check": "sjdvp_cli.check",
    "decode": "sjdvp_cli.decode",
    "show": "sjdvp_cli.show",
    "export": "sjdvp_cli.export",
    "eval": "sjdvp_cli.eval",
    "slurm": "sjdvp_cli.slurm",
    "bench": "sjdvp_cli.bench",
    "doctor": "sjdvp_cli.doctor",
}

CLOSED_PIPE = 141  # as of a program that SIGPIPE ended
INTERRUPTED = 130
LOST_DATA = 1  # stdout could not be written


# Headings in the help, in order; a command has some of them.
PANELS = (
    *("Arguments", "Prompts", "Images", "Rows", "Decoders", "Measurement", "Array", "Each task"),
    *("Settings", "Model", "Sampling", "Decoding", "Running", "Output"),
)
_WORDED_DEFAULT = re.compile(r"\[default: \(([^()]*)\)")  # click puts words in brackets


class GroupedCommand(TyperCommand):
    """A command whose help lists its options under headings, in plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options under each heading, and the other options."""
        sections: dict[str, list[tuple[str, str]]] = {panel: [] for panel in PANELS}
        other = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            name, text = record[0], _WORDED_DEFAULT.sub(r"[default: \1", record[1])
            if parameter.param_type_name == "argument":
                sections["Arguments"].append((parameter.metavar or name, text))
            elif panel := getattr(parameter, "rich_help_panel", None):
                sections.setdefault(panel, []).append((name, text))
            else:
                other.append((name, text))
        for title, records in {**sections, "Other": other}.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class CommandTable(Mapping[str, Any]):
    """`COMMANDS`, each imported when it is used."""

    def __getitem__(self, name: str) -> Any:
        one = typer.Typer(add_completion=False, rich_markup_mode=None)
        one.command(name, cls=GroupedCommand)(
            expands_home(importlib.import_module(COMMANDS[name]).command)
        )
        return typer.main.get_command(one)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Root(TyperGroup):
    """The `sjdvp` command itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": CommandTable()})


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sjdvp {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Generate images for a file of prompts with autoregressive models.

    Speculative Jacobi decoding accepts several tokens per forward pass. The default decoder is
    lossless: its output distribution is exactly that of ordinary sampling.
    """


def build() -> Any:
    """Return the click command behind `sjdvp`."""
    app = typer.Typer(
        cls=Root,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            # --cfg_scale is --cfg-scale
            "token_normalize_func": lambda name: name.replace("_", "-"),
            "max_content_width": 110,
        },
    )
    app.callback(epilog="`sjdvp COMMAND --help` shows the options of a command.")(root)
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; only a bug raises."""
    try:
        _require_current_folder()
        _refuse_empty(arguments)
        with build().make_context("sjdvp", list(arguments) or ["--help"]) as context:
            code = context.command.invoke(context)
        sys.stdout.flush()
        return int(code or 0)
    except typer.Exit as end:
        return end.exit_code
    except SjdvpError as error:
        return report(str(error), error.hint, error.exit_code)
    except typer.TyperException as error:
        return report(*explain(error), error.exit_code)
    except BrokenPipeError:
        silence_stdout()
        return CLOSED_PIPE
    except StdoutError as error:
        silence_stdout()
        return report(
            f"cannot write to stdout: {error.strerror}",
            "free some space, or redirect it elsewhere",
            LOST_DATA,
        )
    except KeyboardInterrupt:
        return report("interrupted", "", INTERRUPTED)


def _require_current_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError("the current folder has been deleted", "cd to another one") from error


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse the empty text that an unset shell variable leaves, except as a prompt.

    As a folder, "" would be the current one.
    """
    for before, word in zip(["", *arguments], arguments, strict=False):
        if (word == "" and before != "--prompt") or (
            word.startswith("--") and word.endswith("=") and word != "--prompt="
        ):
            where = word.rstrip("=") or before or "the first argument"
            raise ConfigError(f"{where} is empty", "is a shell variable in the command not set?")


def main() -> None:
    """Run the process's own command line."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings are for programmers
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # those of transformers too
    prepare_streams()
    sys.exit(run(sys.argv[1:]))
