"""Fields of a JSON object in a file that somebody may have edited: each is taken with its kind checked.

A ValueError says what is wrong. A key with dots leads into objects within the object.
"""

import json
from collections.abc import Callable, Collection
from typing import Any, TypeVar

T = TypeVar("T")


def whole(table: object, key: str, least: int = 0) -> int:
    """Return a whole number that is `least` or more."""
    return _of_kind(
        table,
        key,
        f"a whole number, {least} or more",
        lambda value: is_whole(value) and value >= least,
    )


def number(table: object, key: str) -> float:
    """Return a number."""
    return _of_kind(
        table, key, "a number", lambda value: is_whole(value) or isinstance(value, float)
    )


def text(table: object, key: str) -> str:
    """Return a text."""
    return _of_kind(table, key, "text", lambda value: isinstance(value, str))


def word(table: object, key: str, known: Collection[str]) -> str:
    """Return one of the words that are known."""
    return _of_kind(
        table, key, " or ".join(known), lambda value: isinstance(value, str) and value in known
    )


def inner(table: object, key: str) -> dict[str, Any]:
    """Return an object within the object."""
    return _of_kind(table, key, "an object", lambda value: isinstance(value, dict))


def listed(table: object, key: str) -> list[Any]:
    """Return a list."""
    return _of_kind(table, key, "a list", lambda value: isinstance(value, list))


def optional(read: Callable[[object, str], T], table: object, key: str) -> T | None:
    """Return what `read` reads there; None where null stands."""
    return None if _value(table, key) is None else read(table, key)


def is_whole(value: object) -> bool:
    """Say whether a value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _of_kind(table: object, key: str, kind: str, fits: Callable[[Any], bool]) -> Any:
    value = _value(table, key)
    if not fits(value):
        raise ValueError(f"{key} must be {kind}, found {_shown(value)}")
    return value


def _value(table: object, key: str) -> Any:
    value = table
    for name in key.split("."):
        if not isinstance(value, dict):
            raise ValueError(f"an object that holds {key} is due, found {_shown(value)}")
        if name not in value:
            raise ValueError(f"there is no {key}")
        value = value[name]
    return value


def _shown(value: object) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."
