"""Flags in groups: a command asks for a dataclass, and each field of it is a flag. `Settings` is the group that sets a run up."""

import inspect
import os
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sjdvp.errors import ConfigError
from sjdvp.presets import PRESETS
from sjdvp.profiles import Resolved, resolve

Format = Literal[
    "auto", "txt", "tsv", "csv", "jsonl", "json", "coco", "geneval", "dir"
]  # of prompt files


def option(panel: str) -> Callable[..., Any]:
    """Return `typer.Option` for flags that stand under the heading `panel` in the help."""
    return partial(typer.Option, rich_help_panel=panel, show_default=False)


def takes_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command have parameters that are dataclasses: their fields become flags, the command gets the filled dataclass."""
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


def at_home(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take `~/x` for a path: shells write it out only where it stands unquoted and alone, not in --out=~/x."""

    @wraps(command)
    def wrapper(**given: Any) -> Any:
        return command(**{name: _from_home(value) for name, value in given.items()})

    return wrapper


def expanded(path: Path) -> Path:
    """Return the path with a leading ~ or ~NAME as the home of that user; as it is where there is none."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (that of Path fails where there is no home)


def _from_home(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_home(one) for one in value]
    return expanded(value) if isinstance(value, Path) else value


def arguments(group: Any) -> list[str]:
    """Return the flags that fill a group as this one is filled: the way back from `takes_options`."""
    hints = typing.get_type_hints(type(group), include_extras=True)
    given: list[str] = []
    for f in fields(group):
        value = getattr(group, f.name)
        option = hints[f.name].__metadata__[0]
        names = (
            option.default,
            *(option.param_decls or ()),
        )  # typer takes the first name for a default until it is used
        flag = next(name for name in names if name.startswith("--"))
        if isinstance(value, bool):
            yes, _, no = flag.partition("/")
            given += [] if value == f.default else [yes if value else no]
        elif value != f.default:
            given += [
                word
                for one in (value if isinstance(value, list) else [value])
                for word in (flag, str(one))
            ]
    return given


def _expand(command: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.annotation
        if not is_dataclass(group):
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        hints = typing.get_type_hints(group, include_extras=True)
        for f in fields(group):
            default = inspect.Parameter.empty if f.default is MISSING else f.default
            yield inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[f.name]
            )


_settings, _model, _sampling, _decoding, _running = map(
    option, ("Settings", "Model", "Sampling", "Decoding", "Running")
)

# flag: the setting it stands for. Values stay text here and are read by the type of the setting.
_KEYS = {
    "model": "model.path",
    "dtype": "model.dtype",
    "cfg_scale": "sampling.cfg_scale",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "decoder": "decoder.preset",
    "window": "decoder.window",
    "seed": "run.seed",
    "num_images": "run.num_images_per_prompt",
    "batch_size": "run.batch_size",
    "device": "run.device",
    "device_map": "run.device_map",
    "on_long_prompt": "run.on_long_prompt",
    "max_failures": "run.max_failures",
    "metadata": "run.metadata",
}
_CFG = ("--cfg-scale", "--guidance-scale", "--cfg")
_COPIES = ("--num-images-per-prompt", "-n")
_METADATA = "--metadata/--no-metadata"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user said about settings: the profile, and single values above it."""

    profile: Annotated[
        str | None,
        _settings("--profile", "-p", metavar="NAME|FILE.yaml", help="See `sjdvp profiles`."),
    ] = None
    assignments: Annotated[
        list[str] | None,
        _settings("--set", metavar="KEY=VALUE", help="Set anything a profile can."),
    ] = None
    model: Annotated[
        str | None,
        _model("--model", metavar="PATH|ID", help="Weights: a folder, a file or a hub id."),
    ] = None
    size: Annotated[
        str | None, _model("--size", metavar="N|WxH", help="Size of the images in pixels.")
    ] = None
    dtype: Annotated[
        str | None, _model("--dtype", metavar="auto|bf16|fp16|fp32", help="Number format.")
    ] = None
    cfg_scale: Annotated[
        str | None,
        _sampling(*_CFG, metavar="NUMBER", help="How strictly to follow the prompt; 1: off."),
    ] = None
    temperature: Annotated[
        str | None,
        _sampling("--temperature", metavar="NUMBER", help="0: always the likeliest code."),
    ] = None
    top_k: Annotated[
        str | None,
        _sampling("--top-k", metavar="N", help="Draw among the N likeliest tokens; 0: all."),
    ] = None
    top_p: Annotated[
        str | None,
        _sampling("--top-p", metavar="NUMBER", help="Draw among this share of probability."),
    ] = None
    decoder: Annotated[
        str | None, _decoding("--decoder", metavar="NAME", help=f"One of {', '.join(PRESETS)}.")
    ] = None
    window: Annotated[
        str | None, _decoding("--window", metavar="N|auto", help="Codes looked at in one forward.")
    ] = None
    seed: Annotated[
        str | None, _running("--seed", metavar="N", help="Drawn once and stored when not given.")
    ] = None
    num_images: Annotated[
        str | None, _running(*_COPIES, metavar="N", help="Images for each prompt.")
    ] = None
    batch_size: Annotated[
        str | None, _running("--batch-size", metavar="N|auto", help="Images in flight at once.")
    ] = None
    device: Annotated[
        str | None, _running("--device", metavar="auto|cpu|cuda|cuda:K", help="Where to compute.")
    ] = None
    device_map: Annotated[
        str | None, _running("--device-map", metavar="auto", help="Share layers out over all GPUs.")
    ] = None
    on_long_prompt: Annotated[
        str | None,
        _running("--on-long-prompt", metavar="truncate|error", help="Too long a prompt."),
    ] = None
    max_failures: Annotated[
        str | None, _running("--max-failures", metavar="N", help="Stop after N failed images.")
    ] = None
    metadata: Annotated[
        bool | None, _running(_METADATA, help="Settings inside each PNG (the default).")
    ] = None

    def resolve(self) -> Resolved:
        """Merge with the other layers of settings."""
        return resolve(self.profile, self.overrides())

    def overrides(self) -> dict[str, Any]:
        """Return what the flags give, by dotted key; a setting given by its flag and by `--set` is an error."""
        pairs = [
            (key, getattr(self, flag))
            for flag, key in _KEYS.items()
            if getattr(self, flag) is not None
        ]
        pairs += (
            zip(("model.width", "model.height"), parse_size(self.size), strict=True)
            if self.size is not None
            else []
        )
        pairs += [parse_assignment(text) for text in self.assignments or []]
        given: dict[str, Any] = {}
        for key, value in pairs:
            if key in given:
                raise ConfigError(f"{key} is given twice", "by its flag or by --set, once")
            given[key] = value
        return given


def parse_size(text: str) -> tuple[int, int]:
    """Read `512` or `640x480` as width and height."""
    width, cross, height = text.lower().partition("x")
    if not all(
        part.isascii() and part.isdigit() and 0 < len(part) < 6
        for part in ([width, height] if cross else [width])
    ):
        raise ConfigError(
            f"--size must be N or WxH in pixels, found {text!r}",
            "for example --size 512 or --size 768x512",
        )
    return int(width), int(height if cross else width)


def parse_assignment(text: str) -> tuple[str, str]:
    """Read `key=value` of `--set`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(
            f"--set must be KEY=VALUE, found {text!r}",
            "for example --set decoder.prediction.rises=2",
        )
    return key.strip(), value.strip()
