"""From prompt files to a PromptSet: which reader, and the checks that hold for every format."""

import hashlib
import io
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from sjdvp.errors import PromptError
from sjdvp.runs.prompts.asked import IGNORE, read_asked
from sjdvp.runs.prompts.columns import Template
from sjdvp.runs.prompts.model import (
    Blank,
    Empty,
    Found,
    LeftOut,
    Problem,
    Prompt,
    PromptSet,
    ReadOptions,
    Row,
    Shape,
    is_blank,
    skipped_remarks,
)
from sjdvp.runs.prompts.open import Part, open_folder, open_text
from sjdvp.text import printable, shortened

_CHUNK = 1 << 16
_PATH = 300  # characters of a path in a message
_MOST_PROBLEMS = 20  # told of one file


def read_prompts(paths: Path | Sequence[Path], options: ReadOptions | None = None) -> PromptSet:
    """Read whole prompt files or folders, one after another.

    Raises PromptError that lists the problems with their lines, the first 20 of very many.
    """
    every = [paths] if isinstance(paths, Path) else paths
    options = options or ReadOptions()
    parts = [part for path in every for part in _parts(path, options)]
    return _collect(parts, options, ", ".join(path.name for path in every))


def inline_prompts(texts: Sequence[str], options: ReadOptions | None = None) -> PromptSet:
    """Take prompts given on the command line.

    Raises PromptError for an empty one or one that is not valid text.
    """
    data = "\0".join(texts).encode(errors="replace")
    part = Part("--prompt", data, "inline", map(_inline, itertools.count(1), texts))
    return _collect([part], options or ReadOptions(), "--prompt")


def read_stream(stream: BinaryIO, options: ReadOptions | None = None) -> PromptSet:
    """Read a pipe to its end, as `read_prompts` reads a file."""
    options = options or ReadOptions()
    _check_streamed(options.format)
    data = b"".join(_chunks(stream))
    return _collect([Part("stdin", data, *open_text([data], "stdin", options))], options, "stdin")


def stream_prompts(
    stream: BinaryIO,
    options: ReadOptions | None = None,
    tell: Callable[[str, str], None] = lambda level, message: None,
) -> Iterator[Prompt]:
    """Yield prompts from a pipe as their lines come in; `tell` gets Notes about what is left out.

    Raises PromptError at the first problem, and when there is no prompt.
    """
    options = options or ReadOptions()
    _check_streamed(options.format)
    _, found = open_text(_chunks(stream), "stdin", options)
    found_kinds: Counter[type] = Counter()
    for item in _Numbering(options).number(found):
        found_kinds[type(item)] += 1
        if isinstance(item, Problem):
            raise _error("stdin", [item])
        if isinstance(item, LeftOut):
            tell("warning", item.message)
        if isinstance(item, Prompt):
            yield item
    for remark in skipped_remarks(found_kinds[Blank], found_kinds[Empty]):
        tell("info", remark)
    if not found_kinds[Prompt]:
        raise PromptError("stdin: no prompt in it")


def _parts(path: Path, options: ReadOptions) -> Iterator[Part]:
    try:
        if path.is_dir():
            yield from open_folder(path, options)
            return
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with NUL in it
        shown = printable(shortened(str(path), _PATH))
        raise PromptError(
            f"cannot read the prompts in {shown}: {_reason(error)}",
            "give a file or a folder that you may read, or - for stdin",
        ) from error
    if options.format == "dir":
        advice = "give a folder of .txt files, or another --format"
        raise PromptError(f"{printable(path.name)} is not a folder", advice)
    yield Part(path.name, data, *open_text([data], path.name, options))


