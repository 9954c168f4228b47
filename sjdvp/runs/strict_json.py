"""JSON read strictly: finite numbers only, and fields of an object with their types checked.

Files in a run folder may have been edited by hand. A ValueError says what is wrong with one.
"""

import json
import math
from collections.abc import Callable, Collection
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_MOST_CHARACTERS = 80  # of a value shown in a message


def load_json(
    text: str | bytes, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Return the value in `text`; raises ValueError (a JSONDecodeError where a position is known).

    Python's own reader also accepts NaN, Infinity and 1e999, which JSON does not have.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=object_pairs_hook,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def whole(table: object, key: str, least: int = 0) -> int:
    """Return the integer at `key`, which must be at least `least`.

    In `key`, dots lead into nested objects; this holds for all readers of fields here.
    """
    kind = f"a whole number, {least} or more"
    return _typed(table, key, kind, lambda value: is_whole(value) and value >= least)


def number(table: object, key: str) -> float:
    """Return the number at `key`."""
    return _typed(table, key, "a number", lambda v: is_whole(v) or isinstance(v, float))


def text(table: object, key: str) -> str:
    """Return the string at `key`."""
    return _typed(table, key, "text", lambda value: isinstance(value, str))


def word(table: object, key: str, known: Collection[str]) -> str:
    """Return the string at `key`, which must be one of `known`."""
    kind = " or ".join(known)
    return _typed(table, key, kind, lambda value: isinstance(value, str) and value in known)


def inner(table: object, key: str) -> dict[str, Any]:
    """Return the object at `key`."""
    return _typed(table, key, "an object", lambda value: isinstance(value, dict))


def listed(table: object, key: str) -> list[Any]:
    """Return the list at `key`."""
    return _typed(table, key, "a list", lambda value: isinstance(value, list))


def optional(read: Callable[[object, str], T], table: object, key: str) -> T | None:
    """Return what `read` returns for `key`, or None when the value is null."""
    return None if _value(table, key) is None else read(table, key)


def absent_or(read: Callable[[object, str], T], table: object, key: str) -> T | None:
    """Return what `optional` returns, or None without the key: older versions did not write it."""
    missing = isinstance(table, dict) and key not in table
    return None if missing else optional(read, table, key)


def is_whole(value: object) -> bool:
    """Return whether `value` is an integer; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _typed(table: object, key: str, kind: str, fits: Callable[[Any], bool]) -> Any:
    value = _value(table, key)
    if not fits(value):
        raise ValueError(f"{key} must be {kind}, found {_shown(value)}")
    return value


def _value(table: object, key: str) -> Any:
    value = table
    for name in key.split("."):
        if not isinstance(value, dict):
            raise ValueError(f"expected an object with {key}, found {_shown(value)}")
        if name not in value:
            raise ValueError(f"the key {key} is missing")
        value = value[name]
    return value


def _shown(value: object) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}..."


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large a number")
    return value
