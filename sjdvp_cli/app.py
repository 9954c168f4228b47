"""The entry point: the table of commands, and the one place where an error becomes a line on stderr and an exit code.

A command is one file with a function `command` (its docstring is the help) and one line in `COMMANDS`. Files of commands are
imported on use, and import what is heavy inside the function, so that help and mistakes answer at once.
"""

import gc
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sjdvp import __version__
from sjdvp.errors import ConfigError, SjdvpError
from sjdvp_cli.errors import explain, report
from sjdvp_cli.options import at_home
from sjdvp_cli.streams import StdoutError, prepare_streams, silence_stdout

# Python looks for dead cycles after every 700 new objects. Importing torch and transformers makes 400,000 that stay: walking them
# again and again takes a sixteenth of the time to the first image.
_OBJECTS_BETWEEN_COLLECTIONS = 100_000

COMMANDS = {
    "generate": "sjdvp_cli.generate",
    "prompts": "sjdvp_cli.prompts",
    "profiles": "sjdvp_cli.profiles",
    "compare": "sjdvp_cli.compare",
    "analyze": "sjdvp_cli.analyze",
    "report": "sjdvp_cli.report",
    "check": "sjdvp_cli.check",
    "show": "sjdvp_cli.show",
    "export": "sjdvp_cli.export",
    "eval": "sjdvp_cli.eval",
    "slurm": "sjdvp_cli.slurm",
    "bench": "sjdvp_cli.bench",
    "doctor": "sjdvp_cli.doctor",
}

CLOSED_PIPE = 141  # what a shell reports for a program ended by SIGPIPE
INTERRUPTED = 130
LOST_DATA = 1  # what was asked for on stdout could not be written there


class GroupedCommand(TyperCommand):
    """A command whose help lists its options under headings, in plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options of each heading, and those without one."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        other = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                sections["Arguments"].append((parameter.metavar or record[0], record[1]))
            elif panel := getattr(parameter, "rich_help_panel", None):
                sections.setdefault(panel, []).append(record)
            else:
                other.append(record)
        for title, records in {**sections, "Other": other}.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class CommandTable(Mapping[str, Any]):
    """`COMMANDS`, imported one by one as they are asked for."""

    def __getitem__(self, name: str) -> Any:
        one = typer.Typer(add_completion=False, rich_markup_mode=None)
        one.command(name, cls=GroupedCommand)(
            at_home(importlib.import_module(COMMANDS[name]).command)
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
    """Draw images for a file of prompts with autoregressive models, several tokens a forward, exactly as the model would."""


def build() -> Any:
    """Return the click command behind `sjdvp`."""
    app = typer.Typer(
        cls=Root,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda name: name.replace(
                "_", "-"
            ),  # --cfg_scale is --cfg-scale
            "max_content_width": 110,
        },
    )
    app.callback(epilog="`sjdvp COMMAND --help` explains a command.")(root)
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line and return its exit code; only a bug raises."""
    try:
        _refuse_empty(arguments)
        with build().make_context("sjdvp", list(arguments)) as context:
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
            f"stdout cannot be written: {error.strerror}",
            "make room, or send it elsewhere",
            LOST_DATA,
        )
    except KeyboardInterrupt:
        return report("interrupted", "", INTERRUPTED)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse what a variable that is not set leaves behind: as a folder, "" would be the one we are in. A prompt may be empty."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        if (word == "" and before != "--prompt") or (
            word.startswith("--") and word.endswith("=") and word != "--prompt="
        ):
            where = word.rstrip("=") or before or "the first argument"
            raise ConfigError(
                f"{where}: nothing is given, only an empty text",
                "is a variable of the shell not set?",
            )


def main() -> None:
    """Run the process's own command line."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    prepare_streams()
    sys.exit(run(sys.argv[1:]))