def _collect(parts: Sequence[Part], options: ReadOptions, source: str) -> PromptSet:
    items: list[Found | Prompt] = []
    formats: list[str] = []
    places = _Numbering(options)
    for part in parts:
        found = [_placed(part, item) for item in part.found] if len(parts) > 1 else [*part.found]
        formats += [item.name for item in found if isinstance(item, Shape)] or [part.format]
        items += places.number(found)
    problems = [item for item in items if isinstance(item, Problem)]
    if problems:
        raise _error(source, problems)
    prompts = tuple(item for item in items if isinstance(item, Prompt))
    notes = tuple(item.message for item in items if isinstance(item, LeftOut))
    notes += tuple(filter(None, [_misread(prompts)]))
    if not prompts:
        advice = "; ".join(notes) or "it is empty, or what it holds is"
        raise PromptError(f"{printable(source)}: no prompt in it", advice)
    return PromptSet(
        prompts=prompts,
        format=", ".join(dict.fromkeys(formats)),
        source=source,
        digest=_digest([part.data for part in parts]),
        skipped=sum(isinstance(item, Blank) for item in items),
        duplicates=len(prompts) - len({prompt.text for prompt in prompts}),
        empty=sum(isinstance(item, Empty) for item in items),
        notes=notes,
    )


class _Numbering:
    """Turns what readers find into numbered prompts, over all the files of a run."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._template = Template(options.template) if options.template else None
        self._index = 0
        self._places: dict[str, str] = {}

    def number(self, found: Iterable[Found]) -> Iterator[Found | Prompt]:
        """Yield a Prompt for each Row, and the other items as they are or as a Problem."""
        for item in found:
            filled = self._template.fill(item) if self._template and isinstance(item, Row) else item
            if isinstance(filled, Row):
                yield self._prompt(filled)
            elif isinstance(filled, Empty) and not self._options.skip_empty:
                advice = "--skip-empty leaves such rows out"
                yield Problem(filled.where, filled.message, advice)
            else:
                yield filled

    def _prompt(self, row: Row) -> Prompt | Problem:
        if row.id in self._places:
            message = f"the id {row.id!r} is already on {self._places[row.id]}"
            return Problem(row.where, message, "--no-ids keeps it as a plain column")
        if row.id is not None:
            self._places[row.id] = row.where
        try:
            asked = {} if self._options.ignore_columns else read_asked(row.extra)
        except ValueError as error:
            return Problem(row.where, str(error), IGNORE)
        self._index += 1
        return Prompt(self._index - 1, row.text, row.id, row.extra, asked)


def _misread(prompts: Iterable[Prompt]) -> str:
    """Return a warning when a text is UTF-8 that was once read in another encoding, else ""."""
    for prompt in prompts:
        for encoding in ("cp1252", "latin-1"):
            try:
                right = prompt.text.encode(encoding).decode("utf-8")
            except UnicodeError:
                continue
            if right != prompt.text:
                shown = printable(shortened(prompt.text))
                return f"row {prompt.index} was once read in a wrong encoding: {shown}"
    return ""


def _placed(part: Part, item: Found) -> Found:
    """Let a row or problem of one of several files name its file."""
    if isinstance(item, Row | Empty | Problem):
        return replace(item, where=f"{printable(part.name)}, {item.where}")
    return item


def _digest(data: Sequence[bytes]) -> str:
    digests = [hashlib.sha256(one) for one in data]
    if len(digests) == 1:
        return digests[0].hexdigest()
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def _inline(number: int, text: str) -> Found:
    if is_blank(text):
        return Problem(f"--prompt {number}", "an empty prompt")
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        return Problem(f"--prompt {number}", "not valid UTF-8 text")
    return Row(f"--prompt {number}", text)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    try:
        # Past the stream's own buffer: a thread that waits inside of it would keep the interpreter
        # from ending.
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        yield stream.read()
        return
    try:
        yield from iter(lambda: os.read(descriptor, _CHUNK), b"")
    except OSError as error:
        raise PromptError(f"cannot read the prompts from stdin: {_reason(error)}") from error


def _error(source: str, problems: Sequence[Problem]) -> PromptError:
    shown = problems[:_MOST_PROBLEMS]
    lines = [printable(f"{problem.where}: {problem.message}") for problem in shown]
    advice = next((problem.advice for problem in problems if problem.advice), "")
    if len(problems) == 1:
        return PromptError(f"{printable(source)}: {lines[0]}", advice)
    more = len(problems) - len(lines)
    lines += [f"and {more} more"] if more else []
    head = f"{printable(source)}: {len(problems)} problems"
    return PromptError("\n  ".join([head, *lines]), advice)


def _check_streamed(format: str) -> None:
    if format == "dir":
        raise PromptError("stdin is not a folder", "give lines: --format txt, tsv, csv or jsonl")


def _reason(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
