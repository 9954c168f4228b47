"""What a reader yields for each row that it meets, whatever the format."""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_INVISIBLE = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})


@dataclass(frozen=True, slots=True)
class Row:
    """A row that holds a prompt, not yet numbered."""

    where: str  # "line 3", "entry 3"
    text: str
    id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    column: str = "prompt"  # where the text stood


@dataclass(frozen=True, slots=True)
class Blank:
    """A line with nothing on it: skipped and counted."""


@dataclass(frozen=True, slots=True)
class Empty:
    """A row without a prompt: skipped and counted where that was asked for, else a problem."""

    where: str
    message: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps the file from being read as it is, and what may help."""

    where: str
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that people are told about a file that is read."""

    message: str


@dataclass(frozen=True, slots=True)
class Shape:
    """The format has a name of its own: `coco` is one of the shapes of JSON."""

    name: str


Found = Row | Blank | Empty | Problem | LeftOut | Shape


def at(number: int) -> str:
    """Name a line for people."""
    return f"line {number}"


def is_blank(text: str) -> bool:
    """Say whether nothing of `text` can be seen: spaces, control and zero-width characters."""
    if text[:1].isalnum():  # nearly always: a quick answer
        return False
    return not text.strip() or all(unicodedata.category(c) in _INVISIBLE for c in text)


def names_of(values: Iterable[str], most: int = 3) -> str:
    """List the first few names, and say how many more there are."""
    every = list(values)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
