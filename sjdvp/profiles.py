"""Where settings come from: profiles, layers, and the origin of every value. Imports no torch.

Precedence, lowest first: built-in, user file, profile, `SJDVP_*` environment, flags. A layer holds
what was given in it, also where that equals a default. A decoder preset fills in structural fields
below the layer that names it, see `_merge`.
"""

import contextlib
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sjdvp.config import (
    RunConfig,
    from_table,
    read_setting,
    renamed,
    setting_types,
    unknown_key,
)
from sjdvp.errors import ConfigError
from sjdvp.presets import GREEDY, preset

PREFIX = "SJDVP_"
STRUCTURE = frozenset(
    {"decoder.drafter", "decoder.verifier", "decoder.init", "decoder.prediction.kind"}
)


@dataclass(frozen=True, slots=True)
class Profile:
    """One YAML file of settings."""

    name: str
    path: Path
    description: str
    problem: str = ""  # why the file cannot be read, where it cannot


@dataclass(frozen=True, slots=True)
class Layer:
    """What one source gave: its values and their origin, by dotted key."""

    origins: Mapping[str, str]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration, the origin of each setting by dotted key, and warnings."""

    config: RunConfig
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()


def resolve(
    profile: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Merge all layers into one configuration.

    `profile` is a name or a YAML file; None takes the one of the environment or the user file.
    `overrides` are the flags by dotted key; text is read by the type of its setting. `environ`
    defaults to that of the process.
    """
    environ = os.environ if environ is None else environ
    user, env = _user_layer(environ), _environment_layer(environ)
    flags = _layer(
        "flag",
        {
            k: _read_from("flag", k, v) if isinstance(v, str) else v
            for k, v in (overrides or {}).items()
        },
    )
    named = profile or str(
        env.values.get("profile") or user.values.get("profile") or RunConfig().profile
    )
    named_by = "flag" if profile else _origin(env, user, key="profile")
    path = _find_from(named_by, named, environ)
    chosen = _file_layer(path, f"profile {path.stem}")
    merged, notes = _merge([user, chosen, env, flags])
    merged["profile"] = (path.stem, named_by)
    origins = {key: merged[key][1] if key in merged else "built-in" for key in setting_types()}
    try:
        config = from_table(RunConfig, _nest({key: value for key, (value, _) in merged.items()}))
    except ConfigError as error:
        raise ConfigError(f"{error} ({_sources(error, origins)})", error.hint, error.key) from error
    return Resolved(config, origins, notes)


