"""What a row of a prompt file asks for besides its prompt: seed, number and size of images, ...

`--ignore-columns` leaves these columns as plain columns that are carried along.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sjdvp.config import RunConfig
from sjdvp.errors import PromptError
from sjdvp.runs.prompts.model import Prompt, is_blank
from sjdvp.text import printable, shortened

IGNORE = "--ignore-columns carries such columns without using them"


def read_asked(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the columns of one row ask for; raises ValueError that names the column.

    Empty cells ask for nothing. Keys: seed, n, width, height, cfg_scale, negative_prompt, filename.
    """
    asked: dict[str, Any] = {}
    for name, (read, expected) in _COLUMNS.items():
        value = columns.get(name)
        if value is None or (isinstance(value, str) and is_blank(value)):
            continue
        try:
            asked |= read(name, value)
        except ValueError:
            found = printable(shortened(repr(value)))
            raise ValueError(f"column {name!r} must be {expected}, found {found}") from None
    return asked


def check_asked(prompts: Iterable[Prompt], config: RunConfig) -> None:
    """Raise PromptError for the first row that asks for what this run cannot give.

    All images of a run have one size and one CFG scale, and no model takes a negative prompt.
    """
    model, cfg_scale = config.model, config.sampling.cfg_scale
    for prompt in prompts:
        asked = prompt.asked
        if "negative_prompt" in asked:
            raise _refused(prompt, "negative_prompt", "these models take no negative prompt", "")
        if asked.get("cfg_scale", cfg_scale) != cfg_scale:
            wish = f"{asked['cfg_scale']:g}"
            one = f"it asks for {wish}, and this run has {cfg_scale:g} for all images"
            raise _refused(prompt, "cfg_scale", one, f"--cfg-scale {wish} sets it for all rows; ")
        width, height = asked.get("width"), asked.get("height")
        if (width or model.width, height or model.height) != (model.width, model.height):
            size = f"{width or model.width or height}x{height or model.height or width}"
            given = f"{model.width}x{model.height}" if model.width else "the size of the model"
            one = f"it asks for {size} pixels, and this run has {given} for all images"
            column = "width" if width else "height"
            raise _refused(prompt, column, one, f"--size {size} sets it for all rows; ")


def _refused(prompt: Prompt, column: str, reason: str, advice: str) -> PromptError:
    return PromptError(f"row {prompt.index}, column {column!r}: {reason}", advice + IGNORE)


def _whole(least: int, most: int) -> Callable[[str, Any], dict[str, Any]]:
    def read(name: str, value: Any) -> dict[str, Any]:
        number = _number(value)
        if number != int(number) or not least <= number <= most:
            raise ValueError(value)
        return {name: int(number)}

    return read


def _positive(name: str, value: Any) -> dict[str, Any]:
    number = _number(value)
    if number < 0:
        raise ValueError(value)
    return {name: float(number)}


def _size(name: str, value: Any) -> dict[str, Any]:
    width, cross, height = str(value).strip().lower().partition("x")
    read = _whole(1, 99_999)
    return {**read("width", width), **read("height", height if cross else width)}


def _text(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, str):
        raise ValueError(value)
    return {name: value}


def _number(value: Any) -> float:
    """Read a number in any notation but inf and nan; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(value)
    if isinstance(value, int):
        return value
    with contextlib.suppress(ValueError):
        return int(str(value))
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


# The order matters: `size` is read before, so that `width` and `height` win.
_COLUMNS: dict[str, tuple[Callable[[str, Any], dict[str, Any]], str]] = {
    "seed": (_whole(0, 2**53 - 1), "a whole number from 0 to 2^53 - 1"),
    "n": (_whole(1, 100_000), "a whole number from 1 to 100000"),
    "size": (_size, "N or WxH in pixels"),
    "width": (_whole(1, 99_999), "a number of pixels"),
    "height": (_whole(1, 99_999), "a number of pixels"),
    "cfg_scale": (_positive, "a number, 0 or more"),
    "negative_prompt": (_text, "text"),
    "filename": (_text, "text"),
}
