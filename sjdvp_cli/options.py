"""Flags: a command takes them in dataclasses, a field for each flag; paths may begin with ~."""

import inspect
import os
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Mode = Literal["auto", "bar", "plain", "none"]


def option(panel: str) -> Callable[..., Any]:
    """Return `typer.Option` for flags under the heading `panel` of the help."""
    return partial(typer.Option, rich_help_panel=panel)


def takes_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command have dataclasses as parameters: their fields become its flags."""
    groups: dict[str, Any] = {
        p.name: p.annotation
        for p in inspect.signature(command).parameters.values()
        if is_dataclass(p.annotation)
    }

    @wraps(command)
    def wrapper(**given: Any) -> Any:
        filled = {
            name: group(**{f.name: given.pop(f.name) for f in fields(group)})
            for name, group in groups.items()
        }
        return command(**filled, **given)

    parameters = list(_expand(command))
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def arguments(group: Any) -> list[str]:
    """Return the flags that fill a group as this one is filled: the inverse of `takes_options`."""
    hints = typing.get_type_hints(type(group), include_extras=True)
    given: list[str] = []
    for f in fields(group):
        value = getattr(group, f.name)
        declared = hints[f.name].__metadata__[0]
        # typer keeps the first name as `default` until the command is built.
        names = (declared.default, *(declared.param_decls or ()))
        flag = next(name for name in names if name.startswith("--"))
        if isinstance(value, bool):
            yes, _, no = flag.partition("/")
            given += [] if value == f.default else [yes if value else no]
        elif value != f.default:
            values = value if isinstance(value, list) else [value]
            given += [word for one in values for word in (flag, str(one))]
    return given


def _expand(command: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.annotation
        if not is_dataclass(group):
            yield parameter.replace(kind=keyword)
            continue
        hints = typing.get_type_hints(group, include_extras=True)
        for f in fields(group):
            default = inspect.Parameter.empty if f.default is MISSING else f.default
            yield inspect.Parameter(f.name, keyword, default=default, annotation=hints[f.name])


def expands_home(command: Callable[..., Any]) -> Callable[..., Any]:
    """Expand a leading ~ in paths: a shell does not do so in --out=~/x or within quotes."""

    @wraps(command)
    def wrapper(**given: Any) -> Any:
        return command(**{name: _from_home(value) for name, value in given.items()})

    return wrapper


def expanded(path: Path) -> Path:
    """Return the path with a leading ~ or ~NAME expanded, or unchanged where there is no home."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path.expanduser fails without a home)


def _from_home(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_home(one) for one in value]
    return expanded(value) if isinstance(value, Path) else value


_output = option("Output")


@dataclass(frozen=True, slots=True)
class Progress:
    """How a run shows its progress, and its summary."""

    as_json: Annotated[
        bool, _output("--json", help="Print one JSON object on stdout at the end.")
    ] = False
    progress: Annotated[
        Mode,
        _output(
            "--progress", help="Progress on stderr; auto is a bar on a terminal, else plain lines."
        ),
    ] = "auto"
    quiet: Annotated[
        bool,
        _output("--quiet", "-q", help="Print only warnings, failures and the last line."),
    ] = False
