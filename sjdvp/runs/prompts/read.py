"""From a prompt file to a PromptSet: which reader, and the checks that hold for every format."""

import hashlib
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from sjdvp.errors import PromptError
from sjdvp.runs.prompts.folder import load_folder, read_folder
from sjdvp.runs.prompts.found import Blank, Found, Problem, Row
from sjdvp.runs.prompts.lines import Line, split_lines
from sjdvp.runs.prompts.model import Prompt, PromptSet
from sjdvp.runs.prompts.records import (
    GENEVAL_KEYS,
    parse_json,
    read_coco,
    read_geneval,
    read_json,
    read_jsonl,
)
from sjdvp.runs.prompts.tables import read_csv, read_tsv, read_txt
from sjdvp.text import printable

_READERS: dict[str, Callable[[Iterable[Line], str | None], Iterator[Found]]] = {
    "txt": read_txt,
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "json": read_json,
    "coco": read_coco,
    "geneval": read_geneval,
}
_SUFFIXES = {".txt": "txt", ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}
_CHUNK = 1 << 16
_MOST_PROBLEMS = 20  # told of one file

FORMATS = ("auto", *_READERS, "dir")


def read_prompts(path: Path, format: str = "auto", column: str | None = None) -> PromptSet:
    """Read a whole prompt file or folder.

    `column` names the column or key that holds the prompt (default: prompt, prompts, caption or text, in any case).
    Raises PromptError that lists the problems with their lines, the first 20 of very many.
    """
    _check_format(format, path.name)
    try:
        if path.is_dir():
            return _read_dir(path, format, column)
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with NUL in it
        raise PromptError(f"cannot read the prompts in {printable(str(path))}: {_reason(error)}") from error
    if format == "dir":
        raise PromptError(f"{printable(path.name)} is no folder", "give a folder of .txt files, or another --format")
    return _read_data(data, format, column, path.name)


def inline_prompts(texts: Sequence[str]) -> PromptSet:
    """Take prompts given on the command line; raises PromptError for an empty one or one that is not valid text."""
    return _collect(map(_inline, itertools.count(1), texts), "inline", "--prompt", "\0".join(texts).encode(errors="replace"))


def read_stream(stream: BinaryIO, format: str = "auto", column: str | None = None) -> PromptSet:
    """Read a pipe to its end, as `read_prompts` reads a file."""
    _check_streamed(format)
    return _read_data(b"".join(_chunks(stream)), format, column, "stdin")


def stream_prompts(stream: BinaryIO, format: str = "auto", column: str | None = None) -> Iterator[Prompt]:
    """Yield prompts from a pipe as their lines come in; raises PromptError at the first problem, and when there is no prompt."""
    _check_streamed(format)
    lines = split_lines(_chunks(stream))
    if format == "auto":
        head = _until_text(lines)
        lines, format = itertools.chain(head, lines), _guess(head, "")
    empty = True
    for item in _number(_READERS[format](lines, column)):
        if isinstance(item, Problem):
            raise _error("stdin", [item])
        if isinstance(item, Prompt):
            empty = False
            yield item
    if empty:
        raise PromptError("stdin: no prompt in it")


def _read_data(data: bytes, format: str, column: str | None, source: str) -> PromptSet:
    lines = list(split_lines([data]))
    format = _guess(_until_text(lines), Path(source).suffix) if format == "auto" else format
    return _collect(_READERS[format](lines, column), format, source, data)


def _read_dir(path: Path, format: str, column: str | None) -> PromptSet:
    if format not in ("auto", "dir") or column is not None:
        raise PromptError(f"{printable(path.name)} is a folder, which has no format or column", "leave --format and --column out")
    files = load_folder(path)
    names_and_bytes = b"".join(b"%r %d\n%b" % (file.name, len(data), data) for file, data in files)
    return _collect(read_folder(files), "dir", path.name, names_and_bytes)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    try:
        # Past the stream's own buffer: a thread that waits inside of it would keep the interpreter from ending.
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        yield stream.read()
        return
    try:
        yield from iter(lambda: os.read(descriptor, _CHUNK), b"")
    except OSError as error:
        raise PromptError(f"cannot read the prompts from stdin: {_reason(error)}") from error


def _inline(number: int, text: str) -> Found:
    if not text.strip():
        return Problem(f"--prompt {number}", "an empty prompt")
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        return Problem(f"--prompt {number}", "not valid UTF-8 text")
    return Row(f"--prompt {number}", text)


def _until_text(lines: Iterable[Line]) -> list[Line]:
    head = []
    for line in lines:
        head.append(line)
        if line.text.strip():
            break
    return head


def _guess(head: Sequence[Line], suffix: str) -> str:
    text = head[-1].text.strip() if head else ""
    record, _ = parse_json(text) if text.startswith("{") else (None, "")
    format = _SUFFIXES.get(suffix.lower()) or ("jsonl" if isinstance(record, dict) else "txt")
    if format == "json" and text.startswith("{"):
        return "coco"
    if format == "jsonl" and isinstance(record, dict) and all(key in record for key in GENEVAL_KEYS):
        return "geneval"
    return format


def _collect(found: Iterable[Found], format: str, source: str, data: bytes) -> PromptSet:
    items = list(_number(found))
    problems = [item for item in items if isinstance(item, Problem)]
    if problems:
        raise _error(source, problems)
    prompts = tuple(item for item in items if isinstance(item, Prompt))
    if not prompts:
        raise PromptError(f"{printable(source)}: no prompt in it")
    return PromptSet(
        prompts=prompts,
        format=format,
        source=source,
        digest=hashlib.sha256(data).hexdigest(),
        skipped=len(items) - len(prompts),
        duplicates=len(prompts) - len({prompt.text for prompt in prompts}),
    )


def _number(found: Iterable[Found]) -> Iterator[Prompt | Blank | Problem]:
    index = 0
    places: dict[str, str] = {}
    for item in found:
        if not isinstance(item, Row):
            yield item
        elif item.id in places:
            yield Problem(item.where, f"the id {item.id!r} stands already on {places[item.id]}")
        else:
            if item.id is not None:
                places[item.id] = item.where
            yield Prompt(index, item.text, item.id, item.extra)
            index += 1


def _error(source: str, problems: Sequence[Problem]) -> PromptError:
    lines = [printable(f"{problem.where}: {problem.message}") for problem in problems[:_MOST_PROBLEMS]]
    if len(problems) == 1:
        return PromptError(f"{printable(source)}: {lines[0]}")
    more = len(problems) - len(lines)
    lines += [f"and {more} more"] if more else []
    return PromptError("\n  ".join([f"{printable(source)}: {len(problems)} problems", *lines]))


def _check_format(format: str, source: str) -> None:
    if format not in FORMATS:
        raise PromptError(f"{printable(source)}: unknown format {format!r}", f"known formats: {', '.join(FORMATS)}")


def _check_streamed(format: str) -> None:
    _check_format(format, "stdin")
    if format == "dir":
        raise PromptError("stdin is no folder", "give lines: --format txt, tsv, csv, jsonl or geneval")


def _reason(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
