"""Reader of a folder: each .txt file is one prompt (DPG-Bench), or each .jsonl, .csv holds many."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from sjdvp.errors import PromptError
from sjdvp.runs.prompts.model import (
    Blank,
    Found,
    LeftOut,
    Problem,
    ReadOptions,
    Row,
    is_blank,
    names_of,
)
from sjdvp.runs.prompts.open import open_text
from sjdvp.runs.prompts.sniff import SUFFIXES
from sjdvp.runs.prompts.text import Line, split_lines, unreadable
from sjdvp.text import printable

_CAPTIONS = (".txt", ".caption")
_ABOUT = ("readme", "license", "licence")  # texts beside prompts
_FAMILY = {"geneval": "jsonl", "coco": "json"}  # formats without a suffix of their own
_MOST_LINES = 20  # of one prompt; a file with more is a list of them
_BY_LINE = "--format txt reads a prompt from each line"
_WHOLE = "--format dir takes each file as one prompt"


@dataclass(frozen=True, slots=True)
class Part:
    """One file (or folder of captions) of the prompts."""

    name: str
    data: bytes
    format: str
    found: Iterator[Found]


def open_folder(folder: Path, options: ReadOptions) -> Iterator[Part]:
    """Yield the parts of a folder, its subfolders too, in the order of their names.

    Raises PromptError for a file that cannot be read, and OSError.
    """
    files = _visible(folder)
    about = [file for file in files if file.stem.casefold() in _ABOUT]
    captions = [f for f in files if f.suffix.lower() in _CAPTIONS and f not in about]
    one_each = options.format == "dir" or (options.format == "auto" and captions)
    taken = captions if one_each or options.format == "txt" else _lists(files, options.format)
    left = [file.relative_to(folder).as_posix() for file in files if file not in {*taken}]
    if not taken:
        found = f"; found: {names_of(map(printable, left))}" if left else ""
        raise PromptError(f"{printable(folder.name)}: no prompt file in it{found}")
    notes = [LeftOut(f"left out of {printable(folder.name)}: {names_of(map(printable, left))}")]
    parts = _captions(folder, taken, options) if one_each else _prompt_files(folder, taken, options)
    for part in parts:
        yield replace(part, found=itertools.chain(notes if left else [], part.found))
        left = []


def read_captions(pairs: list[tuple[str, bytes]], options: ReadOptions) -> Iterator[Found]:
    """Yield a prompt for each file (its name, its bytes) that is not blank; the name is the id.

    Line ends inside become LF, those at the end are dropped.
    """
    for name in filter(None, (*options.columns, options.id_column)):
        yield Problem("folder", f"each file is one prompt, so there is no column {name!r}")
    for name, data in pairs:
        lines = list(split_lines([data]))
        problem = _not_text(name, lines) or _not_one_prompt(name, data, options)
        text = "\n".join(line.text for line in lines).rstrip("\n").replace("\ufeff", "")
        if problem:
            yield problem
        elif is_blank(text):
            yield Blank()
        else:
            stem = PurePosixPath(name).with_suffix("").as_posix()
            yield Row(name, text, stem) if options.ids else Row(name, text, extra={"file": name})


def _captions(folder: Path, files: list[Path], options: ReadOptions) -> Iterator[Part]:
    pairs = [(file.relative_to(folder).as_posix(), file.read_bytes()) for file in files]
    data = b"".join(b"%r %d\n%b" % (name, len(data), data) for name, data in pairs)
    yield Part(folder.name, data, "dir", read_captions(pairs, options))


def _prompt_files(folder: Path, files: list[Path], options: ReadOptions) -> Iterator[Part]:
    for file in files:
        name = file.relative_to(folder).as_posix()
        data = file.read_bytes()
        format, found = open_text([data], name, options)
        yield Part(name, data, format, map(partial(_from_file, name), found))


def _from_file(name: str, found: Found) -> Found:
    """Let a row carry which file it comes from."""
    return replace(found, extra={"file": name, **found.extra}) if isinstance(found, Row) else found


def _lists(files: list[Path], format: str) -> list[Path]:
    """Return the files that hold many prompts: all of them, or those of one format."""
    wanted = _FAMILY.get(format, format)
    return [f for f in files if (held := _format_of(f)) and (format == "auto" or held == wanted)]


def _format_of(file: Path) -> str | None:
    suffix = file.suffix.lower()
    suffix = Path(file.stem).suffix.lower() if suffix == ".gz" else suffix
    return {**SUFFIXES, ".parquet": "parquet"}.get(suffix)


def _visible(folder: Path) -> list[Path]:
    every = list(folder.rglob("*"))
    broken = [path for path in every if path.is_symlink() and not path.exists()]
    names = [path.relative_to(folder) for path in every if path.is_file() or path in broken]
    shown = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    return [folder / name for name in sorted(shown)]


def _not_text(name: str, lines: list[Line]) -> Problem | None:
    if any("\ud800" <= c <= "\udfff" for c in name):
        return Problem(ascii(name), "the file's name is not valid UTF-8")
    wrong = next((line for line in lines if line.problem), None)
    return replace(unreadable(wrong), where=f"{name}, line {wrong.number}") if wrong else None


def _not_one_prompt(name: str, data: bytes, options: ReadOptions) -> Problem | None:
    if options.format == "dir":
        return None
    try:
        format, _ = open_text([data], name, options)
    except PromptError as error:
        return Problem(name, str(error).partition(": ")[2], error.hint)
    if format != "txt":
        return Problem(name, f"is {format}, not a single prompt", _WHOLE)
    many = sum(not is_blank(line.text) for line in split_lines([data]))
    if many > _MOST_LINES:
        return Problem(name, f"{many} lines: a list of prompts, not one", f"{_BY_LINE}, {_WHOLE}")
    return None
