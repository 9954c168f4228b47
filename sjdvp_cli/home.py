"""A leading ~ in paths that a shell has left alone: in --out=~/x, or within quotes."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any


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
