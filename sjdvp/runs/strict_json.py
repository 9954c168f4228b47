"""JSON as it is defined: finite numbers only, where Python's own reader also takes NaN, Infinity and 1e999."""

import json
import math
from collections.abc import Callable
from typing import Any, NoReturn


def load_json(
    text: str | bytes, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Return the value that `text` holds; raises ValueError (a JSONDecodeError where the text has a place to name)."""
    try:
        return json.loads(
            text,
            object_pairs_hook=object_pairs_hook,
            parse_constant=_not_finite,
            parse_float=_finite,
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _not_finite(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large a number")
    return number
