"""The types of reading prompts: options, the rows that readers yield, and the prompts that result.

Knows no file format.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sjdvp.errors import ConfigError

_FORMATS = "auto txt tsv csv jsonl json coco geneval yaml parquet dir"
FORMATS = tuple(_FORMATS.split())
_TABLES = ("auto", "csv", "tsv", "dir")
_SPELLED = {"\\t": "\t", "tab": "\t"}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read. Raises ConfigError for options that contradict each other."""

    format: str = "auto"
    columns: tuple[str, ...] = ()  # the first of them that a file has holds the prompt; A.B: inside
    delimiter: str = ""  # of csv and tsv; "": by the first line
    header: bool = True  # False: the columns of a table are called 1, 2, 3 ...
    id_column: str = ""  # "": the column `id`, where there is one
    ids: bool = True  # False: prompts have no id, and a column `id` is carried like others
    skip_empty: bool = False  # rows without a prompt are left out, not an error
    ignore_columns: bool = False  # seed, n, size and so on are plain columns
    template: str = ""  # '{prompt}, flat design': what to make of the prompt and other columns

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"unknown format {self.format!r}", f"known are: {', '.join(FORMATS)}")
        object.__setattr__(self, "delimiter", _SPELLED.get(self.delimiter, self.delimiter))
        if len(self.delimiter) > 1 or self.delimiter in ("\n", "\r", '"'):
            found = f"found {self.delimiter!r}"
            raise ConfigError(f"--delimiter must be one character, {found}", "tab is \\t")
        if (self.delimiter or not self.header) and self.format not in _TABLES:
            flag = "--delimiter" if self.delimiter else "--no-header"
            raise ConfigError(f"{flag} is for tables", "use --format csv or tsv, or leave it out")
        if self.id_column and not self.ids:
            raise ConfigError("--id-column and --no-ids contradict each other", "give one of them")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a prompt file, known by its `index` (and `id`, if any), not by its text."""

    index: int  # row among the prompts, from 0; blank lines do not count
    text: str
    id: str | None = None
    extra: Mapping[str, Any] = field(
        default_factory=dict
    )  # columns or keys that came with it, plain JSON values
    # What these columns ask for, see `sjdvp.runs.prompts.asked`: seed, n, filename, ...
    asked: Mapping[str, Any] = field(default_factory=dict)

    def copies(self, images_per_prompt: int) -> int:
        """Return the number of its images, where other prompts have `images_per_prompt`."""
        return int(self.asked.get("n", images_per_prompt))

    @property
    def digest(self) -> str:
        """SHA-256 of the text in UTF-8, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Everything that was read."""

    prompts: tuple[Prompt, ...]
    format: str  # which readers read it: names of FORMATS without `auto`, or `inline`
    source: str  # names of the files, without their folders
    digest: str  # SHA-256 of the file's bytes, of several files: of their digests; hexadecimal
    skipped: int = 0  # blank lines
    duplicates: int = 0  # prompts with the text of an earlier row; each gets its own image
    empty: int = 0  # rows without a prompt, left out as that was asked for
    notes: tuple[str, ...] = ()  # shown to the user: parts of the files that were not read

    def __len__(self) -> int:
        return len(self.prompts)

    def remarks(self) -> list[str]:
        """Say for people what was left out, and which prompts repeat others."""
        lines = [*skipped_remarks(self.skipped, self.empty), *self.notes]
        repeat = f"{self.duplicates} prompts repeat an earlier row; each row gets its own image"
        return [*lines, repeat] if self.duplicates else lines


def skipped_remarks(blank: int, empty: int) -> list[str]:
    """Say for people how many blank lines, and rows without a prompt, were skipped."""
    lines = [f"{blank} blank lines skipped"] if blank else []
    return lines + ([f"{empty} rows without a prompt skipped"] if empty else [])


_INVISIBLE = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})


@dataclass(frozen=True, slots=True)
class Row:
    """A row that holds a prompt, not yet numbered."""

    where: str  # "line 3", "entry 3"
    text: str
    id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    column: str = "prompt"  # where the text was


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
