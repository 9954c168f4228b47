"""What a reader yields for each row it meets, whatever the format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROMPT_NAMES = ("prompt", "prompts", "caption", "text")


@dataclass(frozen=True, slots=True)
class Row:
    """A row that holds a prompt, not yet numbered."""

    where: str  # "line 3", "entry 3"
    text: str
    id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blank:
    """A line with nothing on it: skipped and counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps the file from being read as it is."""

    where: str
    message: str


Found = Row | Blank | Problem


def at(number: int) -> str:
    """Name a line for people."""
    return f"line {number}"


def find_column(names: list[str], column: str | None) -> int | None:
    """Return which of `names` holds the prompt: `column` exactly, or the first usual name in any case; None when there is none."""
    if column is not None:
        return names.index(column) if column in names else None
    folded = [name.strip().casefold() for name in names]
    return next((folded.index(name) for name in PROMPT_NAMES if name in folded), None)


def missing_column(names: list[str], column: str | None) -> str:
    """Say that no column holds the prompt, and which columns there are."""
    wanted = f"column {column!r}" if column is not None else f"column named {', '.join(PROMPT_NAMES)}"
    return f"no {wanted}; found: {', '.join(map(repr, names[:20]))}"
