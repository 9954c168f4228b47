"""From a file, a pipe or a folder to its readers: unpack gzip, refuse other binary files.

In a folder each .txt file is one prompt (DPG-Bench), or each .jsonl, .csv holds many.
"""

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
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
from sjdvp.runs.prompts.objects import read_coco, read_geneval, read_json, read_jsonl, read_yaml
from sjdvp.runs.prompts.sniff import SUFFIXES, Ahead, Refused, sniff
from sjdvp.runs.prompts.tables import read_csv, read_parquet, read_tsv
from sjdvp.runs.prompts.text import Line, read_txt, split_lines, unreadable
from sjdvp.text import printable

Chunks = Iterator[bytes]

READERS: dict[str, Callable[[Iterable[Line], ReadOptions], Iterator[Found]]] = {
    "txt": read_txt,
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "json": read_json,
    "coco": read_coco,
    "geneval": read_geneval,
    "yaml": read_yaml,
}
_GZIP = b"\x1f\x8b"
_TAR_AT, _TAR = 257, b"ustar"
_OFFICE = (b"[Content_Types].xml", b"_rels/", b"mimetype")  # the first file in .xlsx, .docx, .ods
_NAME_AT = 30  # where a zip archive has the name of its first file
_PICKLE = ("a Python pickle", "which is not opened: it could run anything")
_BINARY = {  # how a file begins: what it is, and what to do
    b"PAR1": ("Parquet", ""),
    b"PK\x03\x04": (
        "a zip archive",
        "unzip FILE -d DIR, or unzip -p FILE | sjdvp ... --prompts -",
    ),
    b"PK\x05\x06": ("an empty zip archive", ""),
    b"BZh91AY&SY": ("bzip2", "bzcat FILE | sjdvp ... --prompts -"),
    b"\xfd7zXZ\0": ("xz", "xzcat FILE | sjdvp ... --prompts -"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat FILE | sjdvp ... --prompts -"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "7z x FILE"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an old Excel or Word file", "save it as CSV UTF-8"),
    b"\x89PNG\r\n": ("a PNG image", ""),
    b"\xff\xd8\xff": ("a JPEG image", ""),
    b"%PDF-": ("a PDF file", ""),
    b"ARROW1\0\0": ("an Arrow file", "with datasets: to_json('prompts.jsonl')"),
    b"\xff\xff\xff\xff": ("an Arrow stream", "with datasets: to_json('prompts.jsonl')"),
    b"SQLite format 3\0": (
        "an SQLite database",
        "sqlite3 -csv -header FILE",
    ),
    b"\x89HDF\r\n": ("an HDF5 file", ""),
    b"\x93NUMPY": ("a NumPy array", ""),
    b"GIF89a": ("a GIF image", ""),
    b"Rar!\x1a": ("a RAR archive", "unrar x FILE"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4cat FILE | sjdvp ... --prompts -"),
    _GZIP: ("gzip within gzip", "zcat FILE | zcat | sjdvp ... --prompts -"),
    b"Obj\x01": ("an Avro file", ""),
    b"\x7fELF": ("a program", ""),
    **{b"\x80" + bytes([protocol]): _PICKLE for protocol in range(2, 6)},
}
_TEXT = "give a text file, a prompt in each line, or a table"

_CAPTIONS = (".txt", ".caption")
_ABOUT = ("readme", "license", "licence")  # texts beside prompts
_FAMILY = {"geneval": "jsonl", "coco": "json"}  # formats without a suffix of their own
_MOST_LINES = 20  # of one prompt; a file with more is a list of them
_BY_LINE = "--format txt reads a prompt from each line"
_WHOLE = "--format dir takes each file as one prompt"


def open_text(
    chunks: Iterable[bytes], name: str, options: ReadOptions
) -> tuple[str, Iterator[Found]]:
    """Return the name of the reader and what it finds; reads no further than it must.

    Raises PromptError for what is not a prompt file: binary files, web pages, and the like.
    """
    chunks, packed = unpack(chunks, printable(name))
    format = options.format
    if format == "auto":
        chunks, what, advice = recognise(chunks)
        if what and what != "Parquet":
            raise PromptError(f"{printable(name)}: {what}, not a prompt file", advice or _TEXT)
        format = "parquet" if what else "auto"
    if format == "parquet":
        return format, read_parquet(chunks, options)
    lines = Ahead(split_lines(chunks))
    found = sniff(lines, _suffix(name, packed=packed), options) if format == "auto" else format
    if isinstance(found, Refused):
        raise PromptError(f"{printable(name)}: {found.what}", found.advice)
    return found, READERS[found](lines, options)


def _suffix(name: str, *, packed: bool) -> str:
    path = Path(name.lower())
    return Path(path.stem).suffix if packed and path.suffix in (".gz", ".gzip") else path.suffix


def unpack(chunks: Iterable[bytes], name: str) -> tuple[Chunks, bool]:
    """Return the bytes with gzip undone, and whether there was gzip. Works as they come in.

    What is damaged raises PromptError when it is reached, with the `name` of the file.
    """
    head, chunks = _peek(iter(chunks), len(_GZIP))
    return (_gunzip(chunks, name), True) if head.startswith(_GZIP) else (chunks, False)


def recognise(chunks: Iterable[bytes]) -> tuple[Chunks, str, str]:
    """Return all the bytes, what kind of binary file they are ("": none of these), and advice.

    Reads on only while what has come could still be the beginning of one of them.
    """
    head, chunks = _peek(iter(chunks), 0)
    while any(magic.startswith(head) and magic != head for magic in _BINARY):
        longer, chunks = _peek(chunks, len(head) + 1)
        if len(longer) == len(head):
            break
        head = longer
    if head[_TAR_AT:].startswith(_TAR) and b"\0" in head[:_TAR_AT]:  # not "... in mustard"
        return chunks, "a tar archive", "tar xf FILE, then give the folder"
    if head.startswith(b"PK\x03\x04") and head[_NAME_AT:].startswith(_OFFICE):
        return chunks, "an Excel or other office file", "save the sheet as CSV UTF-8"
    what, advice = next((v for magic, v in _BINARY.items() if head.startswith(magic)), ("", ""))
    return chunks, what, advice


def _peek(chunks: Chunks, size: int) -> tuple[bytes, Chunks]:
    """Return what has come until there are `size` bytes or more (0: a chunk), and all of it."""
    head = b""
    while len(head) < max(size, 1) and (chunk := next(chunks, b"")):
        head += chunk
    return head, itertools.chain([head] if head else [], chunks)


def _gunzip(chunks: Chunks, name: str) -> Chunks:
    """Undo gzip, also of several files one after another; raises PromptError."""
    decoder = zlib.decompressobj(wbits=31)
    for chunk in chunks:
        rest = chunk
        while rest:
            if decoder.eof:
                if not rest.strip(b"\0"):  # tapes pad with zeros
                    break
                decoder = zlib.decompressobj(wbits=31)
            try:
                yield decoder.decompress(rest)
            except zlib.error as error:
                advice = "get the file again"
                raise PromptError(f"{name}: damaged gzip file: {error}", advice) from error
            rest = decoder.unused_data
    if not decoder.eof:
        raise PromptError(f"{name}: the end of the gzip file is missing", "get the file again")


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
