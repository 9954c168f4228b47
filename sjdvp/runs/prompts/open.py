"""From the bytes of one file or pipe to its reader: unpack gzip, refuse other binary files."""

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sjdvp.errors import PromptError
from sjdvp.runs.prompts.model import Found, ReadOptions
from sjdvp.runs.prompts.objects import read_coco, read_geneval, read_json, read_jsonl, read_yaml
from sjdvp.runs.prompts.sniff import Ahead, Refused, sniff
from sjdvp.runs.prompts.tables import read_csv, read_parquet, read_tsv
from sjdvp.runs.prompts.text import Line, read_txt, split_lines
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
