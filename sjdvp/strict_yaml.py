"""Strict YAML: no Python objects, no duplicate keys, and the scalars of YAML 1.2.

PyYAML follows YAML 1.1, where `no` is false, `012` is ten and `1e-5` is text. Here only `true` and
`false` are booleans, `1e-5` is a number, and `012` is text, so that it is refused as a number.
Imports no torch; imported only to read a file, because PyYAML takes a tenth of a help's time.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from sjdvp.errors import ConfigError

# tag: pattern of its scalars, and their first characters, by which PyYAML finds them
_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    "int": (r"[-+]?(0|[1-9][0-9]*)", [*"-+0123456789"]),
    "float": (
        r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)",
        [*"-+.0123456789"],
    ),
    "null": (r"~|null|Null|NULL|", [*"~nN", ""]),
}


class _Loader(yaml.SafeLoader):
    """The safe loader with YAML 1.2 scalars and with duplicate keys refused."""

    # A registry of PyYAML at the level of the class.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build one mapping; a key that occurs twice or is not text is an error at its line."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is not text", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} occurs twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
    )


def load_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, empty for an empty file; else raise ConfigError."""
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8-sig"), Loader=_Loader)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start})") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: expected sections and keys, found {type(loaded).__name__}")
    return loaded