def find(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return the file of a profile, given by name or as a path to a YAML file."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(os.path.expanduser(name))  # noqa: PTH111 (Path fails without a home)
        with _reading(path):
            if not path.is_file():
                raise ConfigError(f"no profile file {name}")
        return path
    paths = {path.stem: path for path in _files(environ)}
    if name not in paths:
        close = difflib.get_close_matches(name, paths, n=1)
        known = "`sjdvp profiles` lists the known ones, or give a FILE.yaml"
        raise ConfigError(
            f"unknown profile {name!r}", f"did you mean {close[0]}?" if close else known
        )
    return paths[name]


def list_profiles(environ: Mapping[str, str] | None = None) -> list[Profile]:
    """Return every profile that can be given by name, sorted, also those that cannot be read.

    A profile of the user hides a packaged one of the same name.
    """
    paths = {path.stem: path for path in _files(environ)}
    return [_profile(name, path) for name, path in sorted(paths.items())]


def user_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the user's settings; None without a home, as of a service account."""
    config = environ.get("XDG_CONFIG_HOME", "")
    if not config.startswith("/"):  # the XDG rule: relative paths are to be ignored
        home = environ.get("HOME", "")
        config = f"{home}/.config" if home else ""
    return Path(config) / "sjdvp" if config else None


def packaged_folder() -> Path:
    """Return the folder of the shipped profiles: in the package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "profile_files"
    return installed if installed.is_dir() else package.parent / "profiles"


def _profile(name: str, path: Path) -> Profile:
    try:
        return Profile(name, path, str(_read(path).get("description", "")))
    except ConfigError as error:
        return Profile(name, path, "", str(error))


def _files(environ: Mapping[str, str] | None) -> list[Path]:
    packaged = list(packaged_folder().glob("*.yaml"))
    user = user_folder(os.environ if environ is None else environ)
    if user is None:
        return packaged
    folder = user / "profiles"
    with _reading(folder):
        own = (
            [path for path in folder.iterdir() if path.suffix == ".yaml"] if folder.is_dir() else []
        )
    return [*packaged, *own]


def _user_layer(environ: Mapping[str, str]) -> Layer:
    folder = user_folder(environ)
    if folder is None:
        return Layer({}, {})
    path = folder / "config.yaml"
    with _reading(path):
        there = path.is_file()
    return _file_layer(path, "user file") if there else Layer({}, {})


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "make it readable, or let XDG_CONFIG_HOME name another folder for your settings"
        raise ConfigError(f"cannot read {path}: {error.strerror}", advice) from error


def _file_layer(path: Path, origin: str) -> Layer:
    try:
        return _layer(origin, dict(_flatten(_read(path), setting_types())))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}" if error.key else str(error), error.hint) from error


def _read(path: Path) -> dict[str, Any]:
    from sjdvp.strict_yaml import (
        load_mapping,  # a help text reads no profile, and PyYAML is a tenth of its time
    )

    return load_mapping(path)


def _environment_layer(environ: Mapping[str, str]) -> Layer:
    """Read `SJDVP_SAMPLING_CFG_SCALE=3` as sampling.cfg_scale.

    An empty variable counts as not given.
    """
    variables = {_variable(key): key for key in setting_types()}
    values, origins = {}, {}
    for name, text in environ.items():
        if name.startswith(PREFIX) and text:
            if name not in variables:
                raise _unknown_variable(name, variables)
            key = variables[name]
            values[key], origins[key] = _read_from(name, key, text), name
    return Layer(origins, values)


def _variable(key: str) -> str:
    return PREFIX + key.upper().replace(".", "_")


def _unknown_variable(name: str, known: Iterable[str]) -> ConfigError:
    key = name.removeprefix(PREFIX).lower().replace("_", ".")
    if renamed(key) == key:
        return unknown_key(name, known)
    return ConfigError(f"unknown key {name}", f"it is now called {_variable(renamed(key))}", name)


def _read_from(origin: str, key: str, text: str) -> Any:
    try:
        return read_setting(key, text)
    except ConfigError as error:
        if key not in setting_types():
            raise
        raise ConfigError(f"{error} (from {origin})", error.hint, error.key) from error


def _find_from(origin: str, name: str, environ: Mapping[str, str]) -> Path:
    try:
        return find(name, environ)
    except ConfigError as error:
        if origin == "flag":  # seen on the command line
            raise
        raise ConfigError(f"{error} (from {origin})", error.hint) from error


def _sources(error: ConfigError, origins: Mapping[str, str]) -> str:
    """Say where the setting at fault was given; of two that do not fit together, where each was."""
    words = set(re.findall(r"[\w.]+", str(error)))
    others = [key for key in origins if "." in key and key in words and key != error.key]
    if not others:
        return f"from {origins[error.key]}"
    return ", ".join(f"{key} from {origins[key]}" for key in (error.key, *others))


def _layer(origin: str, values: Mapping[str, Any]) -> Layer:
    return Layer(dict.fromkeys(values, origin), values)


def _merge(layers: Iterable[Layer]) -> tuple[dict[str, tuple[Any, str]], tuple[str, ...]]:
    """Merge layers, lowest first, into dotted key -> (value, origin).

    The highest layer that names a decoder preset decides the structure: structural fields of lower
    layers are dropped, those of the preset are filled in, and fields given in the same or a higher
    layer win. Parameters (window, prediction.rises, ...) of lower layers are kept: those of the
    preset count only where no layer gives them.
    """
    stack = [_layer("built-in", {"decoder.preset": RunConfig().decoder.preset}), *layers]
    chosen = max(i for i, layer in enumerate(stack) if "decoder.preset" in layer.values)
    name = str(stack[chosen].values["decoder.preset"])
    fields = dict(_flatten({"decoder": preset(name)}, setting_types()))
    own = {key: (value, f"decoder {name}") for key, value in fields.items()}
    merged: dict[str, tuple[Any, str]] = {
        key: value for key, value in own.items() if key not in STRUCTURE
    }
    for i, layer in enumerate(stack):
        if i == chosen:
            merged.update({key: value for key, value in own.items() if key in STRUCTURE})
        merged.update(
            {
                k: (v, layer.origins[k])
                for k, v in layer.values.items()
                if i >= chosen or k not in STRUCTURE
            }
        )
    return merged, _force(merged, name, fields)


def _force(
    merged: dict[str, tuple[Any, str]], name: str, fields: Mapping[str, Any]
) -> tuple[str, ...]:
    """Set what defines a decoder (`ar`: window 1, `jacobi`: greedy); note flags that differ."""
    forced = {key: value for key, value in fields.items() if key == "decoder.window"}
    forced |= {"sampling.temperature": 0.0} if name in GREEDY else {}
    notes = [
        f"decoder {name} means {key} {value}; {merged[key][0]} is not used"
        for key, value in forced.items()
        if key in merged and merged[key][0] != value and merged[key][1] == "flag"
    ]
    merged.update({key: (value, f"decoder {name}") for key, value in forced.items()})
    return tuple(notes)


def _flatten(
    table: Mapping[str, Any], types: Mapping[str, Any], where: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every setting in nested sections; raises ConfigError."""
    sections = {
        key.rsplit(".", depth)[0] for key in types for depth in range(1, key.count(".") + 1)
    }
    for name, value in table.items():
        key = f"{where}.{name}" if where else name
        if key in types:
            yield key, value
        elif key not in sections:
            raise unknown_key(key, types)
        elif not isinstance(value, Mapping):
            raise ConfigError(f"{key} must be a section of keys, found {value!r}", key=key)
        else:
            yield from _flatten(value, types, key)


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        table = nested
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return nested


def _origin(*layers: Layer, key: str) -> str:
    return next((layer.origins[key] for layer in layers if key in layer.origins), "built-in")
