"""What a row of a prompt file asks for besides its prompt: seed, number and size of images, ...

`--ignore-columns` leaves these columns as plain columns that are carried along.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sjdvp.config import NEGATIVE_PROMPT, ONE_SIZE, RunConfig
from sjdvp.errors import ConfigError, PromptError
from sjdvp.runs.prompts.model import Prompt, is_blank
from sjdvp.text import printable, shortened

Size = tuple[int, int]  # width and height in pixels

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
    """Raise PromptError for the first row that asks for what the model of this run cannot do."""
    backbone, run_size = config.model.backbone, (config.model.width, config.model.height)
    for prompt in prompts:
        size = asked_size(prompt, run_size)
        if size is not None and backbone in ONE_SIZE:
            one = f"it asks for {size[0]}x{size[1]} pixels, and {backbone} has one size in a run"
            advice = f"--size {size[0]}x{size[1]} sets it; "
            raise refused(prompt, size_column(prompt), one, advice)
        if "negative_prompt" not in prompt.asked:
            continue
        if backbone not in NEGATIVE_PROMPT:
            none = f"{backbone} models take no negative prompt"
            raise refused(prompt, "negative_prompt", none)
        if prompt.asked.get("cfg_scale", config.sampling.cfg_scale) == 1:
            raise refused(
                prompt,
                "negative_prompt",
                "it does nothing at CFG scale 1",
                "give another --cfg-scale; ",
            )


def check_one_engine(prompts: Iterable[Prompt], config: RunConfig) -> None:
    """Raise PromptError for the first row that needs another engine than the run's.

    That is one of another image size, or one with guidance in a run without.
    """
    cfg_scale = config.sampling.cfg_scale
    for prompt in prompts:
        size = asked_size(prompt, (config.model.width, config.model.height))
        if size is not None:
            wish = f"{size[0]}x{size[1]}"
            one = f"it asks for {wish} pixels, and this command has one size for all images"
            raise refused(prompt, size_column(prompt), one, f"--size {wish} sets it; ")
        if cfg_scale == 1 and prompt.asked.get("cfg_scale", 1) != 1:
            wish = f"{prompt.asked['cfg_scale']:g}"
            off = f"it asks for {wish}, and guidance is off (CFG scale 1) for all images"
            raise refused(prompt, "cfg_scale", off, f"--cfg-scale {wish} sets it; ")


def asked_size(prompt: Prompt, run: tuple[int | None, int | None]) -> Size | None:
    """Return the size that a row asks for; None where it asks for none, or for that of the run.

    A side that the row leaves open is that of the run, else as long as the other.
    """
    asked = {side: int(prompt.asked[side]) for side in ("width", "height") if side in prompt.asked}
    if not asked:
        return None
    other = next(iter(asked.values()))
    size = asked.get("width") or run[0] or other, asked.get("height") or run[1] or other
    return None if size == run else size


class SizeCheck:
    """Asks the model whether it has the image sizes that rows ask for, once for each size."""

    def __init__(self, config: RunConfig, check_model: Callable[[RunConfig], None]) -> None:
        self._config, self._check_model = config, check_model
        self._known: set[Size] = set()

    def __call__(self, prompts: Iterable[Prompt]) -> None:
        """Raise PromptError for the first row whose size the model does not have."""
        model = self._config.model
        for prompt in prompts:
            size = asked_size(prompt, (model.width, model.height))
            if size is None or size in self._known:
                continue
            self._known.add(size)
            sized = replace(model, width=size[0], height=size[1])
            try:
                self._check_model(replace(self._config, model=sized))
            except ConfigError as error:
                if error.key != "model.width":
                    raise
                raise refused(prompt, size_column(prompt), str(error)) from error


def size_column(prompt: Prompt) -> str:
    """Return the name of the column that asks for a size."""
    return next(name for name in ("width", "height", "size") if prompt.extra.get(name))


def refused(prompt: Prompt, column: str, reason: str, advice: str = "") -> PromptError:
    """Return the error for a row that asks for what it cannot have."""
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
